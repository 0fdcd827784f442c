"""Turns docstrings written for readers of the code into pages, by small changes of mark-up.

Ours are plain text with Google's sections: norms are |d|, products a*b, tables have bars as in
Markdown, equations are paragraphs or indented. In reStructuredText these mean other things, so bars
and stars are escaped, tables become list-tables, equations TeX and other indented lines literal
blocks. Doctests, and what stands between backquotes, are left alone.
"""

import inspect
import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby, takewhile
from typing import Any

from methods_page import as_tex
from sphinx.util.inspect import stringify_signature

from vasso.engine.wrapper import OptimizerWrapper

SECTIONS = ("Args", "Attributes", "Example", "Examples", "Note", "Raises", "Returns", "Yields")
HEADER = re.compile(rf"({'|'.join(SECTIONS)}):$")
EQUATION = re.compile(r" *[\w{}+,^|()'-]+ = [^\"]*[^.:\"]$")
QUOTED = re.compile(r"(`+[^`]*`+)")
BEFORE_NAPOLEON = 400


def as_rst(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText, its sections as they are.

    Args:
        lines: of the docstring, without common indentation.

    Returns:
        New lines.
    """
    at = next((i for i, line in enumerate(lines) if HEADER.match(line)), len(lines))
    return [*_prose(lines[:at]), *_sections(lines[at:])]


def _prose(lines: list[str]) -> Iterator[str]:
    for kind, group in groupby(_marked(lines), key=lambda pair: pair[0]):
        block = [line for _, line in group]
        if kind == "table":
            yield from _list_table(block)
        elif kind == "equation":
            yield from (x for line in block for x in ("", f".. math:: {as_tex(line.strip())}", ""))
        elif kind == "indented":
            yield from ("", "::", "", *(f"    {line}" for line in block), "")
        else:
            yield from (line if kind == "doctest" else escaped(line) for line in block)


def _marked(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each line and what it belongs to; an indented block begins after a blank line."""
    kind, blank = "text", True
    for i, line in enumerate(lines):
        if line.startswith(("| ", "|-", "|:")):
            kind = "table"
        elif line.strip() and (kind == "equation" or (blank and _is_equation(lines[i:]))):
            kind = "equation"
        elif line.startswith(">>>"):
            kind = "doctest"
        elif not line.strip():
            kind = "indented" if kind == "indented" and _goes_on(lines[i:]) else "text"
        elif line.startswith("    ") and (kind == "indented" or blank):
            kind = "indented"
        elif kind != "doctest":
            kind = "text"
        blank = not line.strip()
        yield kind, line


def _is_equation(lines: list[str]) -> bool:
    """Whether all lines up to the next blank one are equations."""
    paragraph = takewhile(str.strip, lines)
    return all(EQUATION.match(line) for line in paragraph)


def _goes_on(lines: list[str]) -> bool:
    rest = [line for line in lines if line.strip()]
    return bool(rest) and rest[0].startswith("    ")


def _sections(lines: list[str]) -> Iterator[str]:
    doctest = False
    for line in lines:
        doctest = bool(line.strip()) and (doctest or line.lstrip().startswith(">>>"))
        yield line if doctest else escaped(line)


def escaped(line: str) -> str:
    """A line in which bars, stars and names that end in `_` mean nothing else.

    Args:
        line: of prose.

    Returns:
        The line; what is between backquotes is as it was.

    Example:
        >>> escaped("rho d / ||d||, and `a*b`")
        'rho d / \\\\|\\\\|d\\\\|\\\\|, and `a*b`'
    """
    parts = QUOTED.split(line)
    plain = (re.sub(r"([|*])", r"\\\1", part) for part in parts[::2])
    safe = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", part) for part in plain]
    return "".join(a + b for a, b in zip(safe, [*parts[1::2], ""], strict=True))


def _list_table(lines: list[str]) -> Iterator[str]:
    yield from ("", ".. list-table::", "   :header-rows: 1", "")
    for line in lines:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            for i, cell in enumerate(cells):
                yield f"   {'*' if i == 0 else ' '} - {escaped(cell.replace(chr(92) + '|', '|'))}"
    yield ""


def _rewrite(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def _constructor(
    app: Any, what: str, name: str, of: Any, options: Any, shown: str | None, returns: str | None
) -> tuple[str, None] | None:
    """Arguments of a class are those of `__init__`; autodoc would show those of `__new__`."""
    if not (isinstance(of, type) and issubclass(of, OptimizerWrapper)):
        return None
    signature = inspect.signature(partial(of.__init__, None))  # without self
    return stringify_signature(signature, show_annotation=False), None


def setup(app: Any) -> dict[str, bool]:
    """What sphinx calls.

    Args:
        app: the build.

    Returns:
        That reading in parallel is fine.
    """
    app.connect("autodoc-process-docstring", _rewrite, priority=BEFORE_NAPOLEON)
    app.connect("autodoc-process-signature", _constructor)
    return {"parallel_read_safe": True}
