"""Losses of sharpness-aware training without a second gradient: SAF and MESA.

| loss   | past_i                                               | costs                           |
|--------|------------------------------------------------------|---------------------------------|
| `SAF`  | the output for sample i, `window` epochs ago         | memory: samples x classes       |
| `MESA` | the output of an averaged model for sample i         | a forward pass, and the average |

Du, Zhou, Feng, Tan and Zhou, NeurIPS 2022, "Sharpness-aware training for free". The loss falls
suddenly when the weights enter a sharp valley, so a penalty on sudden changes of the output keeps
them out of it. These are losses, not optimizers: use them with any optimizer, also those of this
package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vasso.parts.part import Range

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The output of a model and the labels -> the loss of the batch."""


def divergence(past: Tensor, now: Tensor, tau: float) -> Tensor:
    """tau^2 KL(softmax(past / tau) || softmax(now / tau)) of logits, for each sample."""
    p = log_softmax(past.detach().to(now.dtype) / tau, dim=1)
    q = log_softmax(now / tau, dim=1)
    return tau**2 * (p.exp() * (p - q)).sum(dim=1)


class SAF(nn.Module):
    """A loss with a penalty on changes of each sample's output over some epochs.

    loss = criterion(now, y) + lam tau^2 mean_i KL(softmax(past_i / tau) || softmax(now_i / tau))

    from the epoch after `start` on, where past_i are the logits of sample i, `window` epochs ago.
    Samples that were not seen in that epoch count as 0 in the mean. Du et al., NeurIPS 2022. Costs
    no extra gradient but memory: (window + 1) x samples x classes numbers, 8 MB for CIFAR-10 and 20
    GB for ImageNet in float32. They need not be on the model's device: leave this module on the
    CPU, or halve them with `dtype=torch.float16`. They are saved with `state_dict()`.

    For each sample and epoch the first output is stored. With a sharpness-aware optimizer this is
    the output at w, not at w + epsilon. An output that is not finite is not stored. In `eval()`
    mode this is the criterion alone and nothing is stored. A stored output belongs to another
    augmentation of the sample; mixed samples (mixup) have none. Each rank stores only the samples
    that it has seen itself.

    Args:
        samples: number of samples in the training set.
        classes: number of logits of each sample.
        lam: weight of the second term.
        tau: temperature.
        start: the last epoch without that term, in your own count of epochs.
        window: number of epochs between the two outputs.
        criterion: the loss to which the term is added, a mean over the batch.
        dtype: dtype of the stored outputs.

    Example:
        >>> loss = SAF(samples=3, classes=2, start=0, window=1)
        >>> i, y = torch.tensor([0, 2]), torch.tensor([1, 0])
        >>> first = loss(torch.zeros(2, 2), y, i, epoch=0)
        >>> second = loss(torch.zeros(2, 2), y, i, epoch=1)
        >>> bool(first == second)  # no change, no penalty
        True
        >>> bool(loss(torch.eye(2), y, i, epoch=2) > cross_entropy(torch.eye(2), y))
        True
    """

    logits: Tensor
    epochs: Tensor

    def __init__(
        self,
        samples: int,
        classes: int,
        *,
        lam: float = 0.3,
        tau: float = 5.0,
        start: int = 5,
        window: int = 3,
        criterion: Criterion = cross_entropy,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.lam, self.tau = _checked(lam, tau)
        for name, value in (("samples", samples), ("classes", classes), ("window", window)):
            Range(least=1).check(name, value)
        self.start, self.window, self.criterion = start, window, criterion
        slots = (window + 1, samples)
        self.register_buffer("logits", torch.zeros(*slots, classes, dtype=dtype))
        self.register_buffer("epochs", torch.full(slots, -1, dtype=torch.int32))

    def forward(self, logits: Tensor, target: Tensor, index: Tensor, epoch: int) -> Tensor:
        """The loss of a batch; `index` names its samples in the training set, epoch >= 0."""
        loss = self.criterion(logits, target)
        if not self.training:
            return loss
        index = self._checked_index(logits, index, epoch)
        if epoch > self.start and epoch >= self.window:
            loss = loss + self.lam * self._distance(logits, index, epoch - self.window)
        self._store(logits, index, epoch)
        return loss

    def _distance(self, logits: Tensor, index: Tensor, epoch: int) -> Tensor:
        """The mean divergence from the outputs of an epoch, 0 for samples not seen in it."""
        slot = epoch % len(self.logits)
        known = (self.epochs[slot, index] == epoch).to(logits.device)
        past = self.logits[slot, index].to(logits.device)
        return torch.where(known, divergence(past, logits, self.tau), 0.0).mean()

    @torch.no_grad()
    def _store(self, logits: Tensor, index: Tensor, epoch: int) -> None:
        slot = epoch % len(self.logits)
        output = logits.detach().to(self.logits.device, self.logits.dtype)
        new = (self.epochs[slot, index] != epoch) & output.isfinite().all(dim=1)
        self.logits[slot, index[new]] = output[new]
        self.epochs[slot, index[new]] = epoch

    def _checked_index(self, logits: Tensor, index: Tensor, epoch: int) -> Tensor:
        _, samples, classes = self.logits.shape
        if logits.shape != (len(index), classes):
            raise ValueError(
                f"logits must be {len(index)} samples x {classes} classes, got shape "
                f"{tuple(logits.shape)}"
            )
        Range(least=0).check("epoch", epoch)
        index = index.to(self.logits.device)
        if len(index) and not bool(((index >= 0) & (index < samples)).all()):
            raise IndexError(
                f"index must be in 0 to {samples - 1}, got {index.min()} to {index.max()}: SAF was "
                f"made for {samples} samples"
            )
        return index


class MESA(nn.Module):
    """A loss with a penalty on differences from the output of an averaged model.

    loss = criterion(now, y) + lam tau^2 mean_i KL(softmax(past_i / tau) || softmax(now_i / tau))

    from the epoch after `start` on, where past_i are the logits of a running average of weights and
    buffers, average <- decay average + (1 - decay) model, in `eval()` mode. Du et al., NeurIPS
    2022. Costs one more forward pass per gradient and one copy of the model, which is saved with
    `state_dict()`. In `eval()` mode this is the criterion alone.

    Args:
        model: the model; call `update()` after each step of its optimizer, outside of closures.
        lam: weight of the second term.
        tau: temperature.
        start: the last epoch without that term, in your own count of epochs.
        decay: weight of the old average in an update, in [0, 1].
        criterion: the loss to which the term is added, a mean over the batch.

    Attributes:
        average: the averaged model, `torch.optim.swa_utils.AveragedModel`.

    Raises:
        TypeError: the model is not a module.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> loss = MESA(model, start=0)
        >>> x, y = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])
        >>> same = loss(model(x), y, x, epoch=1)
        >>> bool(same == cross_entropy(model(x), y))  # model and average are the same
        True
        >>> loss.update()
    """

    average: AveragedModel

    def __init__(
        self,
        model: nn.Module,
        *,
        lam: float = 0.8,
        tau: float = 5.0,
        start: int = 5,
        decay: float = 0.9998,
        criterion: Criterion = cross_entropy,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"MESA is a loss, it takes the model and no optimizer, got {type(model).__name__}: "
                "loss = MESA(model), then loss(model(x), y, x, epoch)"
            )
        self.lam, self.tau = _checked(lam, tau)
        Range(least=0, most=1).check("decay", decay)
        self.start, self.criterion = start, criterion
        self._model = (model,)  # in a tuple it is not a submodule
        rule = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(model, multi_avg_fn=rule, use_buffers=True)
        self.average.requires_grad_(requires_grad=False).eval()
        self.update()  # torch's first update is a copy; the average starts here, not one step later

    def forward(self, logits: Tensor, target: Tensor, inputs: Tensor, epoch: int) -> Tensor:
        """The loss of a batch; the averaged model gets its `inputs`."""
        loss = self.criterion(logits, target)
        if not self.training or epoch <= self.start:
            return loss
        with torch.no_grad():
            past = self.average(inputs)
        return loss + self.lam * divergence(past, logits, self.tau).mean()

    def update(self) -> None:
        """Updates the average with the current weights and buffers."""
        self.average.update_parameters(*self._model)

    def train(self, mode: bool = True) -> MESA:
        """Switches the second term on or off; the average stays in `eval()` mode."""
        super().train(mode)
        self.average.eval()
        return self


def _checked(lam: float, tau: float) -> tuple[float, float]:
    return Range(least=0).check("lam", lam), Range(above=0).check("tau", tau)
