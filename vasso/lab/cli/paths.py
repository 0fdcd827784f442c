"""Options that several commands share: paths of stores and data, the number of workers."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

PATHS = ConstructorRegistry()
"""While it is entered, tyro refuses empty paths.

Python takes an empty path for the current directory, which would then be filled:
`--store "$UNSET"`.
"""

StoreOption: TypeAlias = Annotated[Path, tyro.conf.arg(help="directory of runs")]
ResultsOption: TypeAlias = Annotated[Path, tyro.conf.arg(help="directory for results")]
DataRoot: TypeAlias = Annotated[
    Path | None,
    tyro.conf.arg(help="directory of data sets; default: $VASSO_DATA, else the user's cache"),
]
Jobs: TypeAlias = Annotated[
    int,
    tyro.conf.arg(help="number of runs to train in parallel (one single-threaded process each)"),
]


def parse_path(word: str) -> Path:
    """The path that a word of the command line names; a ValueError if it is blank."""
    if not word.strip():
        raise ValueError(f"{word!r} is no path: name one, or write . for the current directory")
    return Path(word)


@PATHS.primitive_rule
def _path_rule(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if kind.type is not Path:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda words: parse_path(words[0]),
        is_instance=lambda given: isinstance(given, Path),
        str_from_instance=lambda path: [str(path)],
    )
