"""Tests of the paper's theorems on problems with known L, sigma and optimum.

f(x) = sum_i lambda_i phi(x_i) with phi(x) = x^2 / 2 (a bowl) or 1 - cos x (waves, not convex), and
g_t(x) = f'(x) + zeta_t with Gaussian zeta_t, E ||zeta_t||^2 = sigma^2. Then g is L-Lipschitz with
L = max lambda, unbiased, and its variance is sigma^2 everywhere: Assumptions 1 to 3 hold exactly.
Arrays hold many independent runs, one per row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np

from vasso import validation
from vasso.diagnostics.estimates import Array, Estimate, mean_of

Adversary: TypeAlias = Literal["slope", "random", "none"]


@dataclass(frozen=True)
class Problem:
    """A loss with known constants of the theorems; its minimum is 0, at x = 0.

    Attributes:
        curvatures: lambda_i, one for each coordinate, positive.
        sigma: root of the variance of the stochastic gradient.
        shape: "bowl" or "waves".

    Example:
        >>> Problem((1.0, 3.0), sigma=0.5).L
        3.0
    """

    curvatures: tuple[float, ...]
    sigma: float = 1.0
    shape: Literal["bowl", "waves"] = "bowl"

    def __post_init__(self) -> None:
        validation.one_of("shape", self.shape, "bowl", "waves")
        if not self.curvatures or min(self.curvatures) <= 0:
            raise ValueError(f"curvatures must all be above 0, got {self.curvatures}")

    @property
    def L(self) -> float:  # noqa: N802
        """The Lipschitz constant of the gradient."""
        return max(self.curvatures)

    def loss(self, x: Array) -> Array:
        """f(x) for each row of x."""
        phi = x**2 / 2 if self.shape == "bowl" else 1 - np.cos(x)
        total: Array = phi @ np.array(self.curvatures)
        return total

    def gradient(self, x: Array) -> Array:
        """The full gradient at each row of x."""
        slope = x if self.shape == "bowl" else np.sin(x)
        full: Array = slope * np.array(self.curvatures)
        return full

    def noise(self, generator: np.random.Generator, like: Array) -> Array:
        """Gaussian zeta in the shape of `like` with E ||zeta||^2 = sigma^2 for each row."""
        return generator.standard_normal(like.shape) * (self.sigma / math.sqrt(like.shape[1]))


@dataclass(frozen=True)
class Trajectories:
    """Measurements of Algorithm 1: a row for each step and a column for each run.

    Attributes:
        gradient: ||f'(x_t)||^2.
        perturbed: ||f'(x_t + epsilon_t)||^2.
        mse: ||v_t - f'(x_t)||^2, v_t the slope.
        gap: | ||v_t|| - ||f'(x_t)|| |, which times rho is the paper's stability.
        length: ||v_t||.
        cosine: of epsilon_t to f'(x_t).
        x: the last iterates, one run per row.
    """

    gradient: Array
    perturbed: Array
    mse: Array
    gap: Array
    length: Array
    cosine: Array
    x: Array


def run(
    problem: Problem,
    x: Array,
    *,
    steps: int,
    eta: float,
    rho: float,
    theta: float = 1.0,
    adversary: Adversary = "slope",
    seed: int = 0,
) -> Trajectories:
    """Algorithm 1 with d_t = (1 - theta) d_{t-1} + theta g_t(x_t), d_0 = g_0; theta = 1 is SAM.

    Each row of `x` starts one run. epsilon is along the "slope", "random" on the sphere, or "none".
    """
    validation.one_of("adversary", adversary, "slope", "random", "none")
    generator = np.random.default_rng(seed)
    measurements: list[tuple[Array, ...]] = []
    d = None
    for _ in range(steps):
        full, zeta = problem.gradient(x), problem.noise(generator, x)
        g = full + zeta
        d = g if d is None else (1 - theta) * d + theta * g
        v = {"slope": d, "none": np.zeros_like(d)}.get(adversary)
        epsilon = rho * _unit(generator.standard_normal(d.shape) if v is None else v)
        perturbed = problem.gradient(x + epsilon)
        measurements.append(_measure(full, perturbed, d, epsilon))
        x = x - eta * (perturbed + zeta)
    gradient, perturbed, mse, gap, length, cosine = map(np.stack, zip(*measurements, strict=True))
    return Trajectories(gradient, perturbed, mse, gap, length, cosine, x)


def _measure(full: Array, perturbed: Array, d: Array, epsilon: Array) -> tuple[Array, ...]:
    length, slope = _norm(d), _norm(full)
    cosine = (_unit(epsilon) * _unit(full)).sum(axis=1)
    errors = ((d - full) ** 2).sum(axis=1), np.abs(length - slope)
    return slope**2, (perturbed**2).sum(axis=1), *errors, length, cosine


def _norm(v: Array) -> Array:
    length: Array = np.sqrt((v**2).sum(axis=1))
    return length


def _unit(v: Array) -> Array:
    return v / np.maximum(_norm(v), 1e-300)[:, None]


@dataclass(frozen=True)
class Convergence:
    """Mean squared gradients over T steps, and their bounds in the proof of Theorem 1.

    Attributes:
        T: number of steps.
        gradient: (1/T) sum ||f'(x_t)||^2.
        perturbed: (1/T) sum ||f'(x_t + epsilon_t)||^2.
        gradient_bound: upper bound of `gradient`, constants included.
        perturbed_bound: upper bound of `perturbed`.
    """

    T: int
    gradient: Estimate
    perturbed: Estimate
    gradient_bound: float
    perturbed_bound: float


def convergence(
    problem: Problem,
    x: Array,
    T: int,
    *,
    eta0: float,
    rho0: float,
    theta: float = 1.0,
    adversary: Adversary = "slope",
    seed: int = 0,
) -> Convergence:
    """Theorem 1 at eta = eta0 / sqrt(T), rho = rho0 / sqrt(T); theta < 1 is VaSSO (the corollary).

    The theorem covers any adversary on the sphere and needs a step size below 2 / (3 L).
    """
    eta, rho, L = eta0 / math.sqrt(T), rho0 / math.sqrt(T), problem.L
    if eta >= 2 / (3 * L):
        raise ValueError(f"eta0 / sqrt(T) must be below 2 / (3 L) = {2 / (3 * L):g}, got {eta:g}")
    settings = {"eta": eta, "rho": rho, "theta": theta}
    measured = run(problem, x, steps=T, **settings, adversary=adversary, seed=seed)
    start = float(problem.loss(x).mean())
    parts = (
        start / (eta * T),
        L * rho**2 / (2 * eta),
        L**3 * eta * rho**2,
        L * eta * problem.sigma**2,
    )
    bound = sum(parts) / (1 - 1.5 * L * eta)
    gradient = mean_of(measured.gradient.mean(axis=0))
    perturbed = mean_of(measured.perturbed.mean(axis=0))
    return Convergence(T, gradient, perturbed, bound, 2 * bound + 2 * L**2 * rho**2)


def rate(rows: Sequence[Convergence]) -> float:
    """The power of T in the mean squared gradient, by least squares on logarithms: about -1/2."""
    T, gradient = [row.T for row in rows], [row.gradient.value for row in rows]
    return float(np.polyfit(np.log(T), np.log(gradient), 1)[0])


@dataclass(frozen=True)
class Slope:
    """The slope's error over the last half of a run, and the statements of the theorems.

    Attributes:
        theta: weight of the newest gradient.
        T: number of steps.
        mse: E ||v_t - f'(x_t)||^2.
        stability: delta = rho E | ||v_t|| - ||f'(x_t)|| |.
        first: the mean squared error at t = 0, where d_0 = g_0.
        bound: the recursion in the proof of Theorem 2, with the measured E ||f'(x_t)||^2.
        leading: theta sigma^2, its leading term.
        stationary: sigma^2 theta / (2 - theta), the exact error for a fixed x.
        leading_stability: sqrt(theta) rho sigma.
    """

    theta: float
    T: int
    mse: Estimate
    stability: Estimate
    first: Estimate
    bound: float
    leading: float
    stationary: float
    leading_stability: float


def slope_quality(
    problem: Problem,
    x: Array,
    T: int,
    *,
    eta0: float,
    rho0: float,
    theta: float,
    seed: int = 0,
) -> Slope:
    """Theorems 2 and 3 at eta = eta0 / sqrt(T), rho = rho0 / sqrt(T); eta0 = 0 keeps x fixed."""
    eta, rho = eta0 / math.sqrt(T), rho0 / math.sqrt(T)
    measured = run(problem, x, steps=T, eta=eta, rho=rho, theta=theta, seed=seed)
    sigma, half = problem.sigma, T // 2
    bounds = _mse_bounds(problem, measured.gradient.mean(axis=1), eta, rho, theta)
    return Slope(
        theta=theta,
        T=T,
        mse=mean_of(measured.mse[half:].mean(axis=0)),
        stability=mean_of(measured.gap[half:].mean(axis=0)).times(rho),
        first=mean_of(measured.mse[0]),
        bound=float(bounds[half:].mean()),
        leading=theta * sigma**2,
        stationary=theta / (2 - theta) * sigma**2,
        leading_stability=math.sqrt(theta) * rho * sigma,
    )


def _mse_bounds(problem: Problem, squared: Array, eta: float, rho: float, theta: float) -> Array:
    """A_t <= (1-theta) A_{t-1} + (1-theta)^2 / theta (eta L)^2 E||g_half||^2 + (theta sigma)^2."""
    L, variance = problem.L, problem.sigma**2
    bounds = [variance]
    for before in squared[:-1]:
        moved = eta**2 * L**2 * (2 * L**2 * rho**2 + 2 * before + 2 * variance)
        drift = (1 - theta) ** 2 / theta * moved
        bounds.append((1 - theta) * bounds[-1] + drift + theta**2 * variance)
    return np.array(bounds)


def resting_slope(curvature: float, eta: float, theta: float) -> float:
    """E ||d||^2 / sigma^2 at rest in a bowl of one curvature, by SGD steps: a closed form.

    At rest x_t is itself made of past noise, and g_t = (1 - B) / (1 - a B) zeta_t with the delay B
    and a = 1 - eta lambda: the steps undo the noise, so the sum of gradients hardly grows. With
    c = 1 - theta, d_t is g_t through theta / (1 - c B). theta = 1 gives 2 / (2 - eta lambda);
    in a flat bowl the ratio is theta / (2 - theta). The form is undefined for a = c.

    Example:
        >>> round(resting_slope(1e-9, 0.1, 0.4), 6)
        0.25
        >>> round(resting_slope(10.0, 0.05, 1.0), 6) == round(2 / 1.5, 6)
        True
    """
    a, c = 1 - eta * curvature, 1 - theta
    if not abs(a) < 1 or a == c:
        raise ValueError(f"1 - eta lambda must be between -1 and 1 and not 1 - theta, got {a:g}")
    fast, slow = (c - 1) / (c - a), (a - 1) / (a - c)
    total = fast**2 / (1 - c**2) + slow**2 / (1 - a**2) + 2 * fast * slow / (1 - a * c)
    return theta**2 * total


@dataclass(frozen=True)
class Valley:
    """The slope near an optimum.

    Attributes:
        length: ||v_t||, mean over steps and runs.
        cosine: of epsilon_t to f'(x_t).
        lengths: ||v_t|| at the last step of each run.
    """

    length: Estimate
    cosine: Estimate
    lengths: Array


def valley(
    curvature: float,
    *,
    dimension: int = 100,
    runs: int = 40,
    steps: int = 400,
    eta: float = 0.05,
    rho: float = 0.0,
    theta: float = 1.0,
    distance: float = 0.0,
    sigma: float = 1.0,
    seed: int = 0,
) -> Valley:
    """The slope in a bowl of one curvature, over the last half of the steps.

    x starts at a distance from the optimum; eta = 0 keeps it there. `sigma` is the root of the
    variance of the gradient.
    """
    start = np.zeros((runs, dimension))
    start[:, 0] = distance
    problem = Problem((curvature,) * dimension, sigma)
    measured = run(
        problem, start, steps=steps, eta=eta, rho=max(rho, 1e-12), theta=theta, seed=seed
    )
    late = slice(steps // 2, None)
    length, cosine = (mean_of(x[late].mean(axis=0)) for x in (measured.length, measured.cosine))
    return Valley(length, cosine.within(-1, 1), measured.length[-1])


def separation(sharp: Array, flat: Array) -> float:
    """P(a length in the sharp valley exceeds one in the flat), the area under the ROC curve.

    1/2 is no separation; 0 and 1 are complete separations.
    """
    difference = sharp[:, None] - flat[None, :]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


SAMPLES: tuple[tuple[int, int], ...] = ((0, 1), (0, -1), (-1, 0), (1, 0))
"""(a_i, b_i) of l_i(w) = a_i w^2 + b_i w."""


def m_sharpness(w: Fraction, rho: Fraction, partition: Sequence[Sequence[int]]) -> Fraction:
    """sum over parts of max over |delta| <= rho of the part's loss at w + delta, exactly.

    The partition lists the samples of each part, counted from 1.
    """
    if sorted(i for part in partition for i in part) != [1, 2, 3, 4]:
        raise ValueError(f"partition must hold each of 1, 2, 3, 4 once, got {partition}")
    return sum((_highest(part, w, rho) for part in partition), Fraction(0))


def _highest(part: Sequence[int], w: Fraction, rho: Fraction) -> Fraction:
    a = sum(SAMPLES[i - 1][0] for i in part)
    b = sum(SAMPLES[i - 1][1] for i in part)
    points = [w - rho, w + rho]
    if a and abs(top := Fraction(-b, 2 * a) - w) <= rho:
        points.append(w + top)
    return max(a * x**2 + b * x for x in points)
