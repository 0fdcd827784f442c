"""Bi-LoRA: a second pair of LoRA factors is the adversary; it ascends while the first descends.

The second pair belongs to the optimizer. A forward hook adds its product to each adapted layer in
training, so the model's own state and the saved adapter are those of plain LoRA.
"""

from __future__ import annotations  # the site shows signatures as written

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from vasso.engine.groups import PREFIX
from vasso.engine.notices import warn
from vasso.engine.wrapper import CommonOptions
from vasso.numerics.rng import mix_seed
from vasso.numerics.vectors import Vector, at_least_float32, norm
from vasso.parts.part import Part, Setting
from vasso.parts.plans import Data
from vasso.standalone.lora_layers import LoraLayer, adapted_layers, product_norm
from vasso.standalone.stepper import Stepper

VALUE = "adversary"
"""The name of the second pair's values in a checkpoint."""


@dataclass(frozen=True)
class SecondPair(Part):
    """The second pair of each layer: A2 drawn as LoRA draws A, B2 = 0; float32 at least.

    Args:
        seed: seed of A2, which is a function of seed and layer.
    """

    seed: int = 0

    def __call__(self, x: LoraLayer, number: int) -> Adversary:
        """The second pair of a layer."""
        dtype, device = at_least_float32(x.A.dtype), x.A.device
        generator = torch.Generator(device).manual_seed(mix_seed(self.seed, number))
        limit = 1 / math.sqrt(x.A[0].numel())
        A = torch.empty_like(x.A, dtype=dtype).uniform_(-limit, limit, generator=generator)
        B = torch.zeros_like(x.B, dtype=dtype)
        return Adversary(x, A.detach().requires_grad_(), B.detach().requires_grad_())


@dataclass(eq=False)
class Adversary:
    """The second pair of one layer, as a forward hook: adds s B2 A2 x in training.

    Attributes:
        layer: the layer with the first pair.
        A: the factor that reads the input.
        B: the factor that writes the output.
        on: whether rho is above 0.
        handle: of the hook.
    """

    layer: LoraLayer
    A: Tensor
    B: Tensor
    on: bool = False
    handle: RemovableHandle | None = field(default=None, repr=False)

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Both."""
        return self.A, self.B

    def __call__(self, module: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor | None:
        if not (self.on and module.training and torch.is_grad_enabled() and self.layer.is_active):
            return None
        if not torch.compiler.is_compiling():
            self._forget_old_gradients()
        return out + self.layer.branch(given[0], self.A, self.B).to(out.dtype)

    def _forget_old_gradients(self) -> None:
        """`model.zero_grad()` clears those of the first pair alone."""
        if self.layer.A.grad is None and self.layer.B.grad is None:
            self.A.grad = self.B.grad = None


class BiLoRA(Stepper):
    """A second pair of LoRA factors per layer ascends while the first descends: one gradient.

    W = W0 + s B1 A1 + s B2 A2;  (A1, B1) step by the gradient, (A2, B2) against it;
    then c = sqrt(sum of ||B2 A2||^2), and if c > rho both of A2, B2 are scaled by sqrt(rho / c)

    Liu et al., ICLR 2026. One backward a step. The base steps both pairs, the second one with the
    sign of its gradient turned, in groups of its own with the same settings and learning rates but
    no weight decay. It is not clipped. In memory it is like a second adapter.
    B2 = 0 at the start, so the adversary needs some steps to grow. `step()` needs no closure: it
    works in any loop, with accumulation and a GradScaler, and in the plain Trainer.

    The second pair is not part of the model, so neither `model.state_dict()` nor a saved adapter
    holds it. The optimizer's `state_dict` does, and a training resumes bit for bit. Evaluation
    (`model.eval()` or no gradients) is without it, and `unwrap()` throws it away.

    `model` is one of peft's, or has linear layers with parameters `weight`, `lora_A` (r rows),
    `lora_B` and perhaps a number `scaling`. The norm is without s. LoRA's dropout is not applied to
    the second pair. torch's getters of distributed checkpoints, which look for every parameter in
    the model, do not find it: save `state_dict()`. Create schedulers after this optimizer. In a
    compiled model clear gradients by `opt.zero_grad()`, not by `model.zero_grad()`.

    Args:
        base: the optimizer of the adapters, an instance.
        rho: radius of the ball, of all layers together. The value is ours, not the authors'.
        seed: seed of A2's start.
        **options: see `Stepper`; `model` is needed.

    Raises:
        ValueError: a layer is not understood (DoRA), or its factors are sharded.
        RuntimeError: there are several processes, which would have different adversaries.

    Example:
        >>> layer = nn.Linear(4, 3).requires_grad_(False)
        >>> layer.lora_A = nn.Parameter(torch.ones(2, 4))
        >>> layer.lora_B = nn.Parameter(torch.zeros(3, 2))
        >>> base = torch.optim.AdamW([layer.lora_A, layer.lora_B], lr=1e-3)
        >>> opt = BiLoRA(base, rho=0.05, model=layer)
        >>> [group["weight_decay"] for group in opt.param_groups]
        [0.01, 0.0]
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        seed: int = 0,
        **options: Unpack[CommonOptions],
    ) -> None:
        self.second_pair = SecondPair(seed)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise RuntimeError(
                f"BiLoRA trains in one process and there are {dist.get_world_size()}: the ranks "
                "do not reduce the gradients of its second pair. Use FlatLoRA or BAR."
            )
        super().__init__(base, rho=rho, parts=(self.second_pair,), **options)
        layers = adapted_layers(self.model, base)
        for x in layers:
            _check_layer(x)
        self.adversaries = [self.second_pair(x, i) for i, x in enumerate(layers)]
        self._follows = _added_groups(base, self.adversaries)
        self._groups.adopt()
        for own in self.adversaries:
            self._vectors.update({p: {VALUE: p} for p in own.factors})
            own.handle = own.layer.host.register_forward_hook(own)
        self._switch()

    @property
    def _ascending(self) -> Vector:
        return [p for x in self.adversaries for p in x.factors]

    def _clipped(self) -> Vector:
        ascending = set(self._ascending)
        return [p for p in self._groups.params() if p not in ascending]

    def _compute_u(self, batch: Data) -> None:
        self._switch()
        context = self._context()
        gradient = self._gradient_of(batch, context)
        perturbed = self._climbed_in_loop()
        self._current.has_gradient_at_w = not perturbed
        self._current.note(climbed=perturbed)
        self._publish(context, [x for x in gradient if x is not None], None, None, None)

    def _climbed_in_loop(self) -> bool:
        return any(x.on for x in self.adversaries)

    def _step_base(self) -> None:
        skipped, rho = self._current.pending == "skip", self._rho()
        if not skipped:
            self._prepare_ascent()
        super()._step_base()
        if not skipped:
            self._shrink(rho)
            self._switch()
        for p in self._ascending:
            p.grad = None

    def _prepare_ascent(self) -> None:
        """The learning rates of the first pair, the turned gradients of the second."""
        for group, own in self._own_groups():
            group["lr"] = own["lr"]
        gradients = [p.grad for p in self._ascending]
        taken = any(x.layer.A.grad is not None for x in self.adversaries)
        if taken and any(x.on for x in self.adversaries) and all(x is None for x in gradients):
            warn(
                "BiLoRA's second pair has no gradient: it takes part in training mode alone. Call "
                "model.train()."
            )
        for p, gradient in zip(self._ascending, gradients, strict=True):
            p.grad = None if gradient is None else gradient.neg()

    def _own_groups(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The groups of the second pairs, each with the group that it follows."""
        of = self._groups.by_parameter()
        for first, second in self._follows:
            yield of[second], of[first]

    @torch.no_grad()
    def _shrink(self, rho: float) -> None:
        """A2, B2 *= sqrt(rho / c) if c > rho, c = sqrt(sum of ||B2 A2||_F^2); no host sync."""
        if rho == 0:
            return
        c = norm([product_norm(*x.factors) for x in self.adversaries])
        factor = torch.where(c > rho, (rho / c).sqrt(), 1.0)
        for p in self._ascending:
            p.mul_(factor.to(p))

    def _rho(self) -> float:
        """The radius of all layers together."""
        rows = self._groups.current()
        of = {
            p: row["rho"]
            for group, row in zip(self.param_groups, rows, strict=True)
            for p in group["params"]
        }
        found = {of[x.layer.A] for x in self.adversaries}
        if len(found) > 1:
            raise ValueError(
                f"BiLoRA's rho is the radius of all layers together, but groups have {found}: give "
                "all groups with adapters the same"
            )
        return found.pop()

    def _switch(self) -> None:
        """Turns the second pairs off while rho is 0."""
        on = self._rho() > 0
        for x in self.adversaries:
            x.on = on

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a checkpoint of this method, the second pairs with it."""
        given, own = len(state_dict.get("param_groups", ())), len(self.param_groups)
        if given != own:
            raise ValueError(
                f"the checkpoint has {given} groups, and BiLoRA {own} with those of its second "
                "pair: load a checkpoint of the plain base into the base, before you wrap it"
            )
        super().load_state_dict(state_dict)
        for p in self._ascending:
            p.copy_(self._vectors.get(p, {}).get(VALUE, p))
            self._vectors[p] = {VALUE: p}
            p.grad = None
        self._switch()

    def unwrap(self) -> Optimizer:
        """Returns the base without our keys and without the second pairs, which are gone."""
        base, ascending = super().unwrap(), set(self._ascending)
        for x in self.adversaries:
            if x.handle is not None:
                x.handle.remove()
        mine = (group for group in base.param_groups if ascending.isdisjoint(group["params"]))
        base.param_groups[:] = list(mine)
        for p in ascending:
            base.state.pop(p, None)
        return base


def _added_groups(base: Optimizer, adversaries: list[Adversary]) -> list[tuple[Tensor, Tensor]]:
    """Gives the base a group of second factors for each group of first ones.

    Returns:
        A parameter of each of these groups, after one of the group that it follows.
    """
    second = {a: b for x in adversaries for a, b in zip(x.layer[1:3], x.factors, strict=True)}
    found = []
    for group in list(base.param_groups):
        first = [p for p in group["params"] if p in second]
        if first:
            same = {k: v for k, v in group.items() if not k.startswith(PREFIX)}
            names = same.pop("param_names", None)
            added: list[Any] = [second[p] for p in first]
            if names is not None:  # torch takes names in every group, or in none
                name_of = dict(zip(group["params"], names, strict=True))
                added = [(f"{name_of[p]}.{VALUE}", second[p]) for p in first]
            decay = {"weight_decay": 0.0} if "weight_decay" in group else {}
            base.add_param_group(same | decay | {"params": added})
            found.append((first[0], second[first[0]]))
    return found


def _check_layer(x: LoraLayer) -> None:
    if any(hasattr(p, "device_mesh") for p in (x.A, x.B)):
        raise ValueError(f"the factors of {x.name!r} are sharded (FSDP2), which BiLoRA cannot use")
