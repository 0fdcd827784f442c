"""The command `vasso`, called in this process."""

import pytest

from vasso.lab import cli


def called(*words: str) -> int:
    """Calls it.

    Args:
        words: what is typed after `vasso`.

    Returns:
        The exit code.
    """
    with pytest.raises(SystemExit) as end:
        cli.main(list(words))
    return int(end.value.code or 0)
