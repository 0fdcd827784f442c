"""Time of a whole step, with its network, as a ratio to the base's step in the same run.

    python benchmarks/step.py --json out.json
    python benchmarks/step.py --methods SAM Half-SAM --json out.json
    python benchmarks/step.py --show benchmarks/results/<file>.json

`METHODS` is the table of what is timed: a name, and a function from the base and the task to an
optimizer. A task is a network with one batch and its loss. Every round visits all methods in a new
order, warms each up and times some steps; the ratio is that of the minima, with that of the medians
beside it. With one thread the clock is that of the processor, which does not run while other
programs have the core. `overhead.py` measures the algebra of a step without the network.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from certificate import certificate
from tables import table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from vasso import SAM, SAMON, FunctionalSAM, HalfSAM, LogitsSAM, Outputs, Samples, VaSSO
from vasso.lab.models import build

Times: TypeAlias = dict[str, list[float]]
BASE, WARM_UP = "base", 2


@dataclass(frozen=True)
class Task:
    """A network with its layer `head`, its base optimizer, one batch, the loss of its logits."""

    model: Any
    base: Optimizer
    x: Tensor
    y: Tensor

    def logits(self) -> Tensor:
        """Of the whole batch."""
        found: Tensor = self.model(self.x)
        return found

    def loss_of(self, z: Tensor) -> Tensor:
        """The mean loss of the logits of the whole batch."""
        return cross_entropy(z.flatten(0, -2), self.y.flatten())

    def samples(self) -> Samples:
        """The batch, of which a plan may draw some samples."""
        return Samples(self.base.zero_grad, self.losses_of, self.x, self.y)

    def losses_of(self, x: Tensor, y: Tensor) -> Tensor:
        """A loss for each of some samples: of a sentence the mean over its tokens."""
        losses = cross_entropy(self.model(x).flatten(0, -2), y.flatten(), reduction="none")
        return losses.view(len(x), -1).mean(dim=1)

    def outputs(self) -> Outputs:
        """The batch, cut at the logits."""
        return Outputs(self.base.zero_grad, self.logits, self.loss_of)

    def cut_at_the_head(self) -> Outputs:
        """The batch, cut before the head: a hook keeps what the head reads."""
        head, kept = self.model.head, list[Tensor]()

        def body() -> Tensor:
            hook = head.register_forward_pre_hook(lambda _, read: kept.append(read[0]))
            forward, head.forward = head.forward, lambda x: x
            try:
                self.logits()
            finally:
                head.forward = forward
                hook.remove()
            return kept.pop()

        return Outputs(self.base.zero_grad, body, lambda x: self.loss_of(head(x)), head=head)

    def head_again(self) -> Callable[[Outputs], None]:
        """What logits-SAM adds by its equation: the head, its loss, the gradient of its weight."""
        cut = self.cut_at_the_head()
        read = cut.outputs().detach()

        def again(_: Outputs) -> None:
            torch.autograd.grad(cut.loss_of(read), [self.model.head.weight])

        return again


class Block(nn.Module):
    """One layer of the GPT: attention to earlier tokens, then two linear layers.

    `nn.TransformerEncoderLayer` reads transposed inputs, and torch computes a frozen linear layer
    over those by batched products, which take longer than the gradients that are left out.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.read, self.written = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        shape = (count, length, 3, width // 32, 32)
        q, k, v = self.read(self.norms[0](x)).view(shape).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.written(seen.transpose(1, 2).reshape(count, length, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))


class GPT(nn.Module):
    """A small decoder: every token looks at those before it; the head predicts the next one."""

    def __init__(self, vocabulary: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places)))


def resnet18(small: bool) -> Task:
    """The ResNet-18 of CIFAR-10 with SGD."""
    model = build("resnet18", classes=10, width=0.125 if small else 1.0, seed=0)
    x, y = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    if small:
        x = x[:4, :, :8, :8]
        y = y[:4]
    return Task(model, SGD(model.parameters(), lr=1e-3, momentum=0.9), x, y)


def gpt(small: bool) -> Task:
    """A GPT of four layers with AdamW."""
    vocabulary, width, layers, length = (64, 32, 1, 8) if small else (4096, 256, 4, 128)
    model = GPT(vocabulary, width, layers, length)
    tokens = torch.randint(vocabulary, (4, length + 1))
    return Task(model, AdamW(model.parameters(), lr=1e-4), tokens[:, :-1], tokens[:, 1:])


TASKS = {"resnet18": resnet18, "gpt": gpt}
METHODS: dict[str, Callable[[Task], Any]] = {
    "SAM": lambda task: SAM(task.base, model=task.model),
    "VaSSO": lambda task: VaSSO(task.base, model=task.model),
    "Half-SAM": lambda task: HalfSAM(task.base, model=task.model),
    "SAM-ON": lambda task: SAMON(task.base, model=task.model),
    "VaSSO-ON": lambda task: SAMON(task.base, theta=0.4, model=task.model),
    "Functional-SAM": lambda task: FunctionalSAM(task.base, model=task.model),
    "logits-SAM": lambda task: LogitsSAM(task.base, model=task.model),
}
DATA: dict[str, Callable[[Task], Any]] = {
    "Half-SAM": Task.samples,
    "Functional-SAM": Task.outputs,
    "logits-SAM": Task.cut_at_the_head,
}
"""What those methods take in place of a closure."""
HEAD = "head alone, once more"
"""The part of a step that logits-SAM adds by its equation, however it is written."""
GOALS = {"Half-SAM": 1.08, "SAM-ON": 1.75, "Functional-SAM": 2.05, "logits-SAM": 1.1}
"""The ratio that a method is to stay below."""


def visit(name: str, method: str, small: bool, steps: int) -> list[float]:
    """Milliseconds of some steps of a method that is built anew and warmed up."""
    torch.manual_seed(0)
    task = TASKS[name](small)
    opt = METHODS[method](task) if method in METHODS else task.base

    def closure() -> Tensor:
        opt.zero_grad()
        loss = task.loss_of(task.logits())
        loss.backward()
        return loss

    data = DATA[method](task) if method in DATA else closure
    step = task.head_again() if method == HEAD else opt.step
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    taken = []
    for number in range(WARM_UP + steps):
        start = clock()
        step(data)
        if number >= WARM_UP:
            taken.append((clock() - start) / 1e6)
    return taken


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one JSON value."""
    settings = {"rounds": args.rounds, "steps": args.steps, "quick": args.quick}
    result = certificate("time of a whole step", ("torch", "vasso"), settings)
    result["tasks"], order = {}, random.Random(0)
    labels = [BASE, *(args.methods or [*METHODS, HEAD])]
    for name in TASKS:
        samples: Times = {label: [] for label in labels}
        for _ in range(args.rounds):
            for label in order.sample(labels, len(labels)):
                samples[label] += visit(name, label, args.quick, args.steps)
                gc.collect()
        result["tasks"][name] = {"milliseconds": samples, "ratios": ratios(samples)}
    return result


def ratios(samples: Times) -> dict[str, dict[str, float]]:
    """Each method's time over the base's, by minima and by medians."""
    kinds: dict[str, Callable[[list[float]], float]] = {"min": min, "median": statistics.median}
    return {
        label: {
            kind: round(of(samples[label]) / of(samples[BASE]), 3) for kind, of in kinds.items()
        }
        for label in samples
        if label != BASE
    }


def show(result: dict[str, Any]) -> str:
    """The table, from the stored value alone."""
    where, tasks = result["hardware"], result["tasks"]
    told = (
        f"{where['cpu']}, {where['threads']} thread(s), torch {result['versions']['torch']}, "
        f"{result['date'][:10]}, {result['settings']['rounds']} rounds"
    )
    rows = []
    for label in next(iter(tasks.values()))["ratios"]:
        found = [task["ratios"][label] for task in tasks.values()]
        goal = f"{GOALS[label]:g}" if label in GOALS else ""
        rows.append([label, *(f"{x['min']:.2f} ({x['median']:.2f})" for x in found), goal])
    one = [f"{min(task['milliseconds'][BASE]):.0f}" for task in tasks.values()]
    rows.append(["the base's step, ms", *one, ""])
    return f"{told}\n\n{table(['ratio to the base, min (median)', *tasks, 'goal'], rows)}"


def main() -> None:
    """Measures, or reads, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="visits to each method")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a visit")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="default: all")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--quick", action="store_true", help="tiny networks: times mean nothing")
    parser.add_argument("--show", type=Path, help="print the table of a stored file and stop")
    args = parser.parse_args()
    if args.show:
        print(show(json.loads(args.show.read_text())))
        return
    torch.set_num_threads(1)
    if args.quick:
        args.rounds, args.steps = 2, 1
    result = measure(args)
    if args.json:
        args.json.write_text(json.dumps(result) + "\n")
    print(show(result))


if __name__ == "__main__":
    main()
