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

from contextlib import closing
from typing import Any, Literal, TypedDict

import torch
from torch import nn
from torch._compile import _disable_dynamo as not_traced  # imports dynamo only when it is called
from torch.optim import Optimizer

from vasso import checks
from vasso.ascents import Ascent, OneStep
from vasso.batchnorm import Mode, Statistics
from vasso.descents import Descent, Perturbed
from vasso.directions import Direction, Ema
from vasso.geometries import L2, Geometry
from vasso.here import Gradient, MeanOfShares, Memory, Restore
from vasso.loops import CallersLoop, Passes
from vasso.parts import Setting
from vasso.plans import Batch, Data, Plan, Same, Share, Source
from vasso.policies import Always, Policy
from vasso.ranks import Ranks, Sync
from vasso.settings import STEP
from vasso.underway import NonFiniteError
from vasso.window import Window


class Options(TypedDict, total=False):
    """What every preset takes beside the settings of its method; see `SharpnessAware`."""

    model: nn.Module | None
    batchnorm: Mode
    same_rng: bool
    restore: Restore
    sync: Sync
    nonfinite: Literal["skip", "raise", "ignore"]
    clip_norm: float | None


class SharpnessAware(CallersLoop):
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
        sync: "global", one adversary for all ranks; or "local", one for each, with DDP only: the
            model is to be the wrapped one.
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
        sync: Sync = "global",
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
        clip_norm: float | None = None,
        theta: None = None,
    ) -> None:
        checks.no_theta(theta, type(self).__name__, direction)
        checks.one_of("batchnorm", batchnorm, "clean", "both", "perturbed")
        checks.one_of("restore", restore, "copy", "recompute")
        checks.one_of("sync", sync, "global", "local")
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
        checks.source(source)
        checks.sensible(
            self.direction, self.geometry, self.ascent, self.descent, self.policy, self.plan
        )
        checks.divisible(self.plan, self.geometry)
        if restore == "recompute":
            checks.recomputable(self.geometry, self.ascent, base)
        if sync == "local":
            checks.local(self.direction, self.geometry, self.descent, self.policy, self.plan)
        self.source, self.model, self.statistics = source, model, Statistics(model, batchnorm)
        self.ranks = Ranks(model, sync)
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
            if not clean or (aloft and not share.same):
                self._put_aside()
                yield share.down
                g = here.gradients()
            elif aloft:
                self._average_gradients()
                g = here.gradients()
            self._measure_last()
        self._hand_down(g, path, memory, here)
        self._tell(here, g, d, epsilon, path)

    def _mean_over(self, shares: list[Share]) -> Passes:
        """The mean of Algorithm 1 over the shares: of the gradients and of what is remembered."""
        memory = Memory(self._memories, self._numbers())
        try:
            if len(shares) == 1:
                yield from self._alone(shares[0], memory)
                return
            mean = MeanOfShares()
            for share in shares:
                own = memory.copy()
                self.statistics.remember()
                yield from self.algorithm_1(share, own)
                mean.add(self._params(), own, share.weight, self._now.losses)
                self._clear_gradients()
            mean.write_to(memory)
            self._note_losses(mean.losses)
        finally:
            if self._now.pending is None:  # else a host's callback has kept newer ones
                self._keep_numbers(memory.numbers)

    def _alone(self, share: Share, memory: Memory) -> Passes:
        """Algorithm 1 on all data of this rank; ranks then agree on what they remember."""
        try:
            yield from self.algorithm_1(share, memory)
        except NonFiniteError:
            self._average_memory(memory)  # it has seen a finite gradient at w, as on all ranks
            raise
        self._average_memory(memory)

    def _one_of_many(self, share: Share, window: Window) -> Passes:
        """Algorithm 1 on a micro-batch; what it remembers waits for the others."""
        own = Memory(self._memories, self._numbers()).copy()
        yield from self.algorithm_1(share, own)
        window.mean.add([], own, 1.0)

    # -- two ways in ------------------------------------------------------------------------------

    @not_traced
    @torch.no_grad()
    def step(
        self,
        closure: Data | None = None,
        *,
        ascent_closure: Data | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> Any:
        """One step: climb, descend by what is found there, from where we were.

        Without a closure this ends a step begun with `ascended()`; outside of one it is a plain
        step of the base, which leaves the slope alone.

        Args:
            closure: zeroes the gradients, computes the loss, calls backward and returns the loss.
                It is called at w and at w + epsilon. Some methods need a `Batch`.
            ascent_closure: the same for other data, from which the adversary comes instead.
            scaler: for closures that call ``scaler.scale(loss).backward()``. Gradients are unscaled
                after each pass, and `scaler.update()` is called at the end.

        Returns:
            The loss at w; of the ascent data if those are others and the step climbs; the one
            there is if the method takes no gradient at w. None without a closure.
        """
        now = self._now
        self._refuse_away("step()")
        for data in (closure, ascent_closure):
            checks.closure(data)
        if closure is None or self._is_over(closure):
            checks.scaler_with_closure(scaler)
            return self._step_without_closure()
        self._start_anew(scaler)
        self._end_window()
        shares = self._shares(closure, ascent_closure)
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
        if now.scaling is not None:
            now.scaling.scaler.update()
        return now.losses[0 if now.summary.climbed else -1]

    def _is_over(self, closure: Data) -> bool:
        """Whether the passes have been made in `ascended()`: some hosts pass an empty closure."""
        if self._now.pending is None:
            return False
        with torch.enable_grad():
            return closure() is None

    def _shares(self, closure: Data, ascent_closure: Data | None) -> list[Share]:
        """The shares of the plan; one where another closure says where the adversary comes from."""
        now = self._now
        now.batch_size = len(closure) if isinstance(closure, Batch) else None
        part = self.plan if self.plan.needs_batch else self.geometry
        if ascent_closure is not None:
            checks.batch(part, ascent_closure, Batch)
            quiet = self.ranks.quietly(ascent_closure) if self.ranks.local else ascent_closure
            return [Share(quiet, closure)]
        if all(row["rho"] == 0 for row in self._current_settings()):
            return [Share(closure, closure)]
        if self.ranks.local:
            return [Share(self.ranks.quietly(closure), closure, alike=True)]
        checks.batch(part, closure, Batch)
        return self.plan(closure, self.param_groups[0][STEP])
