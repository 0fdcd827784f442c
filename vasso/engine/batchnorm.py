"""BatchNorm: prevents the second forward pass from updating running statistics.

Statistics are held by saving and restoring the buffers, never by switching a module's attributes:
that would recompile a compiled model, and `momentum=0` would still count batches.
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

Mode: TypeAlias = Literal["clean", "both", "perturbed"]
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class BatchNormStatistics:
    """The running statistics of a model's normalisation layers.

    The mode names the pass that may update them: "clean" (at w), "perturbed" (at w + epsilon) or
    "both".
    """

    def __init__(self, model: nn.Module | None, mode: Mode = "clean") -> None:
        modules = model.modules() if model is not None else ()
        self.layers = [m for m in modules if any(name in m._buffers for name in BUFFERS)]
        self.mode = mode
        self._before = self.copy()
        if model is not None and self.layers:
            model.register_load_state_dict_post_hook(self._loaded)  # type: ignore[no-untyped-call]

    def tensors(self) -> list[Tensor]:
        """The buffers as they are now; looked up anew, because `model.to` may replace them."""
        found = (layer._buffers.get(name) for layer in self.layers for name in BUFFERS)
        return [buffer for buffer in found if buffer is not None]

    def copy(self) -> list[Tensor]:
        """The current values, to put back later."""
        return [buffer.clone() for buffer in self.tensors()]

    def put_back(self, values: list[Tensor]) -> None:
        """Makes the buffers what they were when `copy` gave these values."""
        if values:
            torch._foreach_copy_(self.tensors(), values)

    def _loaded(self, module: nn.Module, keys: object) -> None:
        self.remember()

    def remember(self) -> None:
        """Notes the current values as those from before the pass at w."""
        self._before = self.copy()

    def recover(self) -> None:
        """After a gradient that is not finite: restores statistics that are not finite either."""
        if not all(bool(buffer.isfinite().all()) for buffer in self.tensors()):
            self.put_back(self._before)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Restores the statistics at the end of the block."""
        now = self.copy()
        try:
            yield
        finally:
            self.put_back(now)

    @contextmanager
    def second_pass(self, only: bool = False) -> Iterator[None]:
        """Keeps the statistics of the pass inside only if the mode says so and it succeeds.

        With `only` there was no pass at w, and this one updates them in every mode.
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
    """Evaluation mode for a block: a single sample has no batch statistics."""
    training = [m for m in model.modules() if m.training] if model is not None else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def find_batchnorm_layers(params: Iterable[Tensor]) -> list[nn.Module]:
    """The layers in training mode that keep running statistics and own one of these parameters.

    They are looked up among all objects of the garbage collector: slow, to be called once.
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
