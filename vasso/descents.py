"""Which gradient goes down? A descent makes the gradient u that the base optimizer sees.

| descent     | u                        |
|-------------|--------------------------|
| `Perturbed` | g_t(x_t + epsilon_t)     |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vasso.here import Gradient, Here, Memory
from vasso.parts import Part


@dataclass(frozen=True)
class Descent(Part):
    """Which gradient goes down?

    Attributes:
        needs_path: the gradients of all points have to live until the end, not only the last.
    """

    needs_path: ClassVar[bool] = False

    def __call__(
        self,
        g: Gradient | None,
        path: list[Gradient],
        memory: Memory,
        here: Here,
        **settings: list[float],
    ) -> Gradient:
        """The gradient for the base of the tensors that may be climbed; others keep theirs.

        Args:
            g: the gradient at w; None after a climb unless the part needs it.
            path: the gradients at the points above w, the last one at the end; empty if this step
                did not climb.
            memory: the vectors this part remembers, to be updated in place.
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
        self,
        g: Gradient | None,
        path: list[Gradient],
        memory: Memory,
        here: Here,
        **settings: list[float],
    ) -> Gradient:
        return path[-1] if path else (g or [])
