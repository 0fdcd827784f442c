"""What does a store say to a program? Every cell and every comparison as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vasso.diagnostics.estimates import Estimate
from vasso.lab import statistics
from vasso.lab.report.cells import NUMBERS, Cell
from vasso.lab.report.comparing import Comparison, OneRadius, Pick
from vasso.lab.report.findings import Answered, Findings
from vasso.lab.report.rerun import command
from vasso.lab.report.sections import Table

FORMAT = 1
RULE = (
    "Differences are taken seed by seed, last epoch, and tested by Student's paired t-test, "
    "two-sided; p-values are adjusted by Holm over all comparisons of the study at this scale. "
    f"Below {statistics.ALPHA:g} one method is ahead, else these runs cannot tell. With fewer than "
    f"{statistics.LEAST} shared seeds there is no verdict. A published difference counts as a "
    "claim if it is larger than the root of the sum of its squared deviations; ours agrees or "
    "disagrees with its sign."
)


def answer(found: Findings) -> dict[str, Any]:
    """All findings as JSON may hold them.

    Args:
        found: the findings.

    Returns:
        Plain tables and lists; numbers that are not finite are None.
    """
    troubles = [{"where": t.where, "why": t.why} for t in found.contents.troubles]
    return {
        "format": FORMAT,
        "store": found.name,
        "runs": len(found.contents.runs),
        "rule": RULE,
        "troubles": troubles,
        "studies": [_study(answered) for answered in found.answered],
    }


def _study(answered: Answered) -> dict[str, Any]:
    section = answered.section
    extras = zip(section.tables, answered.picks, answered.radii, strict=True)
    return {
        "study": section.study.name,
        "scale": section.scale.name,
        "title": section.study.title,
        "question": section.study.question,
        "shows": section.study.shows,
        "runs": section.counts(),
        "tasks": [_table(*each) for each in extras],
        "comparisons": [comparison_as_table(c) for c in answered.comparisons],
        "known": [dict(known) for known in section.study.known],
    }


def _table(table: Table, picks: Mapping[str, Pick], one: OneRadius | None) -> dict[str, Any]:
    chosen = {
        name: {"rho": pick.cell.rho, "among": pick.among, "of": pick.of, "at_end": pick.at_end}
        for name, pick in picks.items()
    }
    return {
        "title": table.title,
        "task": table.task.as_table(),
        "cells": [cell_as_table(table, cell) for cell in table.cells],
        "chosen": chosen,
        "one_radius": vars(one) if one is not None else None,
    }


def cell_as_table(table: Table, cell: Cell) -> dict[str, Any]:
    """A cell as plain values.

    Args:
        table: its task.
        cell: the cell.

    Returns:
        Method, seeds, every number with mean, interval and values, and the command.
    """
    return {
        "label": table.label(cell),
        "method": table.name(cell),
        "rho": cell.rho,
        "settings": cell.method.as_table(),
        "n": cell.n,
        "seeds": list(cell.seeds),
        "under_way": [trained.run.seed for trained in cell.under_way],
        "missing": list(cell.missing),
        **{name: _number(cell, name) for name in NUMBERS},
        "command": command(cell.run),
    }


def _number(cell: Cell, name: str) -> dict[str, Any] | None:
    found = cell.estimate(name)
    if found is None:
        return None
    return {**estimate_as_table(found), "values": list(cell.values(name).values())}


def estimate_as_table(estimate: Estimate) -> dict[str, Any]:
    """An estimate as plain values.

    Args:
        estimate: the estimate.

    Returns:
        mean, low, high; None for ends that are infinite.
    """
    ends = {"mean": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: value if math.isfinite(value) else None for name, value in ends.items()}


def comparison_as_table(c: Comparison) -> dict[str, Any]:
    """A comparison as plain values.

    Args:
        c: the comparison.

    Returns:
        Who, the difference, p-values, verdicts.
    """
    difference = None if c.paired is None else estimate_as_table(c.paired.difference)
    return {
        "task": c.table.title,
        "kind": c.kind,
        "ours": c.table.label(c.ours),
        "theirs": c.table.label(c.theirs),
        "n": 0 if c.paired is None else c.paired.n,
        "difference": difference,
        "p": None if c.paired is None else c.paired.p,
        "p_holm": c.adjusted,
        "p_flip": None if c.paired is None else c.paired.p_flip,
        "standing": c.standing,
        "published": [
            {
                "source": judged.published.source,
                "differences": list(judged.published.differences),
                "verdict": judged.verdict,
            }
            for judged in c.judged
        ],
    }
