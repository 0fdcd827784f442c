"""Every optimizer of the catalogue keeps the promises of the core that its kind names."""

import copy
import inspect
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.contract.training import BATCH, DATA, OPTIMIZERS, PRESETS, STEPPERS, CatalogueRun
from vasso import Ema, SharpnessAware, presets
from vasso.catalogue import StepCounts, methods

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "losses.json"
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_preset = pytest.mark.parametrize("name", PRESETS)
every_stepper = pytest.mark.parametrize("name", STEPPERS)


class StopError(Exception):
    """What a test throws into a pass."""


def passes_of_a_step(run: CatalogueRun) -> int:
    """How many times the loss is asked for in the next step of a copy."""
    count = 0

    def counted() -> None:
        nonlocal count
        count += 1

    twin = clone(run)
    twin.before_pass = counted
    twin.step()
    return count


def backwards_of_a_step(run: CatalogueRun) -> int:
    """How many times a gradient is computed in the next step of a copy."""
    count = 0

    def counted(gradient: torch.Tensor) -> None:
        nonlocal count
        count += 1

    twin = clone(run)
    twin.model[0].weight.register_hook(counted)
    twin.step()
    return count


def clone(run: CatalogueRun) -> CatalogueRun:
    """The same method at the same point, in objects of its own."""
    twin = CatalogueRun(run.name)
    twin.model.load_state_dict(run.model.state_dict())
    twin.opt.load_state_dict(copy.deepcopy(run.opt.state_dict()))
    twin.steps, twin.drawn = run.steps, run.drawn
    return twin


def base_state(run: CatalogueRun) -> list[torch.Tensor]:
    state = run.opt.base.state
    return [
        value.clone()
        for group in run.opt.base.param_groups
        for p in group["params"]
        for value in state.get(p, {}).values()
        if isinstance(value, torch.Tensor)
    ]


def memories(run: CatalogueRun) -> list[torch.Tensor]:
    kept = run.opt._vectors
    params = [p for group in run.opt.param_groups for p in group["params"]]
    return [vector for p in params for vector in kept.get(p, {}).values()]


@every_optimizer
@pytest.mark.parametrize("after", [0, 1, 7])
def test_a_resumed_training_equals_an_unbroken_one(name: str, after: int, tmp_path: Path) -> None:
    whole = CatalogueRun(name).train(after + 5)
    CatalogueRun(name).train(after).save(tmp_path / "half.ckpt")
    resumed = CatalogueRun(name).load(tmp_path / "half.ckpt").train(5)
    assert torch.equal(resumed.weights(), whole.weights())
    assert resumed.opt.cost == whole.opt.cost


def test_every_method_goes_on_in_a_new_process(tmp_path: Path) -> None:
    ends = {}
    for number, name in enumerate(OPTIMIZERS):
        run = CatalogueRun(name).train(7)
        run.save(tmp_path / f"{number}.ckpt")
        ends[number] = run.train(9).weights()
    subprocess.run(
        [sys.executable, "-m", "tests.contract.training", str(tmp_path)], check=True, cwd=ROOT
    )
    for number, name in enumerate(OPTIMIZERS):
        assert torch.equal(torch.load(tmp_path / f"{number}.end"), ends[number]), name


@every_optimizer
def test_an_exception_in_any_pass_leaves_weights_and_base_as_they_were(name: str) -> None:
    run = CatalogueRun(name).train(6)
    for number in range(passes_of_a_step(run)):
        weights = [p.detach().clone() for p in run.model.parameters()]
        state, left = base_state(run), number

        def trouble() -> None:
            nonlocal left
            if left == 0:
                raise StopError
            left -= 1

        run.before_pass = trouble
        with pytest.raises(StopError):
            run.step()
        run.before_pass = lambda: None
        assert all(map(torch.equal, run.model.parameters(), weights)), f"pass {number}"
        assert all(map(torch.equal, base_state(run), state)), f"pass {number}"
        assert not run.opt.perturbed
        assert run.opt.skipped == 0


@every_optimizer
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_skipped_without_a_trace(name: str, bad: float) -> None:
    run = CatalogueRun(name).train(6)
    for number in range(backwards_of_a_step(run)):
        weights = [p.detach().clone() for p in run.model.parameters()]
        state, skipped, left = base_state(run), run.opt.skipped, number

        def poison(gradient: torch.Tensor) -> torch.Tensor:
            nonlocal left
            left -= 1
            return gradient * bad if left == -1 else gradient

        handle = run.model[0].weight.register_hook(poison)
        run.opt.step(run.batch(run.steps), **others(run))
        handle.remove()
        assert run.opt.skipped == skipped + 1, f"pass {number}"
        assert all(map(torch.equal, run.model.parameters(), weights)), f"pass {number}"
        assert all(map(torch.equal, base_state(run), state)), f"pass {number}"
        assert all(bool(vector.isfinite().all()) for vector in memories(run)), f"pass {number}"
    assert bool(run.train(3).weights().isfinite().all())


def vectors(run: CatalogueRun) -> dict[str, torch.Tensor]:
    """All that a step may change, but for counters and BatchNorm's statistics."""
    state = run.opt.state_dict()["state"]
    kept = {
        f"{i} {key}": value.clone()
        for i, entry in state.items()
        for key, value in entry.items()
        if isinstance(value, torch.Tensor)
    }
    return kept | {n: p.detach().clone() for n, p in run.model.named_parameters()}


def fail_at(run: CatalogueRun, number: int, what: type[BaseException] | float) -> None:
    """A step whose pass of this number raises, or leaves gradients that are not finite."""
    passes = 0

    def trouble() -> None:
        nonlocal passes
        passes += 1
        if isinstance(what, type) and passes == number + 1:
            raise what

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * what if passes == number + 1 else gradient  # type: ignore[operator]

    run.before_pass = trouble
    if isinstance(what, type):
        with pytest.raises(what):
            run.opt.step(run.batch(0))
    else:
        handle = run.model[0].weight.register_hook(poison)
        run.opt.step(run.batch(0))
        handle.remove()
    run.before_pass = lambda: None
    assert passes == number + 1


@every_stepper
@pytest.mark.parametrize("what", [StopError, KeyboardInterrupt, math.nan], ids=str)
def test_a_failed_step_changes_nothing(name: str, what: type[BaseException] | float) -> None:
    """More than a preset promises, whose slope keeps the finite gradient that it has seen."""
    calm = CatalogueRun(name).train(2)
    last = passes_of_a_step(calm) - 1
    kept, drawn, path = copy.deepcopy(calm.model.state_dict()), calm.drawn, calm.train(2).weights()
    for number in sorted({0, min(1, last), last}):
        run = CatalogueRun(name).train(2)
        before = vectors(run)
        fail_at(run, number, what)
        after = vectors(run)
        assert before.keys() == after.keys()
        assert all(torch.equal(after[key], value) for key, value in before.items()), number
        assert not run.opt.perturbed
        assert run.opt.skipped == (what is math.nan)
        run.model.load_state_dict(kept)  # for BatchNorm's sake
        run.drawn = drawn
        assert torch.equal(run.train(2).weights(), path), number


def others(run: CatalogueRun) -> dict[str, object]:
    if "other batch" not in run.method.needs:
        return {}
    return {"ascent_closure": run.other(run.steps)}


@every_optimizer
def test_alone_the_base_takes_its_own_steps_with_one_pass_each(name: str) -> None:
    run = CatalogueRun(name, **OPTIMIZERS[name].alone).train(8)
    plain = CatalogueRun("SAM", run.base, adapters="adapters" in run.method.needs)
    for step in range(8):
        plain.batch(step)()
        plain.opt.base.step()
    assert torch.equal(run.weights(), plain.weights())
    assert run.opt.cost == 8


@every_preset
def test_a_group_with_rho_zero_stays_at_home(name: str) -> None:
    run = CatalogueRun(name, rest={"rho": 0.0})
    rest = run.opt.param_groups[1]["params"]
    home: list[torch.Tensor] = []
    visits = []

    def look() -> None:
        visits.append(all(map(torch.equal, rest, home)))

    run.before_pass = look
    goes_back = run.opt.direction.remembers_all  # to earlier weights, all of them
    for _ in range(8):
        home[:] = [p.detach().clone() for p in rest]
        run.step()
    assert all(visits) or goes_back
    assert all((p in run.opt._vectors) == goes_back for p in rest)


@every_optimizer
def test_groups_of_the_same_settings_are_one(name: str) -> None:
    together, apart = CatalogueRun(name).train(8), CatalogueRun(name, rest={}).train(8)
    assert len(apart.opt.param_groups) == len(together.opt.param_groups) + 1
    assert torch.equal(together.weights(), apart.weights())


@every_optimizer
def test_a_group_without_a_learning_rate_is_borrowed_and_comes_home(name: str) -> None:
    run = CatalogueRun(name, rest={"lr": 0.0})
    rest = run.opt.param_groups[1]["params"]
    before = [p.detach().clone() for p in rest]
    run.train(8)
    assert all(map(torch.equal, rest, before))


@every_optimizer
def test_a_group_that_comes_later_joins_in_and_is_saved(name: str, tmp_path: Path) -> None:
    make = CatalogueRun(name).base

    def grown() -> CatalogueRun:
        run = CatalogueRun(name, lambda params: make(params[:2]))
        early = set(run.opt.param_groups[0]["params"])
        late = [p for p in run.model.parameters() if p not in early]
        run.train(3).opt.add_param_group({"params": late})
        return run

    run = grown()
    late = run.opt.param_groups[1]["params"]
    before = [p.detach().clone() for p in late]
    run.train(3).save(tmp_path / "grown.ckpt")
    assert not torch.equal(late[-1], before[-1])  # one before BatchNorm has no slope
    assert run.opt.param_groups[0].keys() == run.opt.param_groups[1].keys()
    resumed = grown().load(tmp_path / "grown.ckpt")
    assert torch.equal(resumed.train(3).weights(), run.train(3).weights())


@every_optimizer
def test_a_tensor_without_gradient_in_some_steps_does_no_harm(name: str) -> None:
    run = CatalogueRun(name)
    last = run.model[3].bias
    for step in range(9):
        last.requires_grad_(step % 3 != 1)
        before = last.detach().clone()
        run.step()
        if step % 3 == 1:
            assert torch.equal(last, before)
    assert bool(run.weights().isfinite().all())
    assert run.opt.skipped == 0


@every_optimizer
def test_the_counted_cost_is_the_formula_of_the_catalogue(name: str) -> None:
    run = CatalogueRun(name).train(15)
    counts = StepCounts(15, run.clean, run.climbed, run.refreshed, BATCH, DATA)
    assert run.opt.cost == pytest.approx(OPTIMIZERS[name].cost(counts), abs=1e-9)
    assert run.opt.cost == pytest.approx(run.evaluated, abs=1e-9)  # and none is wasted
    assert (0 < run.climbed <= 15) == ("pairs" not in OPTIMIZERS[name].needs)


@every_optimizer
def test_the_state_has_as_many_vectors_as_the_catalogue_says(name: str) -> None:
    run = CatalogueRun(name).train(8)
    kept = max(map(len, run.opt._vectors.values()), default=0)
    assert kept == int(OPTIMIZERS[name].vectors.partition(",")[0])


@every_optimizer
def test_a_copy_goes_on_like_the_original(name: str) -> None:
    run = CatalogueRun(name).train(5)
    if "source" in OPTIMIZERS[name].needs:  # which leads back to the run
        twin = copy.deepcopy(run)
    else:
        twin = CatalogueRun(name)
        twin.steps = run.steps
        twin.model, twin.opt = pickle.loads(pickle.dumps((run.model, run.opt)))
        twin.zero_grad = twin.opt.zero_grad
    assert twin.opt.base is not run.opt.base
    assert torch.equal(twin.train(5).weights(), run.train(5).weights())


def into_same_memory(run: CatalogueRun) -> None:
    """From now on every pass writes into the same tensors, every other one a view of a buffer."""
    params = list(run.model.parameters())
    flat = torch.zeros(sum(p.numel() for p in params), dtype=torch.float64)
    views = map(torch.Tensor.view_as, flat.split([p.numel() for p in params]), params)
    memory = [view.clone() if i % 2 else view for i, view in enumerate(views)]

    def zero_grad() -> None:
        for p, gradient in zip(params, memory, strict=True):
            p.grad = gradient.zero_()

    run.zero_grad = zero_grad


def train_by_hand(run: CatalogueRun, accumulate: bool) -> None:
    """Eight steps with `ascended`, of two micro-batches each if they accumulate."""
    for step in range(8):
        for part in range(1 + accumulate):
            run.loss_of(*run.batch(step + part).tensors).mean().backward()
            with run.opt.ascended(accumulate=accumulate):
                run.batch(step + part)()
        run.opt.step()
        run.zero_grad()


@every_optimizer
@pytest.mark.parametrize("way", ["closure", "ascended", "accumulated"])
def test_gradient_memory_that_every_pass_writes_to_changes_nothing(name: str, way: str) -> None:
    ends, accumulate = [], way == "accumulated"
    for same_memory in (False, True):
        run = CatalogueRun(name, rest={"rho": 0.0} if name in PRESETS else None)
        if same_memory:
            into_same_memory(run)
        if way == "closure":
            run.train(8)
        elif name in STEPPERS or run.opt.needs_own_passes:
            return
        elif not (accumulate and run.opt.geometry.keeps_mask):
            train_by_hand(run, accumulate)
        ends.append(run.weights())
    assert torch.equal(*ends)


@pytest.mark.parametrize("name", ["SAM", "VaSSO"])
def test_a_perturbation_that_is_recomputed_owns_the_gradient_in_it(name: str) -> None:
    ends = []
    for same_memory in (False, True):
        rest = {"rho": lambda step, lr: 0.0}
        run = CatalogueRun(name, rest=rest, restore="recompute")
        if same_memory:
            into_same_memory(run)
        ends.append(run.train(8).weights())
    assert torch.equal(*ends)


@every_preset
def test_variance_suppression_applies_where_the_catalogue_says(name: str) -> None:
    """It is an error exactly where the slope is not an average of batch gradients."""
    assert isinstance(CatalogueRun(name).opt.direction, Ema) == PRESETS[name].theta
    if PRESETS[name].theta:
        run = CatalogueRun(name, theta=0.3).train(3)
        assert isinstance(run.opt.direction, Ema)
        assert run.opt.param_groups[0]["theta"] == 0.3
    else:
        with pytest.raises(TypeError, match="unexpected keyword argument 'theta'"):
            CatalogueRun(name, theta=0.3)


@every_optimizer
def test_the_loss_curve_is_the_committed_one(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    losses = CatalogueRun(name).train(12).losses
    # float64 over 12 steps: processors differ by rounding, which grows slowly
    assert losses == pytest.approx(golden[name], rel=1e-7)


def test_the_golden_curves_are_of_the_methods_there_are() -> None:
    assert set(json.loads(GOLDEN.read_text())) == set(OPTIMIZERS)


def test_every_entry_says_what_it_is() -> None:
    for name, method in methods().items():
        assert method.what.endswith("."), name
        assert method.equation, name
        assert method.paper, name
        assert method.price, name


def test_every_preset_is_one_of_more_than_thirty_methods() -> None:
    ours = {
        x for _, x in inspect.getmembers(presets, inspect.isclass) if SharpnessAware in x.__bases__
    }
    assert ours <= {method.build for method in methods().values()}
    assert (len(ours) > 20, len(methods()) > 30) == (True, True)
