"""The benchmark of the hosts runs, and its table says what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import HOSTS_OWN_WARNINGS

pytestmark = HOSTS_OWN_WARNINGS
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_host_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import hosts

    found = hosts.measure(list(hosts.HOSTS), rounds=1, steps=2, width=8)
    assert found.keys() == hosts.HOSTS.keys()
    assert found.keys() >= {"loop", "fabric", "lightning", "accelerate", "transformers"}
    assert all(time > 0 for row in found.values() for time in row)


def test_what_a_host_costs_by_itself_is_not_laid_to_the_integration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import hosts

    row = hosts.show({"loop": [1.0, 2.0], "other": [1.5, 3.0]}).splitlines()[-1]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "other",
        "1.50",
        "3.00",
        "1.500",
        "+0.50",
    ]
