"""Radius of a step: asks the rule for it, and reports afterwards what the step has cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vasso.engine.batchnorm import BatchNormStatistics, evaluating
from vasso.engine.current_step import CurrentStep
from vasso.engine.distributed import Distributed
from vasso.engine.groups import COST, Groups
from vasso.numerics.vectors import Vector
from vasso.parts.context import StepContext
from vasso.parts.memory import PartState
from vasso.parts.plans import FORWARD
from vasso.parts.radii import Given, Radius, StepLosses


class RadiusControl:
    """The rule for the radius of one optimizer, and whether it waits for the losses of a step."""

    def __init__(
        self,
        rule: Radius,
        groups: Groups,
        current: CurrentStep,
        distributed: Distributed,
        statistics: BatchNormStatistics,
        model: nn.Module | None,
    ) -> None:
        self.rule, self.groups, self.current = rule, groups, current
        self.distributed, self.statistics, self.model = distributed, statistics, model
        self._observed, self._waiting = False, False

    def set(self, d: Vector, state: PartState, context: StepContext) -> bool:
        """Multiplies the radii of a step by the rule's; False if that is 0."""
        if isinstance(self.rule, Given):
            return True
        rho = self.rule(d, state, context)
        if not 0 <= rho < math.inf:
            raise ValueError(f"{self.rule} must give a finite radius of at least 0, got {rho}")
        context.settings["rho"] = [rho * factor for factor in context.rho]
        self.current.note(radius={"rho": rho, **self.rule.shown(state.numbers)})
        return rho > 0

    def observe(self) -> None:
        """Tells the rule what the losses of the step are, once they are known."""
        last = self.current.summary
        if not self.rule.observes or last.skipped or last.loss_at != "w":
            return
        self._observed, self._waiting = not self._waiting, False
        values = [float(last.loss)]
        values += [float(last.perturbed_loss) - values[0]] if last.climbed else []
        loss, *rise = self._mean(values)
        losses = StepLosses(self.groups.step, loss, rise[0] if rise else None, self._evaluate)
        group, numbers = self.groups.base.param_groups[0], self.groups.numbers()
        settings = {s.name: group[s.key] for s in self.groups.settings}
        self.rule.observe(losses, numbers, settings)
        self.groups.keep_numbers(numbers)
        self.current.note(radius={**last.radius, **self.rule.shown(numbers)})

    def _mean(self, values: list[float]) -> list[float]:
        """Means over the ranks; with the other sign where the base maximizes what is returned."""
        maximizes = all(group.get("maximize") for group in self.groups.base.param_groups)
        losses = [-value for value in values] if maximizes else values
        return self.distributed.mean(losses, self.groups.params()[0].device)

    def _evaluate(self, closure: Callable[[], Any]) -> float:
        with torch.no_grad(), evaluating(self.model), self.statistics.held():
            value = float(closure())
        self.distributed.clear_weight_caches()
        self.groups.count(COST, getattr(closure, "cost", FORWARD))
        return self._mean([value])[0]

    def end_of_step_in_a_loop(self) -> None:
        """Notes whether the loop still owes the losses of its step."""
        current, last = self.current, self.current.summary
        owes = self.rule.observes and last.climbed and not last.skipped
        owes = owes and current.has_gradient_at_w
        self._waiting, self._observed = owes and not self._observed, False

    def check_losses_are_known(self) -> None:
        """Raises RuntimeError if a loop never tells the losses that the rule needs."""
        if self._waiting:
            raise RuntimeError(
                f"{self.rule} needs the losses of each step: call "
                "opt.note_losses(loss, perturbed_loss) once for each step of your loop"
            )
