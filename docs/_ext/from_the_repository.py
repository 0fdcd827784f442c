"""Pages made of files that live elsewhere: studies and records, at each build anew.

Nothing of it is kept in docs/, so none of it can go out of step. Pages link to such files where
they lie in the repository, so that one can read there too; on the site such a link leads to the
page.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

from vasso.lab.schema import UnsupportedError
from vasso.lab.studies import names
from vasso.lab.studies import study as studies
from vasso.lab.studies.study import Study

DOCS = Path(__file__).parent.parent
RECORDS = DOCS.parent / "records"
HEAD = (
    "| of the paper | what is asked | command | runs, cpu | made | runs, desk | made | runs, paper "
    "| record |"
)


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
    found = [studies.load(name) for name in names()]
    found.sort(key=lambda study: (not study.shows, _natural(study.shows), study.name))
    return [HEAD, "|---" * HEAD.count(" | ") + "|---|", *map(_line, found)]


def _natural(text: str) -> list[tuple[int, str]]:
    """Tables before figures, 2 before 10."""
    words = re.findall(r"\d+|\D+", text.replace("Table", "A"))
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words]


def _line(study: Study) -> str:
    asked = {name: {run.id for run in scale.runs} for name, scale in study.scales.items()}
    made = {name: runs & kept() for name, runs in asked.items() if runs}
    counts = (asked, "cpu"), (made, "cpu"), (asked, "desk"), (made, "desk"), (asked, "paper")
    numbers = (str(len(of[scale])) if scale in of else "–" for of, scale in counts)
    cells = study.shows or "ours", study.question, _command(study), *numbers, _record(study)
    return f"| {' | '.join(cells)} |"


@cache
def kept() -> set[str]:
    """The runs of all records.

    Returns:
        Their ids.
    """
    files = RECORDS.glob("*/runs.jsonl")
    return {json.loads(line)["id"] for file in files for line in file.read_text().splitlines()}


def _record(study: Study) -> str:
    """The record of that name, or the first whose page tells to run the study."""
    result = re.compile(rf"vasso study {re.escape(study.name)}(?![\w-])")
    pages = {name: (RECORDS / name / "README.md").read_text() for name in records()}
    found = (name for name, page in pages.items() if name == study.name or result.search(page))
    return next((f"[{name}](records/{name}.md)" for name in found), "–")


def _command(study: Study) -> str:
    """What to type, and what is missing where not all of it can be answered yet."""
    missing = [scale for scale in study.scales if not _is_there(study, scale)]
    result = f"`vasso study {study.name}`"
    return result + (f" (not there yet: {', '.join(missing)})" if missing else "")


def _is_there(study: Study, scale: str) -> bool:
    try:
        study.check_supported(scale)
    except UnsupportedError:
        return False
    return True


class Reproduction(Directive):
    """Puts the table where it is asked for; its content is for readers of the plain Markdown."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """What docutils calls.

        Returns:
            The table.
        """
        self.state.document.settings.env.note_reread()  # studies change without this page
        place = nodes.container(classes=["studies"])
        self.state.nested_parse(StringList(reproduction(), "the studies"), 0, place)
        return [place]


@cache
def shown() -> dict[Path, str]:
    """Which page shows a file that lives elsewhere?

    Returns:
        The file that a page includes -> the name of the page.
    """
    pages = {page: page.read_text() for page in DOCS.rglob("*.md") if "_build" not in page.parts}
    return {
        (page.parent / file).resolve(): page.relative_to(DOCS).with_suffix("").as_posix()
        for page, text in pages.items()
        for file in re.findall(r"^```\{include\} (\S+)", text, flags=re.MULTILINE)
    }


class ToPages(SphinxTransform):
    """Turns a link to a file that a page shows into a link to that page."""

    default_priority = 500  # while a page is read

    def apply(self, **kwargs: Any) -> None:
        """What sphinx calls.

        Args:
            **kwargs: nothing.
        """
        for link in self.document.findall(addnodes.pending_xref):
            if link.get("refdomain") == "doc":  # of a file outside docs/ it is the whole path
                file = (DOCS / f"{link['reftarget']}.md").resolve()
                link["reftarget"] = shown().get(file, link["reftarget"])


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
    app.add_transform(ToPages)
    return {"parallel_read_safe": True}
