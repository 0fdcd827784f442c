"""A real browser, Debian's chromium; tests that want it are skipped where there is none."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


def needed(name: str) -> Any:
    """A browser or a package; without it tests skip, or fail if VASSO_REQUIRE_BROWSER=1."""
    message = f"{name} is needed: install Debian's chromium and pip's playwright"
    if os.environ.get("VASSO_REQUIRE_BROWSER") == "1":
        pytest.fail(message)
    pytest.skip(message)


def launched() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("google-chrome") or needed("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        needed("playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
