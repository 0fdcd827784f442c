"""The benchmark of the hosts runs, and its table says what was measured."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import HOSTS_OWN_WARNINGS

pytestmark = HOSTS_OWN_WARNINGS


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("hosts")


def test_every_host_is_timed(hosts: Any) -> None:
    found = hosts.measure(list(hosts.HOSTS), rounds=1, steps=2, width=8)
    assert found.keys() == hosts.HOSTS.keys()
    assert found.keys() >= {"loop", "fabric", "lightning", "accelerate", "transformers"}
    assert all(time > 0 for row in found.values() for time in row)


def test_what_a_host_costs_by_itself_is_not_laid_to_the_integration(hosts: Any) -> None:
    row = hosts.show({"loop": [1.0, 2.0], "other": [1.5, 3.0]}).splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["other", "1.50", "3.00", "1.500", "+0.50"]
