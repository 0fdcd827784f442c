"""Which path does a word of the command line name? An empty one names none.

Python takes it for the current directory, which would then be filled: `--store "$UNSET"`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

PATHS = ConstructorRegistry()
"""While it is entered, tyro reads paths so."""


def path_of(word: str) -> Path:
    """The path that a word names.

    Args:
        word: of the command line.

    Returns:
        The path.

    Raises:
        ValueError: it is empty.

    Example:
        >>> path_of(".") == Path()
        True
    """
    if not word.strip():
        raise ValueError(f"{word!r} is no path: name one, or write . for the current directory")
    return Path(word)


@PATHS.primitive_rule
def _rule(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Of paths alone."""
    if kind.type is not Path:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda words: path_of(words[0]),
        is_instance=lambda given: isinstance(given, Path),
        str_from_instance=lambda path: [str(path)],
    )
