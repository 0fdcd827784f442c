"""Is what an extra brings installed? The methods need torch alone; what needs more says what.

The project is installed from a checkout, so the remedy is `pip install '.[extra]'`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


def need(extra: str, *modules: str) -> None:
    """Raises unless modules can be imported; imports none of them.

    Args:
        extra: what brings them.
        *modules: their names.

    Raises:
        ModuleNotFoundError: one of them is not installed.

    Example:
        >>> need("figures", "no_such_library")
        Traceback (most recent call last):
        ...
        ModuleNotFoundError: no_such_library is not installed: pip install '.[figures]'
    """
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(_told(extra, module), name=module)


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Around imports: what is missing is told with the remedy.

    Args:
        extra: what brings the modules.

    Yields:
        Nothing.

    Raises:
        ModuleNotFoundError: one of them is not installed.

    Example:
        >>> with brought_by("lab"):
        ...     import no_such_library
        Traceback (most recent call last):
        ...
        ModuleNotFoundError: no_such_library is not installed: pip install '.[lab]'
    """
    try:
        yield
    except ModuleNotFoundError as trouble:
        module = str(trouble.name).partition(".")[0]
        raise ModuleNotFoundError(_told(extra, module), name=module) from None


def _told(extra: str, module: str) -> str:
    return f"{module} is not installed: pip install '.[{extra}]'"
