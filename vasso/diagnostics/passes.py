"""Losses and gradients of a model at w and at w + epsilon, without side effects on the model.

`untouched(model)` restores weights, buffers, gradients, training modes and random generators bit
for bit when its block ends, for whatever reason. `Objective` is a model in such a block, as a
function of its weights: f_B(w + epsilon) and its gradient.

A loss is ``loss_fn(model(inputs), targets)`` for batches ``(inputs, targets)``, the mean over the
samples. Models that need more of a batch use ``OfModel(lambda model, batch: ...)``.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from vasso import validation
from vasso.diagnostics.batches import on_device, samples_in
from vasso.numerics.rng import get_state, set_state
from vasso.numerics.vectors import Vector, add_scaled_, full_precision, lerp_, sum_dtype

BatchNorm: TypeAlias = Literal["batch", "running"]
"""The statistics that BatchNorm normalises by: those of the batch, or the running ones."""

LossFn: TypeAlias = Callable[..., Tensor]


@dataclass(frozen=True)
class OfModel:
    """A loss that calls the model itself.

    Attributes:
        loss: ``(model, batch) -> mean loss over the samples of the batch``.

    Example:
        >>> loss_fn = OfModel(lambda model, batch: model(**batch).square().mean())
        >>> loss_of(nn.Linear(1, 1), loss_fn, {"input": torch.ones(2, 1)}).shape
        torch.Size([])
    """

    loss: Callable[[nn.Module, Any], Tensor]


@contextmanager
def untouched(model: nn.Module, *loaders: Any) -> Iterator[None]:
    """Restores a model and all random generators at the end of the block, also after Ctrl-C.

    Restored are weights, all buffers, `.grad` (the same objects; None inside the block), training
    modes, and the random generators of torch on all devices, of Python and of numpy. Weights and
    buffers are written without autograd's knowledge: a loss computed before the block can still be
    backpropagated after it.

    Args:
        model: the model; the block may change anything of it.
        *loaders: loaders that the block iterates; their own generators are restored too.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> before = model.weight.detach().clone()
        >>> with untouched(model):
        ...     _ = nn.init.zeros_(model.weight)
        >>> torch.equal(model.weight, before)
        True
    """
    weights = [(p, p.data.clone()) for p in model.parameters()]
    buffers = [
        (m, name, b, None if b is None else b.data.clone())
        for m in model.modules()
        for name, b in m._buffers.items()
    ]
    # DDP writes to its bucket inside the block, so a gradient that is a view of one is copied
    views = {p: p.grad.data.clone() for p, _ in weights if p.grad is not None and p.grad._is_view()}
    gradients = [(p, p.grad, views.get(p)) for p, _ in weights]
    modes = [(m, m.training) for m in model.modules()]
    generators = _GeneratorStates(model, loaders)
    try:
        for p, _ in weights:
            p.grad = None
        yield
    finally:
        for p, value in weights:
            p.data.copy_(value)
        for module, name, buffer, content in buffers:
            module._buffers[name] = buffer
            _write(buffer, content)
        for p, gradient, content in gradients:
            p.grad = gradient
            _write(gradient, content)
        for module, training in modes:
            module.training = training
        generators.restore()
        torch.clear_autocast_cache()


def _write(x: Tensor | None, value: Tensor | None) -> None:
    if x is not None and value is not None:
        x.data.copy_(value)


class _GeneratorStates:
    """The state of every random generator that a pass or a loader may draw from."""

    def __init__(self, model: nn.Module, loaders: Iterable[Any]) -> None:
        self.torch = get_state([*model.parameters(), *model.buffers(), *_one_per_device()])
        self.python = random.getstate()
        self.numpy = np.random.get_state()
        unique = {id(g): g for loader in loaders for g in _generators_of(loader)}
        self.loaders = [(g, g.get_state()) for g in unique.values()]

    def restore(self) -> None:
        set_state(self.torch)
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        for generator, state in self.loaders:
            generator.set_state(state)


def _one_per_device() -> Vector:
    """A tensor on every accelerator in use, so that the state of its generator is saved."""
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    if kind is None or not torch.get_device_module(kind).is_initialized():
        return []
    devices = range(torch.accelerator.device_count())
    return [torch.empty(0, device=torch.device(kind.type, i)) for i in devices]


def _generators_of(loader: Any) -> list[torch.Generator]:
    """The generators that a DataLoader or its samplers own."""
    sampler = getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    generators = (getattr(owner, "generator", None) for owner in owners)
    return [g for g in generators if isinstance(g, torch.Generator)]


@dataclass(frozen=True)
class Objective:
    """A model as a function of its weights, inside `objective(...)`.

    Methods that take a batch also take `epsilon`, the displacement from w with one tensor for each
    of `params` (None is w itself), and `key`: passes with the same key draw the same dropout masks.

    Attributes:
        model: the model.
        loss_fn: its loss.
        params: the weights that are displaced and differentiated by.
        values: their values at w.
        dropout: whether passes draw random numbers.
    """

    model: nn.Module
    loss_fn: LossFn | OfModel
    params: Vector
    values: Vector
    dropout: bool = False

    def loss(self, batch: Any, epsilon: Sequence[Tensor] | None = None, *, key: int = 0) -> float:
        """f_B(w + epsilon), the mean loss of the batch."""
        with torch.no_grad(), self._at(epsilon, key):
            return float(loss_of(self.model, self.loss_fn, batch))

    def gradient(
        self, batch: Any, epsilon: Sequence[Tensor] | None = None, *, key: int = 0
    ) -> Vector:
        """The gradient of f_B at w + epsilon, one tensor for each of `params`."""
        return self.loss_and_gradient(batch, epsilon, key=key)[1]

    def loss_and_gradient(
        self, batch: Any, epsilon: Sequence[Tensor] | None = None, *, key: int = 0
    ) -> tuple[float, Vector]:
        """f_B(w + epsilon) and its gradient there."""
        with torch.enable_grad(), self._at(epsilon, key):
            loss = loss_of(self.model, self.loss_fn, batch)
            g = torch.autograd.grad(loss, self.params, materialize_grads=True)
            return float(loss.detach()), [x.detach() for x in g]

    def mean_gradient(self, batches: Iterable[Any]) -> Vector:
        """The gradient at w of the mean loss over all samples, in float32 or more."""
        mean: Vector = []
        seen = 0
        for key, batch in enumerate(batches):
            g = [full_precision(x) for x in self.gradient(batch, key=key)]
            seen += samples_in(batch)
            if not mean:
                mean = [x.clone() for x in g]
            else:
                lerp_(mean, g, [samples_in(batch) / seen] * len(g))
        if not mean:
            raise ValueError("batches is empty: a gradient needs at least one batch")
        return mean

    @contextmanager
    def _at(self, epsilon: Sequence[Tensor] | None, key: int) -> Iterator[None]:
        with _seeded(self.params, key, self.dropout), self.displaced(epsilon):
            yield

    @contextmanager
    def displaced(self, epsilon: Sequence[Tensor] | None) -> Iterator[None]:
        """Moves the weights to w + epsilon inside the block and back to w after it."""
        if epsilon is None:
            yield
            return
        weights = [p.data for p in self.params]
        one = torch.ones((), dtype=sum_dtype(weights), device=weights[0].device)
        scales = [1.0] * len(weights)
        try:
            add_scaled_(weights, list(epsilon), one, scales, seed=0)
            torch.clear_autocast_cache()
            yield
        finally:
            for p, value in zip(weights, self.values, strict=True):
                p.copy_(value)
            torch.clear_autocast_cache()


@contextmanager
def _seeded(params: Vector, key: int, enabled: bool) -> Iterator[None]:
    """Seeds torch's generators by the key inside the block and restores them after it."""
    if not enabled:
        yield
        return
    before = get_state(params)
    torch.manual_seed(key)
    try:
        yield
    finally:
        set_state(before)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DDP, whose passes do not wait for other processes; else the model itself."""
    if isinstance(model, DistributedDataParallel):
        return model.module  # type: ignore[no-any-return]
    if any(hasattr(p, "device_mesh") for p in model.parameters()):
        raise TypeError(
            "the weights are sharded over processes: gather them into a plain model first "
            "(torch.distributed.checkpoint.state_dict.get_model_state_dict(full_state_dict=True))"
        )
    return model


@contextmanager
def objective(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    *loaders: Any,
    params: Sequence[Tensor] | None = None,
    batchnorm: BatchNorm = "running",
    dropout: bool = False,
) -> Iterator[Objective]:
    """A model as a function of its weights; everything is restored at the end of the block.

    Args:
        model: the model.
        loss_fn: its loss, the mean over samples.
        *loaders: loaders that the block iterates.
        params: the weights to differentiate by; None for all that require a gradient.
        batchnorm: "running" normalises by the running statistics, "batch" by those of the batch,
            as in training. Neither updates the running statistics.
        dropout: whether dropout and other modules are in training mode.

    Raises:
        ValueError: no weight requires a gradient.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 1.0)
        >>> batch = torch.ones(1, 1), torch.zeros(1, 1)
        >>> with objective(model, nn.MSELoss()) as f:  # w^2
        ...     f.loss(batch), f.loss(batch, [torch.ones(1, 1)]), f.gradient(batch)
        (1.0, 4.0, [tensor([[2.]])])
    """
    validation.one_of("batchnorm", batchnorm, "batch", "running")
    model = unwrapped(model)
    every = [p for p in model.parameters() if p.requires_grad]
    chosen: Vector = [*(every if params is None else params)]
    if not chosen:
        raise ValueError(
            f"{type(model).__name__} has no parameter that requires a gradient: pass params="
        )
    with untouched(model, *loaders):
        for module in model.modules():
            is_norm = isinstance(module, _NormBase)
            module.training = batchnorm == "batch" if is_norm else dropout
        yield Objective(model, loss_fn, chosen, [p.data.clone() for p in chosen], dropout)


def loss_of(model: nn.Module, loss_fn: LossFn | OfModel, batch: Any) -> Tensor:
    """The mean loss of a batch, at the current weights and modes, as a tensor with a graph."""
    batch = on_device(batch, next((p.device for p in model.parameters()), torch.device("cpu")))
    if isinstance(loss_fn, OfModel):
        loss = loss_fn.loss(model, batch)
    elif isinstance(batch, list | tuple) and len(batch) == 2:
        loss = loss_fn(model(batch[0]), batch[1])
    else:
        raise TypeError(
            f"a batch must be (inputs, targets), got {type(batch).__name__}: for other batches "
            "pass loss_fn=OfModel(lambda model, batch: ...)"
        )
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"loss_fn returned {type(loss).__name__} {loss!r:.60}, not a tensor: return the loss "
            "itself, without .item()"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"loss_fn returned a tensor of shape {tuple(loss.shape)}, not one number: use the mean "
            'over the samples (reduction="mean")'
        )
    return loss.reshape(())


def gradient_of(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    params: Sequence[Tensor] | None = None,
    *,
    batchnorm: BatchNorm = "running",
    dropout: bool = False,
) -> Vector:
    """The gradient of the mean loss over all samples of some batches; the model is restored.

    Args:
        batches: weighted by their numbers of samples.
        params: the weights to differentiate by; None for all that require a gradient.

    Returns:
        One tensor for each of the weights, zeros where the loss does not depend on it.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> batches = [(torch.ones(1, 1), torch.ones(1)), (torch.ones(3, 1), torch.zeros(3))]
        >>> gradient_of(model, lambda out, y: (out[:, 0] * y).mean(), batches)
        [tensor([[0.2500]])]
    """
    settings: dict[str, Any] = {"params": params, "batchnorm": batchnorm, "dropout": dropout}
    with objective(model, loss_fn, batches, **settings) as f:
        return f.mean_gradient(batches)
