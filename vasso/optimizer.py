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

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vasso import checks
from vasso.ascents import Ascent, OneStep
from vasso.batchnorm import Mode, Statistics
from vasso.descents import Descent, Perturbed
from vasso.directions import Direction, Ema
from vasso.footwork import Footwork
from vasso.geometries import L2, Geometry
from vasso.here import Gradient, Here, MeanOfShares, Memory, Restore
from vasso.parts import Setting
from vasso.plans import Batch, Data, Plan, Same, Share, Source
from vasso.policies import Always, Policy
from vasso.records import StepSummary
from vasso.settings import COST, STEP
from vasso.underway import NonFiniteError

Passes: TypeAlias = Generator[Data, None, None]
"""The data whose gradients are wanted, one after the other."""


class Options(TypedDict, total=False):
    """What every preset takes beside the settings of its method; see `SharpnessAware`."""

    model: nn.Module | None
    batchnorm: Mode
    same_rng: bool
    restore: Restore
    sync: Literal["global"]
    nonfinite: Literal["skip", "raise", "ignore"]
    clip_norm: float | None


class SharpnessAware(Footwork):
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
        plan: which data where?
        source: for the methods that need data beyond the batch at hand.
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
        theta: belongs to the direction, as in ``direction=Ema(0.4)``; an error here.

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
        plan: Plan | None = None,
        source: Source | None = None,
        model: nn.Module | None = None,
        batchnorm: Mode = "clean",
        same_rng: bool = False,
        restore: Restore = "copy",
        sync: Literal["global"] = "global",
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
        clip_norm: float | None = None,
        theta: None = None,
    ) -> None:
        checks.no_theta(theta, type(self).__name__, direction)
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
        self.plan = checks.part("plan", plan or Same(), Plan)
        checks.base(base)
        checks.model(model, base)
        checks.sensible(self.direction, self.geometry, self.ascent, self.descent, self.policy)
        checks.divisible(self.plan, self.geometry)
        if restore == "recompute":
            checks.recomputable(self.geometry, self.ascent, base)
        self.source, self.model, self.statistics = source, model, Statistics(model, batchnorm)
        self.same_rng, self.restore, self.sync = same_rng, restore, sync
        self.nonfinite, self.clip_norm = nonfinite, clip_norm
        parts = (self.direction, self.geometry, self.ascent, self.descent, self.policy, self.plan)
        for part in parts:
            part.check_base(base)
        super().__init__(base, rho, parts)

    # -- the algorithm ----------------------------------------------------------------------------

    def algorithm_1(self, share: Share, memory: Memory) -> Passes:
        """The paper's Algorithm 1 on one share of the data, without the step of the base.

        Args:
            share: the data.
            memory: what the parts remember, to be updated.

        Yields:
            The data whose gradient is wanted next; it is looked for in `p.grad` afterwards.
        """
        here = self._set_out(share)
        aloft = any(rho > 0 for rho in here.rho)
        clean = not aloft or self._asks(memory, here)
        if clean:
            yield share.up if aloft else share.down
        g: Any = self._arrive(here, memory, with_gradient=clean)  # g_t(x_t)
        d: Any = self._slope(g, memory, here)  # d_t, eq. (4)
        path: list[Gradient] = []
        epsilon = None
        if any(rho > 0 for rho in here.rho) and self.policy.climb(g, memory, here):
            with self._climb(here, memory) as x, self.statistics.second_pass(only=not clean):
                for j in range(self.ascent.points):
                    x.move(d, *self._way(j))  # x_t + epsilon_t, epsilon_t = rho d_t / ||d_t||
                    g, d, epsilon = self._let_go(here, g, d, x)
                    last = j == self.ascent.points - 1
                    yield share.down if last else share.up
                    h = self._gradient_above(here)  # g_t(x_t + epsilon_t)
                    path = [*path, h] if self.descent.needs_path else [h]
                    if not last:
                        d = self.ascent.slope(j + 1, d, self._slope(h, memory.copy(), here))
        else:
            if not clean or (aloft and share.up is not share.down):
                self._clear_gradients()
                yield share.down
                g = here.gradients()
            self._measure_last()
        self._hand_down(g, path, memory, here)
        self._tell(here, g, d, epsilon, path)

    def _mean_over(self, shares: list[Share]) -> Passes:
        """The mean of Algorithm 1 over the shares: of the gradients and of what is remembered."""
        memory = Memory(self._memories, self._numbers())
        try:
            if len(shares) == 1:
                yield from self.algorithm_1(shares[0], memory)
                return
            mean = MeanOfShares()
            for share in shares:
                own = memory.copy()
                self.statistics.remember()
                yield from self.algorithm_1(share, own)
                mean.add(self._params(), own, share.weight)
                self._clear_gradients()
            mean.write_to(memory)
        finally:
            self._keep_numbers(memory.numbers)

    # -- two ways in ------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Data | None = None, *, ascent_closure: Data | None = None) -> Any:
        """One step: climb, descend by what is found there, from where we were.

        Without a closure this ends a step begun with `ascended()`; outside of one it is a plain
        step of the base, which leaves the slope alone.

        Args:
            closure: zeroes the gradients, computes the loss, calls backward and returns the loss.
                It is called at w and at w + epsilon. Some methods need a `Batch`.
            ascent_closure: the same for other data, from which the adversary comes instead.

        Returns:
            The loss at w; of the ascent data if those are others and the step climbs; the one
            there is if the method takes no gradient at w. None without a closure.
        """
        now = self._now
        self._refuse_away("step()")
        if closure is None:
            return self._step_without_closure()
        shares = self._shares(closure, ascent_closure)
        now.pending, now.losses = None, []
        self._begin()
        self.statistics.remember()
        try:
            with closing(self._mean_over(shares)) as passes:
                for data in passes:
                    self._evaluate(data)
                    if now.pending:  # the closure has climbed by itself, through a host's callback
                        break
        except NonFiniteError as trouble:
            self._skip(trouble)
        except BaseException:
            self.statistics.recover()
            raise
        finally:
            self._come_home()
        self._descend()
        return now.losses[0 if now.summary.climbed else -1]

    def _shares(self, closure: Data, ascent_closure: Data | None) -> list[Share]:
        """The shares of the plan; one where another closure says where the adversary comes from."""
        now = self._now
        now.batch_size = len(closure) if isinstance(closure, Batch) else None
        now.other_data = ascent_closure is not None
        part = self.plan if self.plan.needs_batch else self.geometry
        if ascent_closure is not None:
            checks.batch(part, ascent_closure, Batch)
            return [Share(ascent_closure, closure)]
        if all(row["rho"] == 0 for row in self._current_settings()):
            return [Share(closure, closure)]
        checks.batch(part, closure, Batch)
        return self.plan(closure, self.param_groups[0][STEP])

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

    @contextmanager
    def ascended(self) -> Iterator[bool]:
        """For loops that own forward and backward: the body's gradients are taken at w + epsilon.

        Call `backward()` first, then enter, then `step()`. Gradients are cleared on entry. Methods
        that take no gradient at w (`opt.wants_clean` is False) need no `backward()` first.

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
        self._refuse_callers_passes()
        if self.wants_clean and all(p.grad is None for p in self._params()):
            raise RuntimeError(
                "ascended() found no gradient: call backward() on the loss at w first"
            )
        now.pending, now.losses, now.other_data = None, [], False
        passes = self._mean_over([Share(callers_pass, callers_pass)])
        try:
            now.ascended = True
            with torch.no_grad():
                wanted, first = self._enter(passes)
            with nullcontext() if wanted else self.statistics.second_pass():
                yield now.away
            with torch.no_grad():
                self._leave(passes, wanted, first)
            now.pending = now.pending or "descend"
        except NonFiniteError as trouble:
            self._skip(trouble)
        finally:
            now.ascended = False
            with torch.no_grad():
                try:
                    passes.close()
                finally:
                    self._come_home()

    def _enter(self, passes: Passes) -> tuple[bool, list[tuple[Tensor, Tensor | None]]]:
        """Climbs, if this step does; else the first gradient waits aside and no body is wanted."""
        self._begin()
        try:
            if self.wants_clean:
                next(passes)  # the gradient at w, which the caller has computed
                self._count(COST)
            if next(passes, None) is not None:
                return True, []
        except NonFiniteError as trouble:
            self._skip(trouble)
        first = [(p, p.grad) for p in self._params()]
        self._clear_gradients()
        return False, first

    def _leave(
        self, passes: Passes, wanted: bool, first: list[tuple[Tensor, Tensor | None]]
    ) -> None:
        """Hands the body's gradients to the algorithm, or puts the first ones back."""
        ran = any(p.grad is not None for p in self._params())
        self._count(COST, int(ran))
        if wanted:
            checks.closure_result("its own", self._params(), perturbed=True)
            next(passes, None)
            return
        for p, gradient in first:
            p.grad = gradient if p.grad is None else p.grad
        if ran and self._now.pending != "skip":
            self._measure_last()

    @property
    def wants_clean(self) -> bool:
        """Whether this step wants a gradient at w; a loop may leave that pass out if not."""
        if all(row["rho"] == 0 for row in self._current_settings()):
            return True
        memory = Memory(self._memories, self._numbers())
        return self._asks(memory, Here(self.param_groups[0][STEP]))

    def _refuse_callers_passes(self) -> None:
        for name, wrong in (
            ("same_rng=True", self.same_rng),
            ('batchnorm="perturbed"', self.statistics.mode == "perturbed"),
            (str(self.direction), self.direction.asks_more),
            (str(self.geometry), self.geometry.asks_more),
            (str(self.ascent), self.ascent.points > 1),
            (str(self.plan), self.plan.needs_batch),
        ):
            if wrong:
                raise RuntimeError(
                    f"{name} needs passes of its own, which ascended() cannot give: use "
                    "step(closure)"
                )


def callers_pass() -> None:
    """Stands for a pass that the caller of `ascended` makes."""
