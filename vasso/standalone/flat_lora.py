"""Flat-LoRA: the gradient of LoRA's factors where the merged weights carry random noise.

The noise is a function of the weights, the seed and the step: micro-batches of one step share it,
and nothing is remembered. torch's global generator is not used, so dropout masks stay the same.
"""

from __future__ import annotations  # the site shows signatures as written

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer

from vasso import schedules
from vasso.engine.wrapper import CommonOptions
from vasso.numerics.rng import mix_seed
from vasso.numerics.vectors import full_precision
from vasso.parts.context import StepContext
from vasso.parts.part import Part, Setting
from vasso.parts.plans import Data
from vasso.standalone.lora_layers import LoraLayer, adapted_layers
from vasso.standalone.stepper import Stepper


@dataclass(frozen=True)
class NoiseOfRows(Part):
    """epsilon_ij ~ N(0, (rho ||W'_i|| / sqrt(n))^2), W'_i the n weights of an output unit.

    Args:
        seed: seed of the noise, which is a function of seed, step and layer.
    """

    seed: int = 0

    def __call__(self, merged: Tensor, rho: float, step: int, number: int) -> Tensor:
        """The noise for a matrix whose rows are output units."""
        seed = mix_seed(self.seed, step, number)
        generator = torch.Generator(merged.device).manual_seed(seed)
        noise = torch.empty_like(merged).normal_(generator=generator)
        lengths = torch.linalg.vector_norm(merged, dim=1, keepdim=True)
        return noise.mul_(lengths).mul_(rho / math.sqrt(merged.shape[1]))


class FlatLoRA(Stepper):
    """Takes the gradient of the factors at merged weights with random noise on them.

    epsilon_ij ~ N(0, (rho_t ||W'_i|| / sqrt(n))^2),  W' = W + s B A,  u = g(W + epsilon)

    Li et al., ICML 2025. W'_i are the n weights of output unit i. rho_t rises along half a cosine
    from 0 to rho. One gradient a step and no memory between steps; one copy of the adapted weights
    during a pass, from which they are restored bit for bit. In a loop of your own, or in a
    Trainer's `training_step`, put forward and backward into `with opt.ascended():`. All
    micro-batches of a step see the same noise, and all ranks of DDP.

    `model` is one of peft's, or has layers with parameters `weight`, `lora_A` (r rows), `lora_B`
    and perhaps a number `scaling`.

    Args:
        base: the optimizer of the adapters, an instance.
        total: steps of the training, over which rho rises.
        rho: the last value of the rise, in units of the weights' own size; or a schedule in its
            place.
        seed: seed of the noise.
        **options: see `Stepper`; `model` is needed.

    Raises:
        ValueError: a layer cannot be perturbed: quantized weights, DoRA, FSDP2.

    Example:
        >>> layer = torch.nn.Linear(4, 3).requires_grad_(False)
        >>> layer.lora_A = torch.nn.Parameter(torch.ones(2, 4))
        >>> layer.lora_B = torch.nn.Parameter(torch.zeros(3, 2))
        >>> base = torch.optim.SGD([layer.lora_A, layer.lora_B], lr=0.1)
        >>> opt = FlatLoRA(base, rho=0.05, total=100, model=layer)
        >>> opt.param_groups[0]["rho"]
        0.0
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        total: int,
        rho: Setting = 0.05,
        seed: int = 0,
        **options: Unpack[CommonOptions],
    ) -> None:
        self.noise = NoiseOfRows(seed)
        rising = rho if callable(rho) or rho == 0 else schedules.cosine(0.0, rho, total)
        super().__init__(base, rho=rising, parts=(self.noise,), **options)
        self.layers = adapted_layers(self.model, base)
        self._perturbed_by_loop = False
        for x in self.layers:
            _check_perturbable(x)

    def _compute_u(self, batch: Data) -> None:
        context = self._context()
        with self.ascended() as perturbed:
            gradient = self._gradient_of(batch, context)
        self._current.has_gradient_at_w = not perturbed
        self._current.note(climbed=perturbed)
        self._publish(context, [x for x in gradient if x is not None], None, None, None)

    @contextmanager
    def ascended(self) -> Iterator[bool]:
        """For loops that own forward and backward: the merged weights carry the noise of this step.

        Enter it for every micro-batch, then call `step()`. It is left with the weights as before,
        also by an exception.

        Yields:
            True if the weights are perturbed.
        """
        self._require_restored("ascended()")
        self._notices.before_first_step()
        found = self._to_perturb()
        weights = [rows[0].weight for _, rows, _ in found]
        try:
            with torch.no_grad():
                if weights:
                    self._perturbation.go_to(StepContext(self._groups.step, weights), weights)
                for number, rows, rho in found:
                    self._add_noise(rows, rho, number)
            yield bool(weights)
        finally:
            self._perturbation.restore()
        self._perturbed_by_loop = bool(weights)

    def _climbed_in_loop(self) -> bool:
        found, self._perturbed_by_loop = self._perturbed_by_loop, False
        return found

    def _to_perturb(self) -> list[tuple[int, list[LoraLayer], float]]:
        """The number of each weight, its adapters and its rho, where that is above 0."""
        rho = {
            p: row["rho"]
            for group, row in zip(self.param_groups, self._groups.current(), strict=True)
            for p in group["params"]
        }
        found: dict[Tensor, list[LoraLayer]] = {}
        for x in self.layers:
            found.setdefault(x.weight, []).append(x)
        rows = ((i, rows, rho[rows[0].A]) for i, rows in enumerate(found.values()))
        return [row for row in rows if row[-1] > 0]

    def _add_noise(self, rows: list[LoraLayer], rho: float, number: int) -> None:
        """W <- W + epsilon, in place; rounded to nearest, which noise of this size bears."""
        x, weight = rows[0], rows[0].weight
        wide = full_precision(weight.detach())
        merged = wide + sum(row.delta() for row in rows)
        units = merged.mT.contiguous() if x.is_transposed else merged.flatten(1)
        noise = self.noise(units, rho, self._groups.step, number)
        noise = noise.mT if x.is_transposed else noise.view_as(merged)
        weight.copy_(wide + noise)

    def _step_without_closure(self) -> None:
        if any(row["rho"] > 0 for row in self._groups.current()):
            self._notices.plain_step()
        super()._step_without_closure()


def _check_perturbable(x: LoraLayer) -> None:
    weight: Any = x.weight
    if not weight.is_floating_point():
        raise ValueError(
            f"the weight of {x.name!r} is of {weight.dtype}, which cannot carry noise: load the "
            "model without quantization, or use BiLoRA"
        )
    if hasattr(weight, "device_mesh"):
        raise ValueError(
            f"the weight of {x.name!r} is sharded (FSDP2), and FlatLoRA needs whole rows: use DDP"
        )
