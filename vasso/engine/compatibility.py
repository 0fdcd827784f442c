"""Compatibility: which parts may be combined with each other and with the options of the wrapper.

Every rule is checked once, in the constructor, and its message names the part and the remedy.
"""

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn
from torch.optim import Optimizer

from vasso import validation
from vasso.parts.ascents import Ascent
from vasso.parts.descents import Descent
from vasso.parts.directions import Direction, Ema
from vasso.parts.geometries import Geometry
from vasso.parts.plans import Batch, Plan
from vasso.parts.policies import Policy
from vasso.parts.radii import Given, Radius


class Parts(NamedTuple):
    """The parts of a method, in the order in which checkpoints name them."""

    direction: Direction
    geometry: Geometry
    ascent: Ascent
    descent: Descent
    policy: Policy
    plan: Plan
    radius: Radius = Given()

    def check(
        self, base: Optimizer, restore: str, sync: str, model: nn.Module | None = None
    ) -> None:
        """Raises ValueError if the parts cannot be used together, or not with these options."""
        problems = [*self._conflicts(), *self._not_selectable(model)]
        if self.plan.divides:
            problems += self.no_mean_over(self.plan)
        if restore == "recompute":
            problems += self._not_recomputable()
        if sync == "local":
            problems += self._not_local()
        if problems:
            raise ValueError(problems[0])
        if restore == "recompute":
            perturbed = [group for group in base.param_groups if group.get("rho") != 0]
            for p in (p for group in perturbed for p in group["params"]):
                validation.exact_enough(p, restore)

    def _conflicts(self) -> Iterator[str]:
        direction, geometry, ascent, descent, policy, plan, radius = self
        wanting = [part for part in (geometry, descent, policy, plan, radius) if part.needs_clean]
        if wanting and not direction.needs_clean:
            yield (
                f"{wanting[0]} needs the gradient at w, but {direction} never takes one: use a "
                "direction that does, such as Ema()"
            )
        if wanting and policy.spares_clean:
            yield (
                f"{wanting[0]} needs the gradient at w in every step, but {policy} spares some of "
                "them"
            )
        if policy.spares_clean and not direction.has_stale:
            yield (
                f"{policy} spares gradients at w, and {direction} does not say what to do without: "
                'use Ema(theta, stale="stay") or "follow"'
            )
        if radius.observes:
            yield from self._not_observable()
        if ascent.points == 1:
            return
        for part in (direction, geometry):
            if part.asks_more:
                yield f"{part} takes gradients of its own only at w, {ascent} has more points"
        if not direction.needs_clean:
            yield (
                f"{ascent} looks at the slope of each point, but {direction} ignores gradients "
                "there: use OneStep()"
            )

    def _not_observable(self) -> Iterator[str]:
        """A rule for the radius compares the losses of the same data at w and at w + epsilon."""
        remedy = "give rho a number or a schedule"
        if not self.direction.needs_clean:
            yield f"{self.radius} needs the loss at w, not taken by {self.direction}: {remedy}"
        if not self.plan.compares:
            yield (
                f"{self.radius} compares the losses of the same samples at w and at w + epsilon, "
                f"which are not the same with {self.plan}: {remedy}"
            )

    def _not_selectable(self, model: nn.Module | None) -> Iterator[str]:
        """A geometry that selects layers needs a model that has some."""
        geometry, direction = self.geometry, self.direction
        if not geometry.selects:
            return
        if direction.remembers_all:
            yield f"{direction} remembers all weights, {geometry} covers some of them: use Ema()"
        if model is None:
            yield f"{geometry} knows layers by their type: pass model="
        elif not any(geometry.covers(module) for module in model.modules()):
            yield (
                f"{geometry} covers no layer of {type(model).__name__}: name the types of its "
                "normalisation layers in also="
            )

    def no_mean_over(self, plan: Plan) -> Iterator[str]:
        """A mask that is kept has no mean over the shares of a plan."""
        if self.geometry.keeps_mask:
            yield f"{self.geometry} keeps a mask, which has no mean over the shares of {plan}"

    def _not_recomputable(self) -> Iterator[str]:
        if self.ascent.points > 1:
            yield (
                f'restore="recompute" cannot be used with {self.ascent}: epsilon is a sum of '
                'several slopes, which are gone by then. Use restore="copy".'
            )
        if self.geometry.depends_on_w:
            yield (
                f'restore="recompute" cannot be used with {self.geometry}: its epsilon depends on '
                'the weights, which have moved by then. Use restore="copy".'
            )

    def _not_local(self) -> Iterator[str]:
        direction, geometry, _, descent, policy, plan, _ = self
        for part, decides in (
            (descent, descent.needs_clean or descent.needs_path),
            (policy, policy.needs_clean),
            (plan, plan.needs_batch),
            (geometry, geometry.keeps_mask or geometry.asks_more),
            (direction, direction.asks_more),
        ):
            if decides:
                yield (
                    f'{part} cannot be used with sync="local": the gradient at w is that of one '
                    'rank, and ranks would drift apart. Use sync="global".'
                )
        if isinstance(direction, Ema) and direction.dtype:
            yield (
                f'{direction} cannot be used with sync="local": ranks would round the mean of '
                'their slopes to nearest. Leave the dtype out, or use sync="global".'
            )

    def check_same_data(self) -> None:
        """Raises ValueError if a part needs what an `ascent_closure` does not give."""
        if self.plan.one_batch:
            raise ValueError(f"{self.plan} takes both gradients from one batch: no ascent_closure")
        if self.radius.observes:
            raise ValueError(
                f"{self.radius} compares the losses of the same data at w and at w + epsilon: "
                "leave ascent_closure out, or give rho a number or a schedule"
            )

    def check_data(self, data: object) -> None:
        """Raises TypeError if a part has to see samples or outputs and gets a plain closure."""
        part = self.plan if self.plan.needs_batch else self.geometry
        takes = self.plan.takes if self.plan.needs_batch else Batch
        if part.needs_batch and not isinstance(data, takes):
            sees, example = (
                ("samples", "vasso.Samples(opt.zero_grad, losses_of, x, y)")
                if takes is Batch
                else ("outputs", "vasso.Outputs(opt.zero_grad, lambda: model(x), loss_of)")
            )
            raise TypeError(
                f"{part} has to see {sees}: pass a vasso.{takes.__name__} to step(), for example "
                f"{example}, not {data!r}"
            )
