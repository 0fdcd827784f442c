"""`vasso list`: the studies, methods, data sets and models there are, or one of them in full.

The list of studies needs neither torch nor any other slow import.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import TypeAlias

import tyro

from vasso.lab import studies
from vasso.lab.cli.errors import usage_errors
from vasso.lab.schema import name_of

Row: TypeAlias = tuple[str, ...]
EXAMPLES = {"studies": "label-noise", "methods": "VaSSO", "data": "cifar10", "models": "resnet8"}
HEADS: Mapping[str, Row] = {
    "studies": ("study", "paper", "question"),
    "methods": ("method", "gradients a step", "what it does"),
    "data": ("data set", "for", "origin", "training + test, channels x size, classes"),
    "models": ("model", "for", "what it is"),
}
WIDTH, MIDDLE, GAP = 100, 16, "  "


@dataclass(frozen=True)
class ListCommand:
    """Lists studies, methods, data sets or models; with a name, shows that one in full.

    Try:
        vasso list
        vasso list methods
        vasso list methods VaSSO
        vasso list studies label-noise
    """

    kind: tyro.conf.Positional[str] = "studies"
    """studies, methods, data or models; or the name of one"""
    name: tyro.conf.Positional[str] = ""
    """one of them, to show in full"""

    def __call__(self) -> int:
        """Prints it and returns the exit code."""
        with usage_errors():
            kind, name = _found(self.kind, self.name)
            text = _details(kind, name) if name else _list(kind)
        print(text)
        return 0


def _found(kind: str, name: str) -> tuple[str, str]:
    """The list and the name in it: `vasso list VaSSO` is `vasso list methods VaSSO`."""
    if not name and kind not in EXAMPLES:
        for one in EXAMPLES:
            if kind.casefold() in (row[0].casefold() for row in rows_of(one)):
                return one, kind
    return name_of("list", kind, EXAMPLES), name


def _list(kind: str) -> str:
    return f"{table(HEADS[kind], rows_of(kind))}\n\nOne in full: vasso list {kind} {EXAMPLES[kind]}"


def table(head: Row, rows: Iterable[Row]) -> str:
    """Rows under a head within 100 columns: cells are wrapped, the last takes what is left."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    widths[1:-1] = [min(width, MIDDLE) for width in widths[1:-1]]
    widths[-1] = WIDTH - sum(widths[:-1]) - len(GAP) * (len(widths) - 1)
    lines = [line for row in [head, *rows] for line in _wrapped(row, widths)]
    lines.insert(len(list(_wrapped(head, widths))), "-" * WIDTH)
    return "\n".join(lines)


def _wrapped(row: Row, widths: list[int]) -> Iterator[str]:
    cells = (wrap(c, w, break_long_words=False) for c, w in zip(row, widths, strict=True))
    for line in zip_longest(*cells, fillvalue=""):
        yield GAP.join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()


def rows_of(kind: str) -> list[Row]:
    if kind == "studies":
        tables = {name: studies.table_of(name) for name in studies.names()}
        return [(name, t.get("shows", "ours"), t["question"]) for name, t in tables.items()]
    from vasso.lab.cli.catalog import LISTS

    return LISTS[kind]()


def _details(kind: str, name: str) -> str:
    from vasso.lab.cli.catalog import DETAILS

    return DETAILS[kind](name)


def aligned(rows: Iterable[Row]) -> str:
    columns = list(zip(*(rows := list(rows)), strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
