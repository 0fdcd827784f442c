"""What is one run? A task, a method and a seed, with an id that says so.

The id ends with a hash of all settings that are not the default: the same settings give the same id
on every machine, and a setting that a later version adds does not rename old runs. A default, once
published, stays.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vasso.lab.methods import Method, parameters_of
from vasso.lab.settings import nearest
from vasso.lab.tasks import Task


@dataclass(frozen=True)
class Run:
    """A task, a method and a seed.

    Args:
        task: what is learnt.
        method: what trains it.
        seed: of initial weights, order, augmentation, sub-sample, split, wrong labels, dropout.

    Example:
        >>> Run(Task(), Method.of({"name": "VaSSO", "rho": 0.1}), seed=3).id
        'digits-mlp-vasso-rho-0.1-s3-ec0e75c7ee'
    """

    task: Task
    method: Method
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be a whole number from 0 to 2^31 - 1, got {self.seed}")

    @property
    def id(self) -> str:
        """Readable at the front, unique at the end; safe as the name of a directory."""
        text = f"{self.task.data} {self.task.model} {self.method.label}"
        dotted = re.sub(r"(?<!\d)\.|\.(?!\d)", "-", text.lower())  # a point stands in numbers only
        slug = re.sub(r"[^a-z0-9.]+", "-", dotted).strip("-")[:80].strip("-.")
        canonical = json.dumps(_canonical(self.as_table()), sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:10]
        return f"{slug or 'run'}-s{self.seed}-{digest}"

    def as_table(self) -> dict[str, Any]:
        """What is not the default.

        Returns:
            task, method and seed.
        """
        return {"task": self.task.as_table(), "method": self.method.as_table(), "seed": self.seed}

    def in_full(self) -> dict[str, Any]:
        """Every setting, as a store keeps it.

        Returns:
            task, method and seed, each default written out.
        """
        method = {**asdict(self.method), "settings": dict(self.method.settings)}
        return {"task": asdict(self.task), "method": method, "seed": self.seed}

    @staticmethod
    def of(table: Mapping[str, Any], where: str = "the run") -> Run:
        """A run from tables, as `as_table` and `in_full` give them.

        Args:
            table: task, method and seed.
            where: where it comes from, for messages.

        Returns:
            The run.
        """
        method = dict(table.get("method", {}))
        method |= dict(method.pop("settings", {}))
        task = Task.of(table.get("task", {}), f"{where}, task")
        return Run(task, Method.of(method, f"{where}, method"), int(table.get("seed", 0)))

    def takes(self, name: str) -> bool:
        """Whether there is a setting of this name in the task or in the method of this run.

        Args:
            name: such as `epochs`, `task.epochs`, `rho` or `method.rho`.

        Returns:
            Whether it can be changed.
        """
        kind, dot, short = name.partition(".")
        own = method_settings(self.method)
        if dot:
            return short in {"task": list(Task.__dataclass_fields__), "method": own}.get(kind, ())
        return name == "seed" or name in Task.__dataclass_fields__ or name in own

    def changed(self, overrides: Mapping[str, Any]) -> Run:
        """The same run with other settings.

        Args:
            overrides: `task.epochs`, `method.rho`, `seed` or short `epochs`, `rho` -> value.

        Returns:
            The new run.
        """
        task, method, seed = self.task.as_table(), self.method.as_table(), self.seed
        for name, value in overrides.items():
            kind, short = _addressed(name, self.method)
            if kind == "seed":
                seed = value
            elif kind == "task":
                task[short] = value
            else:
                method[short] = value
        return Run(Task.of(task), Method.of(method), _whole("seed", seed))


def _canonical(value: Any) -> Any:
    """1 and 1.0 are the same setting."""
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return value


def _addressed(name: str, method: Method) -> tuple[str, str]:
    """Whether a setting is of the task, of the method or the seed, and its short name."""
    if name == "seed":
        return "seed", name
    kind, dot, short = name.partition(".")
    if dot and kind in {"task", "method"}:
        return kind, short
    if name in Task.__dataclass_fields__:
        return "task", name
    taken = method_settings(method)
    if name in taken:
        return "method", name
    known = ["seed", *Task.__dataclass_fields__, *taken]
    raise ValueError(f"there is no setting {name!r}.{nearest(name, known)}")


def method_settings(method: Method) -> list[str]:
    """Every setting that a method takes, of its base too.

    Args:
        method: the method.

    Returns:
        Names.
    """
    base = (name for name in Method.__dataclass_fields__ if name != "settings")
    return [*base, *parameters_of(method.name)]
