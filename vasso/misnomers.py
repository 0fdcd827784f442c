"""What is it called here? Names that other implementations have, or that are nearly ours.

An error that knows the right name costs nothing until somebody asks for a wrong one.
"""

from __future__ import annotations

import difflib
from importlib.util import find_spec
from typing import NoReturn

import vasso

LOSSES = ("MESA", "SAF")
"""Methods that are no optimizers, and live apart."""


class OfSamPy:
    """`first_step` and `second_step`, which every copy of sam.py has: there are none.

    Example:
        >>> hasattr(vasso.SAM, "first_step")
        False
    """

    def __get__(self, opt: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__} has neither first_step() nor second_step(): call step(closure), or "
            "take the second gradient inside `with opt.ascended():`, then step(). See "
            "docs/how-to/coming-from-sam-py.md"
        )


def not_there(name: str) -> NoReturn:
    """Raises for a name that the package has not, and tells the one that may be meant.

    Args:
        name: what was asked for.

    Raises:
        AttributeError: always.

    Example:
        >>> vasso.Vasso
        Traceback (most recent call last):
        ...
        AttributeError: module 'vasso' has no attribute 'Vasso'. Did you mean 'VaSSO'?
    """
    raise AttributeError(f"module 'vasso' has no attribute {name!r}{_hint(name)}")


def _hint(name: str) -> str:
    if name in LOSSES:
        return f": it is a loss, write vasso.losses.{name}"
    if name.startswith("_"):
        return ""
    if find_spec(f"vasso.{name}"):
        return f": it is a module, write import vasso.{name}"
    public = {key.casefold(): key for key in vars(vasso) if not key.startswith("_")}
    near = difflib.get_close_matches(name.casefold(), public, n=1)
    return f". Did you mean {public[near[0]]!r}?" if near else ""
