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
from torch import nn
from torch._compile import _disable_dynamo as not_traced  # imports dynamo only when it is called
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
from vasso.plans import Batch, Chunks, Data, Plan, Same, Share, Source
from vasso.policies import Always, Policy
from vasso.ranks import Ranks, Sync
from vasso.scaling import Scaling
from vasso.settings import COST, STEP
from vasso.underway import NonFiniteError
from vasso.window import Window

Passes: TypeAlias = Generator[Data, None, None]
"""The data whose gradients are wanted, one after the other."""


class Options(TypedDict, total=False):
    """What every preset takes beside the settings of its method; see `SharpnessAware`."""

    model: nn.Module | None
    batchnorm: Mode
    same_rng: bool
    restore: Restore
    sync: Sync
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
        if closure is None or self._is_over(closure):
            checks.scaler_with_closure(scaler)
            return self._step_without_closure()
        self._start_anew(scaler)
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

    def _start_anew(self, scaler: torch.amp.GradScaler | None) -> None:
        """Forgets what a step has begun that never came to an end."""
        now = self._now
        checks.scaler(scaler, self.nonfinite)
        now.pending, now.losses, now.aside = None, [], []
        scaled = scaler is not None and scaler.is_enabled()
        now.scaling = Scaling(scaler, now.proxies) if scaled else None  # type: ignore[arg-type]

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

    def leave_out(self) -> None:
        """Lets the step under way end without a step of the base.

        For hosts whose closure may find nothing to learn from in a batch.
        """
        self._now.pending = "skip"

    def _step_without_closure(self) -> None:
        """Ends what `ascended` has begun; else a plain step, or what the getters take for one."""
        now = self._now
        if now.pending is None:
            if self._is_probe():
                self._learn_form()
                return
            self._plainly()
        if now.window is not None:
            memory = Memory(self._memories, self._numbers())
            now.window.finish(self._params(), memory)
            self._keep_numbers(memory.numbers)
            self._end_window()
        self._descend()
        self.statistics.remember()

    @contextmanager
    def ascended(
        self,
        *,
        scaler: torch.amp.GradScaler | None = None,
        unscaled: bool = False,
        accumulate: bool = False,
    ) -> Iterator[bool]:
        """For loops that own forward and backward: the body's gradients are taken at w + epsilon.

        Call `backward()` first, then enter, then `step()`. Gradients are cleared on entry. Methods
        that take no gradient at w (`opt.wants_clean` is False) need no `backward()` first.

        Args:
            scaler: the GradScaler, if losses are scaled: ``scaler.scale(loss).backward()`` before
                and inside, then as ever ``scaler.unscale_(opt)`` if you clip,
                ``scaler.step(opt)``, ``scaler.update()``.
            unscaled: the gradients found on entry have been unscaled already, by a host; those
                left behind will be too. The body's loss is scaled all the same.
            accumulate: the adversary is that of a micro-batch: the gradients left behind are added
                to those of earlier micro-batches, until `step()`.

        Yields:
            Whether the weights are up. If not (a policy, rho = 0, a gradient that is not finite)
            the body may run or be left out: what it does not replace is put back on exit.

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
        now, share = self._now, Share(callers_first, callers_second)
        self._refuse_away("ascended()")
        self._refuse_callers_passes(accumulate)
        self._start_anew(scaler)
        checks.unscaled(unscaled, scaler, accumulate)
        checks.local_loop(self.ranks.local, unscaled, accumulate)
        self._open_window(accumulate)
        passes = self._one_of_many(share, now.window) if now.window else self._mean_over([share])
        try:
            now.ascended = True
            with torch.no_grad():
                waiting = self._enter(passes, unscaled)
            with nullcontext() if now.away else self.statistics.second_pass(only=not now.clean):
                yield now.away
            with torch.no_grad():
                self._leave(passes, waiting, unscaled)
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
                    self._close_window()

    def _open_window(self, accumulate: bool) -> None:
        now = self._now
        if now.window is not None and not (accumulate and now.window.goes_on(self._params())):
            self._end_window()
        if accumulate and now.window is None:
            now.window = Window()

    def _close_window(self) -> None:
        now = self._now
        if now.window is not None:
            now.window.failed = now.window.failed or now.pending == "skip"
            now.window.close(self._params())
            now.pending = "skip" if now.window.failed else now.pending

    def _end_window(self) -> None:
        now = self._now
        if now.window is not None:
            now.window.discard()
            self._count(COST, now.window.cost)
            now.window = None

    def _count_pass(self) -> None:
        if self._now.window is None:
            self._count(COST)
        else:
            self._now.window.passes += 1

    @not_traced
    def _enter(self, passes: Passes, unscaled: bool) -> bool:
        """Climbs, if this step does; says whether the algorithm waits for the body's gradients."""
        now = self._now
        self._begin()
        if self.wants_clean and all(p.grad is None for p in self._params()):
            raise RuntimeError(
                "ascended() found no gradient: call backward() on the loss at w first"
            )
        try:
            if self.wants_clean:
                if self.ranks.local:
                    self.ranks.share_trouble(self._params())
                if now.scaling is not None and not unscaled:
                    now.scaling.unscale(self._params())
                next(passes)  # the gradient at w, which the caller has computed
                self._count_pass()
            if next(passes, None) is not None:
                return True
        except NonFiniteError as trouble:
            self._skip(trouble)
        self._put_aside()
        return False

    @not_traced
    def _leave(self, passes: Passes, waiting: bool, unscaled: bool) -> None:
        """Hands the body's gradients to the algorithm; what it did not replace is put back."""
        now = self._now
        ran = any(p.grad is not None for p in self._params())
        if ran:
            self._count_pass()
        if now.scaling is not None:
            now.scaling.unscale(self._params())
        skipped = now.pending == "skip"
        for p, gradient in now.aside:
            p.grad = gradient if p.grad is None or skipped else p.grad
        now.aside = []
        if not now.away and not skipped:
            self._average_gradients()
        if waiting:
            checks.closure_result("its own", self._params(), perturbed=now.away)
            next(passes, None)
        elif ran and not skipped:
            self._measure_last()
        if now.scaling is not None and not unscaled and not skipped:
            now.scaling.rescale(self._params())

    @property
    def wants_clean(self) -> bool:
        """Whether this step wants a gradient at w; a loop may leave that pass out if not."""
        if all(row["rho"] == 0 for row in self._current_settings()):
            return True
        memory = Memory(self._memories, self._numbers())
        return self._asks(memory, Here(self.param_groups[0][STEP]))

    @property
    def needs_own_passes(self) -> str | None:
        """What of this method needs passes that only `step(closure)` makes, if anything does."""
        for name, needs in (
            ("same_rng=True", self.same_rng),
            ('batchnorm="perturbed"', self.statistics.mode == "perturbed"),
            (str(self.direction), self.direction.asks_more),
            (str(self.geometry), self.geometry.asks_more),
            (str(self.ascent), self.ascent.points > 1),
            (str(self.plan), self.plan.needs_batch),
        ):
            if needs:
                return name
        return None

    def _refuse_callers_passes(self, accumulate: bool) -> None:
        if accumulate:
            checks.divisible(Chunks(), self.geometry)
        name = self.needs_own_passes
        if name is not None:
            raise RuntimeError(
                f"{name} needs passes of its own, which ascended() cannot give: use step(closure)"
            )


def callers_first() -> None:
    """Stands for the pass that the caller of `ascended` makes before it."""


def callers_second() -> None:
    """Stands for the pass that the caller of `ascended` makes inside."""
