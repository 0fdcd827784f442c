"""Is the lab's transformer as fast as torch's own, and how much does a decoder's memory save?

Training: the lab's loop, a plain loop around the same model, and a plain loop around
`nn.Transformer` of the same size, on the same batches with the same AdamW. They take turns, a few
steps each, in one process with one thread; figures are medians over the turns of the time of this
process.

Decoding: beam search that remembers keys and values against one that reads all again, to
translations of 10, 30 and 100 pieces.

    python benchmarks/translation.py [--data DIR]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vasso.lab.how import How
from vasso.lab.runs import Run
from vasso.lab.training import Training
from vasso.lab.translation.beam import Search, translations
from vasso.lab.translation.losses import places_of, sentence_losses
from vasso.lab.translation.pieces import END, PAD
from vasso.lab.translation.transformer import SIZES, Size, Transformer, build

TASK = {"model": "transformer-small", "batch": 1024, "epochs": 100, "label_smoothing": 0.1}
METHOD = {"name": "AdamW", "lr": 1e-3, "beta2": 0.98, "schedule": "constant"}
LENGTHS = (10, 30, 100)


class OfTorch(nn.Module):
    """`nn.Transformer` with embeddings, as its tutorial uses it."""

    def __init__(self, size: Size, source: int, target: int, dropout: float) -> None:
        super().__init__()
        self.ours = Transformer(size, source, target, dropout)
        del self.ours.encoder, self.ours.decoder
        shape = (size.width, size.heads, size.layers, size.layers, size.inner, dropout)
        self.core = nn.Transformer(*shape, batch_first=True)
        self.core.encoder.norm = self.core.decoder.norm = None  # ours has none at the end

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        hidden = source == PAD
        later = nn.Transformer.generate_square_subsequent_mask(before.shape[1]).isinf()
        found = self.core(
            self.ours.source(source),
            self.ours.target(before),
            tgt_mask=later,
            tgt_is_causal=True,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return self.ours.scores(found)


def lab(data: str, root: Path | None) -> Training:
    run = Run.of({"task": {**TASK, "data": data, "pieces": 4000, "dropout": 0.1}, "method": METHOD})
    how = How(data=root, accelerator="cpu")
    return Training(run, how, how.fabric(run.task.precision))


def by_hand(
    model: nn.Module, loss_of: Callable[..., Tensor], batches: object
) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0)
    step = 0

    def take_step() -> None:
        nonlocal step
        optimizer.zero_grad()
        loss_of(model, *batches.at(step)).backward()  # type: ignore[attr-defined]
        optimizer.step()
        step += 1

    return take_step


def ours_loss(model: nn.Module, *tensors: Tensor) -> Tensor:
    return sentence_losses(model, *tensors, smoothing=0.1).mean()


def torch_loss(model: nn.Module, source: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    before, _ = places_of(target)
    logits = model(source, before).flatten(0, 1)
    return cross_entropy(logits, target.flatten(), ignore_index=PAD, label_smoothing=0.1)


def training(data: str, root: Path | None, turns: int, steps: int) -> dict[str, float]:
    """Pieces of the target in a second of this process."""
    ours = lab(data, root)
    texts, batches = ours.material.texts, ours.batches
    sizes = {"source": len(texts.source), "target": len(texts.target)}
    loops = {
        "lab": ours.take_step,
        "plain loop": by_hand(
            build("transformer-small", **sizes, dropout=0.1, seed=0), ours_loss, batches
        ),
        "nn.Transformer": by_hand(
            OfTorch(SIZES["transformer-small"], *sizes.values(), 0.1), torch_loss, batches
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(turns + 1):
        pieces = sum(batches.amount(turn * steps + i) for i in range(steps))
        for name, take_step in loops.items():
            begun = time.process_time()
            for _ in range(steps):
                take_step()
            found[name].append(pieces / (time.process_time() - begun))
    return {name: round(statistics.median(values[1:]), 1) for name, values in found.items()}


def decoding(turns: int) -> dict[str, dict[str, float]]:
    """Seconds of this process for 4 sentences and a beam of 5, none of which ends early."""
    model = build("transformer-small", source=3200, target=2504, seed=0).eval()
    drawn = torch.Generator().manual_seed(0)
    source = torch.randint(4, 3200, (4, 15), generator=drawn)
    silent = model.scores
    model.scores = lambda x: silent(x).index_fill(-1, torch.tensor([END]), -1e9)  # type: ignore[method-assign]
    found: dict[str, dict[str, float]] = {}
    for length in LENGTHS:
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(turns):
            for cached in times:
                begun = time.process_time()
                translations(model, source, Search(5, cached=cached), longest=length)
                times[cached].append(time.process_time() - begun)
        best = {"cached": min(times[True]), "replayed": min(times[False])}
        found[str(length)] = {k: round(v, 4) for k, v in best.items()}
        found[str(length)]["times"] = round(best["replayed"] / best["cached"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--corpus", default="multi30k")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "training, pieces a second": training(given.corpus, given.data, given.turns, given.steps),
        "decoding, seconds": decoding(min(given.turns, 2)),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
