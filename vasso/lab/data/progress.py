"""How far is a download? A callback; on a terminal a bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Is told what is under way, how much is done and how much there is, if that is known."""


def silent(what: str, done: int, total: int | None) -> None:
    """Says nothing.

    Args:
        what: is under way.
        done: so far.
        total: in the end.
    """


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """What to tell of progress.

    Args:
        progress: the caller's own; None for bars if the error output is a terminal.

    Yields:
        The callback.
    """
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty():
        yield silent
    else:
        with _bars() as bars:
            yield bars


@contextmanager
def _bars() -> Iterator[Progress]:
    """A bar for each thing under way."""
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
    )
    tasks: dict[str, progress.TaskID] = {}
    with progress.Progress(*columns, console=Console(stderr=True)) as bars:

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell
