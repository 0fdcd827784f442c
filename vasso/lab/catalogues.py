"""What can be asked for? Methods, data, models, studies as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import vasso
from vasso.lab import study as studies
from vasso.lab.data import NAMES as DATA
from vasso.lab.models import MODELS
from vasso.lab.study import Study

KINDS = ("studies", "methods", "data", "models")


def listed(kind: str) -> str:
    """A list as text.

    Args:
        kind: one of `KINDS`.

    Returns:
        A line for each entry.
    """
    rows = _rows(kind)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _rows(kind: str) -> list[tuple[str, ...]]:
    if kind == "methods":
        plain = ("SGD, AdamW", "1", "The base alone.")
        entries = vasso.methods().items()
        return [plain, *((name, entry.price, entry.what) for name, entry in entries)]
    if kind == "studies":
        found = [studies.load(name) for name in studies.names()]
        return [(s.name, s.shows or "ours", s.question) for s in found]
    return [(name,) for name in (DATA if kind == "data" else MODELS)]


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
        seen = dict.fromkeys(f"  {r.task.data} {r.task.model} {r.method.label}" for r in scale.runs)
        lines += [*seen, *(f"  open: {point}" for point in scale.open)]
    for known in study.known:
        lines += ["", f"Known: {known['source']} ({known['measure']})"]
        lines += [f"  {_figure(figure)}" for figure in known["figures"]]
    return "\n".join(lines)


def _figure(figure: Mapping[str, Any]) -> str:
    told = [f"{value}" for key, value in figure.items() if key not in {"mean", "spread", "n"}]
    spread = f" ± {figure['spread']}" if "spread" in figure else ""
    n = f" (n={figure['n']})" if "n" in figure else ""
    return f"{' '.join(told)}: {figure['mean']}{spread}{n}"
