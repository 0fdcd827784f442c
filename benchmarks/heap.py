"""Benchmark of freed memory that a process keeps for the next step: time and page faults of a pass.

Two processes for each network take turns, a few passes forward and back each, on one thread. One
has the environment of the lab's workers, `KEEP_FREED_MEMORY` of `vasso.lab.execution.pool`. The
time is that of the process itself, so that other processes disturb little; page faults are those
that the system counts.

    python benchmarks/heap.py --json out.json
    python benchmarks/heap.py --show out.json
"""

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from certificate import certificate
from tables import table
from torch import nn
from torch.nn.functional import cross_entropy

from vasso.lab.execution.pool import KEEP_FREED_MEMORY
from vasso.lab.models import build
from vasso.lab.training.sentences import sentence_losses
from vasso.lab.translation.transformer import build as build_transformer

WAYS: dict[str, dict[str, str]] = {"given back": {}, "kept": KEEP_FREED_MEMORY}
"""What is added to the environment of the process; glibc reads it when the process starts."""
Pass = Callable[[], None]


def resnet() -> Pass:
    """128 images of 16x16 pixels."""
    model = build("resnet8", classes=10, size=16, seed=0)
    x, y = torch.randn(128, 3, 16, 16), torch.randint(10, (128,))
    return passing(model, lambda: cross_entropy(model(x), y))


def transformer() -> Pass:
    """64 sentences of 16 pieces."""
    model = build_transformer("transformer-small", source=3200, target=2504, dropout=0.1, seed=0)
    x, y = torch.randint(4, 3200, (64, 16)), torch.randint(4, 2504, (64, 16))
    return passing(model, lambda: sentence_losses(model, x, y, torch.full((64,), 1 / 16)).mean())


def passing(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Pass:
    """Forward and back; gradients are freed, as by `zero_grad`."""

    def both() -> None:
        loss().backward()
        model.zero_grad()

    return both


NETWORKS = {"ResNet-8": resnet, "transformer, 2 + 2 layers of width 128": transformer}


def process(line: Connection, network: str) -> None:
    """Receives a number of passes, sends their time and page faults, until it receives 0."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    take = NETWORKS[network]()
    while passes := line.recv():
        begin, faults = time.process_time(), _faults()
        for _ in range(passes):
            take()
        line.send(((time.process_time() - begin) / passes, (_faults() - faults) / passes))


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measured(network: str, rounds: int, passes: int) -> dict[str, list[dict[str, float]]]:
    """Way -> seconds and faults of a pass in each round."""
    context, lines = get_context("spawn"), {}
    for way, added in WAYS.items():
        lines[way], theirs = context.Pipe()
        os.environ.update(added)
        context.Process(target=process, args=(theirs, network), daemon=True).start()
        for name in added:
            del os.environ[name]
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(rounds + 1):
        for way, line in lines.items():
            line.send(passes)
            seconds, faults = line.recv()
            if turn:  # the first is for warming up
                found[way].append({"seconds": seconds, "faults": faults})
    for line in lines.values():
        line.send(0)
    return found


def show(result: dict[str, Any]) -> str:
    """The table, from the stored value."""
    rows = []
    for network, ways in result["networks"].items():
        back, kept = ways["given back"], ways["kept"]
        ratio = statistics.median(
            b["seconds"] / k["seconds"] for b, k in zip(back, kept, strict=True)
        )
        faults = [
            f"{statistics.median(turn['faults'] for turn in way):,.0f}" for way in (back, kept)
        ]
        ms = [
            f"{1e3 * statistics.median(turn['seconds'] for turn in way):.1f}"
            for way in (back, kept)
        ]
        rows.append([network, *faults, *ms, f"{ratio:.2f}"])
    head = ["faults a pass", "kept", "ms a pass", "kept", "times as fast"]
    return table(["network", *head], rows)


def check_environment() -> None:
    """Ends the program if its own environment would change both processes."""
    if already := sorted(KEEP_FREED_MEMORY.keys() & os.environ.keys()):
        raise SystemExit(f"unset {', '.join(already)} first: one of the processes goes without")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    parser.add_argument("--show", type=Path, help="show a stored measurement, measure nothing")
    given = parser.parse_args()
    if given.show:
        print(show(json.loads(given.show.read_text())))
        return
    check_environment()
    torch.set_num_threads(1)
    settings = {"rounds": given.rounds, "passes": given.passes}
    result = certificate("memory kept from step to step", ("torch",), settings)
    result["networks"] = {name: measured(name, **settings) for name in NETWORKS}
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(show(result))


if __name__ == "__main__":
    main()
