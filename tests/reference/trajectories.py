"""The cheap, the late, the variance-reduced and the many-step methods as on paper, in plain loops.

Each method is a generator: it is given weights, a gradient and a base, and yields the weights after
each step: g at x, h at x + e, u goes down. What is random (masks) and what decides (policies) is
handed in as a plain function of the step.
"""

import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from tests.reference.single_steps import Vector, times
from tests.reference.single_steps import averaged as average
from tests.reference.single_steps import length as norm

Gradient: TypeAlias = Callable[[Vector, int], Vector]
"""Weights and step -> the gradient of that step's batch."""

Ball: TypeAlias = Callable[[Vector, Vector, float], Vector]
"""Slope, weights at home and rho -> the highest point of the ball."""

When: TypeAlias = Callable[[int], bool]
"""Step -> whether it is one of those."""

Scores: TypeAlias = Callable[[int], Vector]
"""Step -> a random number for each weight."""


class Base(Protocol):
    """Takes a step down; `v` is its momentum."""

    v: Vector | None
    lr: float

    def __call__(self, x: Vector, u: Vector) -> Vector: ...


Training: TypeAlias = tuple[Vector, Gradient, Base]
"""The weights before the first step, the gradient and the base."""

Path: TypeAlias = Iterator[Vector]


# -- vectors --------------------------------------------------------------------------------------


def add(x: Vector, y: Vector, scale: float = 1.0) -> Vector:
    """x + scale y."""
    return [a + scale * b for a, b in zip(x, y, strict=True)]


def mix(old: Vector, new: Vector, weight: float) -> Vector:
    """(1 - weight) old + weight new."""
    return add(times(1 - weight, old), new, weight)


# -- balls (section 9.2) --------------------------------------------------------------------------


def l2(d: Vector, x: Vector, rho: float) -> Vector:
    """e = rho d / ||d||, and 0 where there is no slope."""
    size = norm(d)
    return times(rho / size if size else 0.0, d)


def linf(d: Vector, x: Vector, rho: float) -> Vector:
    """e = rho sign(d)."""
    return [rho * a.sign() for a in d]


def asam(d: Vector, x: Vector, rho: float) -> Vector:
    """e = rho T^2 d / ||T d||, T = |x| + 0.01 for matrices and 1 for biases (section 3.3)."""
    T = [a.abs() + 0.01 if a.dim() > 1 else a * 0 + 1 for a in x]
    size = norm([t * a for t, a in zip(T, d, strict=True)])
    return [rho * t * t * a / size for t, a in zip(T, d, strict=True)]


def layers(d: Vector, x: Vector, rho: float) -> Vector:
    """e_l = rho ||x_l|| d_l / ||d_l|| for matrices, 0 for biases (section 6.5)."""
    pairs = zip(d, x, strict=True)
    return [rho * norm([w]) * a / norm([a]) if w.dim() > 1 else 0 * a for a, w in pairs]


def unnormalised(d: Vector, x: Vector, rho: float) -> Vector:
    """e = rho d."""
    return times(rho, d)


def centred(d: Vector, x: Vector, rho: float, after: bool = False) -> Vector:
    """e = rho c / ||d||, c = d less the mean of each row; divided by ||c|| if `after`."""
    rows = [torch.stack([r - r.mean() for r in a]) if a.dim() > 1 else a for a in d]
    return times(rho / norm(rows if after else d), rows)


def standing_out(a: Tensor, q: float) -> Tensor:
    """What is farther from the mean, in standard deviations, than the q-quantile of all."""
    z = ((a - a.mean()) / a.std()).abs()
    return a * (z > z.flatten().quantile(q))


def z_score(d: Vector, x: Vector, rho: float, q: float, each: bool = False) -> Vector:
    """e = rho z / ||z|| over all tensors; or matrices each by its own norm, others by ||d||."""
    z = [standing_out(a, q) if a.dim() > 1 else a for a in d]
    if not each:
        return times(rho / norm(z), z)
    return [rho * a / (norm([a]) if a.dim() > 1 else norm(d)) for a in z]


# -- bases ----------------------------------------------------------------------------------------


class Momentum:
    """v <- mu v + u + wd x,  x <- x - lr v."""

    def __init__(self, lr: float, mu: float, wd: float) -> None:
        self.lr, self.mu, self.wd = lr, mu, wd
        self.v: Vector | None = None

    def __call__(self, x: Vector, u: Vector) -> Vector:
        u = add(u, x, self.wd)
        self.v = u if self.v is None else add(u, self.v, self.mu)
        return add(x, self.v, -self.lr)


class AdamW:
    """v <- b v + (1 - b) u, s <- c s + (1 - c) u^2, both without their bias divided, decayed x."""

    def __init__(self, lr: float, wd: float, b: float = 0.9, c: float = 0.999) -> None:
        self.lr, self.wd, self.b, self.c = lr, wd, b, c
        self.v: Vector | None = None
        self.s: Vector | None = None
        self.t = 0

    def __call__(self, x: Vector, u: Vector) -> Vector:
        self.t += 1
        self.v = mix(self.v or times(0, u), u, 1 - self.b)
        self.s = mix(self.s or times(0, u), [a * a for a in u], 1 - self.c)
        m = times(1 / (1 - self.b**self.t), self.v)
        s = times(1 / (1 - self.c**self.t), self.s)
        way = [a / (b.sqrt() + 1e-8) for a, b in zip(m, s, strict=True)]
        return add(times(1 - self.lr * self.wd, x), way, -self.lr)


# -- cheap methods (sections 5.5b to 5.8) ---------------------------------------------------------


def late(
    training: Training, *, rho: float, climbs: When, theta: float = 1.0, ball: Ball = l2
) -> Path:
    """Section 5.5b: the slope is averaged at every step and climbed at some."""
    x, gradient, base = training
    d = None
    for t in count():
        u = gradient(x, t)
        d = average(d, u, theta)
        if climbs(t):
            u = gradient(add(x, ball(d, x, rho)), t)
        x = base(x, u)
        yield x


def reused(
    training: Training,
    *,
    rho: float,
    theta: float,
    refreshes: Callable[[int, list[float]], bool],
    stale: Literal["stay", "follow"],
    start: int = 0,
) -> Path:
    """Section 5.5b: VaSSORe ("stay") and VaSSOReMu ("follow"), plain steps before `start`.

    `refreshes` is told the step and the norms of all h so far.
    """
    x, gradient, base = training
    d, h, norms = None, None, []
    for t in count():
        if t < start:
            u = h = gradient(x, t)
            d = average(d, u, theta)
        else:
            if d is None or refreshes(t, norms):
                d = average(d, gradient(x, t), theta)
            elif stale == "follow":
                d = average(d, h, theta)
            u = h = gradient(add(x, l2(d, x, rho)), t)
            norms.append(norm(h))
        x = base(x, u)
        yield x


def drifted(norms: list[float], rule: str, lam: float, z: float) -> bool:
    """Section 5.5b: has the last norm of h moved away from the average tau of all?"""
    tau = norms[0]
    for length in norms[1:]:
        tau = lam * tau + (1 - lam) * length
    flat = tau > ((1 - lam) * z + lam) * norms[-1]
    sharp = tau < ((1 - lam) / z + lam) * norms[-1]
    return (flat and rule != "sharp") or (sharp and rule != "flat")


def msam(training: Training, *, rho: Callable[[int], float]) -> Path:
    """Section 5.6, explicit form: e = -rho v / ||v||, v the momentum before the step."""
    x, gradient, base = training
    for t in count():
        e = times(0, x) if base.v is None else l2(base.v, x, -rho(t))
        x = base(x, gradient(add(x, e), t))
        yield x


def msam_shifted(training: Training, *, rho: Callable[[int], float]) -> Path:
    """Section 5.6, efficient form: the perturbed weights y are kept, and the e that is in them."""
    x, gradient, base = training
    y, e = x, times(0, x)
    for t in count():
        u = gradient(y, t)
        x = base(add(y, e, -1), u)
        yield x
        e = l2(base.v, x, -rho(t + 1))
        y = add(x, e)


def s2sam(training: Training, *, rho: float) -> Path:
    """Section 5.7: e = rho h_{t-1} / ||h_{t-1}||, 0 in the first step."""
    x, gradient, base = training
    h = times(0, x)
    for t in count():
        h = gradient(add(x, l2(h, x, rho)), t)
        x = base(x, h)
        yield x


def friendly(
    training: Training, *, rho: float, sigma: float, lam: float, use: Literal["new", "old"]
) -> Path:
    """Section 5.8: d = g - sigma m with the average m after this g, or before it."""
    x, gradient, base = training
    m = None
    for t in count():
        g = gradient(x, t)
        before, m = m, average(m, g, 1 - lam)
        d = g if before is None else add(g, m if use == "new" else before, -sigma)
        x = base(x, gradient(add(x, l2(d, x, rho)), t))
        yield x


# -- variance-reduced slopes (sections 6.8, 6.9) --------------------------------------------------


def storm(training: Training, *, rho: float, a: float) -> Path:
    """d = g_t(x_t) + (1 - a) (d_{t-1} - g_t(x_{t-1}))."""
    x, gradient, base = training
    d = before = None
    for t in count():
        g = gradient(x, t)
        d = g if d is None else add(g, add(d, gradient(before, t), -1), 1 - a)
        before = x
        x = base(x, gradient(add(x, l2(d, x, rho)), t))
        yield x


def svrg(training: Training, *, rho: float, every: int, full: Callable[[Vector], Vector]) -> Path:
    """d = g_t(x_t) - g_t(snapshot) + full gradient at the snapshot."""
    x, gradient, base = training
    for t in count():
        if t % every == 0:
            snapshot, mu = x, full(x)
        d = add(add(gradient(x, t), gradient(snapshot, t), -1), mu)
        x = base(x, gradient(add(x, l2(d, x, rho)), t))
        yield x


def sarah(training: Training, *, rho: float, every: int, full: Callable[[Vector], Vector]) -> Path:
    """d = g_t(x_t) - g_t(x_{t-1}) + d_{t-1}, now and then the full gradient."""
    x, gradient, base = training
    d, before = x, x
    for t in count():
        d = full(x) if t % every == 0 else add(add(gradient(x, t), gradient(before, t), -1), d)
        before = x
        x = base(x, gradient(add(x, l2(d, x, rho)), t))
        yield x


# -- other descents, ascents and balls (sections 6.1 to 6.8) --------------------------------------


def pgn(
    training: Training, *, rho: float, alpha: float, unit: bool = False, theta: float = 1.0
) -> Path:
    """Section 6.1: u = (1 - alpha) g + alpha h, or with g / ||g||."""
    x, gradient, base = training
    d = None
    for t in count():
        g = gradient(x, t)
        d = average(d, g, theta)
        h = gradient(add(x, l2(d, x, rho)), t)
        x = base(x, mix(times(1 / norm(g), g) if unit else g, h, alpha))
        yield x


def loss_budget(training: Training, *, sigma: float, most: float, theta: float = 1.0) -> Path:
    """LE-SAM: rho = min(sigma ||d|| / (g.d), most), the cap where g.d is not above 0."""
    x, gradient, base = training
    d = None
    for t in count():
        g = gradient(x, t)
        d = average(d, g, theta)
        rise = sum(float((a * b).sum()) for a, b in zip(g, d, strict=True))
        rho = min(sigma * norm(d) / rise, most) if rise > 0 else most
        x = base(x, gradient(add(x, l2(d, x, rho)), t))
        yield x


def eigen(
    training: Training,
    *,
    rho: float,
    alpha: float,
    every: int,
    steps: int,
    start: Vector,
    theta: float = 1.0,
) -> Path:
    """Eigen-SAM, its products by central differences: e = rho (n + alpha sign(g.v) v_perp(n))."""
    x, gradient, base = training
    d, v = None, start
    for t in count():
        g = gradient(x, t)
        for _ in range(steps if t % every == 0 else 0):
            v = times(1e-5 / norm(v), v)
            v = add(gradient(add(x, v), t), gradient(add(x, v, -1.0), t), -1.0)
            v = times(1 / norm(v), v)
        d = average(d, g, theta)
        n = times(1 / norm(d), d)
        along = sum(float((a * b).sum()) for a, b in zip(n, v, strict=True))
        e = add(n, add(v, n, -along), math.copysign(alpha, along))
        x = base(x, gradient(add(x, e, rho), t))
        yield x


def light(training: Training, *, rho: float, small: float, theta: float = 1.0) -> Path:
    """LightSAM-I: e = rho d / sqrt(U), u = h / sqrt(V)."""
    x, gradient, base = training
    d, U, V = None, small**2, small**2
    for t in count():
        d = average(d, gradient(x, t), theta)
        U += norm(d) ** 2
        h = gradient(add(x, d, rho / math.sqrt(U)), t)
        V += norm(h) ** 2
        x = base(x, times(1 / math.sqrt(V), h))
        yield x


def rescaled(
    training: Training, *, rho: float, normalised: bool = True, theta: float = 1.0
) -> Path:
    """StableSAM: u = h ||g|| / ||h||."""
    x, gradient, base = training
    d = None
    for t in count():
        g = gradient(x, t)
        d = average(d, g, theta)
        h = gradient(add(x, (l2 if normalised else unnormalised)(d, x, rho)), t)
        x = base(x, times(norm(g) / norm(h), h))
        yield x


def wsam(
    training: Training, *, rho: float, gamma: float, decoupled: bool, theta: float = 1.0
) -> Path:
    """WSAM: the base steps by g, then x moves by -lr gamma / (1 - gamma) (h - g); or in one."""
    x, gradient, base = training
    d, weight = None, gamma / (1 - gamma)
    for t in count():
        g = gradient(x, t)
        d = average(d, g, theta)
        sharpness = add(gradient(add(x, l2(d, x, rho)), t), g, -1)
        if decoupled:
            x = add(base(x, g), sharpness, -base.lr * weight)
        else:
            x = base(x, add(g, sharpness, weight))
        yield x


def lookbehind(
    training: Training, *, rho: float, k: int, alpha: float | None, theta: float = 1.0
) -> Path:
    """y_i = y_{i-1} + rho n(slope at y_{i-1}), f_i = base step from f_{i-1} by g(y_i)."""
    x, gradient, base = training
    memory = None
    for t in count():
        d = memory = average(memory, gradient(x, t), theta)
        y, fast = x, [x]
        for _ in range(k):
            y = add(y, l2(d, x, rho))
            h = gradient(y, t)
            d = mix(memory, h, theta)
            fast.append(base(fast[-1], h))
        moved, first = add(fast[-1], x, -1), add(fast[1], x, -1)
        pairs = zip(moved, first, strict=True)
        cosines = [float((a * b).sum()) / norm([a]) / norm([b]) for a, b in pairs]
        parts = [(c + 1) / 2 if alpha is None else alpha for c in cosines]
        x = [a + part * b for a, b, part in zip(x, moved, parts, strict=True)]
        yield x


def multi_step(
    training: Training, *, rho: float, n: int, stride: float, mean: bool = False, theta: float = 1.0
) -> Path:
    """Section 6.2: e <- Pi(e + stride d / ||d||), with the slope of each point.

    With theta the slope at a point is what the average at x would be with that gradient on top.
    """
    x, gradient, base = training
    memory = None
    for t in count():
        d = memory = average(memory, gradient(x, t), theta)
        e, path = times(0, x), []
        for _ in range(n):
            e = add(e, l2(d, x, stride))
            e = times(min(1.0, rho / norm(e)), e)
            path.append(gradient(add(x, e), t))
            d = mix(memory, path[-1], theta)
        total = path[0]
        for h in path[1:]:
            total = add(total, h)
        x = base(x, times(1 / n, total) if mean else path[-1])
        yield x


def frank_wolfe(
    training: Training, *, rho: float, K: int, momentum: bool = False, theta: float = 1.0
) -> Path:
    """Section 6.8: e <- (1 - gamma) e + gamma s, gamma = 2 / (k + 2), s the top of the ball."""
    x, gradient, base = training
    memory = None
    for t in count():
        d = memory = average(memory, gradient(x, t), theta)
        e = times(0, x)
        for k in range(K):
            e = mix(e, l2(d, x, rho), 2 / (k + 2))
            h = gradient(add(x, e), t)
            new = mix(memory, h, theta)
            d = mix(d, new, 4 / (k + 1 + 8) ** (2 / 3)) if momentum else new
        x = base(x, h)
        yield x


def in_ball(training: Training, *, rho: float, ball: Ball, theta: float = 1.0) -> Path:
    """VaSSO in another ball: AWP with `layers`, the cube with `linf`."""
    yield from late(training, rho=rho, climbs=lambda t: True, theta=theta, ball=ball)


def sparse_fisher(
    training: Training,
    *,
    rho: float,
    live: int,
    every: int,
    singles: Callable[[Vector, int], list[Vector]],
    theta: float = 1.0,
) -> Path:
    """Section 6.3, SSAM-F: of all weights those with the largest sum of squared gradients climb."""
    x, gradient, base = training
    d = None
    for t in count():
        d = average(d, gradient(x, t), theta)
        if t % every == 0:
            fisher = times(0, x)
            for single in singles(x, t):
                fisher = add(fisher, [a * a for a in single])
            mask = like(best(numbers(fisher), range(size(x)), live), x)
        e = [m * a for m, a in zip(mask, l2(d, x, rho), strict=True)]
        x = base(x, gradient(add(x, e), t))
        yield x


def sparse_dynamic(
    training: Training,
    *,
    rho: float,
    live: int,
    every: int,
    luck: Scores,
    drop: Callable[[int], float],
) -> Path:
    """Section 6.3, SSAM-D: the flattest live weights make room for others, by luck."""
    x, gradient, base = training
    for t in count():
        g = gradient(x, t)
        if t == 0:
            chosen = best(numbers(luck(t)), range(size(x)), live)
        elif t % every == 0:
            stay = live - round(drop(t) * live)
            dead = [i for i in range(size(x)) if i not in chosen]
            kept = best(numbers([a.abs() for a in g]), chosen, stay)
            chosen = kept | best(numbers(luck(t)), dead, live - stay)
        e = [m * a for m, a in zip(like(chosen, x), l2(g, x, rho), strict=True)]
        x = base(x, gradient(add(x, e), t))
        yield x


def size(x: Vector) -> int:
    """How many numbers."""
    return sum(a.numel() for a in x)


def numbers(x: Vector) -> list[float]:
    """All entries, one after the other."""
    return [value for a in x for value in a.flatten().tolist()]


def best(scores: list[float], among: object, how_many: int) -> set[int]:
    """The places of the largest scores among some."""
    return set(sorted(among, key=lambda i: -scores[i])[:how_many])  # type: ignore[call-overload]


def like(places: set[int], x: Vector) -> Vector:
    """1 at these places and 0 elsewhere, in the shapes of x."""
    mask, first = [], 0
    for a in x:
        flags = [float(first + i in places) for i in range(a.numel())]
        mask.append(a.new_tensor(flags).reshape(a.shape))
        first += a.numel()
    return mask
