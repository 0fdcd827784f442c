"""Do the paper's theorems hold, and how tightly? Problems with known L, sigma and optimum.

f(x) = sum_i lambda_i phi(x_i) with phi(x) = x^2 / 2 (a bowl) or 1 - cos x (waves, not convex), and
g_t(x) = f'(x) + zeta_t with Gaussian zeta_t, E ||zeta_t||^2 = sigma^2. Then g is L-Lipschitz with
L = max lambda, unbiased, and its variance is sigma^2 everywhere: Assumptions 1 to 3, exactly. Many
independent runs go side by side, one to a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vasso import checks
from vasso.diagnostics.estimates import Estimate, mean_of

Array: TypeAlias = NDArray[np.float64]
Adversary: TypeAlias = Literal["slope", "random", "none"]


@dataclass(frozen=True)
class Problem:
    """A loss of which everything in the theorems is known; its least value is 0, at x = 0.

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
        checks.one_of("shape", self.shape, "bowl", "waves")
        if not self.curvatures or min(self.curvatures) <= 0:
            raise ValueError(f"curvatures must all be above 0, got {self.curvatures}")

    @property
    def L(self) -> float:  # noqa: N802
        """The Lipschitz constant of the gradient."""
        return max(self.curvatures)

    def loss(self, x: Array) -> Array:
        """f(x).

        Args:
            x: one point to a row.

        Returns:
            One number for each row.
        """
        phi = x**2 / 2 if self.shape == "bowl" else 1 - np.cos(x)
        total: Array = phi @ np.array(self.curvatures)
        return total

    def gradient(self, x: Array) -> Array:
        """The full gradient.

        Args:
            x: one point to a row.

        Returns:
            One gradient to a row.
        """
        slope = x if self.shape == "bowl" else np.sin(x)
        full: Array = slope * np.array(self.curvatures)
        return full

    def noise(self, luck: np.random.Generator, like: Array) -> Array:
        """zeta with E ||zeta||^2 = sigma^2.

        Args:
            luck: where it comes from.
            like: as many rows and columns.

        Returns:
            Independent Gaussian numbers.
        """
        return luck.standard_normal(like.shape) * (self.sigma / math.sqrt(like.shape[1]))


@dataclass(frozen=True)
class Run:
    """What Algorithm 1 went through, a row for each step and a column for each run.

    Attributes:
        gradient: ||f'(x_t)||^2.
        perturbed: ||f'(x_t + epsilon_t)||^2.
        mse: ||v_t - f'(x_t)||^2, v_t the slope.
        gap: | ||v_t|| - ||f'(x_t)|| |, which times rho is the paper's stability.
        length: ||v_t||.
        cosine: of epsilon_t to f'(x_t).
        x: where it ended, one run to a row.
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
) -> Run:
    """Algorithm 1 with d_t = (1 - theta) d_{t-1} + theta g_t(x_t), d_0 = g_0; theta = 1 is SAM.

    Args:
        problem: the loss.
        x: where to start, one run to a row.
        steps: T.
        eta: the step size.
        rho: the radius.
        theta: weight of the newest gradient in the slope.
        adversary: epsilon along the "slope", "random" on the sphere, or "none".
        seed: of all noise.

    Returns:
        What was met at each step.
    """
    checks.one_of("adversary", adversary, "slope", "random", "none")
    luck = np.random.default_rng(seed)
    met: list[tuple[Array, ...]] = []
    d = None
    for _ in range(steps):
        full, zeta = problem.gradient(x), problem.noise(luck, x)
        g = full + zeta
        d = g if d is None else (1 - theta) * d + theta * g
        way = {"slope": d, "none": np.zeros_like(d)}.get(adversary)
        epsilon = rho * _unit(luck.standard_normal(d.shape) if way is None else way)
        ahead = problem.gradient(x + epsilon)
        met.append(_seen(full, ahead, d, epsilon))
        x = x - eta * (ahead + zeta)
    gradient, perturbed, mse, gap, length, cosine = map(np.stack, zip(*met, strict=True))
    return Run(gradient, perturbed, mse, gap, length, cosine, x)


def _seen(full: Array, ahead: Array, d: Array, epsilon: Array) -> tuple[Array, ...]:
    length, slope = _norm(d), _norm(full)
    cosine = (_unit(epsilon) * _unit(full)).sum(axis=1)
    errors = ((d - full) ** 2).sum(axis=1), np.abs(length - slope)
    return slope**2, (ahead**2).sum(axis=1), *errors, length, cosine


def _norm(v: Array) -> Array:
    length: Array = np.sqrt((v**2).sum(axis=1))
    return length


def _unit(v: Array) -> Array:
    return v / np.maximum(_norm(v), 1e-300)[:, None]


# -- Theorem 1 and its corollary: convergence -----------------------------------------------------


@dataclass(frozen=True)
class Convergence:
    """Mean squared gradients over T steps, beside the bound of the paper's proof.

    Attributes:
        T: how many steps.
        here: (1/T) sum ||f'(x_t)||^2.
        ahead: (1/T) sum ||f'(x_t + epsilon_t)||^2.
        bound_here: what the proof of Theorem 1 allows for the first, constants included.
        bound_ahead: what it allows for the second.
    """

    T: int
    here: Estimate
    ahead: Estimate
    bound_here: float
    bound_ahead: float

    def row(self) -> dict[str, float]:
        """One line of a table.

        Returns:
            Measured means with intervals, and bounds.
        """
        bounds = {"bound_here": self.bound_here, "bound_ahead": self.bound_ahead}
        return {"T": self.T, **self.here.row("here"), **self.ahead.row("ahead"), **bounds}


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
    """Theorem 1 on trial at eta = eta0 / sqrt(T), rho = rho0 / sqrt(T).

    Args:
        problem: the loss.
        x: where to start, one run to a row.
        T: how many steps.
        eta0: sets the step size.
        rho0: sets the radius.
        theta: 1 is SAM, below it VaSSO (the corollary).
        adversary: any on the sphere is covered by the theorem.
        seed: of all noise.

    Returns:
        Measured means and bounds.

    Raises:
        ValueError: the step size is above the theorem's 2 / (3 L).
    """
    eta, rho, L = eta0 / math.sqrt(T), rho0 / math.sqrt(T), problem.L
    if eta >= 2 / (3 * L):
        raise ValueError(f"eta0 / sqrt(T) must be below 2 / (3 L) = {2 / (3 * L):g}, got {eta:g}")
    found = run(problem, x, steps=T, eta=eta, rho=rho, theta=theta, adversary=adversary, seed=seed)
    start = float(problem.loss(x).mean())
    parts = (
        start / (eta * T),
        L * rho**2 / (2 * eta),
        L**3 * eta * rho**2,
        L * eta * problem.sigma**2,
    )
    bound = sum(parts) / (1 - 1.5 * L * eta)
    here, ahead = mean_of(found.gradient.mean(axis=0)), mean_of(found.perturbed.mean(axis=0))
    return Convergence(T, here, ahead, bound, 2 * bound + 2 * L**2 * rho**2)


def rate(rows: Sequence[Convergence]) -> float:
    """The power of T with which the mean squared gradient falls, by least squares on logarithms.

    Args:
        rows: at different T.

    Returns:
        About -1/2, says the theorem.
    """
    T, here = [row.T for row in rows], [row.here.value for row in rows]
    return float(np.polyfit(np.log(T), np.log(here), 1)[0])


# -- Theorems 2 and 3: the error of the slope, and stability --------------------------------------


@dataclass(frozen=True)
class Slope:
    """The slope's error over the last half of a run, beside what the theorems say of it.

    Attributes:
        theta: weight of the newest gradient.
        T: how many steps.
        mse: E ||v_t - f'(x_t)||^2.
        stability: delta = rho E | ||v_t|| - ||f'(x_t)|| |.
        first: the mean squared error at t = 0, where d_0 = g_0.
        bound: the recursion in the proof of Theorem 2, with the measured E ||f'(x_t)||^2.
        leading: theta sigma^2, its leading term.
        still: sigma^2 theta / (2 - theta), exact and stationary while x does not move.
        leading_stability: sqrt(theta) rho sigma.
    """

    theta: float
    T: int
    mse: Estimate
    stability: Estimate
    first: Estimate
    bound: float
    leading: float
    still: float
    leading_stability: float

    def row(self) -> dict[str, float]:
        """One line of a table.

        Returns:
            Measured means with intervals, and what theory says.
        """
        told = ("theta", "T", "bound", "leading", "still", "leading_stability")
        named = {name: float(getattr(self, name)) for name in told}
        return {**named, **self.mse.row("mse"), **self.stability.row("stability")}


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
    """Theorems 2 and 3 on trial; with eta0 = 0 the weights stand still.

    Args:
        problem: the loss.
        x: where to start, one run to a row.
        T: how many steps.
        eta0: sets the step size eta0 / sqrt(T).
        rho0: sets the radius rho0 / sqrt(T).
        theta: weight of the newest gradient; 1 is SAM.
        seed: of all noise.

    Returns:
        Measured means over the last half of the steps, and what theory says.
    """
    eta, rho = eta0 / math.sqrt(T), rho0 / math.sqrt(T)
    found = run(problem, x, steps=T, eta=eta, rho=rho, theta=theta, seed=seed)
    sigma, half = problem.sigma, T // 2
    bounds = _mse_bounds(problem, found.gradient.mean(axis=1), eta, rho, theta)
    return Slope(
        theta=theta,
        T=T,
        mse=mean_of(found.mse[half:].mean(axis=0)),
        stability=mean_of(found.gap[half:].mean(axis=0)).times(rho),
        first=mean_of(found.mse[0]),
        bound=float(bounds[half:].mean()),
        leading=theta * sigma**2,
        still=theta / (2 - theta) * sigma**2,
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


# -- the remark on optima: does the slope tell a sharp valley from a flat one? --------------------


def resting_slope(curvature: float, eta: float, theta: float) -> float:
    """E ||d||^2 / sigma^2 at rest in a bowl of one curvature, by SGD steps: a closed form.

    At rest x_t is itself made of past noise, and g_t = (1 - B) / (1 - a B) zeta_t with the delay B
    and a = 1 - eta lambda: the steps undo what the noise did, so that the sum of gradients hardly
    grows. With c = 1 - theta, d_t is g_t through theta / (1 - c B).

    Args:
        curvature: lambda.
        eta: the step size.
        theta: weight of the newest gradient; 1 gives ||g||^2, which is 2 / (2 - eta lambda).

    Returns:
        The ratio; theta / (2 - theta) in a flat bowl.

    Raises:
        ValueError: the steps diverge, or a = c, where the form has a hole.

    Example:
        >>> round(resting_slope(1e-9, 0.1, 0.4), 6)
        0.25
        >>> round(resting_slope(10.0, 0.05, 1.0), 6) == round(2 / 1.5, 6)
        True
    """
    a, c = 1 - eta * curvature, 1 - theta
    if not abs(a) < 1 or a == c:
        raise ValueError(f"needs |1 - eta lambda| < 1 and not 1 - theta, got {a:g}")
    fast, slow = (c - 1) / (c - a), (a - 1) / (a - c)
    total = fast**2 / (1 - c**2) + slow**2 / (1 - a**2) + 2 * fast * slow / (1 - a * c)
    return theta**2 * total


@dataclass(frozen=True)
class Valley:
    """What a slope looks like near an optimum.

    Attributes:
        length: ||v_t||, mean over steps and runs.
        cosine: of epsilon_t to f'(x_t).
        lengths: ||v_t|| at the last step of each run, to tell valleys apart with.
    """

    length: Estimate
    cosine: Estimate
    lengths: Array

    def row(self) -> dict[str, float]:
        """One line of a table.

        Returns:
            Means with intervals.
        """
        return {**self.length.row("length"), **self.cosine.row("cosine")}


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
    """A slope in a bowl of one curvature, after half of the steps.

    Args:
        curvature: lambda, how sharp.
        dimension: of x.
        runs: side by side.
        steps: of each.
        eta: the step size; 0 holds x still at a distance.
        rho: the radius.
        theta: weight of the newest gradient; 1 is SAM.
        distance: of the start from the optimum.
        sigma: root of the variance of the gradient.
        seed: of all noise.

    Returns:
        Length of the slope and direction of the adversary.
    """
    start = np.zeros((runs, dimension))
    start[:, 0] = distance
    problem = Problem((curvature,) * dimension, sigma)
    found = run(problem, start, steps=steps, eta=eta, rho=max(rho, 1e-12), theta=theta, seed=seed)
    late = slice(steps // 2, None)
    length, cosine = (mean_of(seen[late].mean(axis=0)) for seen in (found.length, found.cosine))
    return Valley(length, cosine, found.length[-1])


def told_apart(sharp: Array, flat: Array) -> float:
    """P(a length in the sharp valley exceeds one in the flat): 1/2 is no use, 0 and 1 are sure.

    Args:
        sharp: lengths of slopes in one valley.
        flat: lengths in the other.

    Returns:
        The area under the curve of hits over false alarms.

    Example:
        >>> told_apart(np.array([2.0, 3.0]), np.array([1.0, 3.0]))
        0.625
    """
    apart = sharp[:, None] - flat[None, :]
    return float((apart > 0).mean() + (apart == 0).mean() / 2)


# -- the appendix: m-sharpness depends on how the data are cut ------------------------------------

SAMPLES: tuple[tuple[int, int], ...] = ((0, 1), (0, -1), (-1, 0), (1, 0))
"""(a_i, b_i) of l_i(w) = a_i w^2 + b_i w."""


def m_sharpness(w: Fraction, rho: Fraction, partition: Sequence[Sequence[int]]) -> Fraction:
    """sum over parts of max over |delta| <= rho of the part's loss at w + delta, exactly.

    Args:
        w: the one weight.
        rho: the radius.
        partition: which samples, counted from 1, make each part.

    Returns:
        The objective of m-sharpness.

    Raises:
        ValueError: the parts are no partition of the four samples.

    Example:
        >>> m_sharpness(Fraction(1, 2), Fraction(1, 10), [[1, 2], [3, 4]])
        Fraction(0, 1)
        >>> m_sharpness(Fraction(1, 2), Fraction(1, 10), [[1, 3], [2, 4]])
        Fraction(1, 100)
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
