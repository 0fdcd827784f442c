"""The method page of the docs is the catalogue."""

from pathlib import Path

from vasso.catalogue import as_markdown

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"


def test_the_method_page_is_up_to_date() -> None:
    assert PAGE.read_text() == as_markdown(), "run: python -m vasso.catalogue > docs/methods.md"
