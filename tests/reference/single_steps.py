"""SAM, its geometries, its data plans and its cheap forms as on paper, tensor by tensor.

Every twin takes one step and gives u, the gradient that the base goes down by:

    g = gradient at x,  d = slope,  epsilon = adversary,  h = gradient at x + epsilon,  u = ...

What a method remembers is in `step.memory`. Noise, coins, masks and chosen samples are arguments:
a twin draws nothing by itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

Vector: TypeAlias = list[Tensor]
Losses: TypeAlias = Callable[[Vector], Tensor]
"""Weights -> the loss of each sample of a batch."""


@dataclass
class Step:
    """What a twin sees of a step.

    Attributes:
        t: steps before this one.
        x: the weights.
        names: of the weights in the model.
        losses: the batch of the step.
        size: how many samples it has.
        other: another batch, drawn independently.
        memory: what the method remembers.
    """

    t: int
    x: Vector
    names: list[str]
    losses: Losses
    size: int
    other: Losses | None = None
    memory: dict[str, Any] = field(default_factory=dict)


# -- vectors --------------------------------------------------------------------------------------


def gradient(losses: Losses, x: Vector, rows: Sequence[int] | None = None) -> Vector:
    """The gradient of the mean loss, of all samples or of some."""
    x = [w.detach().clone().requires_grad_() for w in x]
    values = losses(x)
    chosen = values if rows is None else torch.stack([values[i] for i in rows])
    return list(torch.autograd.grad(chosen.sum() / len(chosen), x))


def inner(a: Vector, b: Vector) -> float:
    """<a, b>, exactly rounded."""
    pairs = zip(a, b, strict=True)
    return math.fsum(v for x, y in pairs for v in (x * y).flatten().tolist())


def length(a: Vector) -> float:
    """||a||."""
    return math.sqrt(inner(a, a))


def times(c: float, a: Vector) -> Vector:
    """c a."""
    return [c * x for x in a]


def plus(a: Vector, b: Vector) -> Vector:
    """a + b."""
    return [x + y for x, y in zip(a, b, strict=True)]


def each(a: Vector, b: Vector) -> Vector:
    """a b, entry by entry."""
    return [x * y for x, y in zip(a, b, strict=True)]


def across(v: Vector, a: Vector) -> Vector:
    """What of v is orthogonal to a."""
    return plus(v, times(-inner(v, a) / inner(a, a), a))


def mean(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """The weighted mean."""
    total = [torch.zeros_like(x) for x in vectors[0]]
    for v, weight in zip(vectors, weights, strict=True):
        total = plus(total, times(weight / math.fsum(weights), v))
    return total


def averaged(old: Vector | None, g: Vector, theta: float) -> Vector:
    """(1 - theta) d + theta g, and g where there is no d yet."""
    return g if old is None else plus(times(1 - theta, old), times(theta, g))


def slope(step: Step, g: Vector, theta: float) -> Vector:
    """d, and remembers it."""
    step.memory["d"] = averaged(step.memory.get("d"), g, theta)
    return step.memory["d"]


def on_sphere(d: Vector, rho: float) -> Vector:
    """rho d / ||d||."""
    return times(rho / length(d), d)


# -- SAM, VaSSO and their slopes ------------------------------------------------------------------


def sam(step: Step, *, rho: float) -> Vector:
    """epsilon = rho g / ||g||, u = h."""
    g = gradient(step.losses, step.x)
    return gradient(step.losses, plus(step.x, on_sphere(g, rho)))


def vasso(step: Step, *, rho: float, theta: float) -> Vector:
    """d = (1 - theta) d + theta g, epsilon = rho d / ||d||, u = h."""
    d = slope(step, gradient(step.losses, step.x), theta)
    return gradient(step.losses, plus(step.x, on_sphere(d, rho)))


def noisy(
    step: Step, *, rho: float, kappa: float, sigma: float, noise: Vector, theta: float = 1.0
) -> Vector:
    """epsilon along g + s noise, s = sigma + ||g|| sqrt(kappa / P)."""
    g = gradient(step.losses, step.x)
    s = sigma + length(g) * math.sqrt(kappa / sum(x.numel() for x in g))
    d = slope(step, plus(g, times(s, noise)), theta)
    return gradient(step.losses, plus(step.x, on_sphere(d, rho)))


def random(step: Step, *, rho: float, noise: Vector) -> Vector:
    """epsilon along the noise; no gradient at x."""
    return gradient(step.losses, plus(step.x, on_sphere(noise, rho)))


# -- other balls ----------------------------------------------------------------------------------


def asam(step: Step, *, rho: float, eta: float, theta: float = 1.0) -> Vector:
    """epsilon = rho T^2 d / ||T d||, T = |w| + eta for what is named a weight, 1 for the rest."""
    d = slope(step, gradient(step.losses, step.x), theta)
    named = zip(step.x, step.names, strict=True)
    T = [w.abs() + eta if "weight" in name else torch.ones_like(w) for w, name in named]
    Td = each(T, d)
    epsilon = times(rho / length(Td), each(T, Td))
    return gradient(step.losses, plus(step.x, epsilon))


def fisher(
    step: Step,
    *,
    rho: float,
    eta: float,
    source: str = "batch",
    decay: float = 0.9,
    scale: float = 1.0,
    theta: float = 1.0,
) -> Vector:
    """epsilon = rho q d / sqrt(sum of q d^2), q = 1 / (1 + eta F), F = (scale g)^2."""
    g = gradient(step.losses, step.x)
    d = slope(step, g, theta)
    seen = times(scale, d if source == "direction" else g)
    F = each(seen, seen)
    if source == "ema":
        F = step.memory["F"] = averaged(step.memory.get("F"), F, 1 - decay)
    q = [1 / (1 + eta * x) for x in F]
    qd = each(q, d)
    epsilon = times(rho / math.sqrt(inner(qd, d)), qd)
    return gradient(step.losses, plus(step.x, epsilon))


# -- other ways down ------------------------------------------------------------------------------


def gsam(
    step: Step,
    *,
    rho: float,
    alpha: float,
    minimise: str = "perturbed",
    decompose: str = "batch",
    theta: float = 1.0,
) -> Vector:
    """u = h - alpha g_perp(h), or g + alpha h_perp(g); the slope in the place of g if asked."""
    g = gradient(step.losses, step.x)
    d = slope(step, g, theta)
    h = gradient(step.losses, plus(step.x, on_sphere(d, rho)))
    a = d if decompose == "slope" else g
    if minimise == "perturbed":
        return plus(h, times(-alpha, across(a, h)))
    return plus(a, times(alpha, across(h, a)))


# -- not at every step ----------------------------------------------------------------------------


def in_turn(step: Step, *, rho: float, theta: float, climbs: Callable[[Vector], bool]) -> Vector:
    """u = h with a climb, g without; every step updates the slope."""
    g = gradient(step.losses, step.x)
    d = slope(step, g, theta)
    return gradient(step.losses, plus(step.x, on_sphere(d, rho))) if climbs(g) else g


def reusing(
    step: Step, *, rho: float, theta: float, alpha: float, climbs: Callable[[Vector], bool]
) -> Vector:
    """u = h and g_v = h_perp(g) with a climb; g + alpha ||g|| / ||g_v|| g_v without."""
    g = gradient(step.losses, step.x)
    d = slope(step, g, theta)
    if climbs(g):
        h = gradient(step.losses, plus(step.x, on_sphere(d, rho)))
        step.memory["g_v"] = across(h, g)
        return h
    g_v = step.memory.get("g_v")
    return g if g_v is None else plus(g, times(alpha * length(g) / length(g_v), g_v))


def large_for_its_time(
    step: Step,
    g: Vector,
    total: int,
    delta: float = 0.9,
    lambda_1: float = -1.0,
    lambda_2: float = 1.0,
) -> bool:
    """n = ||g||^2 >= mu + c sigma; mu and sigma are averages that know this n already."""
    n = inner(g, g)
    mu = delta * step.memory.get("mu", n) + (1 - delta) * n
    variance = delta * step.memory.get("variance", math.exp(-10)) + (1 - delta) * (n - mu) ** 2
    step.memory["mu"], step.memory["variance"] = mu, variance
    share = min(step.t / total, 1.0)
    c = share * lambda_1 + (1 - share) * lambda_2
    return n >= mu + c * math.sqrt(variance)


def looksam(step: Step, *, rho: float, k: int, alpha: float, theta: float = 1.0) -> Vector:
    """Climbs at every k-th step, reuses in between."""
    return reusing(step, rho=rho, theta=theta, alpha=alpha, climbs=lambda g: step.t % k == 0)


def sssam(step: Step, *, rho: float, p: float, coin: float, theta: float = 1.0) -> Vector:
    """Climbs with probability p, for a coin that is spread evenly over [0, 1)."""
    return in_turn(step, rho=rho, theta=theta, climbs=lambda g: coin < p)


def aesam(step: Step, *, rho: float, theta: float = 1.0, **when: Any) -> Vector:
    """Climbs when the gradient is large for its time."""
    climbs = partial(large_for_its_time, step, **when)
    return in_turn(step, rho=rho, theta=theta, climbs=climbs)


def aelooksam(step: Step, *, rho: float, alpha: float, theta: float = 1.0, **when: Any) -> Vector:
    """AE-SAM with LookSAM's reuse where it does not climb."""
    climbs = partial(large_for_its_time, step, **when)
    return reusing(step, rho=rho, theta=theta, alpha=alpha, climbs=climbs)


# -- which data where -----------------------------------------------------------------------------


def sam_db(step: Step, *, rho: float, theta: float = 1.0) -> Vector:
    """The adversary comes from another batch, u from this one."""
    d = slope(step, gradient(step.other, step.x), theta)
    return gradient(step.losses, plus(step.x, on_sphere(d, rho)))


def chunked(step: Step, *, rho: float, m: int, theta: float = 1.0) -> Vector:
    """Chunk i: d_i = (1 - theta) d + theta g_i, h_i above it; u = mean h_i, then d = mean d_i."""
    chunks = [range(i, min(i + m, step.size)) for i in range(0, step.size, m)]
    slopes, above = [], []
    for rows in chunks:
        g = gradient(step.losses, step.x, rows)
        d = averaged(step.memory.get("d"), g, theta)
        slopes.append(d)
        above.append(gradient(step.losses, plus(step.x, on_sphere(d, rho)), rows))
    sizes = [len(rows) for rows in chunks]
    step.memory["d"] = mean(slopes, sizes)
    return mean(above, sizes)


def subsampled(step: Step, *, rho: float, rows: Sequence[int], theta: float = 1.0) -> Vector:
    """The adversary comes from some samples of the batch, u from all."""
    d = slope(step, gradient(step.losses, step.x, rows), theta)
    return gradient(step.losses, plus(step.x, on_sphere(d, rho)))


def halved(step: Step, *, rho: float, rows: Sequence[int], theta: float = 1.0) -> Vector:
    """The adversary and u both come from the same samples of the batch."""
    d = slope(step, gradient(step.losses, step.x, rows), theta)
    return gradient(step.losses, plus(step.x, on_sphere(d, rho)), rows)


def esam(
    step: Step, *, rho: float, beta: float, gamma: float, mask: Vector, theta: float = 1.0
) -> Vector:
    """epsilon = rho / beta mask d / ||d||; u of the gamma b samples with the largest rise."""
    d = slope(step, gradient(step.losses, step.x), theta)
    there = plus(step.x, times(1 / beta, each(mask, on_sphere(d, rho))))
    rise = (step.losses(there) - step.losses(step.x)).tolist()
    order = sorted(range(step.size), key=lambda i: rise[i], reverse=True)
    return gradient(step.losses, there, order[: max(1, round(gamma * step.size))])


# -- some layers alone ----------------------------------------------------------------------------


def on_some(step: Step, *, rho: float, perturbed: Sequence[bool], theta: float = 1.0) -> Vector:
    """SAM-ON: epsilon = rho d / ||d|| over some tensors, 0 in the others; u = h everywhere."""
    g = gradient(step.losses, step.x)
    d = slope(step, [x if moves else 0 * x for x, moves in zip(g, perturbed, strict=True)], theta)
    return gradient(step.losses, plus(step.x, on_sphere(d, rho)))
