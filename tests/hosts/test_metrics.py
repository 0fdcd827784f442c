"""The optimizer's metrics reach TensorBoard through each host, with the rise of a window."""

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from transformers import TrainerCallback

from tests.hosts import HOSTS_OWN_WARNINGS, windows
from tests.hosts.lightning_task import Module, fit, trainer
from tests.hosts.problem import BATCHES, net, vasso
from tests.hosts.test_accelerate import loop, optimizer
from tests.hosts.test_transformers import InOrder, arguments, gpt
from tests.hosts.windows import batches, collate, lines
from vasso import FromGap, SharpnessAware, VaSSO
from vasso.integrations.accelerate import Window

pytestmark = [*HOSTS_OWN_WARNINGS, pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")]


def scalars(folder: Path, name: str) -> dict[int, float]:
    (path,) = folder.rglob("events.out.tfevents.*")
    found = EventAccumulator(str(path)).Reload()
    return {event.step: event.value for event in found.Scalars(name)}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning_logs_every_few_steps(accumulate: int, tmp_path: Path) -> None:
    module, logger = Module(net(), vasso), TensorBoardLogger(tmp_path)
    host = trainer(
        logger=logger, log_every_n_steps=2, accumulate_grad_batches=accumulate, max_epochs=1
    )
    opt = fit(module, host)
    rises = scalars(tmp_path, "vasso/rise")
    assert list(rises) == [step for step in range(host.global_step) if step % 2]
    at_w = [loss for above, loss in module.seen if not above]
    above = [loss for above, loss in module.seen if above]
    for step, rise in rises.items():
        rows = slice(step * accumulate, (step + 1) * accumulate)
        count = len(at_w[rows])
        assert rise == pytest.approx((sum(above[rows]) - sum(at_w[rows])) / count, abs=1e-6)
    assert scalars(tmp_path, "vasso/cost")[1] == 4
    assert opt.metrics()["cost"] == 2 * -(-BATCHES // accumulate)


class Rises(TrainerCallback):
    """Counts the steps whose rise the optimizer knows."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_step_end(self, *_: object, **given: object) -> None:
        self.found.append(given["optimizer"].optimizer.metrics()["rise"])  # type: ignore[attr-defined]


def test_transformers_logs_with_its_own_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    more = {"gradient_accumulation_steps": 2, "report_to": ["tensorboard"], "logging_steps": 2}
    rises = Rises()
    host = InOrder(
        gpt(),
        arguments(tmp_path / "out", **more),
        train_dataset=lines(16),
        data_collator=collate,
        callbacks=[rises],
        rho=0.1,
        theta=0.4,
    )
    host.train()
    rows = {row["step"]: row for row in host.state.log_history if "loss" in row}
    assert {step: row["vasso/rise"] for step, row in rows.items()} == {
        2: rises.found[1],
        4: rises.found[3],
    }
    assert min(rises.found) > 0
    assert rows[2]["vasso/rho"] == 0.1
    assert scalars(tmp_path / "events", "train/vasso/cost") == {2: 4.0, 4: 8.0}


def test_accelerate_logs_every_few_steps_and_what_it_is_given(tmp_path: Path) -> None:
    accelerator = Accelerator(
        cpu=True, log_with="tensorboard", project_dir=str(tmp_path), gradient_accumulation_steps=2
    )
    accelerator.init_trackers("run")
    model = windows.characters()
    model, opt = accelerator.prepare(model, optimizer(model))
    window = Window(accelerator, model, opt, log_every=2)
    loop(accelerator, window, opt, batches(lines(8), 2))
    losses = loop(accelerator, window, opt, batches(lines(8), 2)[:2])
    accelerator.log(window.optimizer.metrics(), step=3)
    accelerator.end_training()
    assert scalars(tmp_path, "loss")[3] == pytest.approx(sum(losses) / 2)
    assert scalars(tmp_path, "rise")[3] > 0
    assert scalars(tmp_path, "cost") == {3: 6.0}
    assert scalars(tmp_path, "vasso/cost") == {2: 4.0}
    assert abs(scalars(tmp_path, "vasso/cosine")[2]) < 1


def follows_the_gap(model: nn.Module) -> SharpnessAware:
    """A rule that never moves rho, so that its means can be checked by hand."""
    rule = FromGap(lambda: torch.tensor(2.0), total=4, memory=1.0, start=0.3, speed=1e-9)
    base = torch.optim.SGD(model.parameters(), lr=0.2)
    return VaSSO(base, rho=rule, theta=0.4, model=model)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_radius_that_sets_itself_is_told_the_losses(accumulate: int) -> None:
    """R after a window: R + (rise - R) / 4, divided by the same average of ones."""
    module = Module(net(), follows_the_gap)
    opt = fit(module, trainer(accumulate_grad_batches=accumulate, max_epochs=1))
    at_w, above = ([loss for a, loss in module.seen if a == up] for up in (False, True))
    mean = weight = 0.0
    for first in range(0, BATCHES, accumulate):
        rows = slice(first, first + accumulate)
        rise = sum(above[rows]) - sum(at_w[rows])
        mean += (rise / len(at_w[rows]) - mean) / 4
        weight += (1 - weight) / 4
    assert opt.metrics()["R"] == pytest.approx(mean / weight, abs=1e-6)
