"""Which gradient goes down? A descent makes the gradient u that the base optimizer sees.

| descent     | u                        |
|-------------|--------------------------|
| `Perturbed` | g_t(x_t + epsilon_t)     |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from torch import Tensor

from vasso.here import Here
from vasso.parts import Part

Gradient: TypeAlias = list[Tensor | None]
"""One gradient for each of `here.w`, None where a tensor got none in that pass."""


@dataclass(frozen=True)
class Descent(Part):
    """Which gradient goes down?

    Attributes:
        needs_clean: the gradient at w has to live until the end of the step.
    """

    needs_clean: ClassVar[bool] = False

    def __call__(
        self, g: Gradient | None, h: Gradient | None, here: Here, **settings: list[float]
    ) -> Gradient:
        """The gradient for the base of the tensors that may be climbed; others keep theirs.

        Args:
            g: the gradient at w; None after a climb unless the part needs it.
            h: the gradient at w + epsilon; None if this step did not climb.
            here: the step.
            **settings: the value of each scheduled setting for each tensor.

        Returns:
            One gradient, or None, for each of `here.w`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Perturbed(Descent):
    """Descends by the gradient at the adversary: u = g_t(x_t + epsilon_t)."""

    def __call__(
        self, g: Gradient | None, h: Gradient | None, here: Here, **settings: list[float]
    ) -> Gradient:
        return h if h is not None else (g or [])
