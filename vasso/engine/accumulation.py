"""Accumulation: several shares or micro-batches, each with its own perturbation, in one step.

    u = sum_i g_i(x_t + epsilon_i),   d_t = mean_i d_t^(i),   every d_t^(i) starting from d_{t-1}

In the user's training loop the sum so far is in `p.grad` after each micro-batch, where clipping and
a GradScaler look for it. But the next `backward()` must not be added to it, since the next
perturbation needs the gradient of its own micro-batch alone. So a hook on every parameter saves the
sum when a new gradient arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from vasso.engine.groups import COST, Groups
from vasso.numerics.rng import mix_seed
from vasso.numerics.vectors import Vector, copied, lerp_
from vasso.parts.memory import PartState


class Mean:
    """Running means over shares of the data: of gradients, losses and what parts remember.

    lerp(x, x) is x to the last bit: what no share has changed is not changed by the mean. What a
    share does not remember is left out, except vectors named in `like_gradients`: these are 0 then.
    """

    def __init__(self, step: int = 0, like_gradients: frozenset[str] = frozenset()) -> None:
        self.like_gradients = like_gradients
        self.gradients: dict[Tensor, Tensor] = {}
        self.state: PartState | None = None
        self.losses: list[Any] = []
        self.weight = 0.0
        self.step, self._roundings = step, 0

    def add(
        self, params: Vector, state: PartState, weight: float, losses: Sequence[Any] = ()
    ) -> None:
        """Adds a share; takes over its state. A tensor without gradient has one of 0."""
        self.weight += weight
        new = weight / self.weight
        for p in params:
            mean = self.gradients.get(p)
            if mean is None and p.grad is not None:
                self.gradients[p] = copied(p.grad) if new == 1 else p.grad * new
            elif mean is not None:
                mean.lerp_(torch.zeros_like(mean) if p.grad is None else p.grad, new)
        pairs = zip(self.losses or losses, losses, strict=False)
        self.losses = [mean + new * (loss - mean) for mean, loss in pairs]
        if self.state is None:
            self.state = state
            return
        for p, means in self.state.kept.items():
            for name in self.like_gradients & means.keys() - state.kept.get(p, {}).keys():
                means[name].mul_(1 - new)
        for p, vectors in state.kept.items():
            means = self.state.kept.setdefault(p, {})
            for name, vector in vectors.items():
                if name in means:
                    lerp_([means[name]], [vector], [new], self._seed())
                else:
                    means[name] = vector * new if name in self.like_gradients else vector
        for name, number in state.numbers.items():
            before = self.state.numbers.get(name, number)
            self.state.numbers[name] = before + new * (number - before)

    def _seed(self) -> int:
        """For vectors kept in 16 bits, which are rounded at random."""
        self._roundings -= 1  # slopes take 0, weights 1, 2, ...
        return mix_seed(self.step, self._roundings)

    def write_to(self, state: PartState) -> None:
        """Writes the means into `p.grad` and into the state of the step."""
        for p, gradient in self.gradients.items():
            p.grad = gradient
        if self.state is not None:
            state.kept.clear()
            state.kept.update(self.state.kept)
            state.numbers.update(self.state.numbers)


class Accumulation:
    """The micro-batches of the current step in the user's training loop, while there are any.

    `failed` says that a gradient of one of them was not finite, so that the step is skipped.
    Remembered vectors named in `like_gradients` add up as gradients do.
    """

    def __init__(self, groups: Groups, like_gradients: frozenset[str] = frozenset()) -> None:
        self.groups, self.like_gradients = groups, like_gradients
        self._sums: dict[Tensor, Tensor | None] = {}
        self._hooks: list[RemovableHandle] = []
        self._reset()

    def _reset(self) -> None:
        self.active = self.failed = False
        self._passes = self._size = 0
        self._mean = Mean(like_gradients=self.like_gradients)

    def begin(self, accumulate: bool) -> None:
        """Before the passes of a micro-batch: leaves its gradients alone in `p.grad`.

        Without `accumulate`, or if the sum has been cleared, earlier micro-batches are forgotten.
        """
        if self.active:
            self._remove_hooks()
            for p in self.groups.params() if accumulate else ():
                self._save_sum(p)
            if not accumulate or self._is_cleared():
                self.end()
        self.active = accumulate

    def _is_cleared(self) -> bool:
        sums = [x for x in self._sums.values() if x is not None]
        return not sums or (self.failed and not any(bool(x.any()) for x in sums))

    def _save_sum(self, p: Tensor, incoming: Tensor | None = None) -> None:
        if p not in self._sums:
            self._sums[p] = copied(p.grad)
            p.grad = None

    def count_pass(self) -> None:
        """Counts a pass of the caller: one gradient, or a part of one if micro-batches add up."""
        if self.active:
            self._passes += 1
        else:
            self.groups.count(COST)

    def add(self, state: PartState) -> None:
        """Takes what the parts remember after a micro-batch into the mean."""
        self._mean.step = self.groups.step
        self._mean.add([], state, 1.0)

    def close(self, failed: bool = False) -> None:
        """After the passes of a micro-batch: adds its gradients to those of the earlier ones."""
        self.failed = self.failed or failed
        self._add_up()
        self._size += 1
        self._hooks = [
            p.register_hook(partial(self._save_sum, p))  # type: ignore[no-untyped-call]
            for p in self.groups.params()
            if p.requires_grad
        ]

    def finish(self, state: PartState) -> None:
        """Before the base steps: the sum is in `p.grad`, the mean state is the step's."""
        self._remove_hooks()
        self._add_up()
        if not self.failed:
            self._mean.write_to(state)
            for vectors in state.kept.values():
                for name in self.like_gradients & vectors.keys():
                    vectors[name].mul_(self._size)
        self.end()

    def end(self) -> None:
        """Forgets the micro-batches and counts what they have cost."""
        if self.active:
            self._remove_hooks()
            self._sums = {}
            self.groups.count(COST, self._passes / max(1, self._size))
            self._reset()

    def _add_up(self) -> None:
        for p in self.groups.params():
            total = self._sums.get(p)
            if total is not None:
                p.grad = total if p.grad is None else total.add_(p.grad)
        self._sums = {}

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __reduce__(self) -> tuple[type[Accumulation], tuple[Groups, frozenset[str]]]:
        """A copy begins without micro-batches."""
        return Accumulation, (self.groups, self.like_gradients)
