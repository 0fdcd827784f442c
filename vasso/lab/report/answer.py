"""What does a store say to a program? Every cell and every comparison as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vasso.diagnostics.estimates import Estimate
from vasso.lab import statistics
from vasso.lab.report.beside import Measured
from vasso.lab.report.cells import Cell
from vasso.lab.report.comparing import Comparison, OneRadius, Pick
from vasso.lab.report.findings import Answered, Findings
from vasso.lab.report.headlines import Headline, Judging
from vasso.lab.report.quantities import ALWAYS
from vasso.lab.report.rerun import command
from vasso.lab.report.sections import Table

FORMAT = 1
RULE = (
    "Differences are taken seed by seed, last epoch, and tested by Student's paired t-test, "
    "two-sided; p-values are adjusted by Holm over all comparisons of the study at this scale. "
    f"Below {statistics.ALPHA:g} one method is ahead (where neither way is better, its number is "
    "larger or smaller), else these runs cannot tell. With fewer than "
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
        "spreads": [_rows(spread) for spread in found.contents.spreads],
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
        "measure": section.study.measure,
        "headlines": [_headline(headline) for headline in section.judging.headlines],
        "runs": section.counts(),
        "measured_otherwise": [trained.run.id for trained in section.otherwise],
        "tasks": [_table(*each, section.judging) for each in extras],
        "comparisons": [comparison_as_table(c) for c in answered.comparisons],
        "known": [dict(known) for known in section.study.known],
    }


def _headline(headline: Headline) -> dict[str, Any]:
    names = ("name", "title", "unit", "better")
    return {name: getattr(headline, name) for name in names}


def _table(
    table: Table, picks: Mapping[str, Pick], one: OneRadius | None, judging: Judging
) -> dict[str, Any]:
    chosen = {
        name: {"rho": pick.cell.rho, "among": pick.among, "of": pick.of, "at_end": pick.at_end}
        for name, pick in picks.items()
    }
    return {
        "title": table.title,
        "task": table.task.as_table(),
        "cells": [cell_as_table(table, cell, judging) for cell in table.cells],
        "chosen": chosen,
        "one_radius": vars(one) if one is not None else None,
    }


def cell_as_table(table: Table, cell: Cell, judging: Judging) -> dict[str, Any]:
    """A cell as plain values.

    Args:
        table: its task.
        cell: the cell.
        judging: which numbers are shown besides the usual ones.

    Returns:
        Method, seeds, every number with mean, interval and values, what was measured and probed of
        its runs, and the command.
    """
    names = dict.fromkeys([*ALWAYS, *(column.name for column in judging.columns)])
    return {
        "label": table.label(cell),
        "method": table.name(cell),
        "rho": cell.rho,
        "settings": cell.method.as_table(),
        "n": cell.n,
        "seeds": list(cell.seeds),
        "under_way": [trained.run.seed for trained in cell.under_way],
        "missing": list(cell.missing),
        **{name: _number(cell, name) for name in names},
        "measured": _measured(cell),
        "probes": _probes(cell),
        "command": command(cell.run),
    }


def _measured(cell: Cell) -> dict[str, dict[str, Any]]:
    """Measurement -> seed -> its settings and rows."""
    found: dict[str, dict[str, Any]] = {}
    for trained in cell.finished:
        for name, one in trained.measured.items():
            found.setdefault(name, {})[str(trained.run.seed)] = _rows(one)
    return found


def _rows(one: Measured) -> dict[str, Any]:
    return {"settings": dict(one.settings), "rows": [dict(row) for row in one.rows]}


def _probes(cell: Cell) -> dict[str, Any]:
    """Seed -> what a probe says."""
    probed = {str(t.run.seed): t.probe for t in cell.finished if t.probe is not None}
    names = ("time", "depth", "sentences", "notes", "lines")
    return {seed: {name: probe.get(name) for name in names} for seed, probe in probed.items()}


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
        "measure": c.headline.name,
        "kind": c.kind,
        "ours": c.table.label(c.ours),
        "theirs": c.table.label(c.theirs),
        "n": 0 if c.paired is None else c.paired.n,
        "difference": difference,
        "p": None if c.paired is None else c.paired.p,
        "p_holm": c.adjusted,
        "p_flip": None if c.paired is None else c.paired.p_flip,
        "standing": c.standing,
        "seeds_to_decide": _decides(c),
        "published": [
            {
                "source": judged.published.source,
                "differences": list(judged.published.differences),
                "verdict": judged.verdict,
            }
            for judged in c.judged
        ],
    }


def _decides(c: Comparison) -> dict[str, Any] | None:
    if c.decides is None or c.paired is None:
        return None
    told = {"difference": c.headline.matters, "spread": c.paired.spread, "seeds": c.decides}
    return {**told, "power": statistics.POWER}
