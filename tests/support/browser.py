"""A real browser, Debian's chromium; tests that want it are skipped where there is none."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from tests.support import need

ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


def launched() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    remedy = "a browser is needed: install Debian's chromium and pip's playwright"
    need(path and find_spec("playwright"), remedy, "VASSO_REQUIRE_BROWSER")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
