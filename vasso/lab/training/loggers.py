"""Loggers: the numbers of a run in training, for TensorBoard, Weights & Biases or MLflow.

Every `EVERY` steps a live probe writes the losses, the rise, norms, cosines, rho, skipped steps and
cost; after each epoch its metrics follow. The training is the same, bit for bit.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from vasso.diagnostics.probe import Probe
from vasso.lab.experiment.run import Run
from vasso.lab.schema import LabError
from vasso.lab.training.state import Training
from vasso.optimizer import SharpnessAware

EVERY = 10
PROJECT = "vasso"


class Logger(Protocol):
    """Where numbers go."""

    def add_scalar(self, name: str, value: float, step: int, /) -> None:
        """Writes a number."""

    def close(self) -> None:
        """Writes what is left."""


def tensorboard(run: Run, folder: Path) -> Logger:
    """Event files in the folder of the run: `tensorboard --logdir runs`."""
    from torch.utils.tensorboard import SummaryWriter

    writer: Logger = SummaryWriter(str(folder / "tensorboard"))
    return writer


class Wandb:
    """A run of Weights & Biases; with WANDB_MODE=offline all files are in the folder of the run."""

    def __init__(self, run: Run, folder: Path) -> None:
        import wandb

        names: dict[str, Any] = {"project": PROJECT, "name": run.id, "id": run.id[-10:]}
        self.run = wandb.init(config=run.in_full(), dir=folder, resume="allow", **names)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.run.log({name: value}, step=step)

    def close(self) -> None:
        self.run.finish()


class Mlflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI."""

    def __init__(self, run: Run, folder: Path) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            self.client = MlflowClient()
            found = self.client.get_experiment_by_name(PROJECT)
            experiment = found.experiment_id if found else self.client.create_experiment(PROJECT)
            self.id = self.client.create_run(experiment, run_name=run.id).info.run_id
        except (MlflowException, ModuleNotFoundError) as error:  # what its database needs
            raise LabError(
                f"MLflow has no place for a run: {str(error).partition('. ')[0]}. Set "
                "MLFLOW_TRACKING_URI to the address of a server, or pip install mlflow, whose "
                "database is a file"
            ) from None

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.client.log_metric(self.id, name, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.id)


LOGGERS: Mapping[str, Callable[[Run, Path], Logger]] = {
    "tensorboard": tensorboard,
    "wandb": Wandb,
    "mlflow": Mlflow,
}


@contextmanager
def logged(
    name: str, training: Training, folder: Path
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Logs the steps of a training while the block runs; yields a function for its epochs.

    Steps are logged of a training in one process, with a sharpness-aware optimizer.
    """
    if not name or not training.fabric.is_global_zero:
        yield lambda line: None
        return
    writer = LOGGERS[name](training.run, folder)
    perturbs = isinstance(training.optimizer, SharpnessAware) and training.fabric.world_size == 1
    try:
        with Probe(training.optimizer, every=EVERY, writer=writer) if perturbs else nullcontext():
            yield partial(_log_epoch, writer)
    finally:
        writer.close()


def _log_epoch(writer: Logger, line: Mapping[str, Any]) -> None:
    numbers = {key: value for key, value in line.items() if isinstance(value, int | float)}
    for key, value in numbers.items():
        if key != "step":
            writer.add_scalar(f"epoch/{key}", value, line["step"])
