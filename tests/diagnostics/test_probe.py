"""The probe records each step correctly and changes no bit of the training."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

from tests.diagnostics.nets import batches, net
from tests.support.compare import assert_same, flat, records_of
from tests.support.problems import Way, take_step
from vasso import ASAM, GSAM, MSAM, SAM, SSSAM, ChunkedSAM, LookSAM, Samples, VaSSO
from vasso.diagnostics.adversary.snr import snr
from vasso.diagnostics.probe import Probe, read
from vasso.diagnostics.sharpness import sharpness

MADE: dict[str, Any] = {
    "SAM": lambda base, model: SAM(base, rho=0.1, model=model),
    "VaSSO": lambda base, model: VaSSO(base, rho=0.1, theta=0.4, model=model),
    "VaSSO, same masks": lambda base, model: VaSSO(base, rho=0.1, model=model, same_rng=True),
    "recomputed": lambda base, model: VaSSO(base, rho=0.1, model=model, restore="recompute"),
    "ASAM": lambda base, model: ASAM(base, rho=0.5, model=model),
    "GSAM": lambda base, model: GSAM(base, rho=0.1, model=model),
    "LookSAM": lambda base, model: LookSAM(base, rho=0.1, model=model),
    "MSAM": lambda base, model: MSAM(base, rho=0.1, model=model),
    "SSSAM": lambda base, model: SSSAM(base, rho=0.1, model=model),
}


def trained(
    make: Any, probed: bool, way: Way = "closure", steps: int = 9, **probe: Any
) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """Everything a run leaves behind, random generator included, and what the probe told."""
    torch.manual_seed(1)
    model, some = net(), batches(8)
    base = SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    opt = make(base, model)
    measures = {
        "snr": lambda: snr(model, cross_entropy, some[:3]),
        "sharpness": lambda: sharpness(model, cross_entropy, some[:1], 0.1, steps=2),
        "wild": lambda: wild(model, some[0]),
    }
    if probed:
        kept = Probe(opt, every=2, measures=measures, measure_every=4, **probe)
    for t in range(steps):
        x, y = some[t % 8]
        step(opt, model, x, y, way)
    everything = [*model.parameters(), *model.buffers(), torch.rand(3)]
    return flat([x.double() for x in everything]), kept.rows if probed else []


def step(opt: Any, model: nn.Module, x: Any, y: Any, way: Way = "closure") -> None:
    take_step(opt, lambda: cross_entropy(model(x), y), way)


def wild(model: nn.Module, batch: Any) -> dict[str, float]:
    with torch.enable_grad():
        cross_entropy(model(batch[0]), batch[1]).backward()
    for p in model.parameters():
        p.zero_()
    torch.rand(5)
    return {"zero": 0.0, "nan": math.nan}


@pytest.mark.parametrize("name", MADE)
def test_not_one_bit_of_the_run_changes(name: str) -> None:
    plain, _ = trained(MADE[name], probed=False)
    probed, rows = trained(MADE[name], probed=True)
    assert_same(probed, plain)
    assert [row["step"] for row in rows] == [0, 2, 4, 6, 8]
    assert [row["step"] for row in rows if "snr/snr" in row] == [0, 4, 8]
    assert "sharpness/sharpness" in rows[0]


@pytest.mark.parametrize("name", ["SAM", "VaSSO", "GSAM"])
def test_not_one_bit_changes_in_the_callers_own_loop(name: str) -> None:
    probed, plain = (trained(MADE[name], probed, "ascended")[0] for probed in (True, False))
    assert_same(probed, plain)


def test_rows_hold_norms_and_cosines_of_the_vectors_of_the_step() -> None:
    model, some = net(torch.float64), batches(7, dtype=torch.float64)
    model[5].p = 0.0
    opt = VaSSO(AdamW(model.parameters(), lr=0.01), rho=0.1, theta=0.4, model=model)
    records = records_of(opt)
    with Probe(opt, every=3) as probe:
        for x, y in some:
            step(opt, model, x, y)
    for row in probe.rows:
        record = records[row["step"]]
        g, d, h, e = (flat(v) for v in (record.g, record.d, record.h, record.epsilon))
        assert row["g_norm"] == pytest.approx(g.norm().item())
        assert row["d_norm"] == pytest.approx(d.norm().item())
        assert row["h_norm"] == pytest.approx(h.norm().item())
        assert row["epsilon_norm"] == pytest.approx(0.1)
        assert row["cos_dg"] == pytest.approx((d @ g / d.norm() / g.norm()).item())
        assert row["cos_gh"] == pytest.approx((h @ g / h.norm() / g.norm()).item())
        assert row["cost"] == 2 * (row["step"] + 1)
        assert row["rise"] == pytest.approx(row["perturbed_loss"] - row["loss"])
        assert (row["rho"], row["theta"], row["lr"]) == (0.1, 0.4, 0.01)
        if row["step"]:
            before = flat(records[row["step"] - 1].epsilon)
            turn = (e @ before / e.norm() / before.norm()).item()
            assert row["cos_epsilon"] == pytest.approx(turn)
    assert probe.rows[0]["cos_epsilon"] is None
    assert [row["step"] for row in probe.rows] == [0, 3, 6]


def test_the_fire_rate_is_the_share_of_steps_that_climbed_since_the_last_line() -> None:
    model, some = net(), batches(4)
    opt = LookSAM(SGD(model.parameters(), lr=0.05), rho=0.1, k=3, model=model)
    climbed = []
    with Probe(opt, every=4) as probe:
        for t in range(9):
            step(opt, model, *some[t % 4])
            climbed.append(opt.last.climbed)
    rates = [row["fire_rate"] for row in probe.rows]
    assert rates == [climbed[0], sum(climbed[1:5]) / 4, sum(climbed[5:9]) / 4]


def test_plain_steps_of_the_base_do_not_count_as_climbs() -> None:
    model, (batch,) = net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.05), rho=0.1, model=model)
    with Probe(opt, every=4) as probe:
        for climbs in (True, False, False, True, True, False, False, False):
            step(opt, model, *batch, "closure" if climbs else "plain")
    assert [row["fire_rate"] for row in probe.rows] == [1, 2 / 4]


def test_between_written_steps_nothing_is_observed() -> None:
    model, some = net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.05), rho=0.1, model=model)
    watched = []
    with Probe(opt, every=5):
        for _ in range(10):
            watched.append(len(opt._observers))
            step(opt, model, *some[0])
    assert watched == [1, 0, 0, 0, 1, 1, 0, 0, 0, 1]
    assert not opt._observers


def test_of_several_passes_of_a_step_one_is_written() -> None:
    model, (batch,) = net(), batches(1)
    model.eval()
    opt = ChunkedSAM(SGD(model.parameters(), lr=0.05), rho=0.1, m=4, model=model)

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(x), y, reduction="none")

    with Probe(opt, every=1) as probe:
        for _ in range(3):
            opt.step(Samples(opt.zero_grad, losses, *batch))
    assert [row["step"] for row in probe.rows] == [0, 1, 2]
    assert [row["fire_rate"] for row in probe.rows] == [1, 1, 1]


def test_lines_are_json_without_nan_and_read_back_by_step(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "probe.jsonl"
    _, rows = trained(MADE["SAM"], True, path=path)
    assert read(path) == rows
    assert rows[0]["wild/nan"] is None
    trained(MADE["VaSSO"], True, path=path, steps=3)  # as after a resume: the last line holds
    again = read(path)
    assert [row["step"] for row in again] == [0, 2, 4, 6, 8]
    assert again[0]["theta"] != rows[0]["theta"]
    with path.open("a") as file:
        file.write('{"step": 10, "lo')
    assert read(path) == again
    with path.open("a") as file:
        file.write("\n" + json.dumps(rows[0]) + "\n")
    with pytest.raises(ValueError, match="line 8 is not JSON"):
        read(path)


def test_numbers_go_to_a_tensorboard_writer_too() -> None:
    class Writer:
        def __init__(self) -> None:
            self.kept: dict[tuple[str, int], float] = {}

        def add_scalar(self, name: str, value: float, at: int) -> None:
            self.kept[name, at] = value

    writer = Writer()
    _, rows = trained(MADE["SAM"], True, writer=writer)
    assert writer.kept["probe/d_norm", 4] == rows[2]["d_norm"]
    assert writer.kept["probe/snr/noise", 8] == rows[4]["snr/noise"]


def test_a_measure_that_fails_leaves_the_model_as_it_was() -> None:
    model, (batch,) = net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.05), rho=0.1, model=model)

    def fails() -> None:
        wild(model, batch)
        raise KeyboardInterrupt

    before = flat(model.parameters())
    with Probe(opt, every=1, measures={"fails": fails}), pytest.raises(KeyboardInterrupt):
        step(opt, model, *batch)
    assert_same(flat(model.parameters()), before)
