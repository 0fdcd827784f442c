"""Which pass moves BatchNorm's running statistics? One, not two; here they are held still.

Statistics are held by saving and restoring the buffers, never by switching a module's attributes:
that would recompile a compiled model, and `momentum=0` would still count batches.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

Mode: TypeAlias = Literal["clean", "both", "perturbed"]
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Statistics:
    """The running statistics of a model's normalisation layers.

    Args:
        model: the model, or None if there is none to look after.
        mode: the pass that may move them: "clean" (at w), "perturbed" (at w + epsilon), "both".

    Example:
        >>> model = nn.BatchNorm1d(2)
        >>> statistics = Statistics(model)
        >>> before = statistics.copy()
        >>> _ = model(torch.ones(4, 2))
        >>> statistics.put_back(before)
        >>> model.running_mean
        tensor([0., 0.])
    """

    def __init__(self, model: nn.Module | None, mode: Mode = "clean") -> None:
        modules = model.modules() if model is not None else ()
        self.layers = [m for m in modules if any(name in m._buffers for name in BUFFERS)]
        self.mode = mode
        self._before = self.copy()

    def tensors(self) -> list[Tensor]:
        """The buffers as they are now; looked up anew, because `model.to` may replace them."""
        found = (layer._buffers.get(name) for layer in self.layers for name in BUFFERS)
        return [buffer for buffer in found if buffer is not None]

    def copy(self) -> list[Tensor]:
        """The values of now, to put back later."""
        return [buffer.clone() for buffer in self.tensors()]

    def put_back(self, values: list[Tensor]) -> None:
        """Makes the buffers what they were when `values` was copied.

        Args:
            values: what `copy` gave.
        """
        if values:
            torch._foreach_copy_(self.tensors(), values)

    def remember(self) -> None:
        """Notes the values of now as those from before the pass at w."""
        self._before = self.copy()

    def recover(self) -> None:
        """After a gradient that was not finite: if the statistics are not, the earlier return."""
        if not all(bool(buffer.isfinite().all()) for buffer in self.tensors()):
            self.put_back(self._before)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets nothing inside move the statistics."""
        now = self.copy()
        try:
            yield
        finally:
            self.put_back(now)

    @contextmanager
    def second_pass(self, only: bool = False) -> Iterator[None]:
        """Lets the pass inside move the statistics only if the mode says so and it succeeds.

        Args:
            only: there was no pass at w, so that this one moves them in every mode.

        Yields:
            Nothing.
        """
        at_w = self.copy()
        if self.mode == "perturbed":
            self.put_back(self._before)
        try:
            yield
        except BaseException:
            self.put_back(at_w)
            raise
        if self.mode == "clean" and not only:
            self.put_back(at_w)


@contextmanager
def evaluating(model: nn.Module | None) -> Iterator[None]:
    """Puts a model into evaluation mode for a while: a single sample has no batch statistics.

    Args:
        model: the model, or None to do nothing.

    Yields:
        Nothing.
    """
    training = [m for m in model.modules() if m.training] if model is not None else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def unattended(params: Iterable[Tensor]) -> list[nn.Module]:
    """The layers in training mode that keep running statistics and own one of these parameters.

    Without a model in hand this asks the garbage collector for all layers alive; it is meant to be
    called once.

    Args:
        params: the parameters of an optimizer.

    Returns:
        The layers whose statistics nobody would hold still.
    """
    ours = {id(p) for p in params}
    layers = [m for m in gc.get_objects() if issubclass(type(m), _NormBase)]
    return [
        layer
        for layer in layers
        if layer.training
        and layer.track_running_stats
        and any(id(p) in ours for p in layer._parameters.values())
    ]
