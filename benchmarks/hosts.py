"""The cost of a host's integration beyond the two passes: one function per host.

    python benchmarks/hosts.py                     # all hosts that are installed, a few minutes
    python benchmarks/hosts.py --hosts fabric --steps 20 --width 64

Every host trains the same multi-layer perceptron on the same batch, once with SGD and once with
VaSSO around it. A host has costs of its own, which SGD has too; so beside the ratio of its step to
that of the plain loop stands what the integration adds to both:

    own = (VaSSO in the host - SGD in the host) - (VaSSO in the loop - SGD in the loop)

With one thread the clock is that of the processor. Rounds visit the hosts in turn; medians.
"""

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tables import table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader

from vasso import VaSSO

WARM_UP = 5


@dataclass(frozen=True)
class Task:
    """What is trained, and for how many steps.

    Attributes:
        steps: how many are timed.
        width: of the hidden layers.
        aware: whether by VaSSO or by SGD.
    """

    steps: int
    width: int
    aware: bool

    def model(self) -> nn.Module:
        layers = [nn.Linear(64, self.width), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Linear(self.width, self.width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.width, 10))

    def optimizer(self, model: nn.Module) -> Optimizer:
        base = SGD(model.parameters(), lr=0.01, momentum=0.9)
        return VaSSO(base, rho=0.05, theta=0.4, model=model) if self.aware else base

    def batch(self) -> tuple[Tensor, Tensor]:
        return torch.randn(64, 64), torch.randint(10, (64,))

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        return [self.batch()] * (self.steps + WARM_UP)


class Clock:
    """Notes the time between steps."""

    def __init__(self) -> None:
        self.ticks = [time.process_time()]

    def tick(self) -> None:
        self.ticks.append(time.process_time())

    def milliseconds(self) -> list[float]:
        pairs = zip(self.ticks, self.ticks[1:], strict=False)
        return [1e3 * (after - before) for before, after in pairs][WARM_UP:]


def loop(task: Task) -> Clock:
    """No host at all."""
    model = task.model()
    opt, clock = task.optimizer(model), Clock()
    for x, y in task.batches():
        opt.zero_grad()
        cross_entropy(model(x), y).backward()
        if isinstance(opt, VaSSO):
            with opt.ascended():
                cross_entropy(model(x), y).backward()
        opt.step()
        clock.tick()
    return clock


def fabric(task: Task) -> Clock:
    """Lightning Fabric."""
    from lightning.fabric import Fabric

    host, raw = Fabric(accelerator="cpu", devices=1), task.model()
    model, opt = host.setup(raw, task.optimizer(raw))
    clock = Clock()
    for x, y in task.batches():
        opt.zero_grad()
        host.backward(cross_entropy(model(x), y))
        if isinstance(opt, VaSSO):
            with opt.ascended():
                host.backward(cross_entropy(model(x), y))
        opt.step()
        clock.tick()
    return clock


def lightning(task: Task) -> Clock:
    """Lightning's Trainer."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    from vasso.integrations.lightning import SharpnessAwareCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model()

        def training_step(self, batch: Any) -> Tensor:
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Optimizer:
            return task.optimizer(self.model)

    class Ticking(Callback):
        def on_train_batch_end(self, *arguments: Any) -> None:
            clock.tick()

    quiet = "logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"
    callbacks = [Ticking(), *([SharpnessAwareCallback()] if task.aware else [])]
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        callbacks=callbacks,
        **dict.fromkeys(quiet, False),
    )
    clock = Clock()
    trainer.fit(Module(), DataLoader(task.batches(), batch_size=None))  # type: ignore[arg-type]
    return clock


def accelerate(task: Task) -> Clock:
    """accelerate."""
    from accelerate import Accelerator

    from vasso.integrations.accelerate import Window

    host, raw = Accelerator(cpu=True), task.model()
    model, opt = host.prepare(raw, task.optimizer(raw))
    window = Window(host, model, opt) if task.aware else None
    clock = Clock()

    def compute_loss(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x), y)

    for batch in task.batches():
        with host.accumulate(model):
            if window is not None:
                window.backward(compute_loss, *batch)
            else:
                host.backward(compute_loss(*batch))
            opt.step()
            opt.zero_grad()
        clock.tick()
    return clock


def transformers(task: Task) -> Clock:
    """transformers' Trainer; it takes the norm of the gradient in every step."""
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments

    from vasso.integrations.transformers import SharpnessAwareTrainer

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": cross_entropy(self.model(x), labels)}

    class Ticking(TrainerCallback):
        def on_step_end(self, *arguments: Any, **named: Any) -> None:
            clock.tick()

    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            per_device_train_batch_size=1,
            num_train_epochs=1,
            max_grad_norm=0.0,
            use_cpu=True,
            dataloader_pin_memory=False,
            **quiet,
        )
        model = Module()
        trainer = (SharpnessAwareTrainer if task.aware else Trainer)(
            model,
            args,
            train_dataset=[{"x": x, "labels": y} for x, y in task.batches()],
            data_collator=lambda samples: samples[0],
            optimizers=(task.optimizer(model), None),
            callbacks=[Ticking()],
        )
        clock = Clock()
        trainer.train()
    return clock


HOSTS: dict[str, Callable[[Task], Clock]] = {
    "loop": loop,
    "fabric": fabric,
    "lightning": lightning,
    "accelerate": accelerate,
    "transformers": transformers,
}


def measure(hosts: list[str], *, rounds: int, steps: int, width: int) -> dict[str, list[float]]:
    """Median milliseconds of a step for each host: with SGD, with VaSSO."""
    found: dict[tuple[str, bool], list[float]] = {}
    for _ in range(rounds):
        for host in hosts:
            for aware in (False, True):
                clock = HOSTS[host](Task(steps, width, aware))
                found.setdefault((host, aware), []).extend(clock.milliseconds())
    return {h: [statistics.median(found[h, aware]) for aware in (False, True)] for h in hosts}


def show(result: dict[str, list[float]]) -> str:
    """One row per host."""
    plain, aware = result["loop"]
    rows = []
    for host, (sgd, vasso) in result.items():
        own = (vasso - sgd) - (aware - plain)
        cells = [f"{sgd:.2f}", f"{vasso:.2f}", f"{vasso / aware:.3f}", f"{own:+.2f}"]
        rows.append([host, *cells])
    return table(["host", "SGD, ms", "VaSSO, ms", "VaSSO to the loop's", "own, ms"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", nargs="+", choices=[h for h in HOSTS if h != "loop"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=512)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hosts = ["loop", *(given.hosts or [h for h in HOSTS if h != "loop"])]
    print(show(measure(hosts, rounds=given.rounds, steps=given.steps, width=given.width)))


if __name__ == "__main__":
    main()
