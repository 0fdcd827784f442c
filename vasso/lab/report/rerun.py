"""How is a number made again? The command that trains a run, every setting on it."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

from vasso.lab.methods import PLAIN, Method
from vasso.lab.place import STORE
from vasso.lab.runs import Run
from vasso.lab.tasks import Task


def command(run: Run, store: str = str(STORE)) -> str:
    """The command that trains this run.

    Args:
        run: the run.
        store: where.

    Returns:
        Words for a shell.

    Example:
        >>> command(Run(Task(wrong=0.5), Method.of({"name": "SAM", "rho": 0.1}), seed=2))
        'vasso train --method SAM --rho 0.1 --wrong 0.5 --seed 2'
    """
    name = run.method.base if run.method.name == PLAIN else run.method.name
    words = ["vasso", "train", "--method", name]
    own = dict(run.method.settings)
    words += [word for key in ("rho", "theta") if key in own for word in _flag(key, own.pop(key))]
    words += [word for f in fields(Method) for word in _given(f, run.method)]
    words += [word for f in fields(Task) for word in _given(f, run.task)]
    words += ["--set", *(f"{key}={value}" for key, value in own.items())] if own else []
    place = [] if store == str(STORE) else ["--store", store]
    return shlex.join([*words, "--seed", str(run.seed), *place])


def _given(field: Any, of: Method | Task) -> list[str]:
    """The words of a setting that is not the default."""
    value = getattr(of, field.name)
    if field.name in {"name", "settings"} or value == field.default:
        return []
    if field.name == "base" and isinstance(of, Method) and of.name == PLAIN:
        return []
    return _flag(field.name, value)


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag] if value else [f"--no-{flag[2:]}"]
    return [flag, repr(value) if isinstance(value, float) else str(value)]
