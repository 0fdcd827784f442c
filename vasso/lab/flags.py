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
        own |= assignments(given["set"])
        task = {f.name: given[f.name] for f in fields(Task)}
        kept = [f.name for f in fields(Method) if f.name not in LEFT_OUT]
        method = {name: given[RENAMED.get(name, name)] for name in kept}
        known = {key: own.pop(key) for key in list(own) if key in task}
        return {"task": task | known, "method": method | own, "seed": given["seed"]}


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
    return Annotated[str | None, tyro.conf.arg(help=text)]


RunFlags: Any = make_dataclass(
    "RunFlags",
    [
        *_flags(Method, {"method": "VaSSO"}),
        ("rho", _own("radius of the ball, or a schedule."), field(default=None)),
        ("theta", _own("weight of the newest gradient in the slope."), field(default=None)),
        (
            "set",
            Annotated[
                tuple[str, ...],
                tyro.conf.arg(help="further settings of the method, as name=value."),
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
