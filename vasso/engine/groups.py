"""Settings and counters in the param groups of the base: rho, theta, steps, cost.

They are there because they may differ by group, change over time, and have to survive every kind of
checkpoint. A schedule is kept outside; the number that it gives is written into the group at each
step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vasso import validation
from vasso.parts.geometries import Geometry
from vasso.parts.part import Part, Range, Schedule, Setting

Group: TypeAlias = dict[str, Any]

PREFIX = "vasso_"
STEP, SKIPPED, COST = f"{PREFIX}step", f"{PREFIX}skipped", f"{PREFIX}cost"
METHOD, VERSION = f"{PREFIX}method", f"{PREFIX}format"
FORMAT = 1


@dataclass(frozen=True)
class Declared:
    """A setting that lives in the param groups.

    `key` is its name there: the name, or the name with our prefix where the base has a setting of
    that name already (Adadelta's rho). `value` is the constructor's.
    """

    name: str
    key: str
    value: Setting
    range: Range


class Groups:
    """The param groups of a base optimizer, with the settings of a method in them.

    `settings` are rho, if there is one, then those of the parts in their order. `released` says
    whether the base has been unwrapped.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: Setting | None,
        parts: tuple[Part, ...],
        model: nn.Module | None = None,
    ) -> None:
        self.base, self.parts, self.model = base, parts, model
        self.settings = declare(base, rho, parts)
        if rho is None and "rho" not in base.defaults:
            for group in base.param_groups:  # this method has no radius
                group.pop("rho", None)
        self._schedules: dict[Tensor, dict[str, Schedule]] = {}
        self._last: list[tuple[Group, dict[str, Schedule]]] = []
        self.released = False
        self._names: dict[Tensor, str] = {}
        self._named: list[Tensor] = []

    def adopt(self) -> list[Group]:
        """The base's groups; new ones get the constructor's values where the user gave none."""
        for group in self.base.param_groups:
            known = METHOD in group and any(p in self._schedules for p in group["params"])
            if known and not any(callable(group.get(s.key)) for s in self.settings):
                continue
            earlier = self.schedules_of(group) if METHOD in group else {}
            schedules = earlier | self.scheduled(group)  # perhaps one that the user has put there
            self._last = [row for row in self._last if row[0] is not group] + [(group, schedules)]
            values = self.values(group, schedules)
            self._schedules.update(dict.fromkeys(group["params"], schedules))
            group.update({s.key: values[s.name] for s in self.settings} | self.stamp())
        return self.base.param_groups

    def schedules_of(self, group: Group, row: int = 0) -> dict[str, Schedule]:
        """The settings of a group that are schedules; `row` is where it was in the last step.

        They stay with the group, whatever its parameters. A load makes new groups, which are
        known by their parameters.
        """
        for last, schedules in (*self._last[row : row + 1], *self._last):
            if last is group:
                return schedules
        return next((self._schedules[p] for p in group["params"] if p in self._schedules), {})

    def check(self, group: Group) -> None:
        """Raises if a value in a new group is out of its range or not a schedule."""
        self.values(group, self.scheduled(group))

    def scheduled(self, group: Group) -> dict[str, Schedule]:
        """The settings of a group that are schedules, checked to take a step and a lr."""
        given = {s.name: group.get(s.key, s.value) for s in self.settings}
        found = {name: value for name, value in given.items() if callable(value)}
        for name, value in found.items():
            validation.schedule(name, value)
        return found

    def values(self, group: Group, schedules: Mapping[str, Schedule]) -> dict[str, float]:
        """The settings of a group as numbers: schedules evaluated, ranges checked."""
        found = {}
        for s in self.settings:
            value: Setting = schedules.get(s.name, group.get(s.key, s.value))
            if callable(value):
                value = value(group.get(STEP, 0), float(group.get("lr") or 0.0))
            found[s.name] = s.range.check(s.name, value)
        return found

    def current(self) -> list[dict[str, float]]:
        """The settings of each group for this step; those of schedules are written into it."""
        found, last = [], []
        for row, group in enumerate(self.adopt()):
            schedules = self.schedules_of(group, row)
            values = self.values(group, schedules)
            group.update({s.key: values[s.name] for s in self.settings if s.name in schedules})
            found.append(values)
            last.append((group, schedules))
        self._last = last
        return found

    def params(self) -> list[Tensor]:
        """All parameters, in the order of the groups."""
        return [p for group in self.base.param_groups for p in group["params"]]

    def by_parameter(self) -> dict[Tensor, Group]:
        """The group of each parameter."""
        return {p: group for group in self.base.param_groups for p in group["params"]}

    def names(self, model: nn.Module | None) -> dict[Tensor, str]:
        """The names of the parameters, from the model or from torch's own `param_names`."""
        params = self.params()
        if len(params) != len(self._named) or not all(map(is_, params, self._named)):
            self._named, self._names = params, {}
            for group in self.base.param_groups:
                self._names.update(zip(group["params"], group.get("param_names", ()), strict=False))
            if model is not None:
                self._names.update({p: name for name, p in model.named_parameters()})
        return self._names

    def covered(self) -> set[Tensor] | None:
        """The parameters that the geometry perturbs; None for all."""
        for part in self.parts:
            if isinstance(part, Geometry) and part.selects and self.model is not None:
                modules = [m for m in self.model.modules() if part.covers(m)]
                return {p for m in modules for p in m.parameters(recurse=False)}
        return None

    @property
    def step(self) -> int:
        """How many steps have been completed."""
        return int(self.adopt()[0][STEP])

    @property
    def method(self) -> str:
        """The parts, without the settings that may change: what a checkpoint is known by."""
        return " ".join(filter(None, map(str, self.parts)))

    def count(self, key: str, amount: float = 1) -> None:
        """Adds to a counter in all groups."""
        for group in self.adopt():
            group[key] += amount

    def numbers(self) -> dict[str, float]:
        """The numbers that the parts remember."""
        group = self.adopt()[0]
        return {key.removeprefix(PREFIX): group[key] for key in self._first_numbers()}

    def keep_numbers(self, numbers: Mapping[str, float]) -> None:
        """Writes the numbers that the parts remember into all groups."""
        for group in self.adopt():
            group.update({PREFIX + name: value for name, value in numbers.items()})

    def _first_numbers(self) -> dict[str, float]:
        found = (part.counts for part in self.parts)
        return {PREFIX + name: value for counts in found for name, value in counts.items()}

    def stamp(self) -> Group:
        """Counters and the method's name, as every group carries them."""
        known: Group = next((g for g in self.base.param_groups if METHOD in g), {})
        zeros: Group = {STEP: 0, SKIPPED: 0, COST: 0.0, **self._first_numbers()}
        counters = {key: known.get(key, zero) for key, zero in zeros.items()}
        return {**counters, METHOD: self.method, VERSION: FORMAT}

    def dtypes_of_vectors(self) -> dict[Tensor, dict[str, torch.dtype]]:
        """The vectors to remember of each parameter under the current settings: name -> dtype."""
        found, covered = {}, self.covered()
        for row, group in enumerate(self.adopt()):
            schedules = self.schedules_of(group, row)
            values = {s.name: group[s.key] for s in self.settings}
            without_rho = values.get("rho") == 0 and "rho" not in schedules
            parts = [part for part in self.parts if part.remembers_all or not without_rho]
            rows = [(part, name) for part in parts for name in _vectors_of(part, values, schedules)]
            for p in group["params"]:
                own = rows if covered is None or p in covered else []
                found[p] = {name: part.dtype_of(name, p.dtype) for part, name in own}
        return found

    def strip(self) -> None:
        """Removes settings and counters from the groups."""
        keys = {s.key for s in self.settings}
        for group in self.base.param_groups:
            if METHOD in group:
                for key in [key for key in group if key in keys or key.startswith(PREFIX)]:
                    del group[key]


def declare(base: Optimizer, rho: Setting | None, parts: tuple[Part, ...]) -> tuple[Declared, ...]:
    """The settings of a method and their keys in the groups of a base."""
    found: dict[str, tuple[Setting, Range]] = {}
    if rho is not None:
        found["rho"] = (rho, Range(least=0))
        if not callable(rho):
            found["rho"][1].check("rho", rho)
    for part in parts:
        for name, allowed in part.scheduled.items():
            if name in found:
                raise ValueError(f"two parts have a setting called {name!r}: {tuple(parts)}")
            found[name] = (part.value_of(name), allowed)
    return tuple(
        Declared(name, PREFIX + name if name in base.defaults else name, value, allowed)
        for name, (value, allowed) in found.items()
    )


def _vectors_of(
    part: Part, values: Mapping[str, float], schedules: Mapping[str, Schedule]
) -> tuple[str, ...]:
    """What a part remembers under these settings, now or when a schedule changes them."""
    if any(name in schedules for name in part.scheduled):
        return part.remembers
    return part.keeps(**{name: values[name] for name in part.scheduled})
