"""Descriptions for `vasso list`: rows of methods, data sets, models; one of them in full."""

import shlex
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

import torch

import vasso
from vasso.lab.cli.list import Row, aligned
from vasso.lab.data import DATASETS
from vasso.lab.experiment.method import BASES, parameters_of, trainable
from vasso.lab.experiment.run import Run
from vasso.lab.models import MODELS, build
from vasso.lab.schema import name_of
from vasso.lab.studies import study as studies
from vasso.lab.studies.study import Study
from vasso.lab.translation.corpora import CORPORA
from vasso.lab.translation.language_model import LANGUAGE_MODELS
from vasso.lab.translation.transformer import SIZES

SET_BY_LAB = ("total", "start")
"""Settings of methods that the lab derives from the length of the run."""
TRANSLATES = "sentences, for `vasso translate`"
READS = "English sentences, a language model"
TRANSLATOR = "--base AdamW --lr 0.002 --batch 1024 --schedule inverse-sqrt --warm-up 400 --epochs 5"


def _methods() -> list[Row]:
    plain = [(name, "1", f"The base alone: torch.optim.{name}.") for name in BASES]
    return [*plain, *((name, e.price, e.what) for name, e in vasso.methods().items())]


def _data() -> list[Row]:
    images = [(name, "images", d.origin, d.images) for name, d in DATASETS.items()]
    return [*images, *((name, "sentences", c.origin, c.pairs) for name, c in CORPORA.items())]


def _models() -> list[Row]:
    images = [(name, "images", m.description) for name, m in MODELS.items()]
    sizes = ((n, f"{s.layers} + {s.layers} layers of width {s.width}") for n, s in SIZES.items())
    gpt = ((n, f"{s.layers} causal layers of width {s.width}") for n, s in LANGUAGE_MODELS.items())
    return [*images, *((name, "sentences", size) for name, size in (*sizes, *gpt))]


LISTS: Mapping[str, Callable[[], list[Row]]] = {
    "methods": _methods,
    "data": _data,
    "models": _models,
}


def about_method(name: str) -> str:
    """A method, or all that one class makes: equation, source, settings, how to write it."""
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
        ("evidence", entry.evidence),
        ("needs", ", ".join(entry.needs)),
        ("settings", ", ".join(f"{key}{_default(p)}" for key, p in takes.items())),
        ("in Python", _python(entry)),
        ("try", example(name) if name in trainable() else ""),
    ]
    return f"{name}: {entry.what}\n" + aligned([fact for fact in facts if fact[1]])


def _default(parameter: Parameter) -> str:
    if parameter.name in SET_BY_LAB:
        return " (set by the lab from the length of the run)"
    missing = parameter.default is Parameter.empty
    return " (required)" if missing else f"={parameter.default!r}"


def _class(entry: vasso.Method) -> str:
    return entry.call.partition("(")[0]


def _python(entry: vasso.Method) -> str:
    """How to write it, and where the names come from."""
    made = getattr(entry.build, "func", entry.build)
    home = "vasso" if hasattr(vasso, _class(entry)) else made.__module__
    return f"{entry.call}  # names from {home}"


def example(name: str) -> str:
    """A command for a shell that trains with a method."""
    entry, takes = vasso.methods()[name], parameters_of(name)
    given = {key: value for key, value in entry.example.items() if key not in SET_BY_LAB}
    if not given and "rho" in takes:
        given = {"rho": takes["rho"].default}
    words = ["--rho", str(given.pop("rho"))] if "rho" in given else []
    words += ["--set", *(f"{key}={value}" for key, value in given.items())] if given else []
    return shlex.join(["vasso", "train", "--method", name, *words])


def _row(kind: str, name: str) -> Row:
    rows = {row[0]: row for row in LISTS[kind]()}
    return rows[name_of({"models": "model"}.get(kind, kind), name, rows)]


def about_data(name: str) -> str:
    """A data set: its size, its source, how to load it and train on it."""
    name, kind, source, what = _row("data", name)
    picture = name in DATASETS
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
    return f"{name}: {kind if picture else TRANSLATES}\n" + aligned(facts)


def about_model(name: str) -> str:
    """A model: what it is, its size, how to build and train it."""
    name, kind, what = _row("models", name)
    if kind == "sentences":
        translates = name in SIZES
        given = "source=3200, target=2504" if translates else "entries=2504"
        module = "transformer" if translates else "language_model"
        python = f"vasso.lab.translation.{module}.build({name!r}, {given}, seed=0)"
        command = ("try", f"vasso train --data multi30k --model {name} {TRANSLATOR}")
        use = TRANSLATES if translates else READS
        return f"{name}: {what}; {use}\n" + aligned([("in Python", python), command])
    with torch.device("meta"):
        model = build(name, classes=10, size=_side(name), seed=None)
    size = sum(p.numel() for p in model.parameters())
    facts = [
        ("weights", f"{size:,} for 10 classes and images of 3x{_side(name)}x{_side(name)}"),
        ("in Python", f"vasso.lab.models.build({name!r}, classes=10, size={_side(name)}, seed=0)"),
        ("try", f"vasso train --data {_fitting_data(name)} --model {name}"),
    ]
    return f"{name}: {what}\n" + aligned(facts)


def _side(name: str) -> int:
    return {"vit_s8": 64, "vit_s32": 224, "resnet50": 224}.get(name, 32)


def _fitting_data(name: str) -> str:
    return {64: "tiny-imagenet", 224: "imagenet --resized-crop 224"}.get(_side(name), "cifar10")


def about_study(study: Study) -> str:
    """A study: its question, its scales and the published figures."""
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
    words = [" ".join(plain)] if plain else []
    for key, value in figure.items():
        if key == "wrong":
            words.append(_wrong(value))
        elif key not in {"model", "method", "mean", "spread", "n"}:
            words.append(f"{key} {value}")
    spread = f" ± {figure['spread']}" if "spread" in figure else ""
    n = f" (n={figure['n']})" if "n" in figure else ""
    return f"{', '.join(words)}: {figure['mean']}{spread}{n}"


DETAILS: Mapping[str, Callable[[str], str]] = {
    "studies": lambda name: about_study(studies.load(name)),
    "methods": about_method,
    "data": about_data,
    "models": about_model,
}
