"""State of the parts: vectors by parameter and name, and numbers by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from vasso.numerics.vectors import Gradient, Vector, at_least_float32, copy_

KeptVectors: TypeAlias = dict[Tensor, dict[str, Tensor]]
"""The remembered vectors of each parameter, by name."""


@dataclass
class PartState:
    """What the parts remember, for the tensors of one step.

    Attributes:
        kept: all remembered vectors, by parameter and name.
        numbers: all remembered numbers, by name.
        w: the parameters of the step, in the order in which vectors are handed out.
    """

    kept: KeptVectors
    numbers: dict[str, float] = field(default_factory=dict)
    w: Vector = field(default_factory=list)

    def recall(self, name: str) -> list[Tensor | None]:
        """The stored tensors of this name, to be updated in place; None where there is none yet."""
        return [self.kept[p].get(name) if p in self.kept else None for p in self.w]

    def store(self, name: str, i: int, value: Tensor) -> Tensor:
        """Remembers a tensor that is not used elsewhere for the i-th of w; returns it."""
        self.kept.setdefault(self.w[i], {})[name] = value
        return value

    def take(self, name: str, p: Tensor) -> Tensor | None:
        """What is remembered of a parameter under a name, which is then forgotten."""
        vectors = self.kept.get(p, {})
        found = vectors.pop(name, None)
        if not vectors:
            self.kept.pop(p, None)
        return found

    def keep(self, name: str, values: Gradient) -> None:
        """Remembers copies of tensors, one for each of w; where None, the earlier one stays."""
        old_values, new_values = [], []
        for i, (old, new) in enumerate(zip(self.recall(name), values, strict=True)):
            if new is not None and old is None:
                dtype = at_least_float32(new.dtype)
                self.store(name, i, new.detach().to(dtype, copy=True))
            elif new is not None and old is not None:
                old_values.append(old)
                new_values.append(new)
        copy_(old_values, new_values)

    def copy(self) -> PartState:
        """A copy that can be changed independently."""
        kept = {p: {n: v.clone() for n, v in own.items()} for p, own in self.kept.items()}
        return PartState(kept, dict(self.numbers), self.w)
