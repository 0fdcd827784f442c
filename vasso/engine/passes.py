"""Passes: run a closure and check, unscale and count what it leaves in `p.grad`.

`Passes.run` makes one pass of the algorithm, `Passes.extra` one that a part asks for. The functions
of this module handle the gradients of a list of parameters.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from vasso import validation
from vasso.engine.amp import LossScaling
from vasso.engine.batchnorm import BatchNormStatistics, evaluating
from vasso.engine.current_step import CurrentStep
from vasso.engine.groups import COST, Groups
from vasso.engine.notices import warn
from vasso.engine.perturbation import Perturbation
from vasso.numerics import rng
from vasso.numerics.vectors import Gradient, Vector, copied
from vasso.parts.context import Norms, StepContext
from vasso.parts.plans import Data
from vasso.records import StepSummary

SavedGradients: TypeAlias = list[tuple[Tensor, Tensor | None]]


class NonFiniteError(ArithmeticError):
    """The gradient at w or at w + epsilon is infinite or NaN; ends the step."""

    def __init__(self, value: float, perturbed: bool = False) -> None:
        place = "w + epsilon" if perturbed else "w"
        super().__init__(f"the gradient at {place} has norm {value}")
        self.perturbed = perturbed


class Passes:
    """The forward and backward passes of one optimizer.

    `leaves_out` says whether passes may compute no gradients of some parameters, `partial` whether
    the last one has left some out.
    """

    def __init__(
        self,
        groups: Groups,
        current: CurrentStep,
        norms: Norms,
        perturbation: Perturbation,
        statistics: BatchNormStatistics,
        scaling: LossScaling,
    ) -> None:
        self.groups, self.current, self.norms = groups, current, norms
        self.perturbation, self.statistics, self.scaling = perturbation, statistics, scaling
        self.leaves_out, self.partial = True, False
        self._unread: Vector = []
        self._off: Vector = []
        self._lacking: Vector = []

    @contextmanager
    def without_gradient(self, params: Vector) -> Iterator[None]:
        """For a block whose backward passes compute no gradients of these parameters."""
        self._off = found = [p for p in params if p.requires_grad]
        try:
            for p in found:
                p.requires_grad_(False)
            yield
            self.partial = bool(found)
        finally:
            self.all_gradients_again()

    def all_gradients_again(self) -> None:
        """Ends `without_gradient` before its block does: a closure may go on with `ascended()`."""
        for p in self._off:
            p.requires_grad_(True)
        self._off = []

    def leave_out(self, unread: Vector) -> None:
        """The next pass computes no gradients of these parameters: nothing reads them."""
        self._unread = unread if self.leaves_out else []

    def _call(self, data: Data) -> Any:
        """The loss of a closure, without the gradients to leave out.

        A pass is made again with all gradients where it has none at all, or where the closure asks
        autograd for all of them; later passes then leave none out.
        """
        unread, self._unread = self._unread, []
        self.partial = False
        if not unread:
            loss = data()
            self._check_lacking()
            return loss
        params, statistics = self.groups.params(), self.statistics.copy()
        rng_state, others = rng.get_state(params), set(unread)
        try:
            with self.without_gradient(unread):
                loss = data()
            if self.current.pending or any(p.grad is not None for p in params):
                wanted = (p for p in params if p.requires_grad and p not in others)
                self._lacking = [p for p in wanted if p.grad is None]
                return loss
        except RuntimeError as error:
            if "not require grad" not in str(error):
                raise
        self.leaves_out = self.partial = False
        self.groups.count(COST, cost_of(data, self.current.batch_size))
        rng.set_state(rng_state)
        self.statistics.put_back(statistics)
        return data()

    def _check_lacking(self) -> None:
        """Warns once if the pass at w + epsilon has gradients that the pass at w was to have too.

        So it is with reentrant checkpoints behind a layer whose gradient is left out.
        """
        lost = [p for p in self._lacking if p.grad is not None]
        self._lacking = []
        if lost and self.leaves_out:
            self.leaves_out = False
            warn(
                f"{len(lost)} tensors had no gradient in the pass at w, which leaves out gradients "
                "that nothing reads, but have one in the pass at w + epsilon: this step did not "
                "perturb them, later steps compute all gradients. Reentrant checkpoints do this: "
                "use checkpoint(..., use_reentrant=False). Where layers are left out at random it "
                "is harmless."
            )

    def run(self, data: Data) -> None:
        """One pass: calls the closure with gradients on, checks and counts it."""
        current, params = self.current, self.groups.params()
        with torch.enable_grad():
            loss = self._call(data)
        current.losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
        if current.pending:  # the closure has called ascended() itself, through a host's callback
            return
        if hasattr(data, "covers"):
            clear([p for p in params if not data.covers(p)])
        validation.closure_result(loss, params, perturbed=self.perturbation.is_perturbed)
        self.scaling.unscale(params)
        if hasattr(data, "note"):
            with self.statistics.held():
                data.note()
        self.groups.count(COST, cost_of(data, current.batch_size))

    def extra(
        self,
        context: StepContext,
        data: Data,
        at: Vector | None = None,
        single: nn.Module | None = None,
    ) -> Gradient:
        """A gradient that a part asks for, with the random numbers of the pass at w.

        It is taken at other weights if `at` names them. `single` is the model if the data are a
        single sample, which has no batch statistics.
        """
        params = self.groups.params()
        saved, rng_state = set_aside(params), rng.get_state(params)
        if self.current.rng_state is not None:
            rng.set_state(self.current.rng_state)
        with (
            self.perturbation.at(context, at),
            self.statistics.second_pass(),
            evaluating(single),
        ):
            self.run(data)
            self.current.losses.pop()
            gradient = [copied(x) for x in context.gradients()]
            self.check()
        rng.set_state(rng_state)
        put_back(saved)
        return gradient

    def check_at_w(self, context: StepContext) -> None:
        """Raises NonFiniteError if the gradient at w is not finite, before any part has seen it."""
        if not self.norms.checks or not context.w:
            return
        validation.with_values(context.w)
        length, value = self.norms.read_gradient_at_w(context.w, context.g)
        if not math.isfinite(value):
            raise NonFiniteError(value)
        self.current.summary = StepSummary(g_norm=length)

    def check(self) -> None:
        """Raises NonFiniteError if a gradient of any group is not finite."""
        if not self.norms.checks:
            return
        params = self.groups.params()
        validation.with_values(params)
        found = dense_gradients(params)
        length, value = self.norms.read_descent(found)
        perturbed = self.perturbation.is_perturbed
        if not math.isfinite(value):
            raise NonFiniteError(value, perturbed)
        if perturbed:
            self.current.note(h_norm=length)


def cost_of(data: Any, batch_size: int | None) -> float:
    """What a pass over some data costs, in gradients of the whole batch; 1 for a closure."""
    if hasattr(data, "cost"):
        return float(data.cost)
    if batch_size is None or not hasattr(data, "__len__"):
        return 1.0
    return len(data) / batch_size


def clear(params: list[Tensor]) -> None:
    """Drops the gradients."""
    for p in params:
        p.grad = None


def set_aside(params: list[Tensor]) -> SavedGradients:
    """Clears the gradients and returns what `put_back` takes; copies of views of DDP's buckets."""
    gradients = [(p, p.grad) for p in params]
    saved = [(p, x.clone() if x is not None and x._is_view() else x) for p, x in gradients]
    clear(params)
    return saved


def put_back(saved: SavedGradients) -> None:
    """Makes the gradients what they were before `set_aside`."""
    for p, gradient in saved:
        p.grad = gradient


def dense_gradients(params: list[Tensor]) -> Vector:
    """The gradients as strided real tensors; of sparse ones the values."""
    found = [p.grad for p in params if p.grad is not None]
    dense = [x if x.layout == torch.strided else x.coalesce().values() for x in found]
    return [torch.view_as_real(x) if x.is_complex() else x for x in dense]


def clip(
    params: list[Tensor], clip_norm: float | None, norm_of: Callable[[Vector], Tensor]
) -> None:
    """Clips the norm of the gradients, if there is a limit."""
    if clip_norm is not None:
        length = norm_of(dense_gradients(params))
        nn.utils.clip_grads_with_norm_(params, clip_norm, length)
