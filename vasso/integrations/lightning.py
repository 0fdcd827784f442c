"""Lightning: a callback for its Trainer, and the gradient scaler of Trainer and Fabric.

    batches of a window --> training_step, backward at w      Lightning: accumulates, unscales
                                      |
    on_before_optimizer_step: perturb, the same batches again at w + epsilon, restore
                                      |
                          clipping, optimizer.step            Lightning: clips the new gradient

The callback runs where gradients are complete and not yet clipped. The second passes are not
logged: `training_step` logs and counts only what it saw at w.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from vasso.optimizer import SharpnessAware
from vasso.optional import needs_extra

with needs_extra("lightning"):
    from lightning.fabric import Fabric
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers.logger import DummyLogger
    from lightning.pytorch.strategies import ParallelStrategy, Strategy
    from torchmetrics import Metric


class SharpnessAwareCallback(Callback):
    """Lets a `Trainer` with automatic optimization use a `SharpnessAware` optimizer.

    Gradient accumulation, clipping, mixed precision, resuming and DDP work as in a loop written by
    hand. The loss, the metrics and everything else that is logged are those at w. The optimizer's
    `metrics()` go to the loggers every `log_every_n_steps` steps, as "vasso/rho" and so on. Return
    the callback from `configure_callbacks`, so that it cannot be forgotten.

    Example:
        >>> from vasso import VaSSO
        >>> class Net(LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = nn.Linear(4, 2)
        ...
        ...     def training_step(self, batch):
        ...         return self.layer(batch).square().mean()
        ...
        ...     def configure_optimizers(self):
        ...         return VaSSO(torch.optim.SGD(self.parameters(), lr=0.1), model=self)
        ...
        ...     def configure_callbacks(self):
        ...         return [SharpnessAwareCallback()]
    """

    makes_second_pass = True  # so that an optimizer knows of its presence without importing it

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._logged = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raises for setups that the callback cannot work with."""
        check_setup(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts to record batches."""
        self._recorder = Recorder(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Clears the window when Lightning is about to clear its gradients."""
        if self._recorder is not None:
            self._recorder.batch_seen = False
            if batch_idx % trainer.accumulate_grad_batches == 0:
                self._recorder.clear()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs the optimizer's metrics when Lightning logs its own."""
        steps, host = trainer.global_step, vars(trainer)
        if not trainer.loggers or steps == self._logged or steps % host["log_every_n_steps"]:
            return
        self._logged = steps
        for optimizer in trainer.optimizers:
            assert isinstance(optimizer, SharpnessAware)
            found = {f"vasso/{name}": value for name, value in optimizer.metrics().items()}
            for logger in trainer.loggers:
                logger.log_metrics(found, step=steps - 1)  # Lightning's number of this step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops recording."""
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Stops recording."""
        self._stop()

    def _stop(self) -> None:
        if self._recorder is not None:
            self._recorder.remove()
        self._recorder = None

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Perturbs the weights and takes the gradients of the window there, before clipping."""
        assert isinstance(optimizer, SharpnessAware)
        assert self._recorder is not None
        scaler, no_loss = scaler_of(trainer), self._recorder.no_loss
        window, at_w = self._recorder.take()
        if optimizer.needs_own_passes is not None:
            if len(window) > 1:
                raise RuntimeError(
                    f"{optimizer.needs_own_passes} needs passes of its own, but Lightning's "
                    f"closure knows only the last of {len(window)} batches: set "
                    "accumulate_grad_batches=1, or optimize manually with step(closure)"
                )
            return
        if not window or (no_loss and scaler):  # Lightning takes no step either
            optimizer.leave_out()
            return
        if optimizer.perturbed:  # no gradient at w is needed: the last batch has been perturbed
            self._add_earlier_batches(trainer, optimizer, window[:-1])
            return
        scaling: dict[str, Any] = {} if scaler is None else {"scaler": scaler, "unscaled": True}
        unused = not optimizer.wants_clean  # but the pass at w has updated BatchNorm's statistics
        with (
            optimizer.ascended(**scaling) as perturbed,
            optimizer.statistics.held() if unused else nullcontext(),
        ):
            above = replay(trainer, optimizer, window) if perturbed else []
        if above and not unused:
            optimizer.note_losses(torch.stack(at_w).mean(), torch.stack(above).mean())

    def _add_earlier_batches(
        self, trainer: Trainer, optimizer: SharpnessAware, earlier: list[RecordedCall]
    ) -> None:
        """Adds the gradients of the earlier batches, so that the sum is in the window's order."""
        if not earlier:
            return
        params = [p for group in optimizer.param_groups for p in group["params"]]
        last = [p.grad for p in params]
        optimizer.zero_grad()
        with optimizer.statistics.held():  # the passes at w have updated them
            replay(trainer, optimizer, earlier)
        for p, gradient in zip(params, last, strict=True):
            if p.grad is not None and gradient is not None:
                p.grad += gradient
            elif gradient is not None:
                p.grad = gradient


def scaler_of(host: Trainer | Fabric) -> GradScaler | None:
    """The gradient scaler of a host, for ``opt.ascended(scaler=scaler_of(fabric))``.

    None unless the precision is fp16.

    Example:
        >>> scaler_of(Fabric(accelerator="cpu", precision="bf16-mixed")) is None
        True
    """
    precision = host.strategy.precision if isinstance(host, Fabric) else host.precision_plugin
    return getattr(precision, "scaler", None)


@dataclass(frozen=True)
class RecordedCall:
    """One call of `training_step`.

    Attributes:
        step: the function.
        arguments: the batch, and its number if `training_step` takes one; its containers are
            copies, because `training_step` may remove items.
        versions: number of in-place writes to each tensor before the call.
    """

    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    versions: list[int]

    def repeat(self) -> Any:
        """Repeats the call; raises RuntimeError if the batch has been changed in place."""
        if tensor_versions(self.arguments) != self.versions:
            raise RuntimeError(
                "training_step has changed a tensor of its batch in place, so that the second pass "
                "would see other data: clone it first, or change it in on_after_batch_transfer"
            )
        return self.step(*(shallow_copy(argument) for argument in self.arguments))


@dataclass
class Recorder:
    """Wraps a strategy's `training_step` and records the calls since the last step.

    A callback cannot do this: it has no hook between those in which a module may change its batch
    and `training_step` itself.

    Attributes:
        trainer: its strategy's `training_step` is wrapped.
        window: the calls that returned a loss.
        losses: the losses that they returned.
        batch_seen: the batch has been seen before; another pass over it is not logged.
        no_loss: the last call returned None, by which a module skips a batch.
    """

    trainer: Trainer
    window: list[RecordedCall] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    batch_seen: bool = False
    no_loss: bool = False

    def __post_init__(self) -> None:
        self._original = self.trainer.strategy.training_step
        self.trainer.strategy.training_step = self._recorded  # type: ignore[method-assign]

    def _recorded(self, *arguments: Any) -> Any:
        kept = tuple(shallow_copy(argument) for argument in arguments)
        call = RecordedCall(self._original, kept, tensor_versions(kept))
        with without_logging(self.trainer) if self.batch_seen else nullcontext():
            output = self._original(*arguments)
        self.batch_seen, self.no_loss = True, output is None
        if not self.no_loss:
            self.window.append(call)
            self.losses.append(loss_of(output).detach())
        return output

    def take(self) -> tuple[list[RecordedCall], list[Tensor]]:
        """The calls since the last step and their losses; starts a new window."""
        taken = self.window, self.losses
        self.clear()
        return taken

    def clear(self) -> None:
        """Starts a new window."""
        self.window, self.losses = [], []

    def remove(self) -> None:
        """Unwraps `training_step`."""
        self.clear()
        del self.trainer.strategy.training_step  # that of the class is seen again


def shallow_copy(batch: Any) -> Any:
    """A copy one level deep of a list or a mapping; anything else as it is."""
    return copy.copy(batch) if isinstance(batch, list | Mapping) else batch


def tensor_versions(batch: Any) -> list[int]:
    """How often each tensor of a batch has been written to in place."""
    return [x._version for x in tree_leaves(batch) if isinstance(x, Tensor)]


def loss_of(output: Any) -> Tensor:
    """The loss that `training_step` has returned, alone or in a dict."""
    loss: Tensor = output["loss"] if isinstance(output, Mapping) else output
    return loss


def replay(trainer: Trainer, optimizer: SharpnessAware, window: list[RecordedCall]) -> list[Tensor]:
    """Accumulates the gradients of a window as Lightning does, without logging; its losses.

    Ranks exchange gradients with the last batch only. The loss is divided by the length of a whole
    window, also in a shorter one at the end of an epoch, as Lightning does.
    """
    strategy, losses = trainer.strategy, []
    with torch.enable_grad(), without_logging(trainer):
        for number, call in enumerate(window, start=1):
            last = number == len(window)
            with nullcontext() if last else without_sync(strategy):
                loss = loss_of(call.repeat())
                strategy.backward(loss / trainer.accumulate_grad_batches, optimizer)
            losses.append(loss.detach())
    return losses


def without_sync(strategy: Strategy) -> AbstractContextManager[None]:
    """A context in which ranks do not exchange gradients."""
    if isinstance(strategy, ParallelStrategy):
        return strategy.block_backward_sync()
    return nullcontext()


@contextmanager
def without_logging(trainer: Trainer) -> Iterator[None]:
    """A context in which nothing is logged or printed and metrics are not updated."""
    loggers = trainer.loggers
    modules = list(trainer.lightning_module.modules())
    with ExitStack() as stack:
        for module in modules:
            if isinstance(module, LightningModule):
                stack.enter_context(temporary_attributes(module, log=_ignore, print=_ignore))
            elif isinstance(module, Metric):
                states = module.metric_state.items()  # tensors, or lists of tensors
                copies = {k: x.clone() if isinstance(x, Tensor) else list(x) for k, x in states}
                stack.enter_context(temporary_attributes(module, **copies))
        trainer.loggers = [DummyLogger() for _ in loggers]
        try:
            yield
        finally:
            trainer.loggers = loggers


@contextmanager
def temporary_attributes(module: nn.Module, **values: Any) -> Iterator[None]:
    """Sets attributes of a module; afterwards all of its attributes are the same objects again."""
    current = vars(module)
    before = dict(current)
    current.update(values)
    try:
        yield
    finally:
        current.clear()
        current.update(before)


def _ignore(*arguments: Any, **settings: Any) -> None:
    """Replaces `log` and `print`."""


def check_setup(trainer: Trainer, module: LightningModule) -> None:
    """Raises TypeError or RuntimeError for setups that the callback cannot work with."""
    if not module.automatic_optimization:
        raise RuntimeError(
            f"{type(module).__name__} optimizes manually, so SharpnessAwareCallback has nothing to "
            "do: remove it, and in training_step take the second pass `with opt.ascended():`"
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise RuntimeError(
            f"{type(module).__name__}.training_step takes a dataloader_iter, whose batches cannot "
            "be seen twice: let it take a batch"
        )
    for optimizer in trainer.optimizers:
        if not isinstance(optimizer, SharpnessAware):
            raise TypeError(
                f"SharpnessAwareCallback with {type(optimizer).__name__}: configure_optimizers has "
                "to return a sharpness-aware optimizer, as in VaSSO(base, model=self)"
            )
        if optimizer.needs_own_passes and (trainer.gradient_clip_val or scaler_of(trainer)):
            raise RuntimeError(
                f"{optimizer.needs_own_passes} needs passes of its own, which Lightning clips or "
                "unscales one by one: clip by the optimizer's clip_norm=, use bf16, or optimize "
                "manually with step(closure)"
            )
    if trainer.strategy.handles_gradient_accumulation:
        raise RuntimeError(
            f"{type(trainer.strategy).__name__} accumulates gradients by itself, which leaves no "
            "room for a second pass: use another strategy, such as ddp"
        )
