"""Which accelerators has this machine, and how may several work together?

Asked before Fabric is, which answers with a traceback or with names of its own.
"""

from __future__ import annotations

from vasso import checks
from vasso.lab.fabric import ACCELERATOR_REGISTRY, STRATEGY_REGISTRY

GPUS = ("cuda", "mps")
STRATEGIES = ("auto", "ddp", "fsdp2")
"""What is tried and told of; others of Fabric's names are taken too."""


def check_accelerator(name: str) -> None:
    """Whether there is such a device here.

    Args:
        name: as Fabric calls it; "auto" takes the best there is.

    Raises:
        ValueError: there is none, or nothing is called so.
    """
    has = {key: entry["accelerator"].is_available() for key, entry in ACCELERATOR_REGISTRY.items()}
    has["gpu"] = any(has.get(key, False) for key in GPUS)
    checks.one_of("accelerator", name, "auto", *has)
    if not has.get(name, True):
        there = " or ".join(key for key, is_there in has.items() if is_there)
        raise ValueError(f"this machine has no {name}: give --accelerator {there}, or leave it out")


def check_strategy(name: str) -> None:
    """Whether several processes can work together in this way.

    Args:
        name: one of `STRATEGIES`, or another as Fabric calls it; an error if it is neither.
    """
    if name.lower() not in STRATEGY_REGISTRY:
        checks.one_of("strategy", name, *STRATEGIES)
