"""The record of the theorems on trial: its page is what a run of its script finds."""

import re

import pytest

from tests.lab.records import AGAIN, RECORDS, imported

NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@pytest.mark.slow
def test_the_page_is_what_its_script_finds() -> None:
    """Words to the letter; numbers up to what another processor's sines do to them."""
    kept = (RECORDS / "theory" / "README.md").read_text()
    made = imported("theory", "run").page()
    assert NUMBER.sub("#", made) == NUMBER.sub("#", kept), AGAIN
    ours, theirs = ([float(n.replace("−", "-")) for n in NUMBER.findall(t)] for t in (made, kept))
    assert len(ours) > 300
    assert ours == pytest.approx(theirs, rel=0.01, abs=2e-3), AGAIN
