"""Which pages are made of files that live elsewhere? Studies and records, at each build anew.

Nothing of it is kept in docs/, so none of it can go out of step.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

from vasso.lab import study as studies
from vasso.lab.study import Study
from vasso.lab.tasks import NotThereYetError

DOCS = Path(__file__).parent.parent
RECORDS = DOCS.parent / "records"
HEAD = "| of the paper | what is asked | command | runs, cpu | runs, paper | record |"


def records() -> list[str]:
    """The records that there are.

    Returns:
        Names of folders with a page.
    """
    return sorted(path.parent.name for path in RECORDS.glob("*/README.md"))


def reproduction() -> list[str]:
    """Every study as a line of a Markdown table: what the paper shows first, in its order.

    Returns:
        Lines.
    """
    found = [studies.load(name) for name in studies.names()]
    found.sort(key=lambda study: (not study.shows, _natural(study.shows), study.name))
    return [HEAD, "|---|---|---|---|---|---|", *map(_line, found)]


def _natural(text: str) -> list[tuple[int, str]]:
    """Tables before figures, 2 before 10."""
    words = re.findall(r"\d+|\D+", text.replace("Table", "A"))
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words]


def _line(study: Study) -> str:
    runs = (str(len(study.scales[s].runs)) if s in study.scales else "–" for s in ("cpu", "paper"))
    cells = study.shows or "ours", study.question, _command(study), *runs, _record(study)
    return f"| {' | '.join(cells)} |"


def _record(study: Study) -> str:
    """The record of that name, or the first whose page tells to run the study."""
    told = re.compile(rf"vasso study {re.escape(study.name)}(?![\w-])")
    pages = {name: (RECORDS / name / "README.md").read_text() for name in records()}
    found = (name for name, page in pages.items() if name == study.name or told.search(page))
    return next((f"[{name}](records/{name}.md)" for name in found), "–")


def _command(study: Study) -> str:
    """What to type, and what is missing where not all of it can be answered yet."""
    missing = [scale for scale in study.scales if not _is_there(study, scale)]
    told = f"`vasso study {study.name}`"
    return told + (f" (not there yet: {', '.join(missing)})" if missing else "")


def _is_there(study: Study, scale: str) -> bool:
    try:
        study.check_is_there(scale)
    except NotThereYetError:
        return False
    return True


class Reproduction(Directive):
    """Puts the table where it is asked for."""

    def run(self) -> list[nodes.Node]:
        """What docutils calls.

        Returns:
            The table.
        """
        self.state.document.settings.env.note_reread()  # studies change without this page
        place = nodes.container(classes=["studies"])
        self.state.nested_parse(StringList(reproduction(), "the studies"), 0, place)
        return [place]


def write_records(app: Any) -> None:
    """A page for each record, which includes it; those of records that are gone go too.

    Args:
        app: the build.
    """
    folder = DOCS / "records"
    names = records()
    for page in folder.glob("*.md"):
        if page.stem not in {*names, "index"}:
            page.unlink()
    for name in names:
        page, source = folder / f"{name}.md", f"../../records/{name}/README.md"
        text = f"```{{include}} {source}\n:relative-images:\n:relative-docs: .\n```\n"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def setup(app: Any) -> dict[str, bool]:
    """What sphinx calls.

    Args:
        app: the build.

    Returns:
        That reading in parallel is fine.
    """
    app.connect("builder-inited", write_records)
    app.add_directive("reproduction", Reproduction)
    return {"parallel_read_safe": True}
