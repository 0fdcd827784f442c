"""Windows of micro-batches: text by characters, a small model, the plain loop without a host."""

import codecs
import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from vasso import SharpnessAware

Batch = dict[str, Tensor]
Passes = list[Callable[[], Tensor]]


@cache
def zen() -> str:
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13")


def lines(count: int, length: int = 12) -> list[Batch]:
    """Pieces of the Zen as character numbers; the labels of the shorter ones end in -100."""
    alphabet = sorted(set(zen()))
    numbers = torch.tensor([alphabet.index(c) for c in zen()])
    found = []
    for i in range(count):
        x = numbers[i * length : (i + 1) * length].clone()
        y = x.clone()
        y[length - i % 5 :] = -100
        found.append({"input_ids": x, "labels": y})
    return found


def collate(samples: Sequence[Batch]) -> Batch:
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def batches(samples: Sequence[Batch], size: int) -> list[Batch]:
    return [collate(samples[i : i + size]) for i in range(0, len(samples), size)]


class Characters(nn.Module):
    """Predicts the next character from this one; knows nothing of `num_items_in_batch`."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 64)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.norm(self.embedding(input_ids)).tanh())
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def characters(dtype: torch.dtype = torch.float32) -> Characters:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20231107)
        return Characters().to(dtype)


def in_windows(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def plain_loop(
    opt: SharpnessAware, windows: list[Passes], *, clip: float | None, params: list[Tensor]
) -> list[float]:
    """All passes of a window at w, all again at w + epsilon, clip, step."""
    losses = []
    for passes in windows:
        losses.append(sum(one_pass().item() for one_pass in passes))
        with opt.ascended() as up:
            if up:
                for one_pass in passes:
                    one_pass()
        if clip is not None:
            nn.utils.clip_grad_norm_(params, clip)
        opt.step()
        opt.zero_grad()
    return losses


def decay_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices decay, biases and scales do not: the Trainer's rule, written out."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    return [
        {"params": matrices, "weight_decay": decay},
        {"params": others, "weight_decay": 0.0},
    ]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


# -- a gradient scaler ----------------------------------------------------------------------------
def scaler() -> torch.amp.GradScaler:
    """Hosts make one on a GPU only; what they do with it is the same here."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)


def pretend_fp16(accelerator: Any) -> None:
    """Lets accelerate unscale before it clips, as it does on a GPU."""
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"


def overflowing(model: nn.Module, opt: SharpnessAware, where: str | None) -> Any:
    """The loss; in the second window it overflows, below or above."""

    def compute_loss(**batch: Tensor) -> Tensor:
        second = opt.param_groups[0]["vasso_step"] == 1 and opt.skipped == 0
        here = "above" if opt.perturbed else "below"
        return model(**batch)["loss"] * (float("inf") if second and here == where else 1.0)

    return compute_loss


def scaled_loop(
    opt: SharpnessAware,
    whole: Sequence[Sequence[Batch]],
    compute_loss: Callable[..., Tensor],
    *,
    clip: float | None,
    model: nn.Module,
) -> float:
    """Torch's own recipe for a GradScaler, with the climb in it; returns the scale at the end."""
    scaling = scaler()
    for micro_batches in whole:
        for batch in micro_batches:
            scaling.scale(compute_loss(**batch)).backward()
        with opt.ascended(scaler=scaling) as up:
            for batch in micro_batches if up else ():
                scaling.scale(compute_loss(**batch)).backward()
        if clip is not None:
            scaling.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaling.step(opt)
        scaling.update()
        opt.zero_grad()
    return scaling.get_scale()
