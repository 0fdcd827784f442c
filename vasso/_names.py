"""Public names of `vasso`: loaded when they are first used; an error suggests the nearest one."""

import ast
import difflib
import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LOSSES = ("MESA", "SAF")
"""Methods that are losses, not optimizers."""


def suggest(value: object, choices: Iterable[str]) -> str | None:
    """The choice nearest to a misspelt value, if any is near; ignores upper and lower case.

    Of choices that are equally near the first, so list those in common use first.
    """
    word = str(value).casefold()
    nearness = {choice: _nearness(word, choice.casefold()) for choice in choices}
    best = max(nearness, key=nearness.__getitem__, default=None)
    return best if best is not None and nearness[best] >= 0.5 else None


def _nearness(word: str, choice: str) -> float:
    """From 0 to 1; letters in another order are one slip."""
    same_letters = 0.9 if sorted(word) == sorted(choice) else 0.0
    return max(same_letters, difflib.SequenceMatcher(None, choice, word).ratio())


@cache
def modules() -> dict[str, str]:
    """Each public name with the module that defines it, as `__init__.pyi` lists them."""
    stub = ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def public_names() -> list[str]:
    """What `dir(vasso)` shows."""
    return sorted([*modules(), "__version__"])


def load(name: str) -> Any:
    """Imports a public name of `vasso`; AttributeError if there is none."""
    if name == "__all__":  # for `from vasso import *`
        return list(modules())
    home = modules().get(name)
    if home is None:
        raise AttributeError(f"module 'vasso' has no attribute {name!r}{_hint(name)}")
    if home == "vasso":
        return import_module(f"vasso.{name}")
    value = getattr(import_module(home), name)
    setattr(sys.modules["vasso"], name, value)
    return value


def _hint(name: str) -> str:
    if name in LOSSES:
        return f": it is a loss, write vasso.losses.{name}"
    if name.startswith("_"):
        return ""
    if find_spec(f"vasso.{name}"):
        return f": it is a module, write import vasso.{name}"
    near = suggest(name, modules())
    return f". Did you mean {near!r}?" if near else ""
