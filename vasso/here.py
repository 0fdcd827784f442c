"""What may a part see of the step? The weights at home, the settings, norms, what it remembers.

`Climb` is how anyone moves the weights: inside its `with` block they are at x_t + epsilon_t,
outside they are x_t again, whatever happened inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from vasso.parts import Part
from vasso.vectors import Vector, add_scaled_, is_safe, measured, norm

Restore: TypeAlias = Literal["copy", "recompute"]
Memories: TypeAlias = dict[Tensor, dict[str, Tensor]]
"""What is remembered of each parameter, by name."""


@dataclass
class Norms:
    """The norms taken in one step, each once.

    Attributes:
        look: whether a norm waits for the host to see that it did not under- or overflow.
        safe: whether every norm that was looked at stayed far from both.
    """

    look: bool = False
    safe: bool = True
    _known: dict[int, tuple[Vector, Tensor]] = field(default_factory=dict, repr=False)

    def __call__(self, v: Vector) -> Tensor:
        """||v|| over all tensors together, a 0-dim tensor; computed once for the same list."""
        if id(v) in self._known:
            return self._known[id(v)][1]
        return self.measure(v)[0] if self.look else self._note(v, norm(v))

    def measure(self, v: Vector) -> tuple[Tensor, float]:
        """||v||, also as a number on the host."""
        length, value = measured(v)
        self.safe = self.safe and is_safe(value, length.dtype)
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


@dataclass
class Here:
    """One step, as its parts may see it.

    Attributes:
        w: the parameters that have a gradient and may be climbed; at home while a part is asked.
        settings: the current value of every setting, `rho` among them, for each of w.
        step: how many steps have been completed before this one.
        norm: the norm over all tensors of a list together, a 0-dim tensor on the device.
    """

    w: Vector
    settings: dict[str, list[float]]
    step: int
    norm: Norms

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

    def gradients(self) -> list[Tensor | None]:
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
        settings = {name: [values[i] for i in rows] for name, values in self.settings.items()}
        return Here([self.w[i] for i in rows], settings, self.step, self.norm), [d[i] for i in rows]


@dataclass
class Memory:
    """The remembered vectors of the tensors of one step.

    Attributes:
        w: the parameters, in the order in which vectors are handed out.
        kept: all that is remembered, by parameter.
    """

    w: Vector
    kept: Memories

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


class Climb:
    """Borrows the weights: x_t + epsilon_t inside its `with` block, x_t outside.

    "copy" keeps x_t and returns to it bit for bit. "recompute" keeps only the slope and a scalar,
    subtracts the same epsilon again and returns up to rounding: the paper's memory-efficient form.

    Args:
        here: the step, with the parameters to move in place.
        ball: the geometry: the slope -> push and length, with epsilon = rho push / length.
        restore: how to return.
        attic: where copies of x_t are kept from climb to climb; making room anew at each step
            would cost more than the copying.

    Example:
        >>> here = Here([torch.tensor([1.0, 1.0])], {"rho": [5.0]}, 0, Norms())
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
        ball: Callable[[Vector, Here], tuple[Vector, Tensor]],
        restore: Restore,
        attic: dict[Tensor, Tensor] | None = None,
    ) -> None:
        self.here = here
        self.ball = ball
        self.restore = restore
        self.attic = {} if attic is None else attic
        self.away = False
        self._w: Vector = []
        self._home: Vector = []
        self._way: tuple[Vector, Tensor, list[float]] | None = None

    def __enter__(self) -> Climb:
        return self

    def move(self, d: Vector) -> None:
        """Goes to the highest point of a slope within the ball.

        Args:
            d: the slope, one tensor for each of `here.w`, which must not change before the return.
        """
        up, slope = self.here.where_rho_is_positive(d)
        push, length = self.ball(slope, up)
        self._w = up.w
        if self.restore == "copy":
            self._home = [self._room_for(w) for w in up.w]
            torch._foreach_copy_(self._home, up.w)
        else:
            self._way = (push, length, up.rho)
        self.away = True
        add_scaled_(up.w, push, length, up.rho)
        torch.clear_autocast_cache()  # else the next pass would see w through cached copies

    def _room_for(self, w: Tensor) -> Tensor:
        room = self.attic.get(w)
        if room is None or (room.shape, room.dtype, room.device) != (w.shape, w.dtype, w.device):
            room = self.attic[w] = torch.empty_like(w)
        return room

    def epsilon(self) -> Vector:
        """The way from home to here for each of `here.w`, as new tensors."""
        if self._way is None:
            moved = list(torch._foreach_sub(self._w, self._home))
        else:
            push, length, rho = self._way
            moved = [torch.zeros_like(w) for w in self._w]
            add_scaled_(moved, push, length, rho)
        found = {id(w): x for w, x in zip(self._w, moved, strict=True)}
        return [found[id(w)] if id(w) in found else torch.zeros_like(w) for w in self.here.w]

    def come_home(self) -> None:
        """Puts x_t back; a second call does nothing."""
        if not self.away:
            return
        if self._way is None:
            torch._foreach_copy_(self._w, self._home)
        else:
            push, length, rho = self._way
            add_scaled_(self._w, push, length, [-radius for radius in rho])
        self.away = False
        self._w, self._home, self._way = [], [], None
        torch.clear_autocast_cache()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.come_home()
