"""Run: a task, a method and a seed, with an id made of its settings.

The id ends with a hash of all settings that are not the default. So the same settings give the same
id on every machine, and a setting that a later version adds does not rename old runs. A published
default never changes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from vasso.lab.experiment.method import MethodConfig, parameters_of
from vasso.lab.experiment.task import Task
from vasso.lab.schema import nearest


@dataclass(frozen=True)
class Run:
    """A task, a method and a seed: of weights, order, augmentation, split, wrong labels, dropout.

    Example:
        >>> Run(Task(), MethodConfig.of({"name": "VaSSO", "rho": 0.1}), seed=3).id
        'digits-mlp-vasso-rho-0.1-s3-ec0e75c7ee'
    """

    task: Task
    method: MethodConfig
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be a whole number from 0 to 2^31 - 1, got {self.seed}")
        if self.method.needs_lora and not self.task.rank:
            raise ValueError(
                f"{self.method.name} is for LoRA adapters: give the task a language model and a "
                "rank, such as model=gpt-tiny and rank=4"
            )

    @cached_property
    def id(self) -> str:
        """Readable at the front, unique at the end; safe as the name of a directory."""
        text = f"{self.task.data} {self.task.model} {self.method.label}"
        dotted = re.sub(r"(?<!\d)\.|\.(?!\d)", "-", text.lower())  # keep points in numbers only
        slug = re.sub(r"[^a-z0-9.]+", "-", dotted).strip("-")[:80].strip("-.")
        method, task = self.method.canonical, self.task.canonical
        canonical = f'{{"method":{method},"seed":{self.seed},"task":{task}}}'
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:10]
        return f"{slug or 'run'}-s{self.seed}-{digest}"

    @cached_property
    def cell_key(self) -> str:
        """What runs that differ only in the seed share: the id of the run with seed 0."""
        return replace(self, seed=0).id

    def as_table(self) -> dict[str, Any]:
        """Task, method and seed, without settings that have their default."""
        return {"task": self.task.as_table(), "method": self.method.as_table(), "seed": self.seed}

    def in_full(self) -> dict[str, Any]:
        """Task, method and seed with every setting, as the store keeps them."""
        method = {**asdict(self.method), "settings": dict(self.method.settings)}
        return {"task": asdict(self.task), "method": method, "seed": self.seed}

    @staticmethod
    def of(table: Mapping[str, Any], where: str = "the run") -> Run:
        """The run of such a table; messages name `where` the table comes from."""
        method = dict(table.get("method", {}))
        method |= dict(method.pop("settings", {}))
        task = Task.of(table.get("task", {}), f"{where}, task")
        return Run(task, MethodConfig.of(method, f"{where}, method"), int(table.get("seed", 0)))

    def takes(self, name: str) -> bool:
        """Whether this run has a setting such as `epochs`, `task.epochs`, `rho` or `method.rho`."""
        kind, dot, short = name.partition(".")
        settings = method_settings(self.method)
        if dot:
            known = {"task": list(Task.__dataclass_fields__), "method": settings}
            return short in known.get(kind, ())
        return name == "seed" or name in Task.__dataclass_fields__ or name in settings

    def changed(self, overrides: Mapping[str, Any]) -> Run:
        """The same run with other settings, named as for `takes`."""
        task, method, seed = self.task.as_table(), self.method.as_table(), self.seed
        for name, value in overrides.items():
            kind, short = _split_name(name, self.method)
            if kind == "seed":
                seed = value
            elif kind == "task":
                task[short] = value
            else:
                method[short] = value
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed must be a whole number, got {seed!r}")
        return Run(Task.of(task), MethodConfig.of(method), seed)


def _split_name(name: str, method: MethodConfig) -> tuple[str, str]:
    if name == "seed":
        return "seed", name
    kind, dot, short = name.partition(".")
    if dot and kind in {"task", "method"}:
        return kind, short
    if name in Task.__dataclass_fields__:
        return "task", name
    settings = method_settings(method)
    if name in settings:
        return "method", name
    known = ["seed", *Task.__dataclass_fields__, *settings]
    raise ValueError(f"there is no setting {name!r}.{nearest(name, known)}")


def method_settings(method: MethodConfig) -> list[str]:
    """The names of all settings of a method, those of its base included."""
    base = (name for name in MethodConfig.__dataclass_fields__ if name != "settings")
    return [*base, *parameters_of(method.name)]
