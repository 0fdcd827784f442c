"""A slope in bfloat16: half of the memory, right on average, and the same after a checkpoint."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests import faults
from tests.engine.checkpoints import test_getters as getters
from tests.engine.checkpoints.task import all_of, train
from tests.faults import assert_same_tree, net
from tests.support.problems import Way
from vasso import SAM, SharpnessAware, VaSSO
from vasso.engine.accumulation import Mean
from vasso.lab.report.cells import cells_of
from vasso.lab.report.read import read_store
from vasso.lab.statistics import mean, paired
from vasso.lab.studies import study as studies
from vasso.numerics.vectors import PIECE
from vasso.parts.context import StepContext
from vasso.parts.directions import Ema
from vasso.parts.memory import PartState

LOW = torch.bfloat16
ROOT = Path(__file__).parents[2]


def averaged(g: Tensor, start: float, theta: float, steps: int) -> Tensor:
    """The slope after so many steps with one gradient, from a slope of `start` everywhere."""
    ema, w = Ema(theta, dtype=LOW), g.clone()
    memory = PartState({w: {"d": torch.full_like(g, start, dtype=LOW)}}, w=[w])
    for step in range(steps):
        (d,) = ema([g], memory, StepContext(step, w=[w]), theta=[theta])
    assert d is memory.kept[w]["d"]
    assert d.dtype == LOW
    return d.float()


@pytest.mark.parametrize("shape", [(100, 100), (3, PIECE), (2 * PIECE + 5,)], ids=str)
def test_small_steps_arrive_on_average(shape: tuple[int, ...]) -> None:
    d = averaged(torch.full(shape, 1.004), 1.0, 0.1, 5)  # neighbours: 1 and 1.0078125
    expected = 1.004 - 0.004 * 0.9**5
    # entries are coins of deviation 0.003, so the mean of 10,000 of them one of 0.00003
    assert d.mean().item() == pytest.approx(expected, abs=1.5e-4)
    first, *others = d.flatten().split(PIECE)
    assert not any(torch.equal(first, other) for other in others)


def test_noise_changes_with_the_step_and_with_nothing_else() -> None:
    g = torch.full((1000,), 1.004)
    once, again = averaged(g, 1.0, 0.5, 1), averaged(g, 1.0, 0.5, 1)
    assert torch.equal(once, again)
    assert not torch.equal(averaged(g, 1.0, 0.5, 2), once)


def opt_of(model: torch.nn.Module, theta: float = 0.3, **options: object) -> SharpnessAware:
    base = SGD(model.parameters(), lr=0.05, momentum=0.9)
    return VaSSO(base, rho=0.1, theta=theta, slope_dtype=LOW, model=model, **options)


def trained(opt: SharpnessAware, model: torch.nn.Module, way: Way = "closure") -> torch.nn.Module:
    for data in faults.batches(4, torch.float32):
        faults.take_step(opt, model, data, way)
    return model


def test_theta_1_is_sam_to_the_last_bit() -> None:
    ours, theirs = net(dtype=torch.float32), net(dtype=torch.float32)
    trained(opt_of(ours, theta=1.0), ours)
    trained(SAM(SGD(theirs.parameters(), lr=0.05, momentum=0.9), rho=0.1, model=theirs), theirs)
    assert_same_tree(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("restore", ["copy", "recompute"])
def test_training_is_close_to_that_with_a_slope_in_float32(restore: str) -> None:
    ours, theirs = net(dtype=torch.float32), net(dtype=torch.float32)
    trained(opt := opt_of(ours, restore=restore), ours)
    base = SGD(theirs.parameters(), lr=0.05, momentum=0.9)
    trained(VaSSO(base, rho=0.1, theta=0.3, model=theirs, restore=restore), theirs)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert opt.state[p]["vasso_d"].dtype == LOW
        assert torch.allclose(p, q, atol=1e-3)  # epsilon is 0.1 long, its rounding 2^-8 of that
        assert not torch.equal(p, q)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("way", ["state_dict", "getters", "disk"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_checkpoint_goes_on_bit_for_bit(way: str, steps: int, tmp_path: Path) -> None:
    (model, opt), (other, fresh) = ((m := net(dtype=torch.float32), opt_of(m)) for _ in range(2))
    getters.trained((model, opt), steps)
    if way == "state_dict":
        saved = copy.deepcopy(all_of(model, opt))
        other.load_state_dict(saved["model"])
        fresh.load_state_dict(saved["opt"])
    else:
        getters.through(way, tmp_path)(getters.NESTED, (model, opt), (other, fresh))
    train(opt, model, range(steps, steps + 3))
    train(fresh, other, range(steps, steps + 3))
    assert_same_tree(all_of(other, fresh), all_of(model, opt))
    assert {v["d"].dtype for v in fresh._vectors.values()} == {LOW}


def test_the_mean_over_micro_batches_is_right_on_average() -> None:
    w, mean = torch.zeros(10_000), Mean()
    for value in (1.0, 1.0, 1.0078125):
        mean.add([], PartState({w: {"d": torch.full_like(w, value, dtype=LOW)}}), 1.0)
    assert mean.state is not None
    found = mean.state.kept[w]["d"].float().mean().item()
    assert found == pytest.approx(1.0026, abs=2e-4)  # to nearest it would be 1


def test_the_record_says_what_the_page_says() -> None:
    runs = read_store(ROOT / "records/slope-bfloat16").runs.values()
    full, low = cells_of(studies.load("slope-bfloat16").at("cpu").runs, runs)
    found = paired(low.values("last"), full.values("last")).difference
    scores = [f"{mean(list(cell.values('last').values())).value:.1f} %" for cell in (low, full)]
    said = f"{found.value:+.1f} ({found.low:+.1f} to {found.high:+.1f}"
    page = " ".join((ROOT / "docs/concepts/cost.md").read_text().split())
    assert f"{' against '.join(scores)}, a difference of {said}" in page


def test_local_perturbations_are_refused() -> None:
    with pytest.raises(ValueError, match="round the mean"):
        SharpnessAware(SGD([torch.ones(1)], lr=0.1), direction=Ema(0.4, dtype=LOW), sync="local")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, "bfloat16"], ids=str)
def test_other_dtypes_are_refused(dtype: object) -> None:
    with pytest.raises(ValueError, match=r"dtype must be .*bfloat16.*got"):
        Ema(0.4, dtype=dtype)  # type: ignore[arg-type]


def test_a_checkpoint_of_the_other_dtype_is_refused() -> None:
    model = net(dtype=torch.float32)
    saved = copy.deepcopy(opt_of(model).state_dict())
    base = SGD(net(dtype=torch.float32).parameters(), lr=0.05, momentum=0.9)
    with pytest.raises(ValueError, match="of other parts"):
        VaSSO(base, rho=0.1, theta=0.3).load_state_dict(saved)
