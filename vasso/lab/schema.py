"""Frozen dataclasses from tables of plain values, with checks of every key and type.

Tables come from TOML files, from the command line and from a store. They are data, never code.
"""

import dataclasses
import functools
import json
import tomllib
import types
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vasso._names import suggest

T = TypeVar("T")


class LabError(RuntimeError):
    """Files or data cannot be used as they are; the command prints the message alone."""


class UnsupportedError(NotImplementedError):
    """A study names something that this version cannot train or measure yet."""


UNEXPECTED = (
    "this error was not foreseen. If no line above is in a file of yours, it is a bug in vasso: "
    "please report it with these lines"
)


def known_cause(error: BaseException) -> str:
    """A sentence if torch's error means no memory, or one sample for BatchNorm; else ""."""
    named = f"{type(error).__name__}: {error}"
    if "more than 1 value per channel when training" in named:
        return (
            "BatchNorm cannot train on a batch of one sample: choose larger batches, or leave out "
            "the smaller last one (drop_last)"
        )
    if not any(sign in named for sign in ("MemoryError", "OutOfMemory", "allocate memory")):
        return ""
    first = str(error).strip().partition("\n")[0]
    return f"not enough memory ({first}): choose a smaller model or batch, or fewer jobs"


def printable(text: str) -> str:
    r"""The text with escapes for characters that a terminal obeys, or cannot encode.

    Example:
        >>> print(printable("clear \x1b[2J"))
        clear \x1b[2J
    """
    if text.isprintable():
        return text
    hidden = {c for c in text if unicodedata.category(c)[0] == "C"} - {"\n", "\t"}
    return "".join(ascii(c)[1:-1] if c in hidden else c for c in text)


def nearest(value: str, choices: Iterable[str]) -> str:
    """A hint for a misspelt value, with a blank before it: the nearest choice, else all of them."""
    known = list(choices)
    near = suggest(value, known)
    if near:
        return f" Did you mean {near!r}?"
    return f" There are {', '.join(map(repr, known))}." if known else ""


def canonical(value: Any) -> str:
    """Plain values as text, the same for the same settings: 1.0 is written as 1.

    Example:
        >>> canonical({"rho": 1.0, "name": "SAM"})
        '{"name":"SAM","rho":1}'
    """
    return json.dumps(_whole(value), sort_keys=True, separators=(",", ":"))


def _whole(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def name_of(what: str, value: object, choices: Iterable[str]) -> str:
    """The name among the choices, ignoring upper and lower case."""
    known = list(choices)
    if value in known:
        return str(value)
    folded = {name.casefold(): name for name in known}
    found = folded.get(str(value).casefold())
    if found is None:
        raise ValueError(f"no {what} is called {value!r}.{nearest(str(value), known)}")
    return found


def filled(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A frozen dataclass from a table; `where` names the origin of the table in error messages."""
    hints = _types_of(kind)  # type: ignore[arg-type]
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in table:
        if key not in names:
            raise ValueError(f"{where} has no setting {key!r}.{nearest(key, names)}")
    values = {key: _typed(f"{where}, {key}", value, hints[key]) for key, value in table.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@functools.cache
def _types_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _typed(name: str, value: Any, kind: Any) -> Any:
    """The value, if it is of the type; whole numbers are floats too."""
    origin = get_origin(kind)
    if origin in {Union, types.UnionType}:
        return _one_of_types(name, value, get_args(kind))
    if origin is Literal:
        if value in (choices := get_args(kind)):
            return value
        hint, listed = nearest(str(value), map(str, choices)), ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {listed}, got {value!r}.{hint}")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = origin or kind
    if isinstance(value, plain) and (plain is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} must be {_describe_type(kind)}, got {value!r}")


def _one_of_types(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    if value is None or (value == "none" and type(None) in kinds):
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    for kind in rest:
        try:
            return _typed(name, value, kind)
        except ValueError:
            continue
    names = " or ".join(_describe_type(kind) for kind in kinds)
    raise ValueError(f"{name} must be {names}, got {value!r}")


def _describe_type(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return "none" if kind is type(None) else words.get(kind, getattr(kind, "__name__", str(kind)))


def value_of(text: str) -> Any:
    """The value of a word of the command line: as in TOML, else the text itself.

    Example:
        >>> value_of("0.1"), value_of("true"), value_of("resnet18"), value_of("[0.1, 0.2]")
        (0.1, True, 'resnet18', [0.1, 0.2])
    """
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return table["value"] if list(table) == ["value"] else text


def assignments(words: Sequence[str]) -> dict[str, Any]:
    """Settings written as `name=value`."""
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{word!r} is not a setting: write name=value, for example rho=0.1")
        if name.strip() in found:
            raise ValueError(f"{name.strip()} is set twice: {' '.join(words)}")
        found[name.strip()] = value_of(text.strip())
    return found
