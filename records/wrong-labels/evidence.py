"""The two tasks with wrong labels, their choices and comparisons."""

from vasso.lab.report.cells import Cell
from vasso.lab.report.compare import Comparison, OneRadius
from vasso.lab.report.findings import Findings, SectionResult
from vasso.lab.report.sections import Table

RESNET = "ResNet-8, CIFAR-10"
STUDIES = {"radius": RESNET, "radius-mlp": "MLP, Fashion-MNIST"}
WRONG = 0.75
Found = dict[str, tuple[SectionResult, Table]]
"""Study -> its answers and its table of wrong labels."""


def tables(found: Findings) -> Found:
    """Study -> its answers and its table of wrong labels."""
    return {
        answered.section.study.name: (answered, table)
        for answered in found.results
        if answered.section.study.name in STUDIES and answered.section.scale.name == "cpu"
        for table in answered.section.tables
        if table.task.wrong == WRONG
    }


def other_levels(found: Findings) -> list[tuple[str, Table]]:
    """Fewer wrong labels or none, as far as there are runs; model -> table."""
    return [
        (STUDIES.get(one.section.study.name, RESNET).partition(",")[0], table)
        for one in found.results
        if one.section.scale.name == "cpu"
        for table in one.section.tables
        if table.task.wrong != WRONG and any(cell.n for cell in table.cells)
    ]


def everything(found: Findings) -> list[Cell]:
    """All cells of the three studies, each once: runs that choose are paid for too."""
    sections = [one.section for one in found.results if one.section.scale.name == "cpu"]
    return list({cell.run.id: cell for section in sections for cell in section.cells}.values())


def picks(answered: SectionResult, table: Table) -> dict[str, Cell]:
    """Each method at the radius that validation images choose for it, by falling theta."""
    chosen = answered.picks[_place(answered, table)]
    return {name: chosen[name].cell for name in families(table) if name in chosen}


def families(table: Table) -> dict[str, list[Cell]]:
    """Cells that differ in the radius only, SAM first, then by falling theta."""
    return dict(sorted(table.families().items(), key=lambda item: -theta(item[1][0])))


def ends(answered: SectionResult, table: Table) -> dict[str, str]:
    """Method -> "smallest", "largest" or "only one", where a better radius may lie beyond."""
    chosen = answered.picks[_place(answered, table)].items()
    found = {name: "only one" if p.among < min(2, p.of) else p.at_end for name, p in chosen}
    return {name: end for name, end in found.items() if end}


def one_radius(answered: SectionResult, table: Table) -> OneRadius | None:
    """The one radius for all."""
    return answered.radii[_place(answered, table)]


def _place(answered: SectionResult, table: Table) -> int:
    return answered.section.tables.index(table)


def compared(answered: SectionResult, table: Table, kind: str, cell: Cell) -> Comparison | None:
    """A cell against SAM by one of the rules; None where there is none."""
    mine = (c for c in answered.of_table(table) if c.kind == kind and c.ours is cell)
    return next(mine, None)


def theta(cell: Cell) -> float:
    """1 of SAM, more of the base."""
    return float(dict(cell.method.settings).get("theta", 2.0 if cell.rho is None else 1.0))
