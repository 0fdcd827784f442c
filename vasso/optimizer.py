"""`SharpnessAware`: the paper's Algorithm 1 around any torch optimizer.

    closure at w --> g --> direction --> d --> geometry, rho --> epsilon
                     |                                             |
        policy says no: u = g             Perturbation: closure at w + epsilon --> h
                     |                                             |
                     +------------> descent(g, h) --> u --> p.grad --> base.step()
                                StepRecord(g, d, epsilon, h) --> observers, if any

`algorithm_1` is a generator. It yields the data whose gradient it needs, and reads that gradient
from `p.grad` when it continues. `step` drives it with closures, `ascended` with the passes of the
user's training loop.
"""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo as not_traced  # imports dynamo only when it is called
from torch.optim import Optimizer

from vasso import validation
from vasso.engine.accumulation import Mean
from vasso.engine.batchnorm import Mode
from vasso.engine.compatibility import Parts
from vasso.engine.distributed import Sync
from vasso.engine.groups import COST
from vasso.engine.notices import check_closure
from vasso.engine.passes import NonFiniteError, clear, cost_of, put_back, set_aside
from vasso.engine.perturbation import Perturbation, Restore
from vasso.engine.wrapper import CommonOptions, OptimizerWrapper
from vasso.numerics import rng
from vasso.numerics.vectors import Gradient, Vector, copied, zeros_for_missing
from vasso.parts.ascents import Ascent, OneStep
from vasso.parts.context import StepContext
from vasso.parts.descents import Descent, Perturbed
from vasso.parts.directions import Direction, Ema
from vasso.parts.geometries import L2, Geometry
from vasso.parts.memory import PartState
from vasso.parts.plans import Batch, Chunks, Data, PassData, Plan, Same, Source
from vasso.parts.policies import Always, Policy
from vasso.parts.radii import Given, Radius, Rho
from vasso.records import Triangle

Requests: TypeAlias = Generator[Data, None, None]
"""The data whose gradients the algorithm needs in `p.grad`, one after the other."""


class Options(CommonOptions, total=False):
    """Options of every preset besides the settings of its method; see `SharpnessAware`."""

    same_rng: bool
    restore: Restore
    sync: Sync


class SharpnessAware(OptimizerWrapper):
    """Steps by the gradient at weights that are perturbed towards a higher loss.

    x_{t+1} = x_t - lr u,  u = g_t(x_t + epsilon_t),  epsilon_t = rho d_t / ||d_t||

    where the base optimizer takes the step and the parts say what d, the ball and u are. The
    settings of the parts and rho live in the param groups, may differ by group and can be scheduled
    like lr. A group with rho = 0 is neither perturbed nor counted in the norm.

    Args:
        base: the optimizer to wrap, an instance of any kind that steps without a closure.
        rho: radius of the ball, at least 0, a schedule ``(step, lr) -> rho``, or a rule by which it
            sets itself, such as `FromGap`.
        direction: the slope d_t; default ``Ema(1.0)``, the gradient of the batch.
        geometry: the norm in which epsilon has length rho; default ``L2()``.
        ascent: the approximation of the maximum in the ball; default ``OneStep()``.
        descent: u, the gradient that the base steps by; default ``Perturbed()``.
        policy: the steps that perturb the weights; default ``Always()``.
        plan: the data of each gradient; default ``Same()``.
        source: data beyond the current batch, for methods that need them.
        model: the model, so that the second pass does not update BatchNorm's statistics.
        batchnorm: the pass that updates running statistics: "clean" (at w), "perturbed" (at
            w + epsilon) or "both".
        same_rng: the second pass replays the random numbers of the first (dropout).
        restore: "copy" restores weights bit for bit, "recompute" up to rounding and with one
            vector less of memory.
        sync: "global", one perturbation for all ranks; or "local", one for each rank, with the
            model wrapped by DDP.
        nonfinite: the reaction to an infinite or NaN gradient: "skip" the step, "raise", or
            "ignore" (no check, no host synchronisation).
        clip_norm: limit for the norm of the gradient u; the slope is not clipped.

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

    parts: Parts
    _options: ClassVar[type] = Options

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Rho = 0.05,
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
    ) -> None:
        validation.one_of("restore", restore, "copy", "recompute")
        validation.one_of("sync", sync, "global", "local")
        parts = Parts(
            validation.part("direction", direction or Ema(1.0), Direction),
            validation.part("geometry", geometry or L2(), Geometry),
            validation.part("ascent", ascent or OneStep(), Ascent),
            validation.part("descent", descent or Perturbed(), Descent),
            validation.part("policy", policy or Always(), Policy),
            validation.part("plan", plan or Same(), Plan),
            rho if isinstance(rho, Radius) else Given(factor=rho),
        )
        self.direction, self.geometry, self.ascent, self.descent, self.policy, self.plan, _ = parts
        self.source, self.same_rng = source, same_rng
        validation.source(source)
        validation.base(base)
        parts.check(base, restore, sync, model)
        super().__init__(
            base,
            parts.radius.factor,
            parts,
            model=model,
            batchnorm=batchnorm,
            nonfinite=nonfinite,
            clip_norm=clip_norm,
            restore=restore,
            sync=sync,
        )

    # -- the algorithm ----------------------------------------------------------------------------

    def algorithm_1(self, data: PassData, state: PartState) -> Requests:
        """Algorithm 1 on one share, without the base's step; yields the data of the next pass."""
        context = self._context(data)
        perturbs = context.perturbs
        takes_g = not perturbs or self._wants_gradient_at_w(state, context)
        by_type = (
            self._groups.covered() is not None
        )  # else a closure may leave gradients out itself
        unread = self._unread(context) if takes_g and by_type and not data.partial else []
        if takes_g:
            self._passes.leave_out(unread)
            yield data.ascent if perturbs else data.descent
        g: Any = self._gradient_at_w(context, state, takes_g)  # g_t(x_t)
        d: Any = self._slope(g, state, context)  # d_t, eq. (4)
        path: list[Gradient] = []
        epsilon = None
        climbs = context.perturbs and self.policy.climb(g, state, context)
        if climbs and self._radius.set(d, state, context):
            around_w = self._perturbation.around(context, self.geometry, state)
            with around_w as x, self.statistics.second_pass(only=not takes_g):
                for j in range(self.ascent.points):
                    keep, add = self.ascent(j)
                    # x_t + epsilon_t, epsilon_t = rho d_t / ||d_t||
                    x.move(d, keep, add * self.direction.sign, project=self.ascent.projects)
                    g, d, epsilon = self._free_memory(context, g, d, x)
                    last = j == self.ascent.points - 1
                    self._passes.leave_out([] if last else unread)
                    yield data.descent if last else data.ascent
                    self._passes.check()
                    h = context.gradients()  # g_t(x_t + epsilon_t)
                    if self.descent.needs_path and not last:
                        h = [copied(x) for x in h]
                    path = [*path, h] if self.descent.needs_path else [h]
                    if not last:
                        d = self.ascent.slope(j + 1, d, self._slope(h, state.copy(), context))
        else:
            if not takes_g or self._passes.partial or (perturbs and not data.same):
                self._current.saved_gradients = set_aside(self._groups.params())
                yield data.descent
                g = context.gradients()
            elif perturbs:
                self._distributed.average_gradients(self._groups.params())
                g = context.gradients()
            self._passes.check()
        u = self.descent(g, path, state, context, **context.of(self.descent))
        self._finish(context, state, u, path[-1] if path else g)
        self._publish(context, g, d, epsilon, path[-1] if path else None)

    def _context(self, data: PassData) -> StepContext:
        """The step before any pass: settings by group, no tensors yet."""
        groups, rows = self._groups, self._groups.current()
        replays = self.same_rng or self.direction.asks_more or self.geometry.asks_more
        rng_state = rng.get_state(groups.params()) if replays else None
        self._current.start_passes(data.others, rng_state)
        self._norms.start()
        settings = self._settings_of(rows)
        for name in (*self.policy.scheduled, *self.parts.radius.scheduled):
            validation.same_for_all_groups(name, settings[name])
        context = StepContext(groups.step, settings=settings, norm=self._norms)
        context.base_state = lambda p: self.base.state.get(p, {})
        context.base_groups = groups.by_parameter
        context.gradient = partial(self._extra_gradient, context, data)
        context.samples = lambda n: [
            data.ascent.subset(torch.tensor([i]))  # type: ignore[attr-defined]
            for i in range(min(n, len(data.ascent)))  # type: ignore[arg-type]
        ]
        return context

    def _settings_of(self, rows: list[dict[str, float]]) -> dict[str, list[float]]:
        return {s.name: [row[s.name] for row in rows] for s in self.settings}

    def _unread(self, context: StepContext) -> Vector:
        """The parameters whose gradient at w no part reads, because they are not perturbed."""
        params = self._groups.params()
        if not (context.perturbs and self.policy.certain(context)):
            return []
        if self._distributed.reduces_every(params):
            return []
        read = {p for _, p in self._may_be_perturbed(context)}
        if not any(p.requires_grad for p in read):
            return []
        return [p for p in params if p.requires_grad and p not in read]

    def _may_be_perturbed(self, context: StepContext) -> Iterator[tuple[int, Tensor]]:
        """The parameters that this step may perturb or remembers, each with its group's number."""
        everywhere = self.direction.remembers_all and context.perturbs
        covered = self._groups.covered()
        for row, group in enumerate(self.param_groups):
            scheduled = "rho" in self._groups.schedules_of(group, row)
            if context.rho[row] == 0 and not scheduled and not everywhere:
                continue
            for p in group["params"]:
                if covered is None or p in covered:
                    yield row, p

    def _extra_gradient(
        self,
        context: StepContext,
        share: PassData,
        at: Vector | None = None,
        data: Literal["batch", "full"] | Data = "batch",
    ) -> Gradient:
        """A gradient that a part asks for, through `context.gradient`."""
        if data == "batch":
            return self._passes.extra(context, share.ascent, at)
        if data == "full":
            if self.source is None:
                raise TypeError(f"{self.direction} needs all of the data: pass source=")
            return self._passes.extra(context, self.source.full(), at)
        return self._passes.extra(context, data, at, single=self.model)

    def _wants_gradient_at_w(self, state: PartState, context: StepContext) -> bool:
        if not self.direction.needs_clean:
            return False
        return not state.kept or self.policy.clean(state, context)

    def _gradient_at_w(
        self, context: StepContext, state: PartState, takes_g: bool
    ) -> Vector | None:
        """Collects the tensors that may be perturbed, and their gradient if one was taken."""
        rows = self._gather(context, state, takes_g)
        names = self._groups.names(self.model)
        context.settings = {n: [v[row] for row in rows] for n, v in context.settings.items()}
        context.names = [names.get(p) for p in context.w]
        context.uphill = self._uphill(rows)
        context.x = state.w = context.w
        self._current.has_gradient_at_w = takes_g
        if not takes_g:
            self._norms.reads = self._norms.checks
            return None
        if self.direction.asks_more or self.geometry.asks_more:
            for p in self._groups.params():  # before passes of theirs
                p.grad = copied(p.grad)
        context.g = [p.grad for p in context.w if p.grad is not None]
        self._passes.check_at_w(context)
        return context.g

    def _gather(self, context: StepContext, state: PartState, takes_g: bool) -> list[int]:
        """Fills `context.w`, returns the group of each, notes the parameters outside."""
        rows: list[int] = []
        found, params = [*self._may_be_perturbed(context)], self._groups.params()
        outside = set(params) - {p for _, p in found} if len(found) < len(params) else ()
        self._current.outside = [p for p in outside if p in state.kept]
        for row, p in found:
            gradient = p.grad if takes_g else p
            if gradient is not None and (takes_g or p.requires_grad):
                validation.perturbable(p, gradient, self.restore, self.direction.remembers_all)
                context.w.append(p)
                rows.append(row)
        return rows

    def _uphill(self, rows: list[int]) -> list[int]:
        """For each tensor -1 where the base maximizes and the perturbation lowers its objective."""
        signs = [-1 if group.get("maximize") else 1 for group in self.param_groups]
        along_base = self.direction.sign < 0  # d is already in the base's direction
        return [] if along_base or min(signs) > 0 else [signs[row] for row in rows]

    def _slope(self, g: Gradient | None, state: PartState, context: StepContext) -> Vector:
        """The direction; a tensor without gradient at an inner point counts as flat there."""
        if not context.w:
            return []
        if g is not None and any(x is None for x in g):
            g = [*zeros_for_missing(g, context.w)]  # else the same list, whose norm is known
        self._norms.note_before(state.recall("d"))
        return self.direction(g, state, context, **context.of(self.direction))  # type: ignore[arg-type]

    def _free_memory(
        self, context: StepContext, g: Vector | None, d: Vector, x: Perturbation
    ) -> tuple[Vector | None, Vector | None, Vector | None]:
        """Drops the vectors that are not needed any more before the next pass."""
        current, several = self._current, self.ascent.points > 1
        self._norms.trust(context.w)
        current.note(d_norm=self._norms.known(d), climbed=True)
        current.note(triangle=self._triangle(d, context))
        self._norms.forget()
        clear(self._groups.params())
        if current.rng_state is not None and self.same_rng:
            rng.set_state(current.rng_state)
        if not (self._observers or self.descent.needs_clean):
            g = None
        if not (self._observers or self.descent.needs_clean or several):
            context.g = []
        epsilon = x.epsilon() if self._observers else None
        kept = d if self._observers or several else []
        # g, context.g and d may be the same tensors
        copies = {id(v): copied(v) for v in [*(g or []), *context.g, *kept]}
        context.g = [copies[id(v)] for v in context.g]
        return g and [copies[id(v)] for v in g], [copies[id(v)] for v in kept], epsilon

    def _triangle(self, d: Vector, context: StepContext) -> Triangle | None:
        """theta and the norms of d_{t-1}, d_t and g_t, for `last.cosine`; None if not known."""
        if type(self.direction) is not Ema or self.ascent.points > 1 or self._distributed.local:
            return None
        (theta, *others), norms = set(context.settings["theta"]), self._norms
        g_norm, d_norm, before = self.last.g_norm, norms.known(d), norms.before
        if theta < 1 and not others:
            norms.store(d)
        else:
            before = d_norm  # times 0
        if others or g_norm is None or d_norm is None or before is None:
            return None
        return theta, before, d_norm, g_norm

    def _finish(
        self, context: StepContext, state: PartState, u: Gradient, last: Gradient | None
    ) -> None:
        """Passes the last gradient of the step to the parts and writes u into `p.grad`.

        All gradients are finite by now: parameters not perturbed any more lose their state.
        """
        for p in self._current.outside:
            state.kept.pop(p, None)
        for part in self.parts:
            part.after(last or [], state, context)
        for p, gradient in zip(context.w, u, strict=True):
            p.grad = gradient
        context.g = []  # a reference cycle may keep the context, but not its vectors
        self._norms.forget()

    # -- over all data of a step ------------------------------------------------------------------

    def _mean_over(self, shares: list[PassData]) -> Requests:
        """The mean of Algorithm 1 over the shares: of the gradients and of what is remembered."""
        state = self._part_state()
        try:
            if len(shares) == 1:
                yield from self._alone(shares[0], state)
                return
            mean = Mean(self._groups.step, self._accumulation.like_gradients)
            for share in shares:
                own = state.copy()
                self.statistics.remember()
                yield from self.algorithm_1(share, own)
                mean.add(self._groups.params(), own, share.weight, self._current.losses)
                clear(self._groups.params())
            mean.write_to(state)
            self._current.note_losses(mean.losses)
        finally:
            if self._current.pending is None:  # else a host's callback has kept newer ones
                self._groups.keep_numbers(state.numbers)

    def _alone(self, share: PassData, state: PartState) -> Requests:
        """Algorithm 1 on all data of this rank; ranks then agree on what they remember."""
        try:
            yield from self.algorithm_1(share, state)
        except NonFiniteError:
            self._average_state(state)  # it has seen a finite gradient at w, as on all ranks
            raise
        self._average_state(state)

    def _average_state(self, state: PartState) -> None:
        if self._distributed.local and self._current.summary.climbed:
            self._distributed.average_vectors(state.kept, self._groups.dtypes_of_vectors())

    def _one_micro_batch(self, share: PassData) -> Requests:
        """Algorithm 1 on a micro-batch; the state of the parts is averaged over the window."""
        own = self._part_state().copy()
        yield from self.algorithm_1(share, own)
        self._accumulation.add(own)

    # -- with closures ----------------------------------------------------------------------------

    @not_traced
    @torch.no_grad()
    def step(
        self,
        closure: Data | None = None,
        *,
        ascent_closure: Data | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> Any:
        """One step: perturbs the weights, takes the gradient there, restores them, steps the base.

        Without a closure this ends a step begun with `ascended()`; outside of one it is a plain
        step of the base, which leaves the slope alone.

        Args:
            closure: zeroes the gradients, computes the loss, calls backward and returns the loss.
                It is called at w and at w + epsilon. Some methods need a `Batch`.
            ascent_closure: the same for other data, from which the perturbation is computed.
            scaler: for closures that call ``scaler.scale(loss).backward()``. Gradients are unscaled
                after each pass, and `scaler.update()` is called at the end.

        Returns:
            The loss at w. With other ascent data and perturbed weights it is the loss of the ascent
            data. For a method without a gradient at w it is the loss at w + epsilon. None without a
            closure.
        """
        current = self._current
        self._require_restored("step()")
        for data in (closure, ascent_closure):
            validation.closure(data)
        if closure is None or self._is_over(closure):
            validation.scaler_with_closure(scaler)
            return self._step_without_closure()
        check_closure(closure)
        self._start(scaler)
        self._accumulation.end()
        shares = self._shares(closure, ascent_closure)
        self._notices.before_first_step(self.geometry)
        self.statistics.remember()
        try:
            with closing(self._mean_over(shares)) as requests:
                for data in requests:
                    self._passes.run(data)
                    if current.pending:  # the closure has called ascended() by itself
                        break
        except NonFiniteError as error:
            self._skip(error)
        except BaseException:
            self.statistics.recover()
            raise
        finally:
            self._perturbation.restore()
        in_closure = current.pending == "descend"  # a host has noted the losses
        self._step_base()
        self._scaling.update()
        if not in_closure:
            self._radius.observe()
        return current.losses[0 if current.summary.climbed else -1]

    def _start(self, scaler: torch.amp.GradScaler | None) -> None:
        validation.scaler(scaler, self.nonfinite)
        self._current.reset()
        self._scaling.start(scaler)

    def _is_over(self, closure: Data) -> bool:
        """Whether the passes have been made in `ascended()`: some hosts pass an empty closure."""
        if self._current.pending is None:
            return False
        with torch.enable_grad(), self.statistics.held():
            if closure() is None:
                return True
        self._groups.count(
            COST, cost_of(closure, len(closure) if isinstance(closure, Batch) else None)
        )
        return False

    def _shares(self, closure: Data, ascent_closure: Data | None) -> list[PassData]:
        """The shares of the plan; a single one if there is an `ascent_closure`."""
        self._current.batch_size = len(closure) if isinstance(closure, Batch) else None
        if ascent_closure is not None:
            self.parts.check_data(ascent_closure)
            self.parts.check_same_data()
            return [PassData(self._distributed.without_sync(ascent_closure), closure)]
        if self._rho_is_zero():
            return [PassData(closure, closure)]
        if self._distributed.local:
            return [PassData(self._distributed.without_sync(closure), closure, alike=True)]
        self.parts.check_data(closure)
        return self.plan(closure, self._groups.step)

    def _rho_is_zero(self) -> bool:
        return all(row["rho"] == 0 for row in self._groups.current())

    def _step_without_closure(self) -> None:
        """Ends what `ascended` has begun; else a plain step, or the getters' probe."""
        if self._current.pending is None:
            if self._is_probe():
                self._learn_form()
                return
            if self._passes.partial:
                raise RuntimeError("step() after first_pass() needs ascended() in between")
            self._notices.plain_step()
            self._begin_plain_step()
        if self._accumulation.active:
            state = self._part_state()
            self._accumulation.finish(state)
            self._groups.keep_numbers(state.numbers)
        self._radius.end_of_step_in_a_loop()
        self._norms.start()  # the loop may have changed gradients since their norm was taken
        self._step_base()
        self.statistics.remember()

    # -- with the passes of the user's training loop ----------------------------------------------

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        """For loops that own forward and backward: leaves out gradients at w that nothing reads.

        Put the first pass inside, before `ascended()`. Parameters that are not perturbed, in groups
        with rho = 0 or outside the layers of `Normalisation`, then get their gradient in the second
        pass alone. Where a step might not perturb, and under DDP, it changes nothing.
        `step(closure)` does this by itself for `Normalisation`.

        Raises:
            RuntimeError: a parameter that is to be perturbed has no gradient at the end.

        Example:
            >>> from vasso import SAM
            >>> a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
            >>> opt = SAM(torch.optim.SGD([{"params": a}, {"params": b, "rho": 0.0}], lr=0.1))
            >>> with opt.first_pass():
            ...     (a * b).sum().backward()
            >>> b.grad is None
            True
            >>> with opt.ascended():
            ...     (a * b).sum().backward()
            >>> opt.step()
        """
        context = StepContext(self._groups.step, settings=self._settings_of(self._groups.current()))
        unread = self._unread(context) if self.wants_clean else []
        with self._passes.without_gradient(unread):
            yield
        others = set(unread)
        wanted = [p for p in self._groups.params() if p.requires_grad and p not in others]
        missing = sum(p.grad is None for p in wanted)
        if unread and missing:
            raise RuntimeError(
                f"first_pass(): {missing} of {len(wanted)} parameters to be perturbed have no "
                "gradient. Leave first_pass() out of this loop, or make checkpoints with "
                "use_reentrant=False."
            )

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
                and inside, then ``scaler.unscale_(opt)`` if you clip, ``scaler.step(opt)``,
                ``scaler.update()``.
            unscaled: the gradients on entry have been unscaled already, by a host, and those on
                exit are unscaled too. The body's loss is scaled in both cases.
            accumulate: the perturbation is that of a micro-batch: the gradients on exit are added
                to those of earlier micro-batches, until `step()`.

        Yields:
            True if the weights are perturbed. If False (policy, rho = 0 or a non-finite gradient),
            you can skip the second backward pass; gradients that the body does not overwrite are
            restored on exit.

        Raises:
            RuntimeError: no gradient has been computed, before or inside.

        Example:
            >>> from vasso import VaSSO
            >>> model = torch.nn.Linear(2, 1)
            >>> opt = VaSSO(torch.optim.SGD(model.parameters(), lr=0.1))
            >>> model(torch.ones(4, 2)).square().mean().backward()
            >>> with opt.ascended():
            ...     model(torch.ones(4, 2)).square().mean().backward()
            >>> opt.step()
        """
        current = self._current
        requests = self._requests_of_loop(scaler, unscaled, accumulate)
        try:
            current.in_ascended = True
            with torch.no_grad():
                waiting = self._enter(requests, unscaled)
            only = not current.has_gradient_at_w
            with nullcontext() if self.perturbed else self.statistics.second_pass(only=only):
                yield self.perturbed
            with torch.no_grad():
                self._leave(requests, waiting, unscaled)
            current.pending = current.pending or "descend"
        except NonFiniteError as error:
            self._skip(error)
        except BaseException:
            with torch.no_grad():
                requests.close()
            self.statistics.remember()  # keeps those of the pass at w: step() will not be called
            raise
        finally:
            current.in_ascended = self._passes.partial = False
            with torch.no_grad():
                try:
                    requests.close()
                finally:
                    self._perturbation.restore()
                    self._close_micro_batch()

    def _requests_of_loop(
        self, scaler: torch.amp.GradScaler | None, unscaled: bool, accumulate: bool
    ) -> Requests:
        """The algorithm on the passes of the user's loop, if they can serve it."""
        self._require_restored("ascended()")
        self._radius.check_losses_are_known()
        self._passes.all_gradients_again()
        for problem in self.parts.no_mean_over(Chunks()) if accumulate else ():
            raise ValueError(problem)
        name = self.needs_own_passes
        if name is not None:
            raise RuntimeError(
                f"{name} needs passes of its own, which ascended() cannot give: use step(closure)"
            )
        self._start(scaler)
        validation.unscaled(unscaled, scaler, accumulate)
        validation.local_loop(self._distributed.local, unscaled, accumulate)
        validation.accumulable(accumulate, self._groups.params())
        self._accumulation.begin(accumulate)
        share = PassData(_pass_before, _pass_inside)
        return self._one_micro_batch(share) if accumulate else self._mean_over([share])

    @not_traced
    def _enter(self, requests: Requests, unscaled: bool) -> bool:
        """Perturbs the weights if this step does; True if the algorithm waits for gradients."""
        params = self._groups.params()
        self._notices.before_first_step(self.geometry)
        if self.wants_clean and all(p.grad is None for p in params):
            raise RuntimeError(
                "ascended() found no gradient: call backward() on the loss at w first"
            )
        try:
            if self.wants_clean:
                self._distributed.sync_nonfinite(params)
                if not unscaled:
                    self._scaling.unscale(params)
                next(requests)  # the gradient at w, which the caller has computed
                self._accumulation.count_pass()
            if next(requests, None) is not None:
                return True
        except NonFiniteError as error:
            self._skip(error)
        self._current.saved_gradients = set_aside(params)
        return False

    @not_traced
    def _leave(self, requests: Requests, waiting: bool, unscaled: bool) -> None:
        """Passes the body's gradients to the algorithm; restores those that the body left out."""
        current, params = self._current, self._groups.params()
        skipped = current.pending == "skip"
        body_ran = any(p.grad is not None for p in params)
        if self._passes.partial and not (body_ran or skipped):
            raise RuntimeError(
                "first_pass() has left out gradients that this step needs, because it does not "
                "perturb: run the body of ascended() in every step"
            )
        if body_ran:
            self._accumulation.count_pass()
        self._scaling.unscale(params)
        put_back([(p, x) for p, x in current.saved_gradients if p.grad is None or skipped])
        current.saved_gradients = []
        if not self.perturbed and not skipped:
            self._distributed.average_gradients(params)
        if waiting:
            validation.closure_result("its own", params, perturbed=self.perturbed)
            next(requests, None)
        elif body_ran and not skipped:
            self._passes.check()
        if not unscaled and not skipped:
            self._scaling.rescale(params)

    def _close_micro_batch(self) -> None:
        if self._accumulation.active:
            self._accumulation.close(failed=self._current.pending == "skip")
            if self._accumulation.failed:
                self._current.pending = "skip"

    @property
    def needs_own_passes(self) -> str | None:
        """The option or part, if any, that needs passes which only `step(closure)` can make."""
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

    @property
    def wants_clean(self) -> bool:
        """Whether this step wants a gradient at w; a loop may leave that pass out if not."""
        context = StepContext(self._groups.step)
        return self._rho_is_zero() or self._wants_gradient_at_w(self._part_state(), context)

    def leave_out(self) -> None:
        """Ends the current step without a step of the base.

        For hosts whose closure may skip a batch.
        """
        self._current.pending = "skip"


def _pass_before() -> None:
    """Placeholder for the pass that the caller of `ascended` makes before entering it."""


def _pass_inside() -> None:
    """Placeholder for the pass that the caller of `ascended` makes inside."""
