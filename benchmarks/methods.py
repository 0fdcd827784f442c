"""The methods that are compared, as functions: parameters and a base -> one whole step.

| method                  | keeps                       | restores the weights by     |
|-------------------------|-----------------------------|-----------------------------|
| `VaSSO`, `SAM`          | slope (VaSSO), copy of w    | copying, or the same way    |
| `usual VaSSO`, `SAM`    | slope (VaSSO), epsilon      | subtracting epsilon         |
| `pytorch_optimizer SAM` | copy of w                   | copying                     |
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, TypeAlias, Unpack

import pytorch_optimizer
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from usual import Usual

from vasso import SAM, SharpnessAware, VaSSO
from vasso.optimizer import Options

Closure: TypeAlias = Callable[[], Tensor]
Step: TypeAlias = Callable[[Closure], object]
Base: TypeAlias = tuple[type[Optimizer], dict[str, Any]]
Build: TypeAlias = Callable[[list[Tensor], Base], Step]

RHO, THETA = 0.05, 0.4


class Nothing(Optimizer):
    """A base whose step does nothing, so that all that is timed belongs to its wrapper."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.1, **options: Any) -> None:
        super().__init__(params, {"lr": lr, **options})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing."""


BASES: dict[str, Base] = {
    "nothing": (Nothing, {"lr": 0.1}),
    "sgd": (SGD, {"lr": 1e-3, "momentum": 0.9}),
}


def alone(params: list[Tensor], base: Base) -> Step:
    """Two passes and the base: what is subtracted."""
    kind, options = base
    optimizer = kind(params, **options)

    def step(closure: Closure) -> None:
        closure()
        closure()
        optimizer.step()

    return step


def ours(preset: Callable[..., SharpnessAware], **options: Unpack[Options]) -> Build:
    """A preset of this package."""

    def build(params: list[Tensor], base: Base) -> Step:
        kind, settings = base
        return preset(kind(params, **settings), rho=RHO, **options).step

    return build


def theirs(foreach: bool | None) -> Build:
    """SAM of pytorch_optimizer, which leaves the first pass to the caller."""

    def build(params: list[Tensor], base: Base) -> Step:
        kind, options = base
        optimizer = pytorch_optimizer.SAM(params, kind, rho=RHO, foreach=foreach, **options)

        def step(closure: Closure) -> None:
            closure()
            optimizer.step(closure)  # type: ignore[arg-type]

        return step

    return build


def usual(theta: float) -> Build:
    """The twin of the usual scheme."""

    def build(params: list[Tensor], base: Base) -> Step:
        kind, options = base
        return Usual(kind(params, **options), RHO, theta).step

    return build


PRESETS: tuple[type[SAM] | type[VaSSO], ...] = (VaSSO, SAM)
RESTORES: tuple[Literal["copy", "recompute"], ...] = ("recompute", "copy")
NONFINITES: tuple[Literal["ignore", "skip"], ...] = ("ignore", "skip")

METHODS: dict[str, Build] = {
    **{
        f"{preset.__name__} {restore} {nonfinite}": ours(
            preset, restore=restore, nonfinite=nonfinite
        )
        for preset in PRESETS
        for restore in RESTORES
        for nonfinite in NONFINITES
    },
    "VaSSO recompute bfloat16": ours(
        partial(VaSSO, slope_dtype=torch.bfloat16), restore="recompute"
    ),
    "usual VaSSO": usual(THETA),
    "usual SAM": usual(1.0),
    "pytorch_optimizer SAM": theirs(None),
    "pytorch_optimizer SAM foreach": theirs(True),
}
