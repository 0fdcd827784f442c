"""`Stepper`: the base of methods that are not the one step of `SharpnessAware`.

A stepper computes a gradient u by its own passes, at weights to which it moves temporarily. The
base steps by u. Nothing is remembered and the base is not touched before u is complete. So an
exception or a gradient that is not finite leaves everything as it was before the step.
"""

from typing import Any, Unpack

import torch
from torch._compile import _disable_dynamo as not_traced  # imports dynamo only when it is called
from torch.optim import Optimizer

from vasso import validation
from vasso.engine.passes import NonFiniteError, clear
from vasso.engine.wrapper import CommonOptions, OptimizerWrapper
from vasso.numerics.vectors import Gradient
from vasso.parts.context import StepContext
from vasso.parts.part import Part, Setting
from vasso.parts.plans import Batch, Data


class Stepper(OptimizerWrapper):
    """A method with its own computation of u: x_{t+1} = x_t - lr u, as the base does it.

    Weights are restored bit for bit.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball, None for methods that have none.
        parts: what the method is made of.
        model: the model, so that only one pass of the step updates BatchNorm's statistics.
        batchnorm: the pass that updates them: "clean" (the first), "perturbed" (the last) or "both"
            (every).
        nonfinite: the reaction to an infinite or NaN gradient: "skip" the step, "raise", or
            "ignore" (no check, no host synchronisation).
        clip_norm: limit for the norm of the gradient u.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: Setting | None,
        parts: tuple[Part, ...],
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(base, rho, parts, **options)

    @not_traced
    @torch.no_grad()
    def step(self, closure: Data | None = None) -> Any:
        """One step: computes u in several passes; the base steps by it.

        Without a closure this is a plain step of the base by the gradients there are.

        Args:
            closure: zeroes the gradients, computes the loss, calls backward and returns the loss.

        Returns:
            The loss of the first pass. None without a closure.
        """
        current = self._current
        self._require_restored("step()")
        validation.closure(closure)
        if closure is None:
            return self._step_without_closure()
        current.reset()
        current.start_passes(other_data=False, rng_state=None)
        current.has_gradient_at_w = True
        current.batch_size = len(closure) if isinstance(closure, Batch) else None
        self._notices.before_first_step()
        self.statistics.remember()
        try:
            self._compute_u(closure)
        except NonFiniteError as error:
            self._skip(error)
        except BaseException:
            self.statistics.recover()
            raise
        finally:
            self._perturbation.restore()
        self._step_base()
        return current.losses[0]

    def _compute_u(self, batch: Data) -> None:
        """Leaves u in `p.grad`, the weights restored and the base as it was."""
        raise NotImplementedError

    def _step_without_closure(self) -> None:
        """A plain step, or what the getters of distributed checkpoints take for one."""
        if self._is_probe():
            self._learn_form()
            return
        self._begin_plain_step()
        self._current.note(climbed=self._climbed_in_loop())
        self._step_base()
        self.statistics.remember()

    def _climbed_in_loop(self) -> bool:
        """Whether the passes of the user's loop were at perturbed weights."""
        return False

    def _context(self) -> StepContext:
        """The step with all parameters that may move, and their settings."""
        w, values = [], []
        for group, row in zip(self.param_groups, self._groups.current(), strict=True):
            for p in group["params"]:
                if p.requires_grad:
                    w.append(p)
                    values.append(row)
        settings = {s.name: [row[s.name] for row in values] for s in self.settings}
        names = self._groups.names(self.model)
        self._norms.start()
        return StepContext(
            self._groups.step,
            w,
            w,
            names=[names.get(p) for p in w],
            settings=settings,
            norm=self._norms,
        )

    def _gradient_of(self, data: Data, context: StepContext) -> Gradient:
        """The gradient of some data at the current weights, if it is finite."""
        clear(self._groups.params())
        self._passes.run(data)
        self._passes.check()
        return context.gradients()
