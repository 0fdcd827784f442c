"""The command `vasso`: a demo, what there is, a run, a study, what runs say, a look at a model.

Every setting is checked before anything starts; what is slow to import is imported when asked for.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import tyro

from vasso.lab.data import DataError
from vasso.lab.demo_command import Demo
from vasso.lab.list_command import List
from vasso.lab.probe_command import Probe
from vasso.lab.report.command import Export, Report
from vasso.lab.store import StoreError
from vasso.lab.study_command import Study
from vasso.lab.train_command import Train
from vasso.lab.translate_command import Translate
from vasso.lab.usage import FAILED, INTERRUPTED, WRONG, UsageError, say

ABOUT = "Sharpness-aware training: the lab."

COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": Demo,
    "list": List,
    "train": Train,
    "study": Study,
    "report": Report,
    "export": Export,
    "probe": Probe,
    "translate": Translate,
}


def overview() -> str:
    """What there is, a line for each command.

    Returns:
        The text of `vasso --help`.
    """
    lines = [f"  {name:<10} {_first(command)}" for name, command in COMMANDS.items()]
    more = "`vasso COMMAND --help` tells of its settings, with examples."
    return "\n".join([f"{ABOUT}\n\nusage: vasso COMMAND ...\n", *lines, f"\n{more}"])


def _first(command: Callable[..., Any]) -> str:
    """The first sentence of a command's help."""
    return inspect.cleandoc(command.__doc__ or "").splitlines()[0]


def _show() -> int:
    print(overview())
    return 0


def _asked_for(words: list[str]) -> Callable[[], int]:
    found: Callable[[], int] = tyro.extras.subcommand_cli_from_dict(
        COMMANDS, prog="vasso", description=ABOUT, args=words
    )
    return found


def main(arguments: list[str] | None = None) -> None:
    """The command `vasso`.

    Args:
        arguments: words of the command line; None for those of this process.

    Raises:
        SystemExit: always, with the exit code.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = _show() if given in ([], ["-h"], ["--help"]) else _asked_for(given)()
        code = code if given else WRONG
        sys.stdout.flush()
    except UsageError as trouble:
        say(f"vasso: {trouble}")
        code = WRONG
    except BrokenPipeError:  # whoever read has seen enough: `vasso list methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED  # as rich does
    except (StoreError, DataError, OSError) as trouble:
        say(f"vasso: {trouble}")
        code = FAILED
    except KeyboardInterrupt:
        say("vasso: stopped; the same command goes on from the last checkpoint")
        code = INTERRUPTED
    raise SystemExit(code)
