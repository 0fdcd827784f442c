"""How far is rho? A geometry finds the highest point of a linear slope within a ball of radius rho.

| geometry        | epsilon                                     | ball                            |
|-----------------|---------------------------------------------|---------------------------------|
| `L2`            | rho d / norm(d)                             | norm(epsilon) <= rho            |
| `Linf`          | rho sign(d)                                 | max abs(epsilon) <= rho         |
| `Adaptive`      | rho T^2 d / norm(T d), T = abs(w) + eta     | norm(epsilon / T) <= rho        |
| `Fisher`        | rho q d / sqrt(d.(q d)), q = 1/(1 + eta F)  | epsilon.(epsilon / q) <= rho^2  |
| `LayerRelative` | rho norm(w_l) d_l / norm(d_l), each layer   | norm(epsilon_l) <= rho norm(w_l) |
| `Masked`        | that of another geometry, times a mask      | inside the other's              |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vasso import checks
from vasso.here import Here, Memory
from vasso.parts import Part, Range
from vasso.vectors import Vector, as_dtypes, full_precision, norm, peak, spread_like, whole, wide


@dataclass(frozen=True)
class Geometry(Part):
    """How far is rho?

    Attributes:
        depends_on_w: the ball changes with the weights, so that epsilon cannot be computed again
            from the slope alone. It is that of `here.x`, the weights at home, wherever we are.
        needs_names: weights, biases and the like are treated differently.
        needs_batch: a closure is not enough: the geometry wants to see samples.
        keeps_mask: what it remembers are zeros and ones, which have no mean.
        asks_more: the geometry takes gradients of its own (`here.gradient`).
    """

    depends_on_w: ClassVar[bool] = False
    needs_names: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    keeps_mask: ClassVar[bool] = False
    asks_more: ClassVar[bool] = False

    def __call__(self, d: Vector, memory: Memory, here: Here) -> tuple[Vector, Tensor]:
        """The maximiser of <d, epsilon> over the ball, as epsilon = rho push / length.

        Args:
            d: the slope, one tensor for each of `here.w`.
            memory: the vectors this part remembers, to be updated in place.
            here: the step.

        Returns:
            The push, one tensor for each of `here.w`, and the length, a 0-dim tensor that is
            infinite where there is nothing to climb.
        """
        raise NotImplementedError

    def length(self, v: Vector, here: Here) -> Tensor:
        """The norm whose unit ball, times rho, is climbed in.

        Args:
            v: one tensor for each of `here.w`.
            here: the step.

        Returns:
            A 0-dim tensor.
        """
        raise NotImplementedError


def or_infinite(length: Tensor) -> Tensor:
    """The length, or infinity where it is 0: dividing by it then gives 0 without asking the host.

    Args:
        length: a 0-dim tensor.

    Returns:
        Another.
    """
    return torch.where(length > 0, length, math.inf)


@dataclass(frozen=True)
class L2(Geometry):
    """The Euclidean ball over all weights together: epsilon = rho d / ||d||, and 0 where d is 0.

    Args:
        eps: added to ||d||. The published codes add 1e-7 or 1e-12; we need none, because a slope
            of zero is not climbed.
    """

    eps: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.eps < math.inf:
            raise ValueError(f"eps must be at least 0 and finite, got {self.eps}")

    def __call__(self, d: Vector, memory: Memory, here: Here) -> tuple[Vector, Tensor]:
        return d, or_infinite(here.norm(d)) + self.eps

    def length(self, v: Vector, here: Here) -> Tensor:
        return here.norm(v)


@dataclass(frozen=True)
class Linf(Geometry):
    """The cube: epsilon = rho sign(d)."""

    def __call__(self, d: Vector, memory: Memory, here: Here) -> tuple[Vector, Tensor]:
        return list(torch._foreach_sign(d)), _one(d)

    def length(self, v: Vector, here: Here) -> Tensor:
        return torch.stack([peak(x) for x in v if x.numel()]).max()


@dataclass(frozen=True)
class Adaptive(Geometry):
    """A ball that grows with the weights: epsilon = rho T^2 d / ||T d||, T = |w| + eta.

    ASAM, Kwon, Kim, Park and Choi, ICML 2021. T is 1 for what is not called a weight (biases); the
    scale of a BatchNorm is called one. With eta = 0 the method does not see a rescaling of the
    weights that leaves the network's function alone.

    Args:
        eta: keeps T away from 0, at least 0.
        p: 2, or infinity for epsilon = rho T sign(d).
        everywhere: T = |w| + eta for biases too.
    """

    eta: float = 0.01
    p: float = 2.0
    everywhere: bool = False

    depends_on_w: ClassVar[bool] = True
    needs_names: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0).check("eta", self.eta)
        if self.p not in (2, math.inf):
            raise ValueError(f"p must be 2 or infinity, got {self.p}")

    def _scale(self, here: Here) -> Vector:
        """T, from the weights at home."""
        rows = zip(here.x, here.names, strict=True)
        return [
            x.detach().abs() + self.eta
            if self.everywhere or is_weight(x, name)
            else torch.ones_like(x)
            for x, name in rows
        ]

    def __call__(self, d: Vector, memory: Memory, here: Here) -> tuple[Vector, Tensor]:
        t = self._scale(here)
        if self.p == math.inf:
            return list(torch._foreach_mul(torch._foreach_sign(d), t)), _one(d)
        scaled = list(torch._foreach_mul(d, t))
        length = here.norm(scaled)
        return list(torch._foreach_mul(scaled, t)), or_infinite(length)

    def length(self, v: Vector, here: Here) -> Tensor:
        t = self._scale(here)
        inside = [torch.where(s > 0, x / s, 0.0) for x, s in zip(v, t, strict=True)]
        return here.norm(inside) if self.p == 2 else Linf().length(inside, here)


@dataclass(frozen=True)
class Fisher(Geometry):
    """A ball in the metric of the Fisher information, taken as diag(g^2) and damped.

    epsilon = rho q d / sqrt(d.(q d)),  q = 1 / (1 + eta F),  F = (scale g)^2

    FisherSAM, Kim, Li, Hu and Hospedales, ICML 2022. eta = 0 is SAM. Of a mean over a batch, F is
    tiny for large networks and the method close to SAM; `scale` is for gradients that are meant as
    sums.

    Args:
        eta: how much the metric counts, at least 0.
        source: F from the gradient of the "batch", from its average over steps ("ema"), or from
            the slope itself ("direction").
        decay: weight of the old average, for "ema".
        scale: multiplies the gradient before it is squared.
    """

    eta: float = 1.0
    source: Literal["batch", "ema", "direction"] = "batch"
    decay: float = 0.9
    scale: float = 1.0

    needs_clean: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ("fisher",)

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0).check("eta", self.eta)
        Range(above=0).check("scale", self.scale)
        Range(least=0, most=1).check("decay", self.decay)
        if self.source not in ("batch", "ema", "direction"):
            raise ValueError(f'source must be "batch", "ema" or "direction", got {self.source!r}')

    def keeps(self, **settings: float) -> tuple[str, ...]:
        """Only the average."""
        return self.remembers if self.source == "ema" else ()

    def __call__(self, d: Vector, memory: Memory, here: Here) -> tuple[Vector, Tensor]:
        q = self._inverse(self._fisher(d, memory, here))
        push = list(torch._foreach_mul(d, q))
        root = list(torch._foreach_mul(d, torch._foreach_sqrt(q)))
        return push, or_infinite(here.norm(root))

    def _fisher(self, d: Vector, memory: Memory, here: Here) -> Vector:
        squares = self._squares(as_dtypes(d if self.source == "direction" else here.g, d))
        if self.source != "ema":
            return squares
        average = memory.recall("fisher")
        for i, (old, new) in enumerate(zip(average, squares, strict=True)):
            average[i] = (
                memory.store("fisher", i, new) if old is None else old.lerp_(new, 1 - self.decay)
            )
        return [x for x in average if x is not None]

    def _squares(self, g: Vector) -> Vector:
        """In single precision at least: 600^2 is too large for a float16."""
        scaled = torch._foreach_mul([full_precision(x) for x in g], self.scale)
        return list(torch._foreach_pow(scaled, 2))

    def _inverse(self, fisher: Vector) -> Vector:
        damped = torch._foreach_add(torch._foreach_mul(fisher, self.eta), 1.0)
        return list(torch._foreach_reciprocal(damped))

    def length(self, v: Vector, here: Here) -> Tensor:
        if self.source != "batch":
            raise ValueError(f"the ball of {self} is not known outside of its own step")
        inverse = self._inverse(self._squares(here.g))
        return here.norm(list(torch._foreach_div(v, torch._foreach_sqrt(inverse))))


@dataclass(frozen=True)
class LayerRelative(Geometry):
    """Every layer by itself, relative to its size: epsilon_l = rho ||w_l|| d_l / ||d_l||.

    Adversarial weight perturbation, Wu, Xia and Wang, NeurIPS 2020. Only weights of two or more
    dimensions move; biases and norms stay.
    """

    depends_on_w: ClassVar[bool] = True
    needs_names: ClassVar[bool] = True

    def __call__(self, d: Vector, memory: Memory, here: Here) -> tuple[Vector, Tensor]:
        push = [torch.zeros_like(slope) for slope in d]
        rows = _layers(here)
        if rows:
            sizes = torch._foreach_norm([here.x[i].detach() for i in rows])
            lengths = torch._foreach_norm([d[i] for i in rows])
            for i, size, length in zip(rows, sizes, lengths, strict=True):
                push[i] = d[i] * (size / or_infinite(length))
        return push, _one(d)

    def length(self, v: Vector, here: Here) -> Tensor:
        lengths = [(norm([v[i]]), norm([here.x[i]])) for i in _layers(here)]
        ratios = [length / or_infinite(size) for length, size in lengths]
        return torch.stack(ratios).max() if ratios else _one(v)


def _layers(here: Here) -> list[int]:
    rows = enumerate(zip(here.x, here.names, strict=True))
    return [i for i, (x, name) in rows if x.dim() > 1 and is_weight(x, name)]


@dataclass(frozen=True)
class Masked(Geometry):
    """Climbs with some of the weights only: epsilon = scale mask * (epsilon of another geometry).

    The norm is taken before the mask, as in the published methods: the rest is not longer for it.

    Args:
        inner: the other geometry.
    """

    inner: Geometry = field(default_factory=L2)

    depends_on_w: ClassVar[bool] = True

    def mask(self, memory: Memory, here: Here) -> Vector:
        """The mask of this step.

        Args:
            memory: the vectors this part remembers, to be updated in place.
            here: the step.

        Returns:
            Zeros and ones (or a multiple), one tensor for each of `here.w`.
        """
        raise NotImplementedError

    def __call__(self, d: Vector, memory: Memory, here: Here) -> tuple[Vector, Tensor]:
        push, length = self.inner(d, memory, here)
        return list(torch._foreach_mul(push, as_dtypes(self.mask(memory, here), push))), length

    def length(self, v: Vector, here: Here) -> Tensor:
        return self.inner.length(v, here)


@dataclass(frozen=True)
class RandomMask(Masked):
    """Each weight climbs with probability beta, 1 / beta as far: the mean is that of all.

    The stochastic weight perturbation of ESAM, Du et al., ICLR 2022. beta = 1 is no mask.

    Args:
        inner: the other geometry.
        beta: probability of a weight to climb, in (0, 1].
        level: the coin is tossed for each "element", as in the paper, or for each "tensor".
        seed: of the coins, which are a function of seed and step.
    """

    beta: float = 0.6
    level: Literal["element", "tensor"] = "element"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(above=0, most=1).check("beta", self.beta)
        if self.level not in ("element", "tensor"):
            raise ValueError(f'level must be "element" or "tensor", got {self.level!r}')

    def mask(self, memory: Memory, here: Here) -> Vector:
        """Coins of this step, divided by beta."""
        if self.beta == 1:
            return [torch.ones_like(w) for w in here.w]
        coins = here.uniform(self.seed)
        if self.level == "tensor":
            coins = [coin.flatten()[:1].reshape([1] * coin.dim()).expand_as(coin) for coin in coins]
        return [(coin < self.beta).to(coin.dtype) / self.beta for coin in coins]


@dataclass(frozen=True)
class KeptMask(Masked):
    """A mask that is kept for a while: the base of Sparse SAM's two forms.

    Args:
        inner: the other geometry.
        sparsity: share of weights that do not climb, in [0, 1).
        every: steps between refreshments of the mask.
        seed: of what is random in it.
    """

    sparsity: float = 0.5
    every: int = 100
    seed: int = 0

    remembers: ClassVar[tuple[str, ...]] = ("mask",)
    keeps_mask: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0).check("sparsity", self.sparsity)
        if self.sparsity >= 1 or self.every < 1:
            raise ValueError(
                f"sparsity must be below 1 and every at least 1, got {self.sparsity}, {self.every}"
            )

    def mask(self, memory: Memory, here: Here) -> Vector:
        """The kept mask, refreshed when it is time."""
        old = memory.recall("mask")
        due = here.step % self.every == 0 and here.at_home
        if any(x is None for x in old) or due:
            known = [x for x in old if x is not None]
            memory.keep(
                "mask", list(self.refreshed(known if len(known) == len(old) else None, here))
            )
        return [x for x in memory.recall("mask") if x is not None]

    def refreshed(self, old: Vector | None, here: Here) -> Vector:
        """A new mask.

        Args:
            old: the mask so far, None at first.
            here: the step.

        Returns:
            Zeros and ones, one tensor for each of `here.w`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class FisherMask(KeptMask):
    """Only weights with a large Fisher information climb.

    Sparse SAM (F), Mi et al., NeurIPS 2022: F = sum of the squared gradients of single samples, the
    top 1 - sparsity of all weights are kept. The samples are the first ones of the batch at hand,
    so `step` needs a `Batch`.

    Args:
        inner: the other geometry.
        sparsity: share of weights that do not climb, in [0, 1).
        every: steps between refreshments of the mask.
        seed: not used.
        samples: how many single gradients, at most the batch has.
    """

    samples: int = 16

    asks_more: ClassVar[bool] = True
    needs_batch: ClassVar[bool] = True

    def refreshed(self, old: Vector | None, here: Here) -> Vector:
        """The top of the Fisher information."""
        fisher = [torch.zeros_like(w) for w in here.w]
        for sample in here.samples(self.samples):
            gradient = here.gradient(data=sample)
            for total, x in zip(fisher, gradient, strict=True):
                if x is not None:
                    total.addcmul_(x, x)
        return _top(fisher, 1 - self.sparsity)


@dataclass(frozen=True)
class DynamicMask(KeptMask):
    """A random mask that drops its flattest weights from time to time and grows others.

    Sparse SAM (D), Mi et al., NeurIPS 2022: of the weights that climb, a share `drop` with the
    smallest |g| is dropped and as many of the others, chosen at random, take their place. Over
    `total` steps the share falls along half a cosine.

    Args:
        inner: the other geometry.
        sparsity: share of weights that do not climb, in [0, 1).
        every: steps between refreshments of the mask.
        seed: of what is random in it.
        drop: share of the climbing weights that is exchanged.
        total: steps of the training; None keeps the share.
    """

    drop: float = 0.5
    total: int | None = None

    needs_clean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0, most=1).check("drop", self.drop)

    def refreshed(self, old: Vector | None, here: Here) -> Vector:
        """Drops and grows; at first a random mask."""
        luck = here.uniform(self.seed)
        if old is None:
            return _top(luck, 1 - self.sparsity)
        share = self.drop
        if self.total is not None:
            share *= (1 + math.cos(math.pi * min(here.step / self.total, 1.0))) / 2
        live = sum(int(whole(x.sum())) for x in old)
        dead = sum(x.numel() for x in old) - live
        stay = live - min(round(share * live), dead)
        alive = [x > 0 for x in old]
        kept = _largest([g.abs() for g in here.g], alive, stay)
        grown = _largest(luck, [~x for x in alive], live - stay)
        return [(a | b).to(x.dtype) for a, b, x in zip(kept, grown, old, strict=True)]


def kept_mask(kind: str, *, sparsity: float, every: int, seed: int) -> KeptMask:
    """The mask of one of Sparse SAM's two forms.

    Args:
        kind: "fisher" or "dynamic".
        sparsity: share of weights that do not climb.
        every: steps between refreshments.
        seed: of what is random in it.

    Returns:
        The geometry.
    """
    checks.one_of("mask", kind, "fisher", "dynamic")
    form = FisherMask if kind == "fisher" else DynamicMask
    return form(sparsity=sparsity, every=every, seed=seed)


def _top(scores: Vector, share: float) -> Vector:
    """Ones where the scores are among the largest of all, zeros elsewhere; exact in number."""
    count = round(share * sum(x.numel() for x in scores))
    chosen = _largest(scores, [torch.ones_like(x, dtype=torch.bool) for x in scores], count)
    return [x.to(score.dtype) for x, score in zip(chosen, scores, strict=True)]


def _largest(scores: Vector, allowed: Vector, count: int) -> Vector:
    """True at the `count` largest scores among the allowed places, all tensors together."""
    flat = torch.cat([whole(x).flatten() for x in scores])
    open_ = torch.cat([whole(x).flatten() for x in allowed])
    chosen = torch.zeros_like(open_)
    ranked = torch.where(open_, flat, -math.inf)
    chosen[ranked.topk(min(count, int(open_.sum()))).indices] = True
    pieces = torch.split(chosen, [x.numel() for x in scores])
    return [spread_like(p.reshape(x.shape), x) for p, x in zip(pieces, scores, strict=True)]


def is_weight(tensor: Tensor, name: str | None) -> bool:
    """Whether a parameter counts as a weight: by its name, or by its dimensions without one.

    Args:
        tensor: the parameter.
        name: its name in the model, if that is known.

    Returns:
        True for what is called a weight, the scale of a BatchNorm included.

    Example:
        >>> is_weight(torch.zeros(3), "norm.weight"), is_weight(torch.zeros(3), None)
        (True, False)
    """
    return tensor.dim() > 1 if name is None else "weight" in name


def _one(d: Vector) -> Tensor:
    return torch.ones((), device=d[0].device, dtype=wide(d))
