"""How does Lightning take a sharpness-aware step? Its Trainer by a callback, Fabric by itself.

    batches of a window --> training_step, backward at w      Lightning: accumulates, unscales
                                      |
    on_before_optimizer_step: climb, the same batches again at w + epsilon, come home
                                      |
                          clipping, optimizer.step            Lightning: clips what goes down

The callback stands where gradients are complete and not yet clipped. The second passes are off the
record: what `training_step` logs and counts is what it saw at w.
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

from vasso.extras import brought_by
from vasso.optimizer import SharpnessAware

with brought_by("lightning"):
    from lightning.fabric import Fabric
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers.logger import DummyLogger
    from lightning.pytorch.strategies import ParallelStrategy, Strategy
    from torchmetrics import Metric


class SharpnessAwareCallback(Callback):
    """Lets a `Trainer` with automatic optimization take the steps of a `SharpnessAware` optimizer.

    Gradient accumulation, clipping, mixed precision, resuming and DDP are then what they are in a
    loop written by hand; the loss, the metrics and whatever else is logged are those at w. Return
    it from `configure_callbacks`, beside `configure_optimizers`, and it cannot be forgotten.

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

    def __init__(self) -> None:
        self._recorder: Recorder | None = None

    # -- from where to where ----------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses what would go wrong later.

        Args:
            trainer: has its optimizers by now.
            pl_module: what is trained.
        """
        refuse_misuse(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins to remember batches.

        Args:
            trainer: about to train.
            pl_module: what is trained.
        """
        self._recorder = Recorder(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Forgets the last window where Lightning is about to clear its gradients; listens again.

        Args:
            trainer: about to take a batch.
            pl_module: what is trained.
            batch: not looked at; a hook of the module may still change it.
            batch_idx: its number in the epoch.
        """
        if self._recorder is not None:
            self._recorder.heard = False
            if batch_idx % trainer.accumulate_grad_batches == 0:
                self._recorder.window.clear()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ceases to remember batches.

        Args:
            trainer: has trained.
            pl_module: what was trained.
        """
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Ceases to remember batches.

        Args:
            trainer: has met an exception.
            pl_module: what was trained.
            exception: not looked at.
        """
        self._stop()

    def _stop(self) -> None:
        if self._recorder is not None:
            self._recorder.remove()
        self._recorder = None

    # -- the step ---------------------------------------------------------------------------------

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Climbs and takes the gradients of the window again, before they are clipped.

        Args:
            trainer: has accumulated and unscaled the gradients at w.
            pl_module: what is trained.
            optimizer: about to step.
        """
        assert isinstance(optimizer, SharpnessAware)
        assert self._recorder is not None
        scaler, left_out = scaler_of(trainer), self._recorder.left_out
        window = self._recorder.take()
        if optimizer.needs_own_passes is not None:
            refuse_long(window, optimizer)
            return
        if not window or (left_out and scaler):  # Lightning takes no step either
            optimizer.leave_out()
            return
        if optimizer.perturbed:  # no gradient at w is wanted: the last batch was already seen above
            self._add_earlier(trainer, optimizer, window[:-1])
            return
        scaling: dict[str, Any] = {} if scaler is None else {"scaler": scaler, "unscaled": True}
        in_vain = not optimizer.wants_clean  # yet its pass at w has moved the statistics
        with (
            optimizer.ascended(**scaling) as up,
            optimizer.statistics.held() if in_vain else nullcontext(),
        ):
            if up:
                replay(trainer, optimizer, window)

    def _add_earlier(
        self, trainer: Trainer, optimizer: SharpnessAware, earlier: list[Recorded]
    ) -> None:
        """Sums the window in its order: the last batch, whose gradients are there, comes last."""
        if not earlier:
            return
        params = [p for group in optimizer.param_groups for p in group["params"]]
        last = [p.grad for p in params]
        optimizer.zero_grad()
        with optimizer.statistics.held():  # their passes at w have moved them
            replay(trainer, optimizer, earlier)
        for p, gradient in zip(params, last, strict=True):
            if p.grad is not None and gradient is not None:
                p.grad += gradient
            elif gradient is not None:
                p.grad = gradient


def scaler_of(host: Trainer | Fabric) -> GradScaler | None:
    """The gradient scaler of a host, for ``opt.ascended(scaler=scaler_of(fabric))``.

    Args:
        host: a `Trainer` or a `Fabric`.

    Returns:
        None unless the precision is fp16.

    Example:
        >>> scaler_of(Fabric(accelerator="cpu", precision="bf16-mixed")) is None
        True
    """
    precision = host.strategy.precision if isinstance(host, Fabric) else host.precision_plugin
    return getattr(precision, "scaler", None)


# -- what a window was ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """What `training_step` was called with; containers are copied, it may take things out of them.

    Attributes:
        step: the call, to be made again.
        arguments: the batch, and its number where `training_step` takes one.
        versions: how often each tensor had been written to.
    """

    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    versions: list[int]

    def again(self) -> Any:
        """Makes the call once more.

        Returns:
            What `training_step` returns.

        Raises:
            RuntimeError: the batch is not what it was.
        """
        if versions_of(self.arguments) != self.versions:
            raise RuntimeError(
                "training_step has changed a tensor of its batch in place, so that the second pass "
                "would see other data: clone it first, or change it in on_after_batch_transfer"
            )
        return self.step(*(copied(argument) for argument in self.arguments))


@dataclass
class Recorder:
    """Stands before a strategy's `training_step` and remembers the calls since the last step.

    No hook of a callback comes between the hooks in which a module may change its batch and
    `training_step` itself.

    Attributes:
        trainer: the `training_step` of whose strategy is watched.
        window: the calls that gave a loss.
        heard: whether the batch has been seen before: another pass over it is off the record.
        left_out: whether the last call gave none, by which a module leaves a batch out.
    """

    trainer: Trainer
    window: list[Recorded] = field(default_factory=list)
    heard: bool = False
    left_out: bool = False

    def __post_init__(self) -> None:
        self._original = self.trainer.strategy.training_step
        self.trainer.strategy.training_step = self._watched  # type: ignore[method-assign]

    def _watched(self, *arguments: Any) -> Any:
        kept = tuple(copied(argument) for argument in arguments)
        call = Recorded(self._original, kept, versions_of(kept))
        with off_the_record(self.trainer) if self.heard else nullcontext():
            output = self._original(*arguments)
        self.heard, self.left_out = True, output is None
        if not self.left_out:
            self.window.append(call)
        return output

    def take(self) -> list[Recorded]:
        """The calls since the last step; the next window begins.

        Returns:
            One for each batch that had a loss.
        """
        window, self.window = self.window, []
        return window

    def remove(self) -> None:
        """Steps aside."""
        self.window.clear()
        del self.trainer.strategy.training_step  # that of the class is seen again


def copied(batch: Any) -> Any:
    """A batch whose containers are its own; tensors are shared.

    Args:
        batch: what a loader gave.

    Returns:
        A copy one level deep of a list or a mapping, anything else as it is.
    """
    return copy.copy(batch) if isinstance(batch, list | Mapping) else batch


def versions_of(batch: Any) -> list[int]:
    """How often each tensor of a batch has been written to in place."""
    return [x._version for x in tree_leaves(batch) if isinstance(x, Tensor)]


# -- the window once more -------------------------------------------------------------------------


def replay(trainer: Trainer, optimizer: SharpnessAware, window: list[Recorded]) -> None:
    """Adds up the gradients of a window as Lightning does, off the record.

    Ranks exchange gradients with the last batch only. The loss is divided by the length of a whole
    window, also in a shorter one at the end of an epoch, as Lightning does.

    Args:
        trainer: whose strategy makes the passes.
        optimizer: handed to the hooks of backward.
        window: the calls of `training_step` to be made again.
    """
    strategy = trainer.strategy
    with torch.enable_grad(), off_the_record(trainer):
        for number, call in enumerate(window, start=1):
            last = number == len(window)
            with nullcontext() if last else alone(strategy):
                output = call.again()
                loss = output["loss"] if isinstance(output, Mapping) else output
                strategy.backward(loss / trainer.accumulate_grad_batches, optimizer)


def alone(strategy: Strategy) -> AbstractContextManager[None]:
    """Where ranks do not exchange gradients, if there are several."""
    if isinstance(strategy, ParallelStrategy):
        return strategy.block_backward_sync()
    return nullcontext()


@contextmanager
def off_the_record(trainer: Trainer) -> Iterator[None]:
    """Nothing is logged, and metrics do not count, inside.

    Args:
        trainer: whose loggers are replaced, and whose module falls silent.

    Yields:
        Nothing.
    """
    loggers = trainer.loggers
    modules = list(trainer.lightning_module.modules())
    with ExitStack() as stack:
        for module in modules:
            if isinstance(module, LightningModule):
                stack.enter_context(attributes(module, log=_nothing, print=_nothing))
            elif isinstance(module, Metric):
                states = {name: _apart(state) for name, state in module.metric_state.items()}
                stack.enter_context(attributes(module, **states))
        trainer.loggers = [DummyLogger() for _ in loggers]
        try:
            yield
        finally:
            trainer.loggers = loggers


@contextmanager
def attributes(module: nn.Module, **values: Any) -> Iterator[None]:
    """Gives a module other attributes inside; all of its own are the same objects afterwards.

    Args:
        module: what is changed.
        values: its attributes inside.

    Yields:
        Nothing.
    """
    own = vars(module)
    before = dict(own)
    own.update(values)
    try:
        yield
    finally:
        own.clear()
        own.update(before)


def _apart(state: Any) -> Any:
    """The state of a metric, to be written to without harm."""
    return state.clone() if isinstance(state, Tensor) else list(state)


def _nothing(*arguments: Any, **settings: Any) -> None:
    """Stands for `log` and `print`."""


# -- misuse ---------------------------------------------------------------------------------------


def refuse_misuse(trainer: Trainer, module: LightningModule) -> None:
    """Raises where the callback could not do what it is for.

    Args:
        trainer: has its optimizers.
        module: what is to be trained.

    Raises:
        TypeError: the optimizer is not sharpness-aware.
        RuntimeError: the module or the strategy makes its own steps.
    """
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


def refuse_long(window: list[Recorded], optimizer: SharpnessAware) -> None:
    """Raises if a method that makes its own passes would make them over one batch of several.

    Args:
        window: the calls of `training_step` since the last step.
        optimizer: whose method that is.

    Raises:
        RuntimeError: there are several.
    """
    if len(window) > 1:
        raise RuntimeError(
            f"{optimizer.needs_own_passes} needs passes of its own, but Lightning's closure knows "
            f"only the last of {len(window)} batches: set accumulate_grad_batches=1, or optimize "
            "manually with step(closure)"
        )
