"""LoRA layers: the trained factors A and B of W' = W + s B A, found in a model.

`lora_layers` reads the layout of peft's modules, which have entries `lora_A` and `lora_B` (or
`lora_embedding_A` and `lora_embedding_B`) for each adapter, or parameters of these names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class LoraLayer(NamedTuple):
    """One pair of factors, and what they are added to.

    Attributes:
        name: of the module, and of the adapter in it.
        A: the factor that reads the input, r rows.
        B: the factor that writes the output, r columns.
        module: the module that they belong to; None for a pair that was given by hand.
        adapter: the name of the adapter in that module.
    """

    name: str
    A: Tensor
    B: Tensor
    module: nn.Module | None = None
    adapter: str = ""


Pairs: TypeAlias = Iterable[tuple[Tensor, Tensor]]
"""Pairs (A, B) given by hand."""


def lora_layers(model: nn.Module, adapter: str | None = None) -> list[LoraLayer]:
    """The pairs of factors in a model; of one adapter, or of all.

    Args:
        model: the model, wrapped or not.
        adapter: the name of one adapter; None for those of all.

    Returns:
        One entry for each pair, in the order of the modules.

    Example:
        >>> layer = nn.Linear(4, 3)
        >>> layer.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
        >>> layer.lora_B = nn.ModuleDict({"default": nn.Linear(2, 3, bias=False)})
        >>> [(x.name, *x.A.shape, *x.B.shape) for x in lora_layers(nn.Sequential(layer))]
        [('0.default', 2, 4, 3, 2)]
    """
    found = [
        LoraLayer(f"{name}.{key}".strip("."), A, B, module, key)
        for name, module in model.named_modules()
        for key, A, B in _factors(module)
    ]
    return [x for x in found if adapter is None or x.adapter == adapter]


def _factors(module: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
    for kind in ("lora", "lora_embedding"):
        A, B = (getattr(module, f"{kind}_{factor}", None) for factor in "AB")
        if isinstance(A, Tensor) and isinstance(B, Tensor):
            yield "", A, B
        elif isinstance(A, Mapping | nn.ModuleDict | nn.ParameterDict) and B is not None:
            for key in A:
                yield key, _weight(A[key]), _weight(B[key])


def _weight(factor: Any) -> Tensor:
    found: Tensor = factor if isinstance(factor, Tensor) else factor.weight
    return found


def given_layers(pairs: Pairs) -> list[LoraLayer]:
    """Pairs given by hand, checked to have a common rank."""
    found = [LoraLayer(f"pair {i}", A, B) for i, (A, B) in enumerate(pairs)]
    for x in found:
        if x.A.dim() < 2 or x.B.dim() < 2 or x.B.shape[1] != x.A.shape[0]:
            raise ValueError(
                f"{x.name} must be (A, B) with as many rows of A as columns of B, got shapes "
                f"{tuple(x.A.shape)} and {tuple(x.B.shape)}: is it (B, A)?"
            )
    return found


def of_base(layers: list[LoraLayer], base: Optimizer) -> list[LoraLayer]:
    """The layers whose two factors the base trains; a ValueError if there is none."""
    trained = {id(p) for group in base.param_groups for p in group["params"]}
    found = []
    for x in layers:
        has = id(x.A) in trained, id(x.B) in trained
        if all(has):
            found.append(x)
        elif any(has):
            missing = "B" if has[0] else "A"
            raise ValueError(
                f"{missing} of {x.name!r} is not among the parameters of the base: give it both "
                "factors, or leave the pair out with pairs="
            )
    if not found:
        raise ValueError(
            "found no pair of LoRA factors among the parameters of the base: pass model=, with "
            "peft's layers in it, or pairs=[(A, B), ...]"
        )
    return found


def product_norm(x: LoraLayer) -> Tensor:
    """norm_F(B A), by matrices of r rows and columns: ||B A||^2 = <B'B, A A'>."""
    A, B = x.A.detach().flatten(1), x.B.detach().flatten(1)
    wide = torch.promote_types(A.dtype, torch.float32)
    A, B = A.to(wide), B.to(wide)
    return ((B.mT @ B) * (A @ A.mT)).sum().clamp(min=0).sqrt()
