"""Lightning Fabric: imported without torchmetrics, checked and started.

To learn the version of torchmetrics, Fabric imports all of it where it is installed. That imports
transformers and scipy.signal where those are installed: half of the start-up time of a command.
So torchmetrics is hidden while Fabric is imported; it can be imported later.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vasso import validation
from vasso.lab.training.options import FSDP2, RunOptions
from vasso.lab.training.sharding import shard_model
from vasso.optional import needs_extra


@contextmanager
def not_found(package: str) -> Iterator[None]:
    """Hide a package that is not imported yet: inside the context its import fails."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]  # Python's mark for "not importable"
    try:
        yield
    finally:
        del sys.modules[package]


with not_found("torchmetrics"), needs_extra("lab"):
    from lightning_fabric import Fabric
    from lightning_fabric.accelerators import ACCELERATOR_REGISTRY
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies import STRATEGY_REGISTRY
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

__all__ = ["Fabric", "check_accelerator", "check_strategy", "start_fabric"]

GPUS = ("cuda", "mps")
STRATEGIES = ("auto", "ddp", "fsdp2")
"""The tested strategies. Other names of Fabric are accepted."""


def check_accelerator(name: str) -> None:
    """Raise ValueError if this machine has no such accelerator; Fabric's error is a traceback."""
    available = {
        key: entry["accelerator"].is_available() for key, entry in ACCELERATOR_REGISTRY.items()
    }
    available["gpu"] = any(available.get(key, False) for key in GPUS)
    validation.one_of("accelerator", name, "auto", *available)
    if not available.get(name, True):
        others = " or ".join(key for key, is_available in available.items() if is_available)
        raise ValueError(
            f"this machine has no {name}: give --accelerator {others}, or leave it out"
        )


def check_strategy(name: str) -> None:
    """Raise ValueError if neither we nor Fabric have a strategy of this name."""
    if name.lower() not in STRATEGY_REGISTRY:
        validation.one_of("strategy", name, *STRATEGIES)


def start_fabric(options: RunOptions, precision: Any) -> Fabric:
    """Start Fabric with the options of a run; several devices are launched as processes."""
    check_accelerator(options.accelerator)
    check_strategy(options.strategy)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    strategy: Any = options.strategy
    if options.strategy == FSDP2:
        strategy = ModelParallelStrategy(shard_model, options.processes, tensor_parallel_size=1)
    fabric = Fabric(
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.nodes,
        strategy=strategy,
        precision=precision,
        plugins=[_environment()],
    )
    if options.processes > 1:
        fabric.launch()
    return fabric


def _environment() -> LightningEnvironment | TorchElasticEnvironment:
    """The processes that torchrun has started, else our own.

    Without it Fabric takes any job of Slurm for the ranks of one run, and warns where there is an
    `srun`.
    """
    elastic = TorchElasticEnvironment.detect()
    return TorchElasticEnvironment() if elastic else LightningEnvironment()
