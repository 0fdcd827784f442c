"""What the paper proves or argues, tried where everything is known: no network, seconds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from vasso.diagnostics.adversary.sphere import cloud
from vasso.diagnostics.theory import (
    Problem,
    convergence,
    m_sharpness,
    rate,
    separation,
    slope_quality,
    valley,
)

CURVATURES = tuple(np.geomspace(0.1, 2, 20).tolist())
RUNS, STEPS = 50, (100, 400, 1600)
THETAS = (0.9, 0.4, 0.2)
SETTING = "noisy bowls of 20 dimensions"
HOLDS = {True: "confirmed", False: "contradicted"}


@dataclass(frozen=True)
class Judged:
    """A claim, what it was tried on, what was measured beside what the paper says, the verdict."""

    place: str
    says: str
    tested: str
    measured: str
    paper: str
    verdict: str
    record: str = "theory"


def theorems() -> Iterator[Judged]:
    """Theorems 1 to 3, the corollary, and three arguments of the text."""
    yield _convergence("Theorem 1", "SAM's mean squared gradient falls as 1 / √T", (1.0,))
    yield _convergence("Corollary 1", "VaSSO's does too, for any θ", THETAS)
    yield from _slopes()
    yield from _valleys()
    yield _spread()
    yield _ill_posed()


def _starts() -> np.ndarray:
    return np.full((RUNS, len(CURVATURES)), 0.5)


def _convergence(place: str, says: str, thetas: Sequence[float]) -> Judged:
    problem = Problem(CURVATURES)
    found = [
        [convergence(problem, _starts(), T, eta0=1, rho0=1, theta=theta) for T in STEPS]
        for theta in thetas
    ]
    bounded = all(
        row.gradient.high <= row.gradient_bound and row.perturbed.high <= row.perturbed_bound
        for some in found
        for row in some
    )
    powers = [rate(some) for some in found]
    shown = ", ".join(f"{power:.2f}" for power in powers)
    holds = bounded and all(abs(power + 0.5) < 0.05 for power in powers)
    measured = f"below the bound of the proof: {'yes' if bounded else 'no'}; power of T {shown}"
    return Judged(place, says, SETTING, measured, "power −0.5", HOLDS[holds])


def _slopes() -> Iterator[Judged]:
    """At T = 1600: mean squared error over sigma^2, and stability over sqrt(theta) rho sigma."""
    problem = Problem(CURVATURES)
    found = [
        slope_quality(problem, _starts(), STEPS[-1], eta0=1, rho0=1, theta=theta)
        for theta in THETAS
    ]
    errors = ", ".join(f"{x.mse.value:.2f}" for x in found)
    shares = ", ".join(f"{x.stability.value / x.leading_stability:.2f}" for x in found)
    tested = f"{SETTING}, θ {', '.join(map(str, THETAS))}, T = {STEPS[-1]}"
    yield Judged(
        *("Theorem 2", "the error of VaSSO's slope is below θσ² and a rest that vanishes", tested),
        *(f"error / σ² {errors}", "at most θ + O(1 / √T)"),
        HOLDS[all(x.mse.high <= x.bound for x in found)],
    )
    yield Judged(
        *("Theorem 3", "VaSSO's adversary is √θ times as far from stable as SAM's", tested),
        *(f"δ / (√θ ρσ) {shares}", "at most 1 + O(T^-1/4)"),
        HOLDS[all(x.stability.high <= x.leading_stability for x in found)],
    )


def _valleys() -> Iterator[Judged]:
    says = "around an optimum ‖d‖ is larger where it is sharper"
    for tested, settings in (
        ("held still near it", {"eta": 0.0, "distance": 0.03}),
        ("at rest, where steps of SGD end", {}),
        ("at rest, with a climb of 0.05", {"rho": 0.05}),
    ):
        areas = [
            separation(
                valley(10.0, theta=theta, **settings).lengths,
                valley(0.1, theta=theta, seed=1, **settings).lengths,
            )
            for theta in (0.4, 0.2)
        ]
        shown = ", ".join(f"{area:.2f}" for area in areas)
        verdict = HOLDS[min(areas) > 0.5] if min(areas) > 0.5 or max(areas) < 0.5 else "undecided"
        yield Judged(
            *("Section 4.2", says, f"two bowls, curvature 10 and 0.1; {tested}, θ 0.4, 0.2"),
            *(f"P(longer in the sharp one) {shown}", "above 0.5", verdict),
        )


def _spread() -> Judged:
    """Friends: adversaries along which the true loss falls; half of them if the spread is even."""
    found = {snr: cloud(snr, adversaries=1000) for snr in (5, 1, 0.1, 0.01)}
    ends = [found[snr].resultant() for snr in (5, 1, 0.1, 0.01)]
    falls = all(a.low > b.high for a, b in pairwise(ends))
    shown = ", ".join(f"{x.value:.2f}" for x in ends)
    return Judged(
        *("Figure 2a to 2d", "the smaller the signal, the more evenly SAM's adversaries spread"),
        *("a gradient of three numbers, SNR 5, 1, 0.1, 0.01", f"resultant length {shown}"),
        *("0 if even, no numbers", HOLDS[falls], "images"),
    )


def _ill_posed() -> Judged:
    """With {1, 2}, {3, 4} the objective is 0 everywhere; with {1, 3}, {2, 4} it is not."""
    places = [Fraction(i, 8) for i in range(-8, 9)]
    rho = Fraction(1, 10)
    flat = {m_sharpness(w, rho, [(1, 2), (3, 4)]) for w in places}
    other = {m_sharpness(w, rho, [(1, 3), (2, 4)]) for w in places}
    holds = len(flat) == 1 and len(other) > 1
    measured = f"constant for one cut: {'yes' if len(flat) == 1 else 'no'}; for another: "
    return Judged(
        *("Appendix B", "m-sharpness can be ill-posed: it depends on how the data are cut"),
        *("the appendix's four samples, exact fractions",),
        *(measured + ("no" if len(other) > 1 else "yes"), "constant, not constant"),
        HOLDS[holds],
    )
