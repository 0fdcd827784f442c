"""What do the runs of a store show? Statistics, tables, a page; see `findings` and `page`."""

from __future__ import annotations

from pathlib import Path


def write_report(store: str | Path, path: str | Path, studies: tuple[str, ...] = ()) -> Path:
    """Reads a store and writes the page, one file that needs nothing else.

    Args:
        store: directory of runs, or of compact copies of them.
        path: the file to write.
        studies: only these, by name or as TOML files.

    Returns:
        The file; an error if there is no such store or study, or no run.
    """
    from vasso.lab.report.findings import findings
    from vasso.lab.report.page import write_page

    return write_page(findings(store, studies), path)
