"""What may a part see of the step? The weights at home, the settings, norms, what it remembers.

`Climb` is how anyone moves the weights: inside its `with` block they are at x_t + epsilon_t,
outside they are x_t again, whatever happened inside.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from vasso.parts import Part
from vasso.randomness import mixed
from vasso.vectors import (
    Vector,
    add_scaled_,
    copy_,
    is_safe,
    lerp_,
    measured,
    norm,
    owned,
    shards,
    spread_like,
)

Restore: TypeAlias = Literal["copy", "recompute"]
Memories: TypeAlias = dict[Tensor, dict[str, Tensor]]
"""What is remembered of each parameter, by name."""

Gradient: TypeAlias = list[Tensor | None]
"""One gradient for each of `here.w`, None where a tensor got none in that pass."""


@dataclass
class Norms:
    """The norms taken in one step, each once.

    Attributes:
        look: whether a norm waits for the host to see that it did not under- or overflow.
        safe: whether every norm that was looked at stayed far from both.
        may_look: whether the host may be waited for at all.
    """

    look: bool = False
    safe: bool = True
    may_look: bool = True
    _known: dict[int, tuple[Vector, Tensor]] = field(default_factory=dict, repr=False)

    def __call__(self, v: Vector) -> Tensor:
        """||v|| over all tensors together, a 0-dim tensor; computed once for the same list."""
        if id(v) in self._known:
            return self._known[id(v)][1]
        return self.measure(v)[0] if self.look else self._note(v, norm(v))

    def measure(self, v: Vector) -> tuple[Tensor, float]:
        """||v||, also as a number on the host."""
        length, value = measured(v)
        self.safe = self.safe and is_safe(value, v)
        return self._note(v, length), value

    def _note(self, v: Vector, length: Tensor) -> Tensor:
        self._known[id(v)] = (v, length)
        return length

    def known(self, v: Vector) -> Tensor | None:
        """||v|| if it has been taken already."""
        return self._known[id(v)][1] if id(v) in self._known else None

    def let_go(self) -> None:
        """Drops every vector a norm was taken of."""
        self._known.clear()


def _unasked(*args: object, **kwargs: object) -> Any:
    raise RuntimeError("this step cannot give more data or gradients than its own")


@dataclass
class Here:
    """One step, as its parts may see it.

    Attributes:
        step: how many steps have been completed before this one.
        w: the parameters that may be climbed: those with a gradient at w, or all where none is
            taken there.
        x: the values of w at home, wherever the parameters are just now.
        g: the gradient at w, one tensor for each of w, while somebody needs it; else empty.
        names: the name of each of w in the model, None where it is not known.
        settings: the current value of every setting, `rho` among them, for each of w.
        norm: the norm over all tensors of a list together, a 0-dim tensor on the device.
        base_state: parameter -> the base's entries, to read.
        gradient: an extra gradient, ``gradient(at=vector, data="batch" | "full" | closure)``.
        samples: the first samples of the batch, ``samples(how many)``, each a closure.
        uphill: for each of w 1, or -1 where the base goes up (`maximize=True`) and the adversary
            therefore down; empty for 1 everywhere.
    """

    step: int
    w: Vector = field(default_factory=list)
    x: Vector = field(default_factory=list)
    g: Vector = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    settings: dict[str, list[float]] = field(default_factory=dict)
    norm: Norms = field(default_factory=Norms)
    base_state: Callable[[Tensor], Mapping[str, Any]] = field(default=lambda p: {}, repr=False)
    gradient: Callable[..., Gradient] = field(default=_unasked, repr=False)
    samples: Callable[[int], list[Any]] = field(default=_unasked, repr=False)
    uphill: list[int] = field(default_factory=list)

    @property
    def rho(self) -> list[float]:
        """The radius for each of w."""
        return self.settings["rho"]

    def of(self, part: Part) -> dict[str, list[float]]:
        """The settings that a part has declared.

        Args:
            part: one of the parts of this step.

        Returns:
            Name -> one value for each of w.
        """
        return {name: self.settings[name] for name in part.scheduled}

    @property
    def at_home(self) -> bool:
        """Whether the parameters have not been moved in this step."""
        return all(x is w for x, w in zip(self.x, self.w, strict=True))

    def gradients(self) -> Gradient:
        """What the last pass has left, for each of w."""
        return [p.grad for p in self.w]

    def where_rho_is_positive(self, d: Vector) -> tuple[Here, Vector]:
        """Leaves out what has a slope but is not climbed just now: its schedule is at 0.

        Args:
            d: the slope, one tensor for each of w.

        Returns:
            The step and the slope of the other tensors; the same objects if that is all of them.
        """
        if all(radius > 0 for radius in self.rho):
            return self, d
        rows = [i for i, radius in enumerate(self.rho) if radius > 0]
        self.norm.look = self.norm.may_look  # of these alone no norm has been looked at
        some = Here(
            self.step,
            [self.w[i] for i in rows],
            [self.x[i] for i in rows],
            [self.g[i] for i in rows] if self.g else [],
            [self.names[i] for i in rows],
            {name: [values[i] for i in rows] for name, values in self.settings.items()},
            self.norm,
            self.base_state,
            self.gradient,
            self.samples,
            [self.uphill[i] for i in rows] if self.uphill else [],
        )
        return some, [d[i] for i in rows]

    def noise(self, seed: int) -> Vector:
        """Standard normal tensors in the shapes of w: a function of seed and step alone.

        Args:
            seed: of the part that asks; the same on all ranks and after a resume.

        Returns:
            One tensor for each of w, in float32 or more.
        """
        return self._draw(seed, torch.randn)

    def uniform(self, seed: int) -> Vector:
        """Like `noise`, with numbers evenly spread over [0, 1).

        Args:
            seed: of the part that asks.

        Returns:
            One tensor for each of w, in float32 or more.
        """
        return self._draw(seed, torch.rand)

    def _draw(self, seed: int, draw: Callable[..., Tensor]) -> Vector:
        drawn = []
        for i, p in enumerate(self.w):
            luck = torch.Generator(p.device).manual_seed(mixed(seed, self.step, i))
            dtype = torch.promote_types(p.dtype, torch.float32)
            x = draw(p.shape, generator=luck, device=p.device, dtype=dtype)
            drawn.append(spread_like(x, p))
        return drawn

    def coin(self, seed: int) -> float:
        """A number in [0, 1) that is a function of seed and step alone.

        Args:
            seed: of the part that asks.

        Returns:
            The number.
        """
        return random.Random(mixed(seed, self.step)).random()


@dataclass
class Memory:
    """What the parts remember, for the tensors of one step.

    Attributes:
        kept: all remembered vectors, by parameter and name.
        numbers: all remembered numbers, by name.
        w: the parameters of the step, in the order in which vectors are handed out.
    """

    kept: Memories
    numbers: dict[str, float] = field(default_factory=dict)
    w: Vector = field(default_factory=list)

    def recall(self, name: str) -> list[Tensor | None]:
        """The vector of this name, None where a tensor has none yet.

        Args:
            name: one of the names the part declares.

        Returns:
            One tensor or None for each of w: the stored ones, to be updated in place.
        """
        return [self.kept[p].get(name) if p in self.kept else None for p in self.w]

    def store(self, name: str, i: int, value: Tensor) -> Tensor:
        """Remembers a tensor from now on.

        Args:
            name: one of the names the part declares.
            i: its place in w.
            value: a tensor that belongs to nobody else.

        Returns:
            The value.
        """
        self.kept.setdefault(self.w[i], {})[name] = value
        return value

    def keep(self, name: str, values: Gradient) -> None:
        """Remembers copies of tensors, in the room of the earlier ones; where None, those stay.

        Args:
            name: one of the names the part declares.
            values: one tensor or None for each of w.
        """
        room, full = [], []
        for i, (old, new) in enumerate(zip(self.recall(name), values, strict=True)):
            if new is not None and old is None:
                self.store(name, i, new.detach().to(_at_least_float32(new.dtype), copy=True))
            elif new is not None and old is not None:
                room.append(old)
                full.append(new)
        if room:
            copy_(room, full)

    def copy(self) -> Memory:
        """The same, to be tried out."""
        kept = {p: {n: v.clone() for n, v in own.items()} for p, own in self.kept.items()}
        return Memory(kept, dict(self.numbers), self.w)


class MeanOfShares:
    """Running means over the shares of a step: of gradients, losses and what is remembered.

    lerp(x, x) is x to the last bit: what no share has changed is not changed by the mean.
    """

    def __init__(self) -> None:
        self.gradients: dict[Tensor, Tensor] = {}
        self.memory: Memory | None = None
        self.losses: list[Any] = []
        self.weight = 0.0

    def add(
        self, params: Vector, memory: Memory, weight: float, losses: Sequence[Any] = ()
    ) -> None:
        """Adds a share; a tensor without gradient has one of 0, what is not remembered is left out.

        Args:
            params: all parameters, with the gradients of the share.
            memory: what is remembered after it; ours from now on.
            weight: of the share.
            losses: of its passes.
        """
        self.weight += weight
        new = weight / self.weight
        for p in params:
            mean = self.gradients.get(p)
            if mean is None and p.grad is not None:
                self.gradients[p] = owned(p.grad) if new == 1 else p.grad * new
            elif mean is not None:
                mean.lerp_(torch.zeros_like(mean) if p.grad is None else p.grad, new)
        pairs = zip(self.losses or losses, losses, strict=False)
        self.losses = [mean + new * (loss - mean) for mean, loss in pairs]
        if self.memory is None:
            self.memory = memory
            return
        for p, own in memory.kept.items():
            means = self.memory.kept.setdefault(p, {})
            for name, vector in own.items():
                means[name] = means[name].lerp_(vector, new) if name in means else vector
        for name, number in memory.numbers.items():
            before = self.memory.numbers.get(name, number)
            self.memory.numbers[name] = before + new * (number - before)

    def write_to(self, memory: Memory) -> None:
        """Makes the means the gradients and the memory of the step.

        Args:
            memory: what is remembered from now on.
        """
        for p, gradient in self.gradients.items():
            p.grad = gradient
        if self.memory is not None:
            memory.kept.clear()
            memory.kept.update(self.memory.kept)
            memory.numbers.update(self.memory.numbers)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


Ball: TypeAlias = Callable[[Vector, Here], tuple[Vector, Tensor]]
"""The slope and the step -> push and length, with epsilon = rho push / length."""

Limit: TypeAlias = Callable[[Vector, Here], Tensor] | None
"""A vector and the step -> its length in the norm of the ball."""


class Climb:
    """Borrows the weights: x_t + epsilon_t inside its `with` block, x_t outside.

    "copy" keeps x_t and returns to it bit for bit. "recompute" keeps only the slope and a scalar,
    subtracts the same epsilon again and returns up to rounding: the paper's memory-efficient form.

    Args:
        here: the step, with the parameters to move in place.
        ball: the geometry.
        restore: how to return.
        attic: where copies of x_t are kept from climb to climb; making room anew at each step
            would cost more than the copying.
        moved: called whenever the weights have moved: what has cached them must forget.

    Example:
        >>> w = [torch.tensor([1.0, 1.0])]
        >>> here = Here(0, w, w, settings={"rho": [5.0]})
        >>> with Climb(here, lambda d, here: (d, here.norm(d)), "copy") as x:
        ...     x.move([torch.tensor([3.0, 4.0])])
        ...     print(here.w)
        [tensor([4., 5.])]
        >>> here.w
        [tensor([1., 1.])]
    """

    def __init__(
        self,
        here: Here,
        ball: Ball,
        restore: Restore,
        attic: dict[Tensor, Tensor] | None = None,
        moved: Callable[[], None] = torch.clear_autocast_cache,
    ) -> None:
        self.here = here
        self.ball = ball
        self.restore = restore
        self.attic = {} if attic is None else attic
        self.moved = moved
        self.away = False
        self._w: Vector = []
        self._home: Vector = []
        self._way: tuple[Vector, Tensor, list[float]] | None = None
        self._before_add = 0
        self._before_return: int | None = None
        self._arrived = False
        self._roundings = 0

    def __enter__(self) -> Climb:
        return self

    def move(self, d: Vector, keep: float = 0.0, add: float = 1.0, limit: Limit = None) -> None:
        """Goes on to epsilon <- keep epsilon + add s, s the highest point of a slope in the ball.

        Args:
            d: the slope, one tensor for each of `here.w`, which must not change before the return.
            keep: how much of the way so far stays.
            add: how much of the new point is added; negative to go the other way.
            limit: brings an epsilon back into the ball: the length of epsilon / rho in the norm
                of the ball.
        """
        up, slope = self.here.where_rho_is_positive(d)
        push, length = self.ball(slope, up)
        ways = up.uphill or [1] * len(up.rho)
        radii = [add * way * radius for way, radius in zip(ways, up.rho, strict=True)]
        first = not self.away
        if first:
            self._leave_home(up, push, length, radii)
        elif keep != 1:
            lerp_(up.w, self._home, [1 - keep] * len(up.w), self._luck())
        add_scaled_(up.w, push, length, radii, self._luck())
        self._arrived = True
        if limit is not None and not first:  # the first point is inside
            self._stay_inside(up, limit)
        self.moved()

    def _leave_home(self, up: Here, push: Vector, length: Tensor, radii: list[float]) -> None:
        self._w = up.w
        if self.restore == "copy":
            self._home = [self._room_for(w, w) for w in up.w]
            copy_(self._home, up.w)
            homes = {id(w): home for w, home in zip(up.w, self._home, strict=True)}
            self.here.x = [homes.get(id(w), w) for w in self.here.w]
        else:
            if push is self.here.g:  # a gradient may be written to by who made it
                push = [self._room_for(x, w) for x, w in zip(push, up.w, strict=True)]
                copy_(push, self.here.g)
            self._way = (push, length, radii)
        self._before_add, self._before_return = _version(up.w), None
        self._arrived = False
        self.away = True

    def go_to(self, at: Vector) -> None:
        """Goes to other weights, wherever they are.

        Args:
            at: one tensor for each of `here.w`.
        """
        self._w, self._home = self.here.w, [w.detach().clone() for w in self.here.w]
        self.away = True
        copy_(self._w, at)
        self.moved()

    def _stay_inside(self, up: Here, limit: Callable[[Vector, Here], Tensor]) -> None:
        epsilon = list(torch._foreach_sub(up.w, self._home))
        relative = torch._foreach_div(epsilon, up.rho)
        excess = limit(list(relative), up).clamp(min=1.0)
        copy_(up.w, self._home)
        add_scaled_(up.w, epsilon, excess, [1.0] * len(epsilon), self._luck())

    def _luck(self) -> int:
        """A seed for the next rounding of weights of low precision."""
        self._roundings += 1
        return mixed(self.here.step, self._roundings)

    def _room_for(self, x: Tensor, w: Tensor) -> Tensor:
        room = self.attic.get(w)
        if room is None or (room.shape, room.dtype, room.device) != (x.shape, x.dtype, x.device):
            room = self.attic[w] = torch.empty_like(x)
        return room

    def epsilon(self) -> Vector:
        """The way from home to here for each of `here.w`, as new tensors."""
        if self._way is None:
            moved = list(torch._foreach_sub(self._w, self._home))
        else:
            push, length, radii = self._way
            moved = [torch.zeros_like(w) for w in self._w]
            add_scaled_(moved, push, length, radii)
        found = {id(w): x for w, x in zip(self._w, moved, strict=True)}
        return [found[id(w)] if id(w) in found else torch.zeros_like(w) for w in self.here.w]

    @torch.no_grad()
    def come_home(self) -> None:
        """Puts x_t back; a second call does nothing."""
        if not self.away:
            return
        if self._way is None:
            copy_(self._w, self._home)
        elif self._has_to_return():
            push, length, radii = self._way
            add_scaled_(self._w, push, length, [-radius for radius in radii])
        self.away = False
        self.here.x = self.here.w
        self._w, self._home, self._way = [], [], None
        self.moved()

    def _has_to_return(self) -> bool:
        """Whether epsilon has been added and not subtracted yet, after a Ctrl-C too."""
        # versions count writes; a model may write to its weights too, as Embedding(max_norm=) does
        now = _version(self._w)
        if self._before_return is None and (self._arrived or now == self._before_add + 1):
            self._before_return = now
        return now == self._before_return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.come_home()


def _version(v: Vector) -> int:
    """How often the first tensor has been written to."""
    return shards(v[:1])[0]._version
