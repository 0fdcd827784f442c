"""vasso is broken on purpose, one bug at a time, and each check has to fail.

A mutant is one bug that sharpness-aware code in the wild has had. Every check passes on vasso as it
is and fails on its mutant.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests import faults, test_closed_forms
from tests.faults import Fault, MishapError, Setup
from vasso import SharpnessAware
from vasso.engine.batchnorm import BatchNormStatistics
from vasso.engine.distributed import Distributed
from vasso.engine.passes import Passes
from vasso.engine.perturbation import Perturbation
from vasso.numerics import rng
from vasso.records import StepSummary

Mutant = Callable[[pytest.MonkeyPatch], None]


def faulty(where: Any, what: Any, **setup: Any) -> Callable[[], None]:
    """The check that nothing but what is promised is left of one fault."""
    return partial(faults.check_faults, Setup(**setup), {2: Fault(where, what)}, steps=4)


def swallow_exceptions(patch: pytest.MonkeyPatch) -> None:
    """A closure that raises is taken for one that is done."""
    whole = Passes.run

    def run(self: Passes, closure: Any) -> None:
        with contextlib.suppress(Exception):
            whole(self, closure)

    patch.setattr(Passes, "run", run)


def swallow_exceptions_when_restoring(patch: pytest.MonkeyPatch) -> None:
    """`__exit__` says that it has dealt with everything."""

    def leave(self: Perturbation, kind: Any, error: Any, trace: Any) -> bool:
        self.restore()
        return kind is not None and kind is not GeneratorExit

    patch.setattr(Perturbation, "__exit__", leave)


def count_exceptions_as_skips(patch: pytest.MonkeyPatch) -> None:
    """Every early end of a step is counted."""
    whole = SharpnessAware.step

    def step(self: SharpnessAware, closure: Any = None, **options: Any) -> Any:
        try:
            return whole(self, closure, **options)
        except MishapError:
            self._groups.count("vasso_skipped")
            raise

    patch.setattr(SharpnessAware, "step", step)
    for method in SharpnessAware.__subclasses__():
        patch.setattr(method, "step", step)


def count_no_skips(patch: pytest.MonkeyPatch) -> None:
    """A skipped step is not counted."""

    def skip(self: SharpnessAware, trouble: Exception) -> None:
        self._current.pending = "skip"

    patch.setattr(SharpnessAware, "_skip", skip)


def let_nan_into_the_slope(patch: pytest.MonkeyPatch) -> None:
    """The gradient at w is looked at too late: only that at w + epsilon is."""

    def check_at_w(self: Passes, *_: Any) -> None:
        self.current.summary = StepSummary()

    patch.setattr(Passes, "check_at_w", check_at_w)


def wipe_the_slope(patch: pytest.MonkeyPatch) -> None:
    """After a skipped step the slope begins anew."""
    whole = SharpnessAware._skip

    def skip(self: SharpnessAware, trouble: Any) -> None:
        self._vectors.clear()
        whole(self, trouble)

    patch.setattr(SharpnessAware, "_skip", skip)


def move_momentum_in_skipped_steps(patch: pytest.MonkeyPatch) -> None:
    """A skipped step is a step of the base on a gradient of zero."""
    whole = SharpnessAware._step_base

    def step_base(self: SharpnessAware) -> None:
        if self._current.pending == "skip":
            for p in self._groups.params():
                p.grad = torch.zeros_like(p)
            self.base.step()
        whole(self)

    patch.setattr(SharpnessAware, "_step_base", step_base)


def restore_with_gradients_only(patch: pytest.MonkeyPatch) -> None:
    """The way home leaves out tensors that got no gradient up there (davda54's SAM)."""
    whole = Perturbation.restore

    def restore(self: Perturbation) -> None:
        pairs = zip(self._weights, self._saved, strict=True)
        pairs = [(w, x) for w, x in pairs if w.grad is not None]
        self._weights, self._saved = [w for w, _ in pairs], [x for _, x in pairs]
        whole(self)

    patch.setattr(Perturbation, "restore", restore)


def restore_all_but_one_tensor(patch: pytest.MonkeyPatch) -> None:
    """The way home leaves out the last tensor."""
    whole = Perturbation.restore

    def restore(self: Perturbation) -> None:
        self._weights, self._saved = self._weights[:-1], self._saved[:-1]
        whole(self)

    patch.setattr(Perturbation, "restore", restore)


def restore_by_subtraction(patch: pytest.MonkeyPatch) -> None:
    """What was added is subtracted again, which does not return every float."""
    whole = Perturbation.move

    def move(self: Perturbation, d: Any, *way: Any, **options: Any) -> None:
        self.recompute = True
        whole(self, d, *way, **options)

    patch.setattr(Perturbation, "move", move)


def restore_only_if_all_went_well(patch: pytest.MonkeyPatch) -> None:
    """Climb and return without try and finally."""

    def leave(self: Perturbation, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.restore()

    patch.setattr(Perturbation, "__exit__", leave)
    whole = Perturbation.restore
    patch.setattr(
        Perturbation,
        "restore",
        lambda self: whole(self) if sys._getframe(1).f_code.co_name == "leave" else None,
    )


def move_batchnorm_twice(patch: pytest.MonkeyPatch) -> None:
    """Both passes move the running statistics."""
    patch.setattr(
        BatchNormStatistics, "second_pass", lambda self, only=False: contextlib.nullcontext()
    )


def keep_poisoned_batchnorm(patch: pytest.MonkeyPatch) -> None:
    """Statistics of a batch with NaN stay."""
    patch.setattr(BatchNormStatistics, "recover", lambda self: None)


def restore_all_but_the_count(patch: pytest.MonkeyPatch) -> None:
    """`num_batches_tracked` is forgotten, as where `momentum=0` holds BatchNorm."""

    @contextlib.contextmanager
    def second_pass(self: BatchNormStatistics, only: bool = False) -> Iterator[None]:
        kept = [(x, x.clone()) for x in self.tensors() if x.is_floating_point()]
        yield
        for x, before in kept:
            x.copy_(before)

    patch.setattr(BatchNormStatistics, "second_pass", second_pass)


def forget_autocast(patch: pytest.MonkeyPatch) -> None:
    """The low-precision weights of the first pass serve the second."""
    patch.setattr(Distributed, "clear_weight_caches", lambda self: None)


def draw_anew(patch: pytest.MonkeyPatch) -> None:
    """`same_rng=True` does nothing."""
    patch.setattr(rng, "set_state", lambda state: None)


def replay_always(patch: pytest.MonkeyPatch) -> None:
    """The generator is put back also where nobody asked."""
    whole = SharpnessAware.__init__

    def init(self: SharpnessAware, *base: Any, **options: Any) -> None:
        whole(self, *base, **{**options, "same_rng": True})

    patch.setattr(SharpnessAware, "__init__", init)


def clip_before_the_slope(patch: pytest.MonkeyPatch) -> None:
    """The gradient at w is clipped, then averaged."""
    whole = SharpnessAware._gradient_at_w

    def gradient_at_w(self: SharpnessAware, *given: Any) -> Any:
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._groups.params(), self.clip_norm)
        return whole(self, *given)

    patch.setattr(SharpnessAware, "_gradient_at_w", gradient_at_w)


def scale_before_the_slope(patch: pytest.MonkeyPatch) -> None:
    """The gradient at w enters the slope with a loss scale on it, which grows over time."""
    whole = Passes.check_at_w

    def check_at_w(self: Passes, context: Any) -> None:
        for x in context.g:
            x.mul_(2.0 ** (1 + context.step))
        whole(self, context)

    patch.setattr(Passes, "check_at_w", check_at_w)


CLIPPED = test_closed_forms.test_what_goes_down_is_clipped_and_what_enters_the_slope_is_not
BATCHNORM = partial(faults.check_batchnorm, "clean", "closure")
IN_ONE_CALL = Setup(base="SGD in one call", way="ascended")
CAUGHT: list[tuple[Mutant, Callable[[], None]]] = [
    (swallow_exceptions, faulty(1, MishapError)),
    (swallow_exceptions, faulty(2, MishapError)),
    (swallow_exceptions_when_restoring, faulty(2, "inf loss", way="ascended", nonfinite="raise")),
    (count_exceptions_as_skips, faulty(2, MishapError)),
    (count_no_skips, faulty(1, "inf loss")),
    (count_no_skips, faulty(2, "inf loss", way="ascended")),
    (let_nan_into_the_slope, faulty(1, "inf gradient")),
    (let_nan_into_the_slope, faulty(1, "nan in the data", way="ascended")),
    (wipe_the_slope, faulty(1, "inf loss")),
    (wipe_the_slope, faulty(2, "inf loss", way="ascended")),
    (move_momentum_in_skipped_steps, faulty(1, "inf loss", base="SGD")),
    (move_momentum_in_skipped_steps, faulty(2, "inf loss", base="AdamW", way="ascended")),
    (restore_with_gradients_only, partial(faults.check_missing_second_gradient, "closure")),
    (restore_with_gradients_only, partial(faults.check_missing_second_gradient, "ascended")),
    (restore_with_gradients_only, faulty(2, MishapError)),
    (restore_all_but_one_tensor, partial(faults.check_faults, Setup(), {}, steps=2)),
    (restore_all_but_one_tensor, faulty(2, KeyboardInterrupt, way="ascended")),
    (restore_by_subtraction, partial(faults.check_faults, Setup(), {}, steps=2)),
    (restore_by_subtraction, partial(faults.check_missing_second_gradient, "closure")),
    (restore_only_if_all_went_well, faulty(2, MishapError)),
    (restore_only_if_all_went_well, faulty(2, "inf loss", method="SAM", way="ascended")),
    (restore_only_if_all_went_well, partial(faults.check_interrupts, IN_ONE_CALL, every=9)),
    (
        restore_only_if_all_went_well,
        partial(faults.check_sigint_at_any_time, IN_ONE_CALL, steps=50),
    ),
    (move_batchnorm_twice, BATCHNORM),
    (move_batchnorm_twice, faulty(2, MishapError)),
    (restore_all_but_the_count, BATCHNORM),
    (keep_poisoned_batchnorm, faulty(1, "nan in the data")),
    (forget_autocast, partial(faults.check_autocast_sees_the_adversary, "closure")),
    (forget_autocast, partial(faults.check_autocast_sees_the_adversary, "ascended")),
    (draw_anew, faults.check_dropout_is_replayed),
    (replay_always, faults.check_dropout_is_fresh),
    (clip_before_the_slope, CLIPPED),
    (scale_before_the_slope, partial(faults.check_faults, Setup(), {}, steps=3)),
]


SAYS: dict[Mutant, str] = {
    swallow_exceptions: r"^MishapError, pass \d gave",
    swallow_exceptions_when_restoring: r"^inf loss, pass 2 gave",
    count_exceptions_as_skips: r"^1 skips counted",
    count_no_skips: r"^0 skips counted",
    let_nan_into_the_slope: r"slope of inner\.weight differs",
    wipe_the_slope: r"\['slope of inner\.weight'",
    move_momentum_in_skipped_steps: r"pass \d: inner\.weight differs",
    restore_with_gradients_only: r"only first differs|inner\.weight differs",
    restore_all_but_one_tensor: r"outer\.bias differs",
    restore_by_subtraction: r"differs by \d\.\d+e-\d\d$",
    restore_only_if_all_went_well: r"inner\.weight differs|weights are perturbed|SIGINT in step",
    move_batchnorm_twice: r"norm\.running_mean differs",
    restore_all_but_the_count: r"num_batches_tracked differs by 1\.0$",
    keep_poisoned_batchnorm: r"norm\.running_mean differs by nan$",
    forget_autocast: r"^the second pass ran at w|^two passes in one block",
    draw_anew: r"pass 2 is pass 1",
    replay_always: r"drew the masks of another",
    clip_before_the_slope: r"^Tensor-likes are not close",
    scale_before_the_slope: r"slope of inner\.weight differs",
}
"""What the check says of each mutant: another message would mean another fault."""


def _name(value: Any) -> str:
    if isinstance(value, partial):
        return f"{value.func.__name__}({', '.join(str(x) for x in value.args)})"
    return str(value.__name__)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("mutant", "check"), CAUGHT, ids=_name)
def test_a_check_passes_on_vasso_and_fails_on_its_mutant(
    mutant: Mutant, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError), match=SAYS[mutant]):
        check()
