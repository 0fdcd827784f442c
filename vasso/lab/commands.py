"""What does `vasso` do? A demo, what there is, a run, a study, what runs say, a look at a model.

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
from vasso.lab.exits import FAILED, INTERRUPTED, WRONG
from vasso.lab.faults import told
from vasso.lab.folder import StoreError
from vasso.lab.list_command import List
from vasso.lab.paths import PATHS
from vasso.lab.probe_command import Probe
from vasso.lab.report.command import Export, Report
from vasso.lab.settings import nearest
from vasso.lab.study_command import Study
from vasso.lab.train_command import Train
from vasso.lab.translate_command import Translate
from vasso.lab.usage import UsageError, say

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
    more = (
        "`vasso COMMAND --help` tells of its settings, with examples; `vasso --version` of itself."
    )
    return "\n".join([f"{ABOUT}\n\nusage: vasso COMMAND ...\n", *lines, f"\n{more}"])


def _first(command: Callable[..., Any]) -> str:
    """The first sentence of a command's help."""
    return inspect.cleandoc(command.__doc__ or "").splitlines()[0]


def _show() -> int:
    print(overview())
    return 0


def _asked_for(words: list[str]) -> Callable[[], int]:
    """What the words of the command line ask for."""
    first = words[0] if words else "--help"
    if first in {"-h", "--help"}:
        return _show
    if not first.startswith("-") and first not in COMMANDS:
        raise UsageError(f"there is no command {first!r}.{nearest(first, COMMANDS)}")
    with PATHS:
        found: Callable[[], int] = tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="vasso", description=ABOUT, args=words
        )
    return found


def carry_out(words: list[str]) -> int:
    """Does what the words of the command line ask for, and says what went wrong.

    Args:
        words: the words.

    Returns:
        The exit code.
    """
    try:
        code = _asked_for(words)()
        sys.stdout.flush()
        return code if words else WRONG
    except UsageError as trouble:
        say(f"vasso: {trouble}")
        return WRONG
    except BrokenPipeError:  # whoever read has seen enough: `vasso list methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED  # as rich does
    except (StoreError, DataError) as trouble:
        say(f"vasso: {trouble}")
    except OSError as trouble:
        say(f"vasso: {told(trouble)}")
    except KeyboardInterrupt:
        say("vasso: stopped; the same command goes on from the last checkpoint")
        return INTERRUPTED
    return FAILED
