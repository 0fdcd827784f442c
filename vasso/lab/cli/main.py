"""The command `vasso`: finds the subcommand, runs it, and turns errors into messages.

Importing this module needs no extra: `vasso --version` works without, and a missing extra is
reported with the command that installs it.
"""

import io
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

import vasso
from vasso.lab.cli.errors import (
    FAILED,
    INTERRUPTED,
    USAGE_ERROR,
    UsageError,
    describe_os_error,
    say,
)
from vasso.lab.schema import UNEXPECTED, LabError, known_cause, nearest
from vasso.optional import MissingExtraError, needs_extra

ABOUT = "Sharpness-aware training: the lab."


def main(arguments: list[str] | None = None) -> None:
    """The command `vasso`; None takes the arguments of this process. Always raises SystemExit."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        _prepare_streams()
        with needs_extra("lab"):
            code = run_command(words)
    except (MissingExtraError, UsageError) as error:
        say(f"vasso: {error}")
        code = USAGE_ERROR
    except Exception as error:
        if not (message := known_cause(error)):
            traceback.print_exc()
        say(f"vasso: {message or UNEXPECTED}")
        code = FAILED
    raise SystemExit(code)


def _prepare_streams() -> None:
    """Makes sure that what is printed can be encoded, and that there is a standard output.

    A file that is opened takes the number of a closed stream, and would get what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")
    if sys.stdout is None:
        raise UsageError("standard output is closed: send it to a file, or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


COMMANDS = dict(
    demo="Trains SGD, SAM and VaSSO on digits with half of the labels wrong: about two minutes.",
    list="Lists studies, methods, data sets or models; with a name, shows that one in full.",
    train="Trains one run, or continues it from its last checkpoint; prints its result directory.",
    study="Trains the missing runs of a study: one that comes with the package, or a TOML file.",
    status="Shows what is done in a store, what runs where, what failed, how long the rest takes.",
    report="Reports what the runs of a store show, as a page, tables or JSON; changes nothing.",
    export="Copies finished runs without their weights, one line of JSON each.",
    advise="Says whether VaSSO helps a model of yours, which rho to start with, what a step costs.",
    probe="Measures a finished run, or a model of yours, at its weights; changes nothing of it.",
    translate="Translates sentences from German to English with a finished run.",
)
"""Each subcommand and the first line of its help, so that the overview imports none."""


COMPLETION = "--tyro-print-completion"


def command(name: str) -> Callable[..., Any]:
    module = import_module(f"vasso.lab.cli.{'report' if name == 'export' else name}")
    found: Callable[..., Any] = getattr(module, f"{name.capitalize()}Command")
    return found


def overview() -> str:
    lines = [f"  {name:<10} {summary}" for name, summary in COMMANDS.items()]
    more = "Run `vasso COMMAND --help` for options and examples, `vasso --version` for the version."
    return "\n".join([f"{ABOUT}\n\nusage: vasso COMMAND ...\n", *lines, f"\n{more}"])


def run_command(words: list[str]) -> int:
    """Runs what the command line asks for, reports errors, and returns the exit code."""
    try:
        code = _parsed(words)()
        sys.stdout.flush()
        return code if words else USAGE_ERROR
    except UsageError as error:
        help_of = f"{words[0]} --help" if words[0] in COMMANDS else "--help"
        say(f"vasso: {error}\nOptions and examples: vasso {help_of}")
        return USAGE_ERROR
    except BrokenPipeError:  # the reader has closed the pipe: `vasso list methods | head`
        _discard_output()
        return FAILED  # as rich does
    except LabError as error:
        say(f"vasso: {error}")
    except OSError as error:
        say(f"vasso: {describe_os_error(error)}")
        _discard_output()
    except KeyboardInterrupt:
        say("vasso: stopped; run the same command again to continue from the last checkpoint")
        return INTERRUPTED
    return FAILED


def _discard_output() -> None:
    """Discards what is printed and cannot be written, which Python would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parsed(words: list[str]) -> Callable[[], int]:
    first = words[0] if words else "--help"
    if first in {"-h", "--help"}:
        return lambda: _print(overview())
    if first == "--version":
        return lambda: _print(f"vasso {vasso.__version__}")
    if first.startswith(COMPLETION):
        return lambda: _print_completion(words)
    if first not in COMMANDS:
        raise UsageError(f"there is no command {first!r}.{nearest(first, COMMANDS)}")
    import tyro

    from vasso.lab.cli.paths import PATHS

    with PATHS:
        parsed: Callable[[], int] = tyro.cli(command(first), prog=f"vasso {first}", args=words[1:])
    return parsed


def _print_completion(words: list[str]) -> int:
    """Prints the completion of all commands for a shell: bash, zsh or tcsh."""
    import tyro

    commands = {name: command(name) for name in COMMANDS}
    tyro.extras.subcommand_cli_from_dict(commands, prog="vasso", args=words)
    return 0


def _print(text: str) -> int:
    print(text)
    return 0


if __name__ == "__main__":
    main()
