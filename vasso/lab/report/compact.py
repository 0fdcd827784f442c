"""How is a run kept in few bytes? One line of JSON: settings, result, and its epochs by columns.

    {"id": ..., "run": {...}, "begun": ..., "certificate": {...}, "epochs": {"epoch": [1, 2], ...},
     "result": {...}, "measured": {"spectrum": {"settings": {...}, "rows": {...}}}, "probe": {...}}

Settings that are the default are left out, epochs are rounded to six digits; weights and
checkpoints stay behind. What tables show is in the result and in what was measured, both kept to
the last digit. Only runs that were measured or probed have the last two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

DIGITS = 6


def columns(
    epochs: Iterable[Mapping[str, Any]], digits: int | None = DIGITS
) -> dict[str, list[Any]]:
    """Epochs by columns.

    Args:
        epochs: one table for each epoch; a table within becomes columns `outer.inner`.
        digits: to which numbers are rounded; None keeps all.

    Returns:
        name -> one value for each epoch, None where there is none.

    Example:
        >>> columns([{"epoch": 1, "loss": 0.12345678}, {"epoch": 2, "adversary": {"own": 3.0}}])
        {'epoch': [1, 2], 'loss': [0.123457, None], 'adversary.own': [None, 3.0]}
    """
    flat = [_flat(epoch) for epoch in epochs]
    names = dict.fromkeys(name for epoch in flat for name in epoch)
    return {name: [_rounded(epoch.get(name), digits) for epoch in flat] for name in names}


def rows(table: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Columns as epochs; the inverse of `columns` but for rounding.

    Args:
        table: name -> values.

    Returns:
        One table for each epoch, without what is None.

    Raises:
        ValueError: columns differ in length.

    Example:
        >>> rows({"epoch": [1, 2], "adversary.own": [None, 3.0]})
        [{'epoch': 1}, {'epoch': 2, 'adversary': {'own': 3.0}}]
    """
    lengths = {len(values) for values in table.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns of epochs differ in length: {sorted(lengths)}")
    found: list[dict[str, Any]] = [{} for _ in range(max(lengths, default=0))]
    for name, values in table.items():
        outer, dot, inner = name.partition(".")
        for row, value in zip(found, values, strict=True):
            if value is not None and dot:
                row.setdefault(outer, {})[inner] = value
            elif value is not None:
                row[name] = value
    return found


def _flat(epoch: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in epoch.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": item for inner, item in value.items()}
        elif name != "kind":
            found[name] = value
    return found


def _rounded(value: Any, digits: int | None) -> Any:
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    rounds = isinstance(value, float) and digits is not None
    return float(f"{value:.{digits}g}") if rounds else value
