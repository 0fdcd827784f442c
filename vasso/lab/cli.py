"""The door of the command `vasso`: opens if the lab is installed, else says how to install it.

It imports no extra before that is known, and tells the version without any; what the command does
is in `commands`.
"""

from __future__ import annotations

import sys

import vasso
from vasso.lab.exits import WRONG
from vasso.lab.extra import lacks, remedy


def main(arguments: list[str] | None = None) -> None:
    """The command `vasso`.

    Args:
        arguments: words of the command line; None for those of this process.

    Raises:
        SystemExit: always, with the exit code.
        ModuleNotFoundError: a module is missing that the lab does not bring.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["--version"]:
        print(f"vasso {vasso.__version__}")
        raise SystemExit(0)
    try:
        from vasso.lab.commands import carry_out

        code = carry_out(words)
    except ModuleNotFoundError as trouble:
        if not lacks(trouble):
            raise
        print(f"vasso: {remedy(trouble)}", file=sys.stderr)
        code = WRONG
    raise SystemExit(code)
