"""Findings as JSON: every cell and every comparison as plain values, for programs."""

import math
from collections.abc import Mapping
from typing import Any

from vasso.diagnostics.estimates import Estimate
from vasso.lab import statistics
from vasso.lab.report.cells import ALWAYS, Cell
from vasso.lab.report.claims import Line, judged_claims
from vasso.lab.report.compare import Comparison, OneRadius, Pick
from vasso.lab.report.findings import Findings, SectionResult
from vasso.lab.report.metrics import Criteria
from vasso.lab.report.read import Measurement
from vasso.lab.report.sections import Table
from vasso.lab.report.text import RULE, train_command

FORMAT = 1


def findings_as_table(found: Findings) -> dict[str, Any]:
    """All findings as JSON may hold them; numbers that are not finite are None."""
    return {
        "format": FORMAT,
        "store": found.name,
        "runs": len(found.contents.runs),
        "rule": RULE,
        "errors": [{"where": e.where, "why": e.why} for e in found.contents.errors],
        "studies": [_study(result) for result in found.results],
        "claims": [_claim(line) for line in judged_claims(found)],
        "spreads": [_measurement(spread) for spread in found.contents.spreads],
    }


def _study(result: SectionResult) -> dict[str, Any]:
    section = result.section
    tables = zip(section.tables, result.picks, result.radii, strict=True)
    metrics = ("name", "title", "unit", "better")
    return {
        "study": section.study.name,
        "scale": section.scale.name,
        "changed": list(section.changed),
        "title": section.study.title,
        "question": section.study.question,
        "shows": section.study.shows,
        "measure": section.study.measure,
        "metrics": [{n: getattr(m, n) for n in metrics} for m in section.criteria.metrics],
        "runs": section.counts(),
        "other_settings": [trained.run.id for trained in section.other_settings],
        "tasks": [_table(*each, section.criteria) for each in tables],
        "comparisons": [comparison_as_table(c) for c in result.comparisons],
        "known": [dict(known) for known in section.study.known],
    }


def _claim(line: Line) -> dict[str, Any]:
    """A line of the paper's claims; its cells are told by their runs."""
    runs = [trained.run.id for cell in line.cells for trained in cell.finished]
    return {**{n: x for n, x in vars(line).items() if n != "cells"}, "runs": runs}


def _table(
    table: Table, picks: Mapping[str, Pick], one: OneRadius | None, criteria: Criteria
) -> dict[str, Any]:
    chosen = {
        name: {"rho": pick.cell.rho, "among": pick.among, "of": pick.of, "at_end": pick.at_end}
        for name, pick in picks.items()
    }
    return {
        "title": table.title,
        "task": table.task.as_table(),
        "cells": [cell_as_table(table, cell, criteria) for cell in table.cells],
        "chosen": chosen,
        "one_radius": vars(one) if one is not None else None,
    }


def cell_as_table(table: Table, cell: Cell, criteria: Criteria) -> dict[str, Any]:
    """A cell: method, seeds, numbers with interval and values, measurements, probes, command."""
    names = dict.fromkeys([*ALWAYS, *(column.name for column in criteria.columns)])
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
        "measured": _measurements(cell),
        "probes": _probes(cell),
        "command": train_command(cell.run),
    }


def _measurements(cell: Cell) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for trained in cell.finished:
        for name, one in trained.measured.items():
            found.setdefault(name, {})[str(trained.run.seed)] = _measurement(one)
    return found


def _measurement(one: Measurement) -> dict[str, Any]:
    return {"settings": dict(one.settings), "rows": [dict(row) for row in one.rows]}


def _probes(cell: Cell) -> dict[str, Any]:
    probed = {str(t.run.seed): t.probe for t in cell.finished if t.probe is not None}
    names = ("time", "depth", "sentences", "notes", "lines")
    return {seed: {name: probe.get(name) for name in names} for seed, probe in probed.items()}


def _number(cell: Cell, name: str) -> dict[str, Any] | None:
    found = cell.estimate(name)
    if found is None:
        return None
    return {**estimate_as_table(found), "values": list(cell.values(name).values())}


def estimate_as_table(estimate: Estimate) -> dict[str, Any]:
    """Mean, low and high; None for infinite ends."""
    ends = {"mean": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: value if math.isfinite(value) else None for name, value in ends.items()}


def comparison_as_table(c: Comparison) -> dict[str, Any]:
    """A comparison: who, the difference, p-values, and what follows."""
    difference = None if c.paired is None else estimate_as_table(c.paired.difference)
    return {
        "task": c.table.title,
        "measure": c.metric.name,
        "kind": c.kind,
        "ours": c.table.label(c.ours),
        "theirs": c.table.label(c.theirs),
        "n": 0 if c.paired is None else c.paired.n,
        "difference": difference,
        "p": None if c.paired is None else c.paired.p,
        "p_holm": c.adjusted,
        "p_flip": None if c.paired is None else c.paired.p_flip,
        "standing": c.standing,
        "seeds_to_decide": _seeds_needed(c),
        "published": [
            {
                "source": agreement.published.source,
                "differences": list(agreement.published.differences),
                "verdict": agreement.verdict,
            }
            for agreement in c.agreements
        ],
    }


def _seeds_needed(c: Comparison) -> dict[str, Any] | None:
    if c.seeds_needed is None or c.paired is None:
        return None
    return {
        "difference": c.metric.relevant,
        "spread": c.paired.spread,
        "seeds": c.seeds_needed,
        "power": statistics.POWER,
    }
