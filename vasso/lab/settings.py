"""How does a table of plain values become a frozen dataclass? Every key known, every type right.

Tables come from TOML files, from the command line and from a store; what they say is data, never
code.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def nearest(value: str, choices: Iterable[str]) -> str:
    """A hint for who has mistyped: the nearest choice, or what there is.

    Args:
        value: what was given.
        choices: what may be given.

    Returns:
        A sentence, with a blank before it.

    Example:
        >>> nearest("VaSO", ["SAM", "VaSSO"])
        " Did you mean 'VaSSO'?"
    """
    known = list(choices)
    folded = {name.casefold(): name for name in reversed(known)}
    near = difflib.get_close_matches(str(value).casefold(), folded, n=1, cutoff=0.5)
    if near:
        return f" Did you mean {folded[near[0]]!r}?"
    return f" There are {', '.join(map(repr, known))}." if known else ""


def name_of(what: str, value: object, choices: Iterable[str]) -> str:
    """The value, if it is one of the names; upper and lower case do not matter.

    Args:
        what: what the name is of.
        value: what was given.
        choices: what may be given.

    Returns:
        The name as it is spelt in the choices.

    Raises:
        ValueError: there is none of this name.

    Example:
        >>> name_of("method", "vasso", ["SAM", "VaSSO"])
        'VaSSO'
        >>> name_of("method", "VaSO", ["SAM", "VaSSO"])
        Traceback (most recent call last):
        ...
        ValueError: no method is called 'VaSO'. Did you mean 'VaSSO'?
    """
    known = list(choices)
    if value in known:
        return str(value)
    folded = {name.casefold(): name for name in known}
    found = folded.get(str(value).casefold())
    if found is None:
        raise ValueError(f"no {what} is called {value!r}.{nearest(str(value), known)}")
    return found


def filled(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A frozen dataclass from a table.

    Args:
        kind: the dataclass.
        table: field -> value; what is missing is the default.
        where: where the table comes from, for messages.

    Returns:
        The value.

    Raises:
        ValueError: a key is unknown, or a value is of the wrong type or out of range.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Budget:
        ...     epochs: int = 10
        >>> filled(Budget, {"epochs": 3}, "here")
        Budget(epochs=3)
        >>> filled(Budget, {"epoch": 3}, "here")
        Traceback (most recent call last):
        ...
        ValueError: here has no setting 'epoch'. Did you mean 'epochs'?
    """
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in table:
        if key not in names:
            raise ValueError(f"{where} has no setting {key!r}.{nearest(key, names)}")
    values = {key: _typed(f"{where}, {key}", value, hints[key]) for key, value in table.items()}
    try:
        return kind(**values)
    except ValueError as trouble:
        raise ValueError(f"{where}: {trouble}") from None


def _typed(name: str, value: Any, kind: Any) -> Any:
    """The value, if it is of the kind; whole numbers are numbers too."""
    origin = get_origin(kind)
    if origin in {Union, types.UnionType}:
        return _one_of_types(name, value, get_args(kind))
    if origin is Literal:
        return _choice(name, value, get_args(kind))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = origin or kind
    if isinstance(value, plain) and (plain is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} must be {_told(kind)}, got {value!r}")


def _one_of_types(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    if value is None or (value == "none" and type(None) in kinds):
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    for kind in rest:
        try:
            return _typed(name, value, kind)
        except ValueError:
            continue
    told = " or ".join(_told(kind) for kind in kinds)
    raise ValueError(f"{name} must be {told}, got {value!r}")


def _choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if value in choices:
        return value
    hint = nearest(str(value), map(str, choices))
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.{hint}")


def _told(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return "none" if kind is type(None) else words.get(kind, getattr(kind, "__name__", str(kind)))


def value_of(text: str) -> Any:
    """What a word of the command line means: as TOML would read it, else the text itself.

    Args:
        text: the word.

    Returns:
        A number, a truth value, a list or the text.

    Example:
        >>> value_of("0.1"), value_of("true"), value_of("resnet18"), value_of("[0.1, 0.2]")
        (0.1, True, 'resnet18', [0.1, 0.2])
    """
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if list(table) == ["value"] else text


def assignments(words: Iterable[str]) -> dict[str, Any]:
    """Settings given as `name=value`.

    Args:
        words: such words.

    Returns:
        name -> value.

    Raises:
        ValueError: a word has no `=`.

    Example:
        >>> assignments(["rho=0.1", "task.epochs=3"])
        {'rho': 0.1, 'task.epochs': 3}
    """
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{word!r} is not a setting: write name=value, for example rho=0.1")
        found[name.strip()] = value_of(text.strip())
    return found
