"""Which flags has a run on the command line? One for each setting of `Task` and of `Method`.

They are made from those two, help texts too, so that a new setting has its flag at once.
"""

from __future__ import annotations

import re
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any, get_type_hints

import tyro

from vasso.lab.methods import Method
from vasso.lab.settings import assignments, value_of
from vasso.lab.tasks import Task

RENAMED = {"name": "method"}
LEFT_OUT = ("settings",)
RHO = (
    "radius of the ball; or a schedule of `vasso.schedules`, in quotes: 'linear(0.1, 0.02, 200)' "
    "goes from 0.1 to 0.02 in 200 steps."
)
THETA = "weight of the newest gradient in the slope; 1 is SAM's."
SET = "further settings of the method, as name=value; `vasso list methods NAME` shows them."


def texts(documented: type) -> dict[str, str]:
    """The help of each field, from the `Args` of a docstring.

    Args:
        documented: the class.

    Returns:
        Field -> text.

    Example:
        >>> texts(Task)["batch"]
        'images in a step; of sentences, pieces, padding counted.'
    """
    _, _, section = (documented.__doc__ or "").partition("Args:\n")
    section = re.split(r"\n\s*\n", section)[0]
    entries = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", section, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in entries}


class Tables:
    """What the flags of a run amount to."""

    def as_tables(self) -> dict[str, Any]:
        """Tables for `Run.of`.

        Returns:
            task, method and seed.
        """
        given: dict[str, Any] = dict(vars(self))
        own = {name: value_of(given[name]) for name in ("rho", "theta") if given[name] is not None}
        more = assignments(given["set"])
        self._check_once(more)
        own |= more
        task = {f.name: given[f.name] for f in fields(Task)}
        kept = [f.name for f in fields(Method) if f.name not in LEFT_OUT]
        method = {name: given[RENAMED.get(name, name)] for name in kept}
        known = {key: own.pop(key) for key in list(own) if key in task}
        return {"task": task | known, "method": method | own, "seed": given["seed"]}

    def _check_once(self, more: dict[str, Any]) -> None:
        """Raises if a setting is given by its flag and by `--set`, and not the same."""
        flags = {f.name: f.default for f in fields(self)}  # type: ignore[arg-type]
        for name, value in more.items():
            given = getattr(self, name) if name in flags else None
            if name in flags and given != flags[name] and str(given) != str(value):
                flag = name.replace("_", "-")
                raise ValueError(
                    f"{name} is given twice, by --{flag} {given} and by --set {name}={value}: "
                    "leave one out"
                )


def _flags(source: type, default: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    hints, told = get_type_hints(source), texts(source)
    found = []
    for f in fields(source):
        if f.name in LEFT_OUT:
            continue
        name = RENAMED.get(f.name, f.name)
        hint: Any = hints[f.name]
        kind = Annotated[hint, tyro.conf.arg(help=told[f.name])]
        found.append((name, kind, field(default=default.get(name, f.default))))
    return found


def _own(text: str) -> Any:
    """A setting of the method that has its own default there, not here."""
    hint = "(default: the method's own)"
    about = tyro.conf.arg(help=text, metavar="NUMBER|SCHEDULE", help_behavior_hint=hint)
    return Annotated[str | None, about]


RunFlags: Any = make_dataclass(
    "RunFlags",
    [
        *_flags(Method, {"method": "VaSSO"}),
        ("rho", _own(RHO), field(default=None)),
        ("theta", _own(THETA), field(default=None)),
        (
            "set",
            Annotated[
                tuple[str, ...],
                tyro.conf.arg(help=SET),
            ],
            field(default=()),
        ),
        *_flags(Task, {}),
        (
            "seed",
            Annotated[int, tyro.conf.arg(help="of everything that is random in the run.")],
            field(default=0),
        ),
    ],
    bases=(Tables,),
    frozen=True,
)
