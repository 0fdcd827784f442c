"""The examples run; those of hosts and of several ranks are run beside the tests of the hosts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_minimal_takes_two_gradients_for_each_of_its_steps() -> None:
    command = [sys.executable, str(EXAMPLES / "minimal.py")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # neighbours on the machine
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    batches = -(-1297 // 64)
    assert f"after {2 * 10 * batches} gradient evaluations" in done.stdout
