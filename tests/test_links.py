"""A link from one file of the repository to another leads somewhere, read there or on the site."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "records", "benchmarks", "examples", "tests", "vasso")


def is_made(path: Path) -> bool:
    """Whether the build of the site writes it: then no fresh checkout has it."""
    made = path.parent == ROOT / "docs" / "records" and path.stem != "index"
    return made or "_build" in path.parts


def documents() -> list[Path]:
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))
    return sorted(path for path in [*ROOT.glob("*.md"), *inside] if not is_made(path))


def prose(path: Path) -> str:
    """A document without its code, in which brackets are not links."""
    fences = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", fences.sub("", path.read_text()))


def links(path: Path) -> list[tuple[str, str]]:
    """Text and target of links and images that stay in the repository, without anchors."""
    found = re.findall(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)[^)]*\)", prose(path))
    return found + [
        ("html", x) for x in re.findall(r'(?:src|href)="(?!https?:|#)(.*?)"', prose(path))
    ]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_of_the_repository_lead_somewhere(path: Path) -> None:
    targets = {target: (path.parent / target).resolve() for _, target in links(path)}
    assert not [told for told, file in targets.items() if is_made(file) or not file.exists()]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_has_words_of_its_own(path: Path) -> None:
    """Sphinx puts a title into an empty link; read as plain Markdown there is nothing to see."""
    assert not [target for text, target in links(path) if not text]


def test_links_are_found_in_every_kind_of_document() -> None:
    told = {path.relative_to(ROOT).parts[0] for path in documents() if links(path)}
    assert {"README.md", "docs", "records"} <= told
