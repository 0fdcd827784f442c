"""Where and on what is a loss or a gradient taken, without leaving a trace?

Inside `untouched(model)` one may do anything to a model; afterwards weights, buffers, gradients,
modes and random generators are what they were, bit for bit, whatever happened. `Objective` is a
model inside of it as a function of its weights: f_B(w + epsilon) and its gradient.

A loss is ``loss_fn(model(inputs), targets)`` for batches ``(inputs, targets)``, the mean over the
samples; models that want more of a batch take ``OfModel(lambda model, batch: ...)``.
"""

from __future__ import annotations

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

from vasso import checks
from vasso.diagnostics.batches import on_device, samples_in
from vasso.randomness import current, replay
from vasso.vectors import Vector, add_scaled_, full_precision, lerp_

BatchNorm: TypeAlias = Literal["batch", "running"]
"""By what BatchNorm normalises: the statistics of the batch at hand, or its running ones."""

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


# -- nothing is touched ---------------------------------------------------------------------------


@contextmanager
def untouched(model: nn.Module, *loaders: Any) -> Iterator[None]:
    """Brings everything of a model back as it was, also after an exception or Ctrl-C.

    Weights, all buffers, `.grad` (the same objects; None inside), training modes, and the random
    generators of torch on all devices, of Python and of numpy. Weights and buffers are written
    to behind autograd's back, so that a loss computed before can still be propagated after.

    Args:
        model: whatever may be done to it inside.
        *loaders: loaders that are iterated inside; a generator of their own is brought back too.

    Yields:
        Nothing.

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
    gradients = [(p, p.grad, _value_of_view(p.grad)) for p, _ in weights]
    modes = [(m, m.training) for m in model.modules()]
    luck = _Luck(model, loaders)
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
        luck.restore()
        torch.clear_autocast_cache()


def _value_of_view(gradient: Tensor | None) -> Tensor | None:
    """A copy of a gradient that its owner may write to behind our back: DDP's bucket views."""
    return gradient.data.clone() if gradient is not None and gradient._is_view() else None


def _write(x: Tensor | None, value: Tensor | None) -> None:
    if x is not None and value is not None:
        x.data.copy_(value)


class _Luck:
    """The state of every random generator that a pass or a loader may draw from."""

    def __init__(self, model: nn.Module, loaders: Iterable[Any]) -> None:
        self.torch = current([*model.parameters(), *model.buffers(), *_one_on_each_device()])
        self.python = random.getstate()
        self.numpy = np.random.get_state()
        owned = {id(g): g for loader in loaders for g in _generators_of(loader)}
        self.own = [(g, g.get_state()) for g in owned.values()]

    def restore(self) -> None:
        replay(self.torch)
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        for generator, state in self.own:
            generator.set_state(state)


def _one_on_each_device() -> Vector:
    """A tensor on every accelerator in use, so that its generator is looked after."""
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    if kind is None or not torch.get_device_module(kind).is_initialized():
        return []
    places = range(torch.accelerator.device_count())
    return [torch.empty(0, device=torch.device(kind.type, i)) for i in places]


def _generators_of(loader: Any) -> list[torch.Generator]:
    """The generators that a DataLoader or its samplers own."""
    sampler = getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    found = (getattr(owner, "generator", None) for owner in owners)
    return [g for g in found if isinstance(g, torch.Generator)]


# -- losses and gradients -------------------------------------------------------------------------


@dataclass(frozen=True)
class Objective:
    """A model as a function of its weights, inside `objective(...)`.

    Attributes:
        model: the model.
        loss_fn: its loss.
        params: the weights that are moved and differentiated by.
        home: their values at w.
        dropout: whether passes draw random numbers.
    """

    model: nn.Module
    loss_fn: LossFn | OfModel
    params: Vector
    home: Vector
    dropout: bool = False

    def loss(self, batch: Any, epsilon: Sequence[Tensor] | None = None, *, key: int = 0) -> float:
        """f_B(w + epsilon).

        Args:
            batch: the samples.
            epsilon: how far from w; None is w itself.
            key: passes with the same key draw the same dropout masks.

        Returns:
            The mean loss.
        """
        with torch.no_grad(), self._at(epsilon, key):
            return float(loss_of(self.model, self.loss_fn, batch))

    def gradient(
        self, batch: Any, epsilon: Sequence[Tensor] | None = None, *, key: int = 0
    ) -> Vector:
        """The gradient of f_B at w + epsilon.

        Args:
            batch: the samples.
            epsilon: how far from w; None is w itself.
            key: passes with the same key draw the same dropout masks.

        Returns:
            One tensor for each of `params`.
        """
        return self.loss_and_gradient(batch, epsilon, key=key)[1]

    def loss_and_gradient(
        self, batch: Any, epsilon: Sequence[Tensor] | None = None, *, key: int = 0
    ) -> tuple[float, Vector]:
        """f_B(w + epsilon) and its gradient there.

        Args:
            batch: the samples.
            epsilon: how far from w; None is w itself.
            key: passes with the same key draw the same dropout masks.

        Returns:
            The mean loss, and one tensor for each of `params`.
        """
        with torch.enable_grad(), self._at(epsilon, key):
            loss = loss_of(self.model, self.loss_fn, batch)
            return float(loss.detach()), _gradient(loss, self.params)

    def mean_gradient(self, batches: Iterable[Any]) -> Vector:
        """The gradient at w of the mean loss over all samples of several batches.

        Args:
            batches: each counts by its samples.

        Returns:
            One tensor for each of `params`, in float32 or more.

        Raises:
            ValueError: there are no batches.
        """
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
        with _same_draws(self.params, key, self.dropout), self.displaced(epsilon):
            yield

    @contextmanager
    def displaced(self, epsilon: Sequence[Tensor] | None) -> Iterator[None]:
        """The weights are at w + epsilon inside, at w outside.

        Args:
            epsilon: one tensor for each of `params`; None moves nothing.

        Yields:
            Nothing.
        """
        if epsilon is None:
            yield
            return
        here = [p.data for p in self.params]
        one = torch.ones((), dtype=torch.float64 if _is_double(here) else torch.float32)
        try:
            add_scaled_(here, list(epsilon), one.to(here[0].device), [1.0] * len(here), seed=0)
            torch.clear_autocast_cache()
            yield
        finally:
            for p, value in zip(here, self.home, strict=True):
                p.copy_(value)
            torch.clear_autocast_cache()


def _is_double(v: Sequence[Tensor]) -> bool:
    return any(x.dtype == torch.float64 for x in v)


@contextmanager
def _same_draws(params: Vector, key: int, wanted: bool) -> Iterator[None]:
    """Passes with the same key draw the same; whoever draws outside is not disturbed."""
    if not wanted:
        yield
        return
    before = current(params)
    torch.manual_seed(key)
    try:
        yield
    finally:
        replay(before)


def plain(model: nn.Module) -> nn.Module:
    """The model inside DDP, whose passes concern this process alone; else the model itself.

    Args:
        model: any module.

    Returns:
        A module without hooks that wait for other processes.

    Raises:
        TypeError: the weights are sharded over processes.
    """
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
    """A model as a function of its weights; nothing of it is touched in the end.

    Args:
        model: the model.
        loss_fn: its loss, the mean over samples.
        *loaders: loaders that are iterated inside.
        params: the weights that count; all that require a gradient if None.
        batchnorm: "running" normalises by the running statistics, "batch" by those of the batch,
            as in training. Neither moves the running ones.
        dropout: whether dropout and the like are on, as in training.

    Yields:
        The function.

    Raises:
        ValueError: no weight requires a gradient.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> nn.init.constant_(model.weight, 1.0) is model.weight
        True
        >>> batch = torch.ones(1, 1), torch.zeros(1, 1)
        >>> with objective(model, nn.MSELoss()) as f:  # w^2
        ...     f.loss(batch), f.loss(batch, [torch.ones(1, 1)]), f.gradient(batch)
        (1.0, 4.0, [tensor([[2.]])])
    """
    checks.one_of("batchnorm", batchnorm, "batch", "running")
    model = plain(model)
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
    """The mean loss of a batch at the weights and in the mode that the model is in just now.

    Args:
        model: the model.
        loss_fn: ``loss_fn(model(inputs), targets)``, or `OfModel`.
        batch: ``(inputs, targets)``, or whatever `OfModel` takes.

    Returns:
        A 0-dim tensor that can be propagated.

    Raises:
        TypeError: the batch is no pair, or the loss no tensor.
        ValueError: the loss is not one number.
    """
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
            f"loss_fn gave {type(loss).__name__} {loss!r:.60}, not a tensor: its gradient is lost"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"loss_fn gave a tensor of shape {tuple(loss.shape)}, not one number: use the mean "
            'over the samples (reduction="mean")'
        )
    return loss.reshape(())


def _gradient(loss: Tensor, params: Vector) -> Vector:
    found = torch.autograd.grad(loss, params, allow_unused=True)
    pairs = zip(params, found, strict=True)
    return [torch.zeros_like(p) if g is None else g.detach() for p, g in pairs]


def gradient_of(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    params: Sequence[Tensor] | None = None,
    *,
    batchnorm: BatchNorm = "running",
    dropout: bool = False,
) -> Vector:
    """The gradient of the mean loss over all samples of some batches; nothing is touched.

    Args:
        model: the model.
        loss_fn: its loss, the mean over samples.
        batches: each counts by its samples.
        params: the weights that count; all that require a gradient if None.
        batchnorm: by what BatchNorm normalises; see `objective`.
        dropout: whether dropout is on.

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
