"""Perturbation of the weights: to w + epsilon inside a `with` block, restored at its end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor

from vasso.numerics.rng import mix_seed
from vasso.numerics.vectors import Vector, add_scaled_, copy_, lerp_, shards
from vasso.parts.context import StepContext
from vasso.parts.geometries import Geometry
from vasso.parts.memory import PartState

Restore: TypeAlias = Literal["copy", "recompute"]


class Perturbation:
    """Moves the weights of one optimizer to w + epsilon and restores them.

    "copy" keeps w and restores it bit for bit. "recompute" keeps only the slope and a scalar,
    subtracts the same epsilon again and restores w up to rounding: the paper's memory-efficient
    form. `moved` is called whenever the weights have moved, to clear caches of them.
    `weight_buffers` are kept from step to step: to allocate them anew costs more than the copying.
    """

    def __init__(
        self, restore: Restore, moved: Callable[[], None] = torch.clear_autocast_cache
    ) -> None:
        self.recompute = restore == "recompute"
        self.moved = moved
        self.weight_buffers: dict[Tensor, Tensor] = {}
        self.is_perturbed = False
        self._context = StepContext(0)
        self._geometry: Any = None
        self._state = PartState({})
        self._weights: Vector = []
        self._saved: Vector = []
        self._added: tuple[Vector, Tensor, list[float]] | None = None
        self._has_moved = False
        self._version_before_add = 0
        self._version_before_subtract: int | None = None
        self._roundings = 0

    def around(
        self, context: StepContext, geometry: Geometry, state: PartState | None = None
    ) -> Self:
        """For a `with` block, whose moves stay in the ball of a geometry around the weights."""
        self._context, self._geometry = context, geometry
        self._state = PartState({}) if state is None else state
        self._roundings = 0
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()
        self._context, self._state = StepContext(0), PartState({})

    @contextmanager
    def at(self, context: StepContext, weights: Vector | None) -> Iterator[None]:
        """Other weights for a block; None leaves them unchanged."""
        try:
            if weights is not None:
                self.go_to(context, weights)
            yield
        finally:
            self.restore()

    def move(self, d: Vector, keep: float = 0.0, add: float = 1.0, project: bool = False) -> None:
        """Moves to epsilon <- keep epsilon + add s, s the highest point of a slope in the ball.

        The slope, one tensor for each of `context.w`, must not change until the weights are
        restored. A negative `add` moves the other way. `project` brings epsilon back into the ball.
        """
        up, slope = self._context.where_rho_is_positive(d)
        state = PartState(self._state.kept, self._state.numbers, up.w)
        push, length = self._geometry(slope, state, up)
        signs = up.uphill or [1] * len(up.rho)
        radii = [add * sign * radius for sign, radius in zip(signs, up.rho, strict=True)]
        first = not self.is_perturbed
        if first:
            self._save(up, push, length, radii)
        elif keep != 1:
            lerp_(up.w, self._saved, [1 - keep] * len(up.w), self._seed())
        add_scaled_(up.w, push, length, radii, self._seed())
        self._has_moved = True
        if project and not first:  # the first point is inside
            self._project(up)
        self.moved()

    def go_to(self, context: StepContext, at: Vector) -> None:
        """Moves to other weights, one tensor for each of `context.w`."""
        self._context = context
        self._weights, self._saved = context.w, [w.detach().clone() for w in context.w]
        self._added = None
        self.is_perturbed = True
        copy_(self._weights, at)
        self.moved()

    def _save(self, up: StepContext, push: Vector, length: Tensor, radii: list[float]) -> None:
        context = self._context
        self._weights, self._saved, self._added = up.w, [], None
        if self.recompute:
            self._added = (self._owned(push, context.g, up.w), length, radii)
        else:
            self._saved = [self._buffer(w, w) for w in up.w]
            copy_(self._saved, up.w)
            saved = {id(w): x for w, x in zip(up.w, self._saved, strict=True)}
            context.x = [saved.get(id(w), w) for w in context.w]
        self._version_before_add, self._version_before_subtract = _version(up.w), None
        self._has_moved = False
        self.is_perturbed = True

    def _owned(self, push: Vector, g: Vector, w: Vector) -> Vector:
        """The push, with copies of the gradients in it: the next pass may write to their memory."""
        given, kept = {id(x) for x in g}, list(push)
        rows = [i for i, x in enumerate(push) if id(x) in given]
        for i in rows:
            kept[i] = self._buffer(push[i], w[i])
        copy_([kept[i] for i in rows], [push[i] for i in rows])
        return kept

    def _buffer(self, x: Tensor, w: Tensor) -> Tensor:
        buffer = self.weight_buffers.get(w)
        form = (x.shape, x.dtype, x.device)
        if buffer is None or (buffer.shape, buffer.dtype, buffer.device) != form:
            buffer = self.weight_buffers[w] = torch.empty_like(x)
        return buffer

    def _project(self, up: StepContext) -> None:
        epsilon = list(torch._foreach_sub(up.w, self._saved))
        relative = torch._foreach_div(epsilon, up.rho)
        excess = self._geometry.length(list(relative), up).clamp(min=1.0)
        copy_(up.w, self._saved)
        add_scaled_(up.w, epsilon, excess, [1.0] * len(epsilon), self._seed())

    def _seed(self) -> int:
        self._roundings += 1
        return mix_seed(self._context.step, self._roundings)

    def epsilon(self) -> Vector:
        """The current weights minus w, for each of `context.w`, as new tensors."""
        if self._added is None:
            moved = list(torch._foreach_sub(self._weights, self._saved))
        else:
            push, length, radii = self._added
            moved = [torch.zeros_like(w) for w in self._weights]
            add_scaled_(moved, push, length, radii)
        found = {id(w): x for w, x in zip(self._weights, moved, strict=True)}
        return [found[id(w)] if id(w) in found else torch.zeros_like(w) for w in self._context.w]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts w back; a second call does nothing."""
        if not self.is_perturbed:
            return
        if self._added is None:
            copy_(self._weights, self._saved)
        elif self._is_added():
            push, length, radii = self._added
            add_scaled_(self._weights, push, length, [-radius for radius in radii])
        self.is_perturbed = False
        self._context.x = self._context.w
        self._weights, self._saved, self._added = [], [], None
        self.moved()

    def _is_added(self) -> bool:
        """Whether epsilon has been added and not subtracted yet, also after a Ctrl-C."""
        # versions count writes; a model may write to its weights too, as Embedding(max_norm=) does
        now = _version(self._weights)
        if self._version_before_subtract is None and (
            self._has_moved or now == self._version_before_add + 1
        ):
            self._version_before_subtract = now
        return now == self._version_before_subtract

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins with weights that are not perturbed and without buffers."""
        return Perturbation, ("recompute" if self.recompute else "copy", self.moved)


def _version(v: Vector) -> int:
    """How often the first tensor has been written to."""
    return shards(v[:1])[0]._version
