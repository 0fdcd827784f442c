"""What takes minutes: the demo as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_demo_runs_with_its_defaults_and_ends_with_a_table(tmp_path: Path) -> None:
    out = tmp_path / "demo.json"
    run = subprocess.run(
        [sys.executable, "examples/noisy_digits.py", "--json", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "SGD" in run.stdout
    assert "VaSSO" in run.stdout
    recorded = json.loads((ROOT / "records" / "noisy-digits" / "demo.json").read_text())
    assert json.loads(out.read_text()).keys() == recorded.keys()
