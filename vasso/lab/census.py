"""Which of some runs are done, which are to do, and of which can a store not tell?

What cannot be read counts as not done and is left as it is: the user is told what to remove.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vasso.lab.folder import StoreError
from vasso.lab.runs import Run
from vasso.lab.store import Store


@dataclass(frozen=True)
class Census:
    """Runs by what a store holds of them.

    Attributes:
        done: those that have ended, with their results.
        missing: those that are to be trained, or to be gone on with.
        unread: those of which something cannot be read, with a sentence that says what to do.
    """

    done: dict[Run, dict[str, Any]] = field(default_factory=dict)
    missing: list[Run] = field(default_factory=list)
    unread: dict[Run, str] = field(default_factory=dict)

    def complaints(self) -> list[str]:
        """What cannot be read, and what to do about it.

        Returns:
            A sentence for each such run.
        """
        return [f"could not be read: {why}" for why in self.unread.values()]

    @property
    def rest(self) -> str:
        """The end of a line of counts."""
        return f", {len(self.unread)} could not be read" if self.unread else ""

    def word(self, run: Run) -> str:
        """What is known of a run.

        Args:
            run: one of them.

        Returns:
            A word.
        """
        return "done" if run in self.done else "unread" if run in self.unread else "missing"


def census(runs: Iterable[Run], store: Store) -> Census:
    """Looks up runs in a store.

    Args:
        runs: the runs.
        store: the store.

    Returns:
        Each run in one of three places.
    """
    found = Census()
    for run in runs:
        try:
            result = store.folder(run.id).result_of(run.in_full())
        except StoreError as trouble:
            found.unread[run] = str(trouble)
            continue
        if result is None:
            found.missing.append(run)
        else:
            found.done[run] = result
    return found
