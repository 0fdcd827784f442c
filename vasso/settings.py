"""Where do rho and theta live? In the param groups of the base: there they differ and change.

A schedule is kept aside and asked at each step; the number it gives is written into the group. The
counters live in the groups too: they have to survive every kind of checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.optim import Optimizer

from vasso import checks
from vasso.checkpoints import PREFIX
from vasso.parts import Part, Range, Schedule, Setting

Group: TypeAlias = dict[str, Any]

STEP, SKIPPED, COST = f"{PREFIX}step", f"{PREFIX}skipped", f"{PREFIX}cost"


@dataclass(frozen=True)
class Declared:
    """A setting that lives in the param groups.

    Attributes:
        name: its name in the papers.
        key: its key in the groups: the name, or the name with our prefix where the base has a
            setting of that name already (Adadelta's rho).
        value: the constructor's value.
        range: the values it may take.
    """

    name: str
    key: str
    value: Setting
    range: Range


def declare(base: Optimizer, rho: Setting, parts: tuple[Part, ...]) -> tuple[Declared, ...]:
    """The settings of a method and the keys under which they live in the groups of a base.

    Args:
        base: the optimizer to wrap.
        rho: the radius.
        parts: what the method is made of.

    Returns:
        rho first, then the settings of the parts in their order.

    Raises:
        ValueError: rho is out of range, or two parts use one name.
    """
    found: dict[str, tuple[Setting, Range]] = {"rho": (rho, Range(least=0))}
    if not callable(rho):
        found["rho"][1].check("rho", rho)
    for part in parts:
        for name, allowed in part.scheduled.items():
            if name in found:
                raise ValueError(f"two parts have a setting called {name!r}: {parts}")
            found[name] = (part.value_of(name), allowed)
    return tuple(
        Declared(name, PREFIX + name if name in base.defaults else name, value, allowed)
        for name, (value, allowed) in found.items()
    )


def scheduled(settings: tuple[Declared, ...], group: Group) -> dict[str, Schedule]:
    """The settings of a new group that are schedules, if they can be asked.

    Args:
        settings: what the method declares.
        group: the group; what it does not have is the constructor's.

    Returns:
        Name -> schedule.
    """
    given = {s.name: group.get(s.key, s.value) for s in settings}
    found = {name: value for name, value in given.items() if callable(value)}
    for name, value in found.items():
        checks.schedule(name, value)
    return found


def current(
    settings: tuple[Declared, ...], group: Group, schedules: Mapping[str, Schedule]
) -> dict[str, float]:
    """The settings of a group as numbers, schedules asked and ranges checked.

    Args:
        settings: what the method declares.
        group: the group; what it does not have is the constructor's.
        schedules: what overrides both.

    Returns:
        Name -> value.
    """
    found = {}
    for s in settings:
        given: Setting = schedules.get(s.name, group.get(s.key, s.value))
        value = (
            given(group.get(STEP, 0), float(group.get("lr") or 0.0)) if callable(given) else given
        )
        found[s.name] = s.range.check(s.name, value)
    return found


def kept_by(
    part: Part, values: Mapping[str, float], schedules: Mapping[str, Schedule]
) -> tuple[str, ...]:
    """The vectors a part would remember under these settings, now or when a schedule moves.

    Args:
        part: the part.
        values: the current settings of a group.
        schedules: those of them that move.

    Returns:
        Their names.
    """
    if any(name in schedules for name in part.scheduled):
        return part.remembers
    return part.keeps(**{name: values[name] for name in part.scheduled})
