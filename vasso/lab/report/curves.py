"""How does accuracy go over the epochs? The mean over seeds where every seed was tested."""

from __future__ import annotations

from dataclasses import dataclass

from vasso.diagnostics.estimates import Estimate
from vasso.lab.report.cells import Cell
from vasso.lab.statistics import mean


@dataclass(frozen=True)
class Curve:
    """Means over seeds.

    Attributes:
        epochs: at which every run was tested.
        means: of each.
    """

    epochs: tuple[int, ...]
    means: tuple[Estimate, ...]


def curves_of(cell: Cell, name: str = "test_accuracy") -> Curve | None:
    """The curve of a cell.

    Args:
        cell: the cell.
        name: what was noted at the end of epochs.

    Returns:
        None if there are fewer than two epochs at which every run has it.
    """
    tables = [
        {epoch["epoch"]: epoch[name] for epoch in trained.epochs if epoch.get(name) is not None}
        for trained in cell.finished
    ]
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    if len(shared) < 2:
        return None
    return Curve(tuple(shared), tuple(mean([table[e] for table in tables]) for e in shared))
