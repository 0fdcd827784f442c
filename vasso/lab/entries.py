"""What is there to know of one method, data set, model or study? As text, with a line to try."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

import torch

import vasso
from vasso.lab import study as studies
from vasso.lab.catalogues import KINDS, TRANSLATES
from vasso.lab.data import NAMES as DATA
from vasso.lab.methods import BASES, parameters_of
from vasso.lab.models import build
from vasso.lab.runs import Run
from vasso.lab.settings import name_of
from vasso.lab.study import Study
from vasso.lab.tables import aligned

OF_THE_LAB = ("total", "start")
"""Settings that the lab knows by itself, from the length of the run."""
TRANSLATOR = "--base AdamW --lr 0.002 --batch 1024 --schedule inverse-sqrt --warm-up 400 --epochs 5"


def about(kind: str, name: str) -> str:
    """One entry in full.

    Args:
        kind: one of `vasso.lab.catalogues.KINDS`.
        name: of the entry; of a method the class will do.

    Returns:
        Text.
    """
    tellers: Mapping[str, Callable[[str], str]] = {
        "studies": lambda name: about_study(studies.load(name)),
        "methods": about_method,
        "data": about_data,
        "models": about_model,
    }
    return tellers[kind](name)


# -- methods --------------------------------------------------------------------------------------


def about_method(name: str) -> str:
    """A method, or all that one class makes.

    Args:
        name: of the catalogue, of a class, or of a base.

    Returns:
        Its equation, source, settings with their defaults, and how to write it.
    """
    entries = vasso.methods()
    folded = name.casefold()
    classes = [key for key, e in entries.items() if _class(e).casefold() == folded]
    if folded not in {key.casefold() for key in entries} and classes:
        return "\n\n".join(map(_method, classes))
    found = name_of("method", name, [*BASES, *entries])
    return _base(found) if found in BASES else _method(found)


def _base(name: str) -> str:
    python = ("in Python", f"torch.optim.{name}(model.parameters(), lr=0.05)")
    return f"{name}: The base alone.\n" + aligned([python, ("try", f"vasso train --method {name}")])


def _method(name: str) -> str:
    entry, takes = vasso.methods()[name], parameters_of(name)
    facts = [
        ("equation", entry.equation),
        ("from", entry.paper),
        ("gradients a step", entry.price),
        ("vectors kept", entry.vectors),
        ("needs", ", ".join(entry.needs)),
        ("settings", ", ".join(f"{key}{_default(p)}" for key, p in takes.items())),
        ("in Python", _python(entry)),
        ("try", example(name)),
    ]
    return f"{name}: {entry.what}\n" + aligned([fact for fact in facts if fact[1]])


def _default(parameter: Parameter) -> str:
    if parameter.name in OF_THE_LAB:
        return " (the lab's, from the length of the run)"
    missing = parameter.default is Parameter.empty
    return " (to be given)" if missing else f"={parameter.default!r}"


def _class(entry: vasso.Method) -> str:
    return entry.call.partition("(")[0]


def _python(entry: vasso.Method) -> str:
    """How to write it, and where the names come from."""
    made = getattr(entry.build, "func", entry.build)
    home = "vasso" if hasattr(vasso, _class(entry)) else made.__module__
    return f"{entry.call}  # names from {home}"


def example(name: str) -> str:
    """A command that trains with a method.

    Args:
        name: of the method.

    Returns:
        One line for a shell.

    Example:
        >>> print(example("m-SAM (chunks)"))
        vasso train --method 'm-SAM (chunks)' --set m=12
    """
    entry, takes = vasso.methods()[name], parameters_of(name)
    given = {key: value for key, value in entry.example.items() if key not in OF_THE_LAB}
    if not given and "rho" in takes:
        given = {"rho": takes["rho"].default}
    words = ["--rho", str(given.pop("rho"))] if "rho" in given else []
    words += ["--set", *(f"{key}={value}" for key, value in given.items())] if given else []
    return shlex.join(["vasso", "train", "--method", name, *words])


# -- data and models ------------------------------------------------------------------------------


def _row(kind: str, name: str) -> tuple[str, ...]:
    rows = {row[0]: row for row in KINDS[kind]()}
    return rows[name_of({"models": "model"}.get(kind, kind), name, rows)]


def about_data(name: str) -> str:
    """A data set.

    Args:
        name: which.

    Returns:
        How many there are, where they come from, how to load and learn them.
    """
    name, what, source, kind = _row("data", name)
    picture = name in DATA
    model = "mlp" if name in {"digits", "fashion-mnist"} else "resnet8"
    train = f"--model {model}" if picture else f"--model transformer-small {TRANSLATOR}"
    module = "vasso.lab.data" if picture else "vasso.lab.translation.pairs"
    if name == "imagenet":
        train = "--model resnet50 --resized-crop 224 --flip"
    facts = [
        ("training, test" if picture else "training, validation, test", what),
        ("from", source),
        ("in Python", f"{module}.load({name!r})"),
        ("try", f"vasso train --data {name} {train}"),
    ]
    return f"{name}: {kind}\n" + aligned(facts)


def about_model(name: str) -> str:
    """A model.

    Args:
        name: which.

    Returns:
        What it is, how large, how to build and train it.
    """
    name, what, kind = _row("models", name)
    if kind == TRANSLATES:
        given = "source=3200, target=2504, seed=0"
        python = f"vasso.lab.translation.transformer.build({name!r}, {given})"
        tried = ("try", f"vasso train --data multi30k --model {name} {TRANSLATOR}")
        return f"{name}: {what}; {kind}\n" + aligned([("in Python", python), tried])
    with torch.device("meta"):
        size = sum(
            p.numel() for p in build(name, classes=10, size=_side(name), seed=None).parameters()
        )
    facts = [
        ("weights", f"{size:,} for 10 classes and images of 3x{_side(name)}x{_side(name)}"),
        ("in Python", f"vasso.lab.models.build({name!r}, classes=10, size={_side(name)}, seed=0)"),
        ("try", f"vasso train --data {_fitting(name)} --model {name}"),
    ]
    return f"{name}: {what}\n" + aligned(facts)


def _side(name: str) -> int:
    return {"vit_s8": 64, "vit_s32": 224, "resnet50": 224}.get(name, 32)


def _fitting(name: str) -> str:
    return {64: "tiny-imagenet", 224: "imagenet --resized-crop 224"}.get(_side(name), "cifar10")


# -- studies --------------------------------------------------------------------------------------


def about_study(study: Study) -> str:
    """A study as text.

    Args:
        study: the study.

    Returns:
        Its question, its scales and the published figures.
    """
    lines = [f"{study.name}: {study.title}", study.question]
    lines += [f"Shows: {study.shows or 'a question of ours'}. Measures: {study.measure}."]
    for scale in study.scales.values():
        lines += ["", f"Scale {scale.name}: {len(scale.runs)} runs. {scale.about}".rstrip()]
        lines += [*dict.fromkeys(map(_run, scale.runs)), *(f"  open: {x}" for x in scale.open)]
    for known in study.known:
        lines += ["", f"Known: {known['source']} ({known['measure']})"]
        lines += [f"  {_figure(figure)}" for figure in known["figures"]]
    return "\n".join(lines)


def _run(run: Run) -> str:
    wrong = f", {_wrong(run.task.wrong)}" if run.task.wrong else ""
    return f"  {run.task.data} {run.task.model} {run.method.label}{wrong}"


def _wrong(share: float) -> str:
    return f"{100 * share:g} % of labels wrong"


def _figure(figure: Mapping[str, Any]) -> str:
    plain = [str(figure[key]) for key in ("model", "method") if key in figure]
    told = [" ".join(plain)] if plain else []
    for key, value in figure.items():
        if key == "wrong":
            told.append(_wrong(value))
        elif key not in {"model", "method", "mean", "spread", "n"}:
            told.append(f"{key} {value}")
    spread = f" ± {figure['spread']}" if "spread" in figure else ""
    n = f" (n={figure['n']})" if "n" in figure else ""
    return f"{', '.join(told)}: {figure['mean']}{spread}{n}"
