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

    @property
    def host(self) -> Any:
        """The module; a pair given by hand has none."""
        assert self.module is not None
        return self.module

    @property
    def adapted(self) -> Any:
        """The layer whose weight the product is added to: the module itself unless it is peft's."""
        return self.host.get_base_layer() if hasattr(self.host, "get_base_layer") else self.host

    @property
    def weight(self) -> Tensor:
        """W, to which s B A is added."""
        found: Tensor = self.adapted.weight
        return found

    @property
    def scaling(self) -> float:
        """s, LoRA's own scale; 1 where the module names none."""
        found = getattr(self.host, "scaling", 1.0)
        return float(found[self.adapter] if isinstance(found, Mapping) else found)

    @property
    def is_transposed(self) -> bool:
        """Whether the columns of W are the output units, and not its rows."""
        transposed: bool = getattr(self.host, "fan_in_fan_out", False)
        return transposed or isinstance(self.adapted, nn.Embedding)

    @property
    def is_active(self) -> bool:
        """Whether a forward pass goes through the adapter."""
        if getattr(self.host, "disable_adapters", False):
            return False
        return self.adapter in getattr(self.host, "active_adapters", (self.adapter,))

    def delta(self) -> Tensor:
        """s B A in the shape of W."""
        if hasattr(self.host, "get_delta_weight"):
            found: Tensor = self.host.get_delta_weight(self.adapter)
            return found
        return self.scaling * (self.B @ self.A)

    def branch(self, x: Tensor, A: Tensor, B: Tensor) -> Tensor:
        """s B A x for other factors of these shapes, without LoRA's dropout and bias."""
        if isinstance(self.adapted, nn.Embedding):
            found = nn.functional.embedding(x, A.mT) @ B.mT
        else:
            for name, factor in (("lora_A", A), ("lora_B", B)):
                x = _applied(getattr(self.host, name), self.adapter, x, factor)
            found = x
        return self.scaling * found


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


def _applied(given: Any, adapter: str, x: Tensor, factor: Tensor) -> Tensor:
    """A factor applied as its module applies its own weight, strides and padding included."""
    x = x.to(factor.dtype)
    if isinstance(given, Tensor):
        return nn.functional.linear(x, factor)
    module = given[adapter]
    values = {"weight": factor}
    if module.bias is not None:
        values["bias"] = torch.zeros_like(module.bias)
    found: Tensor = torch.func.functional_call(module, values, x)
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


def adapted_layers(model: nn.Module | None, base: Optimizer) -> list[LoraLayer]:
    """The layers whose factors the base trains; a ValueError if one is not understood."""
    found = of_base(lora_layers(model or nn.Module()), base)
    for x in found:
        problem = _unfit(x)
        if problem:
            raise ValueError(f"{x.name!r} {problem}: leave it out of the adapters, or use BAR")
    return found


def _unfit(x: LoraLayer) -> str:
    """Why s B A is not simply added to a weight; empty if it is."""
    if x.adapter in getattr(x.host, "lora_variant", {}):
        return "is a variant of LoRA (such as DoRA), whose product is not added to the weight"
    if not isinstance(getattr(x.adapted, "weight", None), Tensor):
        return f"adapts a {type(x.adapted).__name__}, which has no weight of its own"
    if isinstance(getattr(x.host, "lora_A", None), Tensor) and x.weight.dim() != 2:
        return "is no linear layer"
    return ""


def product_norm(A: Tensor, B: Tensor) -> Tensor:
    """norm_F(B A), by matrices of r rows and columns: ||B A||^2 = <B'B, A A'>."""
    A, B = A.detach().flatten(1), B.detach().flatten(1)
    wide = torch.promote_types(A.dtype, torch.float32)
    A, B = A.to(wide), B.to(wide)
    return ((B.mT @ B) * (A @ A.mT)).sum().clamp(min=0).sqrt()
