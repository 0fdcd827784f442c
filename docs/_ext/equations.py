"""Equations as MathML, which browsers know: no script, nothing fetched."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def _drawn(text: str, **options: bool) -> str:
    """Bars of norms have the height of the line: as operators, the left one alone would grow."""
    return tex2mathml(text, **options).replace("<mo>‖</mo>", '<mo stretchy="false">‖</mo>')


def _inline(writer: Any, node: nodes.Node) -> None:
    writer.body.append(_drawn(node.astext()))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.Node) -> None:
    """Equations with a wide space between them stand side by side where there is room."""
    parts = re.split(r"\\q?quad", node.astext())
    drawn = "".join(_drawn(part, as_block=True) for part in parts)
    writer.body.append(f'<div class="equation">{drawn}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """What sphinx calls.

    Args:
        app: the build.

    Returns:
        That reading in parallel is fine.
    """
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
