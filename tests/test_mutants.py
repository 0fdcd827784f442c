"""Would the tests notice? vasso is broken on purpose, and each check has to fail of it.

A mutant is one bug that sharpness-aware code in the wild has had. Every check passes on vasso as it
is and fails on its mutant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests import faults
from tests.faults import Fault, MishapError, Setup
from vasso import SharpnessAware, randomness
from vasso.batchnorm import Statistics
from vasso.here import Climb
from vasso.ranks import Ranks
from vasso.records import StepSummary

Mutant = Callable[[pytest.MonkeyPatch], None]


def faulty(where: Any, what: Any, **setup: Any) -> Callable[[], None]:
    """The check that nothing but what is promised is left of one fault."""
    return partial(faults.check_faults, Setup(**setup), {2: Fault(where, what)}, steps=4)


# -- mutants --------------------------------------------------------------------------------------


def swallow_exceptions(patch: pytest.MonkeyPatch) -> None:
    """A closure that raises is taken for one that is done."""
    whole = SharpnessAware._evaluate

    def evaluate(self: SharpnessAware, closure: Any) -> None:
        with contextlib.suppress(Exception):
            whole(self, closure)

    patch.setattr(SharpnessAware, "_evaluate", evaluate)


def swallow_exceptions_on_the_way_home(patch: pytest.MonkeyPatch) -> None:
    """`__exit__` says that it has dealt with everything."""

    def leave(self: Climb, kind: Any, error: Any, trace: Any) -> bool:
        self.come_home()
        return kind is not None and kind is not GeneratorExit

    patch.setattr(Climb, "__exit__", leave)


def count_exceptions_as_skips(patch: pytest.MonkeyPatch) -> None:
    """Every early end of a step is counted."""
    whole = SharpnessAware.step

    def step(self: SharpnessAware, closure: Any = None, **options: Any) -> Any:
        try:
            return whole(self, closure, **options)
        except MishapError:
            self._count("vasso_skipped")
            raise

    patch.setattr(SharpnessAware, "step", step)
    for method in SharpnessAware.__subclasses__():
        patch.setattr(method, "step", step)


def count_no_skips(patch: pytest.MonkeyPatch) -> None:
    """A skipped step is not counted."""

    def skip(self: SharpnessAware, trouble: Exception) -> None:
        self._now.pending = "skip"

    patch.setattr(SharpnessAware, "_skip", skip)


def let_nan_into_the_slope(patch: pytest.MonkeyPatch) -> None:
    """The gradient at w is looked at too late: only that at w + epsilon is."""

    def measure(self: SharpnessAware, *_: Any) -> None:
        self._now.summary = StepSummary()

    patch.setattr(SharpnessAware, "_measure_first", measure)


def wipe_the_slope(patch: pytest.MonkeyPatch) -> None:
    """After a skipped step the slope begins anew."""
    whole = SharpnessAware._skip

    def skip(self: SharpnessAware, trouble: Any) -> None:
        self._memories.clear()
        whole(self, trouble)

    patch.setattr(SharpnessAware, "_skip", skip)


def move_momentum_in_skipped_steps(patch: pytest.MonkeyPatch) -> None:
    """A skipped step is a step of the base on a gradient of zero."""
    whole = SharpnessAware._descend

    def descend(self: SharpnessAware) -> None:
        if self._now.pending == "skip":
            for p in self._params():
                p.grad = torch.zeros_like(p)
            self.base.step()
        whole(self)

    patch.setattr(SharpnessAware, "_descend", descend)


def come_home_with_gradients_only(patch: pytest.MonkeyPatch) -> None:
    """The way home leaves out tensors that got no gradient up there (davda54's SAM)."""
    whole = Climb.come_home

    def come_home(self: Climb) -> None:
        pairs = [(w, x) for w, x in zip(self._w, self._home, strict=True) if w.grad is not None]
        self._w, self._home = [w for w, _ in pairs], [x for _, x in pairs]
        whole(self)

    patch.setattr(Climb, "come_home", come_home)


def leave_one_tensor_up(patch: pytest.MonkeyPatch) -> None:
    """The way home leaves out the last tensor."""
    whole = Climb.come_home

    def come_home(self: Climb) -> None:
        self._w, self._home = self._w[:-1], self._home[:-1]
        whole(self)

    patch.setattr(Climb, "come_home", come_home)


def come_home_by_subtraction(patch: pytest.MonkeyPatch) -> None:
    """What was added is subtracted again, which does not return every float."""
    whole = Climb.move

    def move(self: Climb, d: Any, *way: Any) -> None:
        self.restore = "recompute"
        whole(self, d, *way)

    patch.setattr(Climb, "move", move)


def come_home_only_if_all_went_well(patch: pytest.MonkeyPatch) -> None:
    """Climb and return without try and finally."""

    def leave(self: Climb, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.come_home()

    patch.setattr(Climb, "__exit__", leave)
    patch.setattr(SharpnessAware, "_come_home", lambda self: None)


def move_batchnorm_twice(patch: pytest.MonkeyPatch) -> None:
    """Both passes move the running statistics."""
    patch.setattr(Statistics, "second_pass", lambda self, only=False: contextlib.nullcontext())


def keep_poisoned_batchnorm(patch: pytest.MonkeyPatch) -> None:
    """Statistics of a batch with NaN stay."""
    patch.setattr(Statistics, "recover", lambda self: None)


def restore_all_but_the_count(patch: pytest.MonkeyPatch) -> None:
    """`num_batches_tracked` is forgotten, as where `momentum=0` holds BatchNorm."""

    @contextlib.contextmanager
    def second_pass(self: Statistics, only: bool = False) -> Iterator[None]:
        kept = [(x, x.clone()) for x in self.tensors() if x.is_floating_point()]
        yield
        for x, before in kept:
            x.copy_(before)

    patch.setattr(Statistics, "second_pass", second_pass)


def forget_autocast(patch: pytest.MonkeyPatch) -> None:
    """The low-precision weights of the first pass serve the second."""
    patch.setattr(Ranks, "forget_weights", lambda self: None)


def draw_anew(patch: pytest.MonkeyPatch) -> None:
    """`same_rng=True` does nothing."""
    patch.setattr(randomness, "replay", lambda state: None)


def replay_always(patch: pytest.MonkeyPatch) -> None:
    """The generator is put back also where nobody asked."""
    always = property(lambda self: True, lambda self, value: None)
    patch.setattr(SharpnessAware, "same_rng", always, raising=False)


def clip_before_the_slope(patch: pytest.MonkeyPatch) -> None:
    """The gradient at w is clipped, then averaged."""
    whole = SharpnessAware._measure_first

    def measure(self: SharpnessAware, at: Any) -> None:
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._params(), self.clip_norm)
        whole(self, at)

    patch.setattr(SharpnessAware, "_measure_first", measure)


def scale_before_the_slope(patch: pytest.MonkeyPatch) -> None:
    """The gradient at w enters the slope with a loss scale on it, which grows over time."""
    whole = SharpnessAware._measure_first

    def measure(self: SharpnessAware, at: Any) -> None:
        for x in at.g:
            x.mul_(2.0 ** (1 + at.step))
        whole(self, at)

    patch.setattr(SharpnessAware, "_measure_first", measure)


# -- each with the check that has to notice it ----------------------------------------------------

BATCHNORM = partial(faults.check_batchnorm, "clean", "closure")
CAUGHT: list[tuple[Mutant, Callable[[], None]]] = [
    (swallow_exceptions, faulty(1, MishapError)),
    (swallow_exceptions, faulty(2, MishapError)),
    (swallow_exceptions_on_the_way_home, faulty(2, "inf loss", way="ascended", nonfinite="raise")),
    (count_exceptions_as_skips, faulty(2, MishapError)),
    (count_no_skips, faulty(1, "inf loss")),
    (count_no_skips, faulty(2, "inf loss", way="ascended")),
    (let_nan_into_the_slope, faulty(1, "inf gradient")),
    (let_nan_into_the_slope, faulty(1, "nan in the data", way="ascended")),
    (wipe_the_slope, faulty(1, "inf loss")),
    (wipe_the_slope, faulty(2, "inf loss", way="ascended")),
    (move_momentum_in_skipped_steps, faulty(1, "inf loss", base="SGD")),
    (move_momentum_in_skipped_steps, faulty(2, "inf loss", base="AdamW", way="ascended")),
    (come_home_with_gradients_only, partial(faults.check_missing_second_gradient, "closure")),
    (come_home_with_gradients_only, partial(faults.check_missing_second_gradient, "ascended")),
    (come_home_with_gradients_only, faulty(2, MishapError)),
    (leave_one_tensor_up, partial(faults.check_faults, Setup(), {}, steps=2)),
    (leave_one_tensor_up, faulty(2, KeyboardInterrupt, way="ascended")),
    (come_home_by_subtraction, partial(faults.check_faults, Setup(), {}, steps=2)),
    (come_home_by_subtraction, partial(faults.check_missing_second_gradient, "closure")),
    (come_home_only_if_all_went_well, faulty(2, MishapError)),
    (come_home_only_if_all_went_well, faulty(2, "inf loss", method="SAM", way="ascended")),
    (
        come_home_only_if_all_went_well,
        partial(faults.check_interrupts, Setup(base="SGD in one call", way="ascended"), every=9),
    ),
    (
        come_home_only_if_all_went_well,
        partial(
            faults.check_sigint_at_any_time, Setup(base="SGD in one call", way="ascended"), steps=50
        ),
    ),
    (move_batchnorm_twice, BATCHNORM),
    (move_batchnorm_twice, faulty(2, MishapError)),
    (restore_all_but_the_count, BATCHNORM),
    (keep_poisoned_batchnorm, faulty(1, "nan in the data")),
    (forget_autocast, partial(faults.check_autocast_sees_the_adversary, "closure")),
    (forget_autocast, partial(faults.check_autocast_sees_the_adversary, "ascended")),
    (draw_anew, faults.check_dropout_is_replayed),
    (replay_always, faults.check_dropout_is_fresh),
    (
        clip_before_the_slope,
        partial(faults.check_clipping_stays_out_of_the_slope, "closure"),
    ),
    (
        clip_before_the_slope,
        partial(faults.check_clipping_stays_out_of_the_slope, "ascended"),
    ),
    (scale_before_the_slope, partial(faults.check_faults, Setup(), {}, steps=3)),
]


def _told(value: Any) -> str:
    if isinstance(value, partial):
        return f"{value.func.__name__}({', '.join(str(x) for x in value.args)})"
    return str(value.__name__)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("mutant", "check"), CAUGHT, ids=_told)
def test_a_check_passes_on_vasso_and_fails_on_its_mutant(
    mutant: Mutant, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check()
    mutant(monkeypatch)
    with pytest.raises((
        AssertionError,
        RuntimeError,
    )):  # RuntimeError: "the weights are not at home"
        check()
