"""Writes records/theory/README.md: tests of the paper's theorems (half a minute)."""

from pathlib import Path

import numpy as np

from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.theory import (
    Problem,
    convergence,
    rate,
    resting_slope,
    separation,
    slope_quality,
    valley,
)

HERE = Path(__file__).parent
CURVATURES = tuple(np.geomspace(0.1, 2, 20).tolist())
METHODS = {
    "SAM": {},
    "VaSSO 0.4": {"theta": 0.4},
    "VaSSO 0.2": {"theta": 0.2},
    "random on the sphere": {"adversary": "random"},
    "no adversary (SGD)": {"adversary": "none"},
}
STEPS = (100, 400, 1600, 6400)
RUNS = 50


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(x: Estimate) -> str:
    """Mean and half of the interval."""
    return f"{x.value:.4f} ± {(x.high - x.low) / 2:.4f}"


def starts() -> np.ndarray:
    """All runs from one point."""
    return np.full((RUNS, len(CURVATURES)), 0.5)


def theorem_1(shape: str) -> str:
    """Mean squared gradients over bounds."""
    problem, lines = Problem(CURVATURES, shape=shape), []
    for name, settings in METHODS.items():
        rows = [convergence(problem, starts(), T, eta0=1, rho0=1, **settings) for T in STEPS]
        cells = [f"{spread(row.gradient)} ({row.gradient_bound:.3f})" for row in rows]
        last = f"{spread(rows[-1].perturbed)} ({rows[-1].perturbed_bound:.3f})"
        lines.append([name, *cells, last, f"{rate(rows):.3f}"])
    head = [shape, *(f"T = {T}" for T in STEPS), "at x + epsilon, last T", "power of T"]
    return table(head, lines)


def theorems_2_and_3() -> str:
    """The slope's error and stability."""
    problem, lines = Problem(CURVATURES), []
    for theta in (1.0, 0.9, 0.4, 0.2, 0.05):
        held = slope_quality(problem, starts(), 400, eta0=0, rho0=1, theta=theta)
        lines.append([
            f"{theta:g}",
            "x held",
            str(held.mse),
            f"{held.stationary:.4g}",
            "-",
            "-",
            "-",
        ])
        for T in STEPS:
            result = slope_quality(problem, starts(), T, eta0=1, rho0=1, theta=theta)
            shares = result.stability.times(1 / result.leading_stability)
            theory = [f"{result.stationary:.4g}", f"{result.leading:.4g}", f"{result.bound:.3g}"]
            lines.append([f"{theta:g}", str(T), str(result.mse), *theory, str(shares)])
    exact, leading, bound = "theta/(2-theta)", "theta", "bound of the proof"
    head = [
        "theta",
        "T",
        "E‖d-f'‖² / sigma²",
        exact,
        leading,
        bound,
        "delta / (sqrt(theta) rho sigma)",
    ]
    return table(head, lines)


def valleys(**settings: float) -> str:
    """The slope in a sharp and in a flat valley."""
    lines = []
    for theta in (1.0, 0.4, 0.2, 0.05):
        sharp = valley(10.0, theta=theta, **settings)
        flat = valley(0.1, theta=theta, seed=1, **settings)
        area = separation(sharp.lengths, flat.lengths)
        lengths, cosines = (
            [str(sharp.length), str(flat.length)],
            [str(sharp.cosine), str(flat.cosine)],
        )
        closed = "-"
        if not settings:
            roots = [resting_slope(curvature, 0.05, theta) ** 0.5 for curvature in (10.0, 0.1)]
            closed = " / ".join(f"{root:.3f}" for root in roots)
        lines.append([f"{theta:g}", *lengths, closed, f"{area:.2f}", *cosines])
    head = [
        "theta",
        "‖v‖ sharp",
        "‖v‖ flat",
        "closed form",
        "P(sharp > flat)",
        "cos sharp",
        "cos flat",
    ]
    return table(head, lines)


def page() -> str:
    """page.md, filled with what was measured."""
    text = (HERE / "page.md").read_text()
    parts = {
        "bowl": theorem_1("bowl"),
        "waves": theorem_1("waves"),
        "slope": theorems_2_and_3(),
        "rest": valleys(),
        "climb": valleys(rho=0.05),
        "held": valleys(eta=0.0, distance=0.03),
    }
    for name, rows in parts.items():
        text = text.replace(f"<!-- {name} -->", rows)
    return text


def main() -> None:
    """Writes the page."""
    (HERE / "README.md").write_text(page())


if __name__ == "__main__":
    main()
