"""The step: the paper's Algorithm 1 around any torch optimizer. Read this first.

    closure at w --> g --> direction --> d --> geometry, rho --> epsilon
                     |                                             |
        policy says no: u = g                  Climb: closure at w + epsilon --> h
                     |                                             |
                     +------------> descent(g, h) --> u --> p.grad --> base.step()
                                StepRecord(g, d, epsilon, h) --> observers, if any

`algorithm_1` is a generator: it yields which data it wants a gradient of and finds that gradient in
`p.grad` when it goes on. `step` answers with the closure, `ascended` with the caller's own pass, so
there is one algorithm and two ways in.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vasso import checks, randomness
from vasso.ascents import Ascent, OneStep
from vasso.batchnorm import Mode, Statistics, unattended
from vasso.descents import Descent, Perturbed
from vasso.directions import Direction, Ema
from vasso.geometries import L2, Geometry
from vasso.here import Climb, Here, Memory, Norms, Restore
from vasso.parts import Setting
from vasso.policies import Always, Policy
from vasso.records import StepSummary
from vasso.settings import COST, SKIPPED, STEP
from vasso.underway import NonFiniteError, Traveller
from vasso.vectors import Vector, is_safe, measured, norm

Closure: TypeAlias = Callable[[], Any]
Wanted: TypeAlias = Literal["up", "down"]


class Options(TypedDict, total=False):
    """What every preset takes beside the settings of its method; see `SharpnessAware`."""

    model: nn.Module | None
    batchnorm: Mode
    same_rng: bool
    restore: Restore
    sync: Literal["global"]
    nonfinite: Literal["skip", "raise", "ignore"]
    clip_norm: float | None


class SharpnessAware(Traveller):
    """Descends by the gradient of an adversary: weights a little uphill from where they are.

    x_{t+1} = x_t - lr u,  u = g_t(x_t + epsilon_t),  epsilon_t = rho d_t / ||d_t||

    where the base optimizer takes the step and the parts say what d, the ball and u are. The
    settings of the parts and rho live in the param groups, differ by group if wanted and can be
    scheduled like lr. A group with rho = 0 is neither climbed nor counted in the norm.

    Args:
        base: the optimizer to wrap, an instance of any kind that steps without a closure.
        rho: radius of the ball, at least 0, or a schedule ``(step, lr) -> rho``.
        direction: which way is up?
        geometry: how far is rho?
        ascent: how is the maximum sought?
        descent: which gradient goes down?
        policy: do we climb this step?
        model: the model, so that BatchNorm's statistics are held still during the second pass.
        batchnorm: the pass that moves running statistics: "clean" (at w), "perturbed" (at
            w + epsilon) or "both".
        same_rng: whether the second pass replays the random numbers of the first (dropout).
        restore: how weights return: "copy" bit for bit, "recompute" up to rounding, with a vector
            less of memory.
        sync: "global", one adversary for all ranks.
        nonfinite: what to do when a gradient is infinite or NaN: "skip" the step, "raise", or
            "ignore" (no check, no host synchronisation).
        clip_norm: clips the norm of the gradient that goes down, never of what enters the slope.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> opt = SharpnessAware(base, rho=0.05, direction=Ema(0.4))
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = model(torch.ones(4, 2)).square().mean()
        ...     loss.backward()
        ...     return loss
        >>> loss_at_w = opt.step(closure)
        >>> opt.cost
        2.0
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        direction: Direction | None = None,
        geometry: Geometry | None = None,
        ascent: Ascent | None = None,
        descent: Descent | None = None,
        policy: Policy | None = None,
        model: nn.Module | None = None,
        batchnorm: Mode = "clean",
        same_rng: bool = False,
        restore: Restore = "copy",
        sync: Literal["global"] = "global",
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
        clip_norm: float | None = None,
    ) -> None:
        checks.one_of("batchnorm", batchnorm, "clean", "both", "perturbed")
        checks.one_of("restore", restore, "copy", "recompute")
        checks.one_of("sync", sync, "global")
        checks.one_of("nonfinite", nonfinite, "skip", "raise", "ignore")
        checks.positive_or_none("clip_norm", clip_norm)
        self.direction = checks.part("direction", direction or Ema(1.0), Direction)
        self.geometry = checks.part("geometry", geometry or L2(), Geometry)
        self.ascent = checks.part("ascent", ascent or OneStep(), Ascent)
        self.descent = checks.part("descent", descent or Perturbed(), Descent)
        self.policy = checks.part("policy", policy or Always(), Policy)
        checks.base(base)
        checks.model(model, base)
        if restore == "recompute":
            checks.recomputable(self.geometry, base)
        self.model, self.statistics = model, Statistics(model, batchnorm)
        self.same_rng, self.restore, self.sync = same_rng, restore, sync
        self.nonfinite, self.clip_norm = nonfinite, clip_norm
        parts = (self.direction, self.geometry, self.ascent, self.descent, self.policy)
        super().__init__(base, rho, parts)

    # -- the algorithm ----------------------------------------------------------------------------

    def algorithm_1(self) -> Generator[Wanted, None, None]:
        """The paper's Algorithm 1, up to and without the step of the base.

        Yields:
            The data whose gradient is wanted next: "up" for the adversary's, "down" for the
            descent's. The gradient is looked for in `p.grad` when the generator goes on.
        """
        settings = self._current_settings()  # rho_t and theta_t of each group
        draws = randomness.current(self._params()) if self.same_rng else None
        aloft = any(values["rho"] > 0 for values in settings)
        yield "up" if aloft else "down"
        here, memory = self._arrive(settings)
        g: Any = here.gradients()  # g_t(x_t)
        self._measure_first(here, g)
        d: Any = self.direction(g, memory, here, **here.of(self.direction))  # d_t, eq. (4)
        epsilon = h = None
        if aloft and here.w and self.policy.climb(g, here):
            with self._climb(here) as x, self.statistics.second_pass():
                x.move(d)  # x_t + epsilon_t, epsilon_t = rho d_t / ||d_t||
                g, d, epsilon = self._let_go(here, g, d, x)
                if draws is not None:
                    randomness.replay(draws)
                yield "down"
                h = here.gradients()  # g_t(x_t + epsilon_t)
                self._measure_last()
        else:
            if aloft and self._now.other_data:
                self._clear_gradients()
                yield "down"
                g = here.gradients()
            self._measure_last()
        u = self.descent(g, h, here, **here.of(self.descent))
        for p, gradient in zip(here.w, u, strict=True):
            p.grad = gradient
        self._tell(here, g, d, epsilon, h)

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, ascent_closure: Closure | None = None) -> Any:
        """One step: climb, descend by what is found there, from where we were.

        Without a closure this ends a step begun with `ascended()`; outside of one it is a plain
        step of the base, which leaves the slope alone.

        Args:
            closure: zeroes the gradients, computes the loss, calls backward and returns the loss.
                It is called at w and at w + epsilon.
            ascent_closure: the same for other data, from which the adversary comes instead.

        Returns:
            The loss at w; of the ascent data if those are others and the step climbs. None without
            a closure.
        """
        now = self._now
        self._refuse_away("step()")
        if closure is None:
            return self._step_without_closure()
        now.pending, now.losses, now.other_data = None, [], ascent_closure is not None
        passes = {"up": ascent_closure or closure, "down": closure}
        self._begin()
        self.statistics.remember()
        try:
            with closing(self.algorithm_1()) as walk:
                for wanted in walk:
                    self._evaluate(passes[wanted])
                    if now.pending:  # the closure has climbed by itself, through a host's callback
                        break
        except NonFiniteError as trouble:
            self._skip(trouble)
        finally:
            self._come_home()
        self._descend()
        return now.losses[0 if now.summary.climbed else -1]

    @contextmanager
    def ascended(self) -> Iterator[bool]:
        """For loops that own forward and backward: the body's gradients are taken at w + epsilon.

        Call `backward()` first, then enter, then `step()`. Gradients are cleared on entry.

        Yields:
            Whether the weights are up. If not (rho = 0, a gradient that is not finite) the body may
            run or be left out: what it does not replace is put back on exit.

        Raises:
            RuntimeError: no gradient has been computed, before or inside.

        Example:
            >>> from vasso import VaSSO
            >>> model = nn.Linear(2, 1)
            >>> opt = VaSSO(torch.optim.SGD(model.parameters(), lr=0.1))
            >>> model(torch.ones(4, 2)).square().mean().backward()
            >>> with opt.ascended():
            ...     model(torch.ones(4, 2)).square().mean().backward()
            >>> opt.step()
        """
        now = self._now
        self._refuse_away("ascended()")
        self._refuse_first_pass()
        if all(p.grad is None for p in self._params()):
            raise RuntimeError(
                "ascended() found no gradient: call backward() on the loss at w first"
            )
        now.pending, now.losses, now.other_data, now.ascended = None, [], False, True
        walk = self.algorithm_1()
        try:
            with torch.no_grad():
                up, first = self._enter(walk)
            with nullcontext() if up else self.statistics.second_pass():
                yield up
            with torch.no_grad():
                self._leave(walk, up, first)
            now.pending = now.pending or "descend"
        except NonFiniteError as trouble:
            self._skip(trouble)
        finally:
            now.ascended = False
            with torch.no_grad():
                try:
                    walk.close()
                finally:
                    self._come_home()

    def _enter(self, walk: Iterator[Wanted]) -> tuple[bool, list[tuple[Tensor, Tensor | None]]]:
        """Climbs, if this step does; else takes the first gradient aside while the body runs."""
        self._begin()
        next(walk)  # it wants the gradient at w, which the caller has computed
        self._count(COST)
        try:
            if next(walk, None) is not None:
                return True, []
        except NonFiniteError as trouble:
            self._skip(trouble)
        first = [(p, p.grad) for p in self._params()]
        self._clear_gradients()
        return False, first

    def _leave(
        self, walk: Iterator[Wanted], up: bool, first: list[tuple[Tensor, Tensor | None]]
    ) -> None:
        """Hands the body's gradients to the algorithm, or puts the first ones back."""
        ran = any(p.grad is not None for p in self._params())
        self._count(COST, int(ran))
        if up:
            checks.closure_result("its own", self._params(), perturbed=True)
            next(walk, None)
            return
        for p, gradient in first:
            p.grad = gradient if p.grad is None else p.grad
        if ran and self._now.pending != "skip":
            self._measure_last()

    # -- what the algorithm is made of ------------------------------------------------------------

    def _begin(self) -> None:
        """Once: warns of BatchNorm that nobody holds still."""
        if self._now.started:
            return
        self._now.started = True
        layers = unattended(self._params()) if self.model is None else []
        if layers:
            warnings.warn(
                f"{len(layers)} layers such as {layers[0]} will update their running statistics in "
                f"both passes: pass model=, as in {type(self).__name__}(base, model=model)",
                stacklevel=4,
            )

    def _arrive(self, settings: list[dict[str, float]]) -> tuple[Here, Memory]:
        """Gathers the tensors that have a gradient and may be climbed; forgets where rho is 0."""
        w: Vector = []
        rows: list[dict[str, float]] = []
        for group, values, schedules in zip(
            self.param_groups, settings, self._schedules, strict=True
        ):
            if values["rho"] == 0 and "rho" not in schedules:
                for p in group["params"]:
                    self._memories.pop(p, None)
                continue
            for p in group["params"]:
                if p.grad is not None:
                    checks.climbable(p, p.grad, self.restore)
                    w.append(p)
                    rows.append(values)
        columns = {s.name: [row[s.name] for row in rows] for s in self.settings}
        here = Here(w, columns, self.param_groups[0][STEP], Norms())
        return here, Memory(w, self._memories)

    def _measure_first(self, here: Here, g: Vector) -> None:
        """Ends the step if the gradient at w is not finite, before anything has seen it."""
        now = self._now
        now.summary = StepSummary()
        if self.nonfinite == "ignore" or not here.w:
            return
        length, value = here.norm.measure(g)
        if not math.isfinite(value):
            self.statistics.recover()
            raise NonFiniteError(f"the gradient at w has norm {value}")
        now.norms_are_safe = now.norms_are_safe and here.norm.safe
        here.norm.look = not now.norms_are_safe
        now.summary = StepSummary(g_norm=length)

    def _climb(self, here: Here) -> Climb:
        self._now.climb = Climb(here, self.geometry, self.restore, self._now.attic)
        return self._now.climb

    def _let_go(
        self, here: Here, g: Vector, d: Vector, x: Climb
    ) -> tuple[Vector | None, Vector | None, Vector | None]:
        """Drops what nobody needs any more before the second pass, which wants the memory."""
        now = self._now
        now.norms_are_safe = here.norm.safe
        now.summary = replace(now.summary, d_norm=here.norm.known(d), climbed=True)
        here.norm.let_go()
        self._clear_gradients()
        if now.observers:
            return g, d, x.epsilon()
        return (g if self.descent.needs_clean else None), None, None

    def _measure_last(self) -> None:
        """Ends the step if what goes down is not finite: weights return, the base is left alone."""
        if self.nonfinite == "ignore":
            return
        length, value = measured(self._going_down())
        if not math.isfinite(value):
            self.statistics.recover()
            where = "w + epsilon" if self._now.away else "w"
            raise NonFiniteError(f"the gradient at {where} has norm {value}")
        self._now.descent_is_safe = is_safe(value, length.dtype)
        if self._now.away:
            self._now.summary = replace(self._now.summary, h_norm=length)

    def _evaluate(self, closure: Closure) -> None:
        """One pass: the closure, with gradients on, checked and counted."""
        now = self._now
        with torch.enable_grad():
            loss = closure()
        checks.closure_result(loss, self._params(), perturbed=now.away)
        now.losses.append(loss)
        if now.pending is None:
            self._count(COST)

    def _step_without_closure(self) -> None:
        """Ends what `ascended` has begun; else a plain step, or what the getters take for one."""
        if self._now.pending is None:
            if self._is_probe():
                self._learn_form()
                return
            self._now.summary, self._now.descent_is_safe = StepSummary(), True
            self._count(COST)  # the caller's own pass
        self._descend()
        self.statistics.remember()

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

    def _skip(self, trouble: NonFiniteError) -> None:
        if self.nonfinite == "raise":
            raise FloatingPointError(
                f"{trouble}: weights, slope and base are as before. Lower lr or rho, clip, or let "
                'nonfinite="skip" pass over such steps.'
            ) from None
        self._count(SKIPPED)
        self._now.pending = "skip"
        self._now.summary = replace(self._now.summary, skipped=True)

    def _going_down(self) -> Vector:
        """The gradients as they are now, of all groups; of sparse ones the values."""
        found = [p.grad for p in self._params() if p.grad is not None]
        return [x if x.layout == torch.strided else x.coalesce().values() for x in found]

    def _clear_gradients(self) -> None:
        for p in self._params():
            p.grad = None

    def _come_home(self) -> None:
        if self._now.climb is not None:
            self._now.climb.come_home()

    def _refuse_first_pass(self) -> None:
        for name, wrong in (
            ("same_rng=True", self.same_rng),
            ('batchnorm="perturbed"', self.statistics.mode == "perturbed"),
        ):
            if wrong:
                raise RuntimeError(
                    f"{name} has to prepare the first pass, which ascended() does not own: use "
                    "step(closure)"
                )
