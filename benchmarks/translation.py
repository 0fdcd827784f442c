"""Benchmark of the lab's transformer against torch's own, and of beam search with a cache.

    python benchmarks/translation.py --data DIR --json out.json    # Multi30k in DIR, or VASSO_DATA
    python benchmarks/translation.py --show out.json               # the tables again, from the file

Training. Four loops take turns, a few steps each, on the same batches with the same AdamW, in one
process with one thread: the lab's with all its records, a plain loop around the lab's
model, and plain loops around `nn.Transformer` of the same size, as one would write it. That has
dropout within attention and feed-forward layers too, where fairseq's recipe has none; once without
it does the same work as ours. The clock is that of the process, which does not run while others
have the core. The speed of a shared machine varies: loops are compared by the median of the ratios
within a round.

Decoding. Beam search that remembers keys and values against one that reads again all that has been
said, to translations of 10, 30 and 100 pieces, likewise. Both find the same translations, which is
checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from certificate import certificate
from tables import table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vasso.lab.experiment.run import Run
from vasso.lab.training.host import start_fabric
from vasso.lab.training.options import RunOptions
from vasso.lab.training.sentences import decoder_inputs, sentence_losses
from vasso.lab.training.state import Training
from vasso.lab.translation.beam import Search, translations
from vasso.lab.translation.pieces import END, PAD
from vasso.lab.translation.transformer import SIZES, Size, Transformer, build

MODEL = "transformer-small"
TASK = {"model": MODEL, "batch": 1024, "epochs": 100, "label_smoothing": 0.1, "dropout": 0.1}
METHOD = {"name": "AdamW", "lr": 1e-3, "beta2": 0.98, "schedule": "constant"}
LAB, PLAIN, TORCH = "lab", "plain loop", "nn.Transformer"
ALIKE = "nn.Transformer, dropout as ours"
CACHED, REPLAYED = "cached", "replayed"
SENTENCES, BEAM = 4, 5

Rounds = list[dict[str, float]]


# -- training -------------------------------------------------------------------------------------


class OfTorch(nn.Module):
    """`nn.Transformer` with embeddings, as its tutorial uses it."""

    def __init__(self, size: Size, source: int, target: int, dropout: float) -> None:
        super().__init__()
        self.ours = Transformer(size, source, target, dropout)
        del self.ours.encoder, self.ours.decoder
        shape = (size.width, size.heads, size.layers, size.layers, size.inner, dropout)
        self.core = nn.Transformer(*shape, batch_first=True)
        self.core.encoder.norm = self.core.decoder.norm = None  # ours has none at the end

    def without_inner_dropout(self) -> OfTorch:
        """Leaves it on embeddings and on what sub-layers add, as fairseq's recipe has it."""
        for layer in (*self.core.encoder.layers, *self.core.decoder.layers):
            layer.dropout.p = layer.self_attn.dropout = 0.0
            if hasattr(layer, "multihead_attn"):
                layer.multihead_attn.dropout = 0.0
        return self

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


def lab(args: argparse.Namespace) -> Training:
    task = {**TASK, "data": args.corpus, "pieces": args.pieces}
    run = Run.of({"task": task, "method": METHOD})
    options = RunOptions(data_root=args.data, accelerator="cpu")
    return Training(run, options, start_fabric(options, run.task.precision))


def by_hand(model: nn.Module, loss_of: Callable[..., Tensor], batches: Any) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0)
    step = 0

    def take_step() -> None:
        nonlocal step
        optimizer.zero_grad()
        loss_of(model, *batches.at(step)).backward()
        optimizer.step()
        step += 1

    return take_step


def ours_loss(model: nn.Module, *tensors: Tensor) -> Tensor:
    return sentence_losses(model, *tensors, smoothing=0.1).mean()


def torch_loss(model: nn.Module, source: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    before, _ = decoder_inputs(target)
    logits = model(source, before).flatten(0, 1)
    return cross_entropy(logits, target.flatten(), ignore_index=PAD, label_smoothing=0.1)


def training(args: argparse.Namespace) -> dict[str, Any]:
    """Pieces of the target in a second of this process, round by round."""
    ours = lab(args)
    texts, batches = ours.workload.texts, ours.batches
    sizes = {"source": len(texts.source), "target": len(texts.target)}
    plain = build(MODEL, **sizes, dropout=0.1, seed=0)
    of_torch, alike = (OfTorch(SIZES[MODEL], *sizes.values(), 0.1) for _ in range(2))
    loops = {
        LAB: ours.take_step,
        PLAIN: by_hand(plain, ours_loss, batches),
        TORCH: by_hand(of_torch, torch_loss, batches),
        ALIKE: by_hand(alike.without_inner_dropout(), torch_loss, batches),
    }
    rounds: Rounds = []
    for number in range(args.rounds + 1):  # the first warms up
        steps = range(number * args.steps, (number + 1) * args.steps)
        pieces = sum(batches.amount(step) for step in steps)
        rounds.append({n: pieces / timed(step, args.steps) for n, step in in_turn(loops, number)})
    weights = {LAB: ours.bare, PLAIN: plain, TORCH: of_torch, ALIKE: alike}
    return {
        "weights": {n: sum(p.numel() for p in m.parameters()) for n, m in weights.items()},
        "pieces_per_second": rounds[1:],
    }


# -- decoding -------------------------------------------------------------------------------------


def decoding(args: argparse.Namespace) -> dict[str, Rounds]:
    """Length -> seconds of this process, round by round; no translation ends early."""
    model = build(MODEL, source=3200, target=2504, seed=0).eval()
    drawn = torch.Generator().manual_seed(0)
    source = torch.randint(4, 3200, (SENTENCES, 15), generator=drawn)
    silent = model.scores
    model.scores = lambda x: silent(x).index_fill(-1, torch.tensor([END]), -1e9)  # type: ignore[method-assign]
    found: dict[str, Rounds] = {}
    for length in args.lengths:
        search = {
            kind: partial(translations, model, source, Search(BEAM, cached=kind == CACHED), length)
            for kind in (CACHED, REPLAYED)
        }
        said = [[some[0].pieces for some in search[kind]()] for kind in search]  # warms up, too
        if said[0] != said[1] or len(said[0][0]) < length - 1:
            raise SystemExit(f"the two searches differ, or end early, at {length} pieces")
        found[str(length)] = [
            {kind: timed(look) for kind, look in in_turn(search, number)}
            for number in range(args.decoding_rounds)
        ]
    return found


# -- clocks ---------------------------------------------------------------------------------------


def in_turn(loops: dict[str, Callable[[], object]], number: int) -> list[tuple[str, Any]]:
    """All of them; the first goes last in the next round."""
    items = list(loops.items())
    first = number % len(items)
    return items[first:] + items[:first]


def timed(call: Callable[[], object], times: int = 1) -> float:
    """Seconds of this process."""
    begun = time.process_time()
    for _ in range(times):
        call()
    return time.process_time() - begun


# -- what is shown --------------------------------------------------------------------------------


def median_ratio(rounds: Rounds, one: str, other: str) -> float:
    """The middle of the ratios within a round."""
    return statistics.median(each[one] / each[other] for each in rounds)


def training_table(result: dict[str, Any]) -> str:
    """Medians; each loop beside the one around torch's transformer."""
    rounds = result["training"]["pieces_per_second"]
    rows = [
        [
            name,
            f"{result['training']['weights'][name]:,}",
            f"{statistics.median(each[name] for each in rounds):,.0f}",
            f"{median_ratio(rounds, name, TORCH):.2f}",
            f"{median_ratio(rounds, name, PLAIN):.2f}",
        ]
        for name in (LAB, PLAIN, TORCH, ALIKE)
    ]
    head = ["loop", "weights", "pieces a second", f"to {TORCH}'s", f"to the {PLAIN}'s"]
    return table(head, rows)


def decoding_table(result: dict[str, Any]) -> str:
    """Medians of seconds and of ratios."""
    rows = [
        [
            length,
            *(f"{statistics.median(each[k] for each in rounds):.3f}" for k in (CACHED, REPLAYED)),
            f"{median_ratio(rounds, REPLAYED, CACHED):.1f}",
        ]
        for length, rounds in result["decoding"].items()
    ]
    return table(["pieces", "remembered, s", "read again, s", "times as fast"], rows)


def show(result: dict[str, Any]) -> str:
    """The tables, from the stored value alone."""
    where, how = result["hardware"], result["settings"]
    values = (
        f"{where['cpu']}, {where['threads']} thread(s), torch {result['versions']['torch']}, "
        f"{result['date'][:10]}, {how['rounds']} rounds of {how['steps']} steps"
    )
    return "\n\n".join([values, training_table(result), decoding_table(result)])


def born(args: argparse.Namespace) -> dict[str, Any]:
    """When, where, with what and how."""
    names = ("corpus", "pieces", "rounds", "steps", "lengths", "decoding_rounds")
    settings = {
        **{name: getattr(args, name) for name in names},
        **{"task": TASK, "method": METHOD, "sentences": SENTENCES, "beam": BEAM},
    }
    what = "pieces a second in training, seconds of beam search"
    return certificate(what, ("torch", "vasso"), settings)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", type=Path, help="where data are")
    parser.add_argument("--corpus", default="multi30k")
    parser.add_argument("--pieces", type=int, default=4000, help="merges of byte-pair encoding")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each loop")
    parser.add_argument("--steps", type=int, default=4, help="steps of a turn")
    parser.add_argument("--lengths", type=int, nargs="+", default=[10, 30, 100])
    parser.add_argument("--decoding-rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--show", type=Path, help="print the tables of a stored file and stop")
    return parser.parse_args()


def main() -> None:
    """Measures, or reads, and prints."""
    args = arguments()
    if args.show:
        print(show(json.loads(args.show.read_text())))
        return
    torch.set_num_threads(1)
    result = {**born(args), "training": training(args), "decoding": decoding(args)}
    if args.json:
        args.json.write_text(json.dumps(result) + "\n")
    print(show(result))


if __name__ == "__main__":
    main()
