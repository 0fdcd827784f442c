"""What is each line of the algorithm made of? Gathering, measuring, letting go, handing down.

`SharpnessAware` in `optimizer.py` is the algorithm in order; here is what its lines do.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vasso import checks, randomness
from vasso.ascents import Ascent
from vasso.batchnorm import Statistics, evaluating, unattended
from vasso.descents import Descent
from vasso.directions import Direction
from vasso.geometries import Geometry
from vasso.here import Climb, Gradient, Here, Limit, Memory, Restore
from vasso.plans import Data, Plan, Share, Source
from vasso.policies import Policy
from vasso.ranks import Ranks
from vasso.records import StepSummary
from vasso.settings import COST, SKIPPED, STEP
from vasso.underway import NonFiniteError, Traveller
from vasso.vectors import Vector, is_safe, measured, norm, owned

MANY = 32
"""So many plain steps without a single climb are taken for a mistake."""


class Footwork(Traveller):
    """What the lines of Algorithm 1 do."""

    direction: Direction
    geometry: Geometry
    ascent: Ascent
    descent: Descent
    policy: Policy
    plan: Plan
    source: Source | None
    model: nn.Module | None
    statistics: Statistics
    ranks: Ranks
    same_rng: bool
    restore: Restore
    nonfinite: Literal["skip", "raise", "ignore"]
    clip_norm: float | None

    # -- before the first pass --------------------------------------------------------------------

    def _begin(self) -> None:
        """Once: warns of BatchNorm that nobody holds still, and of names that nobody knows."""
        now = self._now
        if now.started:
            return
        now.started = True
        layers = unattended(self._params()) if self.model is None else []
        remedy = f"pass model=, as in {type(self).__name__}(base, model=model)"
        if layers:
            warnings.warn(
                f"{len(layers)} layers such as {layers[0]} will update their running statistics in "
                f"both passes: {remedy}",
                stacklevel=7,
            )
        if self.geometry.needs_names and any(p not in self._names() for p in self._params()):
            warnings.warn(
                f"{self.geometry} treats weights and biases differently, but the names of the "
                "parameters are not known: tensors of two or more dimensions count as weights, so "
                f"that the scale of BatchNorm does not: {remedy}",
                stacklevel=7,
            )

    def _names(self) -> dict[Tensor, str]:
        """The names of the parameters, from the model or from torch's own groups."""
        now = self._now
        if now.named_groups != len(self.param_groups):
            now.named_groups = len(self.param_groups)
            for group in self.param_groups:
                now.names.update(zip(group["params"], group.get("param_names", ()), strict=False))
            if self.model is not None:
                now.names.update({p: name for name, p in self.model.named_parameters()})
        return now.names

    def _set_out(self, share: Share) -> Here:
        """The step before any pass: settings by group, no tensors yet."""
        now, rows = self._now, self._current_settings()
        now.summary, now.losses, now.other_data = StepSummary(), [], not share.same
        replayed = self.same_rng or self.direction.asks_more or self.geometry.asks_more
        now.draws = randomness.current(self._params()) if replayed else None
        settings = {s.name: [row[s.name] for row in rows] for s in self.settings}
        for name in self.policy.scheduled:
            checks.same_for_all_groups(name, settings[name])
        here = Here(self.param_groups[0][STEP], settings=settings)
        here.base_state = lambda p: self.base.state.get(p, {})
        here.gradient = partial(self._extra_gradient, here, share)
        here.samples = lambda n: [
            share.up.subset(torch.tensor([i]))  # type: ignore[attr-defined]
            for i in range(min(n, len(share.up)))  # type: ignore[arg-type]
        ]
        return here

    def _asks(self, memory: Memory, here: Here) -> bool:
        """Whether the gradient at w is wanted in this step."""
        if not self.direction.needs_clean:
            return False
        return not memory.kept or self.policy.clean(memory, here)

    # -- the gradient at w ------------------------------------------------------------------------

    def _arrive(self, here: Here, memory: Memory, with_gradient: bool) -> Vector | None:
        """Gathers the tensors that may be climbed, and their gradient if there is one."""
        rows = self._gather(here, memory, with_gradient)
        names = self._names()
        here.settings = {n: [v[row] for row in rows] for n, v in here.settings.items()}
        here.names = [names.get(p) for p in here.w]
        here.uphill = self._uphill(rows)
        here.x = memory.w = here.w
        self._now.clean = with_gradient
        here.norm.may_look = self.nonfinite != "ignore"
        if not with_gradient:
            here.norm.look = here.norm.may_look
            return None
        here.g = [p.grad for p in here.w if p.grad is not None]
        self._measure_first(here)
        return here.g

    def _gather(self, here: Here, memory: Memory, with_gradient: bool) -> list[int]:
        """Fills `here.w` and tells the group of each; forgets all where rho is the number 0."""
        rows: list[int] = []
        everywhere = self.direction.remembers_all and any(rho > 0 for rho in here.rho)
        for row, group in enumerate(self.param_groups):
            if here.rho[row] == 0 and "rho" not in self._schedules[row] and not everywhere:
                for p in group["params"]:
                    memory.kept.pop(p, None)
                continue
            for p in group["params"]:
                if p.grad is not None if with_gradient else p.requires_grad:
                    checks.climbable(p, p.grad if with_gradient else p, self.restore)
                    here.w.append(p)
                    rows.append(row)
        return rows

    def _uphill(self, rows: list[int]) -> list[int]:
        """Which way is up for the base: what it maximizes, its adversary makes small."""
        ways = [-1 if group.get("maximize") else 1 for group in self.param_groups]
        against = self.direction.sign < 0  # along the base's own way already
        return [] if against or min(ways) > 0 else [ways[row] for row in rows]

    def _measure_first(self, here: Here) -> None:
        """Ends the step if the gradient at w is not finite, before anything has seen it."""
        now = self._now
        if self.nonfinite == "ignore" or not here.w:
            return
        length, value = here.norm.measure(here.g)
        if not math.isfinite(value):
            self.statistics.recover()
            raise NonFiniteError(value)
        known = len(now.safe_w) == len(here.w)
        known = known and all(a is b for a, b in zip(now.safe_w, here.w, strict=True))
        here.norm.look = not (known and here.norm.safe)
        now.safe_w = [] if here.norm.look else here.w
        now.summary = StepSummary(g_norm=length)

    def _extra_gradient(
        self,
        here: Here,
        share: Share,
        at: Vector | None = None,
        data: Literal["batch", "full"] | Data = "batch",
    ) -> Gradient:
        """A gradient that a part asks for: the random numbers are those of the pass at w."""
        if data == "full" and self.source is None:
            raise TypeError(f"{self.direction} needs all of the data: pass source=")
        full = self.source.full() if self.source is not None and data == "full" else data
        wanted = share.up if data == "batch" else full
        outer, kept = self._now.climb, [(p, owned(p.grad)) for p in self._params()]
        draws = randomness.current(self._params())
        self._clear_gradients()
        if self._now.draws is not None:
            randomness.replay(self._now.draws)
        single = self.model if callable(data) else None
        with (
            self._climb(here, Memory({})) as x,
            self.statistics.second_pass(),
            evaluating(single),
        ):
            if at is not None:
                x.go_to(at)
            self._evaluate(wanted)  # type: ignore[arg-type]
            self._now.losses.pop()
            gradient = [owned(x) for x in here.gradients()]
            self._measure_last()
        self._now.climb = outer
        randomness.replay(draws)
        for p, before in kept:
            p.grad = before
        return gradient

    def _slope(self, g: Gradient | None, memory: Memory, here: Here) -> Vector:
        """The direction; what has no gradient at an inner point counts as flat there."""
        if not here.w:
            return []
        if g is not None and any(x is None for x in g):
            g = [torch.zeros_like(p) if x is None else x for p, x in zip(here.w, g, strict=True)]
        return self.direction(g, memory, here, **here.of(self.direction))  # type: ignore[arg-type]

    # -- the climb --------------------------------------------------------------------------------

    def _climb(self, here: Here, memory: Memory) -> Climb:
        def ball(d: Vector, up: Here) -> tuple[Vector, Tensor]:
            return self.geometry(d, Memory(memory.kept, memory.numbers, up.w), up)

        self._now.climb = Climb(
            here, ball, self.restore, self._now.attic, self.ranks.forget_weights
        )
        return self._now.climb

    def _way(self, j: int) -> tuple[float, float, Limit]:
        keep, add = self.ascent(j)
        limit = self.geometry.length if self.ascent.projects else None
        return keep, add * self.direction.sign, limit

    def _let_go(
        self, here: Here, g: Vector | None, d: Vector, x: Climb
    ) -> tuple[Vector | None, Vector | None, Vector | None]:
        """Drops what nobody needs any more before the next pass, which wants the memory."""
        now, several = self._now, self.ascent.points > 1
        now.safe_w = here.w if here.norm.safe else []
        now.summary = replace(now.summary, d_norm=here.norm.known(d), climbed=True)
        here.norm.let_go()
        self._clear_gradients()
        if now.draws is not None and self.same_rng:
            randomness.replay(now.draws)
        if not (now.observers or self.descent.needs_clean):
            g = None
        if not (now.observers or self.descent.needs_clean or several):
            here.g = []
        epsilon = x.epsilon() if now.observers else None
        kept = d if now.observers or several else []
        mine = {id(v): owned(v) for v in [*(g or []), *here.g, *kept]}  # g, here.g, d may be one
        here.g = [mine[id(v)] for v in here.g]
        return g and [mine[id(v)] for v in g], [mine[id(v)] for v in kept], epsilon

    def _gradient_above(self, here: Here) -> Gradient:
        """What the pass at w + epsilon has left, if it is finite."""
        self._measure_last()
        found = here.gradients()
        return found if self.ascent.points == 1 else [owned(x) for x in found]

    def _measure_last(self) -> None:
        """Ends the step if what goes down is not finite: weights return, the base is left alone."""
        now = self._now
        if self.nonfinite == "ignore":
            return
        going_down = self._going_down()
        length, value = measured(going_down)
        if not math.isfinite(value):
            self.statistics.recover()
            raise NonFiniteError(value, above=now.away)
        now.descent_is_safe = is_safe(value, going_down)
        if now.away:
            now.summary = replace(now.summary, h_norm=length)

    # -- the descent ------------------------------------------------------------------------------

    def _hand_down(
        self, g: Gradient | None, path: list[Gradient], memory: Memory, here: Here
    ) -> None:
        """u into `p.grad`, and a last word to the parts about what was found."""
        u = self.descent(g, path, memory, here, **here.of(self.descent))
        last = path[-1] if path else g
        for part in self.parts:
            part.after(last or [], memory, here)
        for p, gradient in zip(here.w, u, strict=True):
            p.grad = gradient
        here.g = []  # `here` may live on in a cycle; its vectors must not
        here.norm.let_go()

    def _descend(self) -> None:
        """x_{t+1} = x_t - lr u, as the base does it; nothing if the step is skipped."""
        pending, self._now.pending = self._now.pending, None
        if pending == "skip":
            return
        if self.clip_norm is not None:
            u = self._going_down()
            length = norm(u) if self._now.descent_is_safe else measured(u)[0]
            nn.utils.clip_grads_with_norm_(self._params(), self.clip_norm, length)
        self.base.step()
        self._count(STEP)

    def _plainly(self) -> None:
        """A step of the base alone; many of these and no climb are probably a mistake."""
        now = self._now
        now.summary, now.descent_is_safe = StepSummary(), True
        self._count(COST)  # the caller's own pass
        now.plain_steps += not now.started
        if now.plain_steps == MANY:
            ours, base = type(self).__name__, type(self.base).__name__
            warnings.warn(
                f"{MANY} plain steps of {base} and not one climb: step() without a closure is a "
                f"step of the base alone, and so is scaler.step(opt). For {ours}, call "
                "step(closure), or take the second gradient inside `with opt.ascended():`.",
                stacklevel=8,
            )

    def _skip(self, trouble: NonFiniteError) -> None:
        if self.nonfinite == "raise":
            # of a gradient above the slope may have seen that at w
            kept = "weights and base" if trouble.above else "weights, slope and base"
            raise FloatingPointError(
                f"{trouble}: {kept} are as before. Lower lr or rho, clip, or let "
                'nonfinite="skip" pass over such steps.'
            ) from None
        if self._now.window is None or not self._now.window.failed:
            self._count(SKIPPED)
        self._now.pending = "skip"
        self._now.summary = replace(self._now.summary, skipped=True)

    # -- passes and gradients ---------------------------------------------------------------------

    def _evaluate(self, data: Data) -> None:
        """One pass: the closure, with gradients on, checked and counted."""
        now = self._now
        with torch.enable_grad():
            loss = data()
        now.losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
        if now.pending:  # a host's callback has made the step of it
            return
        checks.closure_result(loss, self._params(), perturbed=now.away)
        if now.scaling is not None:
            now.scaling.unscale(self._params())
        if hasattr(data, "note"):
            with self.statistics.held():
                data.note()
        self._count(COST, cost_of(data, now.batch_size))

    def _going_down(self) -> Vector:
        """The gradients as they are now, of all groups; of sparse ones the values."""
        found = [p.grad for p in self._params() if p.grad is not None]
        dense = [x if x.layout == torch.strided else x.coalesce().values() for x in found]
        return [torch.view_as_real(x) if x.is_complex() else x for x in dense]

    def _average_gradients(self) -> None:
        """Of local adversaries that stayed at home: their gradients are of one rank each."""
        if self.ranks.local:
            params = [p for p in self._params() if p.requires_grad]
            means = self.ranks.average([p.grad for p in params], params, lambda p: p.dtype)
            for p, mean in zip(params, means, strict=True):
                p.grad = mean

    def _average_memory(self, memory: Memory) -> None:
        """After a climb of local adversaries: the slope of all ranks is the mean of theirs."""
        if not self.ranks.local or not self._now.summary.climbed:
            return
        rows = [(p, name) for p, names in self._kept().items() for name in names]
        vectors = [memory.kept.get(p, {}).get(name) for p, name in rows]
        means = self.ranks.average(vectors, [p for p, _ in rows], _at_least_float32)
        for (p, name), mean in zip(rows, means, strict=True):
            if mean is not None:
                memory.kept.setdefault(p, {})[name] = mean

    def _put_aside(self) -> None:
        """Clears the gradients, keeping them at hand in case that nothing takes their place."""
        self._now.aside = [(p, owned(p.grad)) for p in self._params()]
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        for p in self._params():
            p.grad = None

    def _come_home(self) -> None:
        if self._now.climb is not None:
            self._now.climb.come_home()


def _at_least_float32(p: Tensor) -> torch.dtype:
    return torch.promote_types(p.dtype, torch.float32)


def cost_of(data: Any, batch_size: int | None) -> float:
    """What a pass over some data costs, in gradients of the whole batch.

    Args:
        data: a closure, or something with a length or a cost of its own.
        batch_size: the samples of the whole batch, if that is known.

    Returns:
        1 for a closure.
    """
    if hasattr(data, "cost"):
        return float(data.cost)
    if batch_size is None or not hasattr(data, "__len__"):
        return 1.0
    return len(data) / batch_size
