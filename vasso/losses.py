"""How flat at no second gradient? Losses that hold a model to what it said some time ago.

loss = criterion(now, y) + lam tau^2 mean_i KL(softmax(past_i / tau) || softmax(now_i / tau))

| loss   | past_i                                               | costs                           |
|--------|------------------------------------------------------|---------------------------------|
| `SAF`  | what the model said of sample i, `window` epochs ago | memory: samples x classes       |
| `MESA` | what an average of the model says of sample i        | a forward pass, and the average |

Du, Zhou, Feng, Tan and Zhou, NeurIPS 2022, "Sharpness-aware training for free". A sharp valley is
one into which the loss falls suddenly; what punishes sudden changes keeps out of it. These are
losses, not optimizers: any optimizer goes with them, those of this package too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vasso.parts import Range

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The output of a model and the labels -> the loss of the batch."""


def divergence(past: Tensor, now: Tensor, tau: float) -> Tensor:
    """tau^2 KL(softmax(past / tau) || softmax(now / tau)), over dimension 1.

    Args:
        past: logits that are not differentiated.
        now: logits.
        tau: temperature.

    Returns:
        One value for each sample (and place, where logits have more than two dimensions).

    Example:
        >>> divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]), 5.0)
        tensor([0.])
    """
    p = log_softmax(past.detach().to(now.dtype) / tau, dim=1)
    q = log_softmax(now / tau, dim=1)
    return tau**2 * (p.exp() * (p - q)).sum(dim=1)


class SAF(nn.Module):
    """A loss that holds the model to what it said of each sample some epochs ago.

    loss = criterion(now, y) + lam tau^2 mean_i KL(softmax(past_i / tau) || softmax(now_i / tau))

    from the epoch after `start` on, where past_i are the logits of sample i, `window` epochs ago.
    Samples that were not seen in that epoch count as 0 in the mean. Du et al., NeurIPS 2022. Costs
    no extra gradient but memory: (window + 1) x samples x classes numbers, 8 MB for CIFAR-10 and 20
    GB for ImageNet in float32. They need not be on the model's device: leave this module on the
    CPU, or halve them with `dtype=torch.float16`. They are saved with `state_dict()`.

    What is noted of a sample in an epoch is the first that training says of it, so that with an
    optimizer that climbs it is the model's own output, not the adversary's; an output that is not
    finite is not noted. In `eval()` mode this is the criterion alone and notes nothing. A stored
    output belongs to another augmentation of the sample; mixed samples (mixup) have no past. On
    several ranks each knows the samples that it has seen itself.

    Args:
        samples: how many there are in the training set.
        classes: how many logits each has.
        lam: weight of the second term.
        tau: temperature.
        start: the last epoch without that term, counted as you count epochs.
        window: how many epochs ago.
        criterion: the loss to add it to, a mean over the batch.
        dtype: of the memory.

    Example:
        >>> loss = SAF(samples=3, classes=2, start=0, window=1)
        >>> i, y = torch.tensor([0, 2]), torch.tensor([1, 0])
        >>> first = loss(torch.zeros(2, 2), y, i, epoch=0)
        >>> second = loss(torch.zeros(2, 2), y, i, epoch=1)
        >>> bool(first == second)  # what has not changed costs nothing
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
        """The loss of a batch; notes what the model says of it.

        Args:
            logits: the output of the model, samples x classes.
            target: the labels.
            index: which samples of the training set these are.
            epoch: the number of the epoch, at least 0.

        Returns:
            The loss.
        """
        loss = self.criterion(logits, target)
        if not self.training:
            return loss
        index = self._checked_index(logits, index, epoch)
        if epoch > self.start and epoch >= self.window:
            loss = loss + self.lam * self._distance(logits, index, epoch - self.window)
        self._note(logits, index, epoch)
        return loss

    def _distance(self, logits: Tensor, index: Tensor, epoch: int) -> Tensor:
        """The mean divergence from what was said in an epoch, 0 for samples not seen in it."""
        slot = epoch % len(self.logits)
        known = (self.epochs[slot, index] == epoch).to(logits.device)
        past = self.logits[slot, index].to(logits.device)
        return torch.where(known, divergence(past, logits, self.tau), 0.0).mean()

    @torch.no_grad()
    def _note(self, logits: Tensor, index: Tensor, epoch: int) -> None:
        slot = epoch % len(self.logits)
        said = logits.detach().to(self.logits.device, self.logits.dtype)
        new = (self.epochs[slot, index] != epoch) & said.isfinite().all(dim=1)
        self.logits[slot, index[new]] = said[new]
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
    """A loss that holds the model to what an average of its past selves says.

    loss = criterion(now, y) + lam tau^2 mean_i KL(softmax(past_i / tau) || softmax(now_i / tau))

    from the epoch after `start` on, where past_i are the logits of a running average of weights and
    buffers, average <- decay average + (1 - decay) model, in `eval()` mode. Du et al., NeurIPS
    2022. Costs a forward pass more per gradient and one copy of the model, which is saved with
    `state_dict()`. In `eval()` mode this is the criterion alone.

    Args:
        model: the model; call `update()` after each step of its optimizer, outside of closures.
        lam: weight of the second term.
        tau: temperature.
        start: the last epoch without that term, counted as you count epochs.
        decay: how much of the average stays at an update, in [0, 1].
        criterion: the loss to add it to, a mean over the batch.

    Attributes:
        average: the averaged model, `torch.optim.swa_utils.AveragedModel`.

    Raises:
        TypeError: the model is none.

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
        self._model = (model,)  # in a tuple it is not a part of this module
        rule = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(model, multi_avg_fn=rule, use_buffers=True)
        self.average.requires_grad_(requires_grad=False).eval()
        self.update()  # torch's first update is a copy: the average begins here, not one step on

    def forward(self, logits: Tensor, target: Tensor, inputs: Tensor, epoch: int) -> Tensor:
        """The loss of a batch.

        Args:
            logits: the output of the model.
            target: the labels.
            inputs: what the model was given.
            epoch: the number of the epoch.

        Returns:
            The loss.
        """
        loss = self.criterion(logits, target)
        if not self.training or epoch <= self.start:
            return loss
        with torch.no_grad():
            past = self.average(inputs)
        return loss + self.lam * divergence(past, logits, self.tau).mean()

    def update(self) -> None:
        """Takes the weights and buffers of now into the average."""
        self.average.update_parameters(*self._model)

    def train(self, mode: bool = True) -> MESA:
        """Switches this loss on or off; the average stays in `eval()` mode.

        Args:
            mode: whether the second term is added.

        Returns:
            Itself.
        """
        super().train(mode)
        self.average.eval()
        return self


def _checked(lam: float, tau: float) -> tuple[float, float]:
    return Range(least=0).check("lam", lam), Range(above=0).check("tau", tau)
