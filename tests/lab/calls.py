"""The command `vasso`, called in this process or in one of its own."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from vasso.lab.cli import main

Command: TypeAlias = Callable[..., Any]
"""The fixture `command`."""


def called(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main.main(list(words))
    return int(end.value.code or 0)


def calling(capsys: pytest.CaptureFixture[str]) -> Command:
    def command(line: str, *words: object, code: int = 0) -> Any:
        """What `vasso` prints, as `out` and `err`; it has to end with this exit code."""
        capsys.readouterr()
        assert called(*shlex.split(line), *map(str, words)) == code
        return capsys.readouterr()

    return command


def in_a_process(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vasso.lab", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
