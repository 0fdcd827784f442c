"""What was measured, on a terminal? A table for each measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich import box
from rich.table import Table

from vasso.lab.measures import Noise, Settings, Spectrum, Spread
from vasso.lab.translation.bleu import Bleu

Row = dict[str, Any]


def table(settings: Settings, rows: Sequence[Row]) -> Table:
    """Rows of a measurement as a table.

    Args:
        settings: which measurement it is.
        rows: what `vasso.lab.measurements` gave.

    Returns:
        For a console.
    """
    shown = {Spread: spread_lines, Noise: _noise, Bleu: _bleu, Spectrum: _spectrum}[type(settings)]
    return _grid(list(shown(rows)))


def spread_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Adversaries on a sphere as a table.

    Args:
        rows: what was measured of them.

    Returns:
        For a console.
    """
    return _grid(list(spread_lines(rows)))


def _grid(lines: list[dict[str, str]]) -> Table:
    found = Table(box=box.SIMPLE_HEAD)
    for title in lines[0]:
        found.add_column(title, justify="left" if title == "method" else "right", no_wrap=True)
    for line in lines:
        found.add_row(*line.values())
    return found


def spread_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Adversaries on a sphere, line by line.

    Args:
        rows: what was measured of them.

    Yields:
        Title -> text.
    """
    for row in rows:
        yield {
            "SNR": f"{row['snr']:g}",
            "method": "SAM" if row["theta"] == 1 else f"VaSSO theta={row['theta']:g}",
            "cosine": _with_ends(row, "cosine"),
            "resultant": _with_ends(row, "resultant"),
            "friends %": _with_ends(row, "friends", 100),
        }


def _noise(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for run in dict.fromkeys(row["run"] for row in rows):
        mine = [row for row in rows if row["run"] == run]
        values = [row["snr"] for row in mine]
        last = mine[-1]
        yield {
            **_named(last),
            "epochs": f"{len(mine)}",
            "first": f"{values[0]:.3g}",
            "lowest": f"{min(values):.3g}",
            "median": f"{median(values):.3g}",
            "highest": f"{max(values):.3g}",
            "last": _with_ends(last, "snr"),
        }


def _spectrum(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for row in rows:
        values = [key for key in row if key.startswith("lambda")]
        count = sum(key.startswith("residual") for key in row)
        worst = max(abs(row[f"residual{i}"] / row[f"lambda{i}"]) for i in range(1, count + 1))
        yield {
            **_named(row),
            **{key: f"{row[key]:.4g}" for key in values},
            "residual": f"{worst:.1g}",
            "images": f"{row['samples']:g}",
        }


def _bleu(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for row in rows:
        yield {
            **_named(row),
            "BLEU": f"{row['bleu']:.2f}",
            "detokenised": f"{row['detokenised']:.2f}",
            "perplexity": "–" if row["perplexity"] is None else f"{row['perplexity']:.3f}",
            "length": f"{row['length_ratio']:.3f}",
            "sentences": f"{row['sentences']}",
            "endless": f"{row.get('endless', '–')}",
        }


def _named(row: Row) -> dict[str, str]:
    return {"method": str(row["method"]), "seed": f"{row['seed']}"}


def _with_ends(row: Mapping[str, Any], name: str, times: float = 1.0) -> str:
    """Value and interval; an end that JSON could not hold is open."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    ends = ["open" if end is None else f"{times * end:.2g}" for end in (low, high)]
    return f"{times * row[name]:.2g} ({ends[0]}, {ends[1]})"
