"""What does a point of a chart say? A title inside it; browsers show it, our script does better."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

from markupsafe import Markup


class Tips:
    """Texts of the points of one figure."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str) -> str:
        """Keeps a text.

        Args:
            text: what the point says.

        Returns:
            The `gid` for the point.
        """
        self.texts.append(text)
        return f"point-{len(self.texts) - 1}"

    def attached(self, svg: str, name: str) -> Markup:
        """The figure with its texts.

        Args:
            svg: the element.
            name: prefix of its ids.

        Returns:
            For a page.

        Raises:
            ValueError: a point is not in the figure.
        """

        def titled(match: re.Match[str]) -> str:
            text = escape(self.texts[int(match[1])])
            return f'<g class="point"><title>{text}</title>'

        done, count = re.subn(rf'<g id="{re.escape(name)}-point-(\d+)">', titled, svg)
        if count != len(self.texts):
            raise ValueError(f"{len(self.texts)} points were drawn, {count} are in the figure")
        return Markup(done)
