"""How does a loop that owns forward and backward climb? Inside `with opt.ascended():`.

    loss.backward() --> enter: g, d, climb --> body: loss.backward() --> leave: u, home --> step()

The algorithm is the generator of `optimizer.py`; it waits at each `yield` for the caller's pass.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch._compile import _disable_dynamo as not_traced  # imports dynamo only when it is called

from vasso import checks
from vasso.footwork import Footwork
from vasso.here import Here, Memory
from vasso.misnomers import OfSamPy
from vasso.plans import Chunks, Data, Share
from vasso.scaling import Scaling
from vasso.settings import COST, STEP
from vasso.underway import NonFiniteError
from vasso.window import Window

Passes: TypeAlias = Generator[Data, None, None]
"""The data whose gradients are wanted, one after the other."""


class CallersLoop(Footwork):
    """The way in for loops that make the passes themselves."""

    first_step = second_step = OfSamPy()

    def _mean_over(self, shares: list[Share]) -> Passes:
        """Algorithm 1 over all data of a step."""
        raise NotImplementedError

    def _one_of_many(self, share: Share, window: Window) -> Passes:
        """Algorithm 1 on a micro-batch."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a checkpoint of this method or of the plain base; the model's, if any, before.

        The caller's next pass may spoil BatchNorm's statistics with a number that is not finite;
        those of now, which have just been loaded too, are what will return then.

        Args:
            state_dict: what `state_dict` gave, here or at the base.
        """
        super().load_state_dict(state_dict)
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
            >>> model = torch.nn.Linear(2, 1)
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
        checks.accumulable(accumulate, self._params())
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
        except BaseException:
            with torch.no_grad():
                passes.close()
            self.statistics.remember()  # what the pass at w gave stays, and nobody will call step()
            raise
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

    @property
    def wants_clean(self) -> bool:
        """Whether this step wants a gradient at w; a loop may leave that pass out if not."""
        if all(row["rho"] == 0 for row in self._current_settings()):
            return True
        memory = Memory(self._memories, self._numbers())
        return self._asks(memory, Here(self.param_groups[0][STEP]))

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

    def _start_anew(self, scaler: torch.amp.GradScaler | None) -> None:
        """Forgets what a step has begun that never came to an end."""
        now = self._now
        checks.scaler(scaler, self.nonfinite)
        now.pending, now.losses, now.aside = None, [], []
        scaled = scaler is not None and scaler.is_enabled()
        now.scaling = Scaling(scaler, now.proxies) if scaled else None  # type: ignore[arg-type]


def callers_first() -> None:
    """Stands for the pass that the caller of `ascended` makes before it."""


def callers_second() -> None:
    """Stands for the pass that the caller of `ascended` makes inside."""
