"""What do the tables in our docstrings say? They are read again, so that nothing is said twice."""

from __future__ import annotations

from collections.abc import Iterable


def rows_of(documented: str | None) -> dict[str, tuple[str, ...]]:
    """The rows of a Markdown table by their first cell; backquotes are left out.

    Args:
        documented: a docstring with one table.

    Returns:
        First cell -> the others.

    Example:
        >>> rows_of("Which?\\n\\n| name | images |\\n|---|---|\\n| digits | 1x8x8 |")
        {'digits': ('1x8x8',)}
    """
    lines = [line.strip() for line in (documented or "").splitlines()]
    cells = [line.strip("|").replace("`", "").split("|") for line in lines if line[:1] == "|"]
    body = [[cell.strip() for cell in row] for row in cells[2:]]  # below the head and its line
    return {row[0]: tuple(row[1:]) for row in body}


def aligned(rows: Iterable[tuple[str, ...]]) -> str:
    """Rows as text, in columns.

    Args:
        rows: equally many cells each.

    Returns:
        A line for each.

    Example:
        >>> print(aligned([("SAM", "2"), ("VaSSO", "2")]))
        SAM    2
        VaSSO  2
    """
    columns = list(zip(*(rows := list(rows)), strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
