"""Optional dependencies: a missing module is reported with the extra that brings it.

The methods need torch alone. The project is installed from a checkout, so the remedy is
`pip install '.[extra]'`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class MissingExtraError(ModuleNotFoundError):
    """A module of an extra is not installed; the message says how to install it."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f"{module} is not installed: pip install '.[{extra}]'", name=module)


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Around imports: raises `MissingExtraError` for a module that is not installed."""
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        module = str(error.name).partition(".")[0]
        if module == "vasso":
            raise
        raise MissingExtraError(extra, module) from None


def check_installed(extra: str, *modules: str) -> None:
    """Raises `MissingExtraError` unless the modules can be imported; imports none of them."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError(extra, module)
