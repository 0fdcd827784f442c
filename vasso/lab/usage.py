"""Whose mistake is it? What is found wrong before anything has started is the user's to mend."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from vasso.lab.exits import FAILED, INTERRUPTED
from vasso.lab.jobs import Outcome
from vasso.lab.tasks import NotThereYetError


class UsageError(Exception):
    """A setting or a name is wrong; nothing has been started."""


@contextmanager
def usage() -> Iterator[None]:
    """What is found wrong inside is the user's to mend: nothing has been started.

    Yields:
        Nothing.

    Raises:
        UsageError: something is.
    """
    try:
        yield
    except (ValueError, NotThereYetError) as trouble:
        raise UsageError(str(trouble)) from trouble


def say(text: str) -> None:
    """Tells the user, apart from what a program may read.

    Args:
        text: what.
    """
    print(text, file=sys.stderr)


def concluded(outcome: Outcome, wanted: int) -> int:
    """Says what is left to do.

    Args:
        outcome: how it went.
        wanted: how many runs were to be done.

    Returns:
        The exit code.
    """
    for run, reason in outcome.failed:
        say(f"\n{run.id} failed: {reason}")
    if outcome.busy:
        say(f"{len(outcome.busy)} runs are being trained by another process")
    left = wanted - len(outcome.done)
    if left:
        say(f"{left} of {wanted} runs are left: the same command goes on with them")
    if outcome.stopped:
        return INTERRUPTED
    return FAILED if outcome.failed else 0
