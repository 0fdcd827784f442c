"""Every optimizer of the catalogue keeps the promises of the core that its kind names."""

import copy
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.contract.workout import BATCH, DATA, OPTIMIZERS, PRESETS, STEPPERS, Workout
from vasso.catalogue import Taken, methods

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "losses.json"
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_preset = pytest.mark.parametrize("name", PRESETS)
every_stepper = pytest.mark.parametrize("name", STEPPERS)


class StopError(Exception):
    """What a test throws into a pass."""


def passes_of_a_step(workout: Workout) -> int:
    """How many times the loss is asked for in the next step of a copy."""
    count = 0

    def counted() -> None:
        nonlocal count
        count += 1

    twin = clone(workout)
    twin.before_pass = counted
    twin.step()
    return count


def backwards_of_a_step(workout: Workout) -> int:
    """How many times a gradient is computed in the next step of a copy."""
    count = 0

    def counted(gradient: torch.Tensor) -> None:
        nonlocal count
        count += 1

    twin = clone(workout)
    twin.model[0].weight.register_hook(counted)
    twin.step()
    return count


def clone(workout: Workout) -> Workout:
    """The same method at the same point, in objects of its own."""
    twin = Workout(workout.name)
    twin.model.load_state_dict(workout.model.state_dict())
    twin.opt.load_state_dict(copy.deepcopy(workout.opt.state_dict()))
    twin.steps, twin.drawn = workout.steps, workout.drawn
    return twin


def base_state(workout: Workout) -> list[torch.Tensor]:
    state = workout.opt.base.state
    return [
        value.clone()
        for group in workout.opt.base.param_groups
        for p in group["params"]
        for value in state.get(p, {}).values()
        if isinstance(value, torch.Tensor)
    ]


def memories(workout: Workout) -> list[torch.Tensor]:
    kept = workout.opt._memories
    params = [p for group in workout.opt.param_groups for p in group["params"]]
    return [vector for p in params for vector in kept.get(p, {}).values()]


@every_optimizer
@pytest.mark.parametrize("after", [0, 1, 7])
def test_a_resumed_training_equals_one_that_was_not_interrupted(
    name: str, after: int, tmp_path: Path
) -> None:
    whole = Workout(name).train(after + 5)
    Workout(name).train(after).save(tmp_path / "half.ckpt")
    resumed = Workout(name).load(tmp_path / "half.ckpt").train(5)
    assert torch.equal(resumed.weights(), whole.weights())
    assert resumed.opt.cost == whole.opt.cost


def test_every_method_goes_on_in_a_new_process(tmp_path: Path) -> None:
    ends = {}
    for number, name in enumerate(OPTIMIZERS):
        workout = Workout(name).train(7)
        workout.save(tmp_path / f"{number}.ckpt")
        ends[number] = workout.train(9).weights()
    subprocess.run(
        [sys.executable, "-m", "tests.contract.workout", str(tmp_path)], check=True, cwd=ROOT
    )
    for number, name in enumerate(OPTIMIZERS):
        assert torch.equal(torch.load(tmp_path / f"{number}.end"), ends[number]), name


@every_optimizer
def test_an_exception_in_any_pass_leaves_weights_and_base_as_they_were(name: str) -> None:
    workout = Workout(name).train(6)
    for number in range(passes_of_a_step(workout)):
        weights = [p.detach().clone() for p in workout.model.parameters()]
        state, left = base_state(workout), number

        def trouble() -> None:
            nonlocal left
            if left == 0:
                raise StopError
            left -= 1

        workout.before_pass = trouble
        with pytest.raises(StopError):
            workout.step()
        workout.before_pass = lambda: None
        assert all(map(torch.equal, workout.model.parameters(), weights)), f"pass {number}"
        assert all(map(torch.equal, base_state(workout), state)), f"pass {number}"
        assert not workout.opt.perturbed
        assert workout.opt.skipped == 0


@every_optimizer
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_skipped_without_a_trace(name: str, bad: float) -> None:
    workout = Workout(name).train(6)
    for number in range(backwards_of_a_step(workout)):
        weights = [p.detach().clone() for p in workout.model.parameters()]
        state, skipped, left = base_state(workout), workout.opt.skipped, number

        def poison(gradient: torch.Tensor) -> torch.Tensor:
            nonlocal left
            left -= 1
            return gradient * bad if left == -1 else gradient

        handle = workout.model[0].weight.register_hook(poison)
        workout.opt.step(workout.batch(workout.steps), **others(workout))
        handle.remove()
        assert workout.opt.skipped == skipped + 1, f"pass {number}"
        assert all(map(torch.equal, workout.model.parameters(), weights)), f"pass {number}"
        assert all(map(torch.equal, base_state(workout), state)), f"pass {number}"
        assert all(bool(vector.isfinite().all()) for vector in memories(workout)), f"pass {number}"
    assert bool(workout.train(3).weights().isfinite().all())


def vectors(workout: Workout) -> dict[str, torch.Tensor]:
    """All that a step may change, but for counters and BatchNorm's statistics."""
    state = workout.opt.state_dict()["state"]
    kept = {
        f"{i} {key}": value.clone()
        for i, entry in state.items()
        for key, value in entry.items()
        if isinstance(value, torch.Tensor)
    }
    return kept | {n: p.detach().clone() for n, p in workout.model.named_parameters()}


def fail_at(workout: Workout, number: int, what: type[BaseException] | float) -> None:
    """A step whose pass of this number raises, or leaves gradients that are not finite."""
    passes = 0

    def trouble() -> None:
        nonlocal passes
        passes += 1
        if isinstance(what, type) and passes == number + 1:
            raise what

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * what if passes == number + 1 else gradient  # type: ignore[operator]

    workout.before_pass = trouble
    if isinstance(what, type):
        with pytest.raises(what):
            workout.opt.step(workout.batch(0))
    else:
        handle = workout.model[0].weight.register_hook(poison)
        workout.opt.step(workout.batch(0))
        handle.remove()
    workout.before_pass = lambda: None
    assert passes == number + 1


@every_stepper
@pytest.mark.parametrize("what", [StopError, KeyboardInterrupt, math.nan], ids=str)
def test_a_step_of_a_stepper_that_fails_has_never_been(
    name: str, what: type[BaseException] | float
) -> None:
    """More than a preset promises, whose slope keeps the finite gradient that it has seen."""
    calm = Workout(name).train(2)
    last = passes_of_a_step(calm) - 1
    kept, drawn, path = copy.deepcopy(calm.model.state_dict()), calm.drawn, calm.train(2).weights()
    for number in sorted({0, 1, last}):
        workout = Workout(name).train(2)
        before = vectors(workout)
        fail_at(workout, number, what)
        after = vectors(workout)
        assert before.keys() == after.keys()
        assert all(torch.equal(after[key], value) for key, value in before.items()), number
        assert not workout.opt.perturbed
        assert workout.opt.skipped == (what is math.nan)
        workout.model.load_state_dict(kept)  # for BatchNorm's sake
        workout.drawn = drawn
        assert torch.equal(workout.train(2).weights(), path), number


def others(workout: Workout) -> dict[str, object]:
    if "other batch" not in workout.method.needs:
        return {}
    return {"ascent_closure": workout.other(workout.steps)}


@every_optimizer
def test_alone_the_base_takes_its_own_steps_with_one_pass_each(name: str) -> None:
    workout = Workout(name, **OPTIMIZERS[name].alone).train(8)
    plain = Workout("SAM")
    for step in range(8):
        plain.batch(step)()
        plain.opt.base.step()
    assert torch.equal(workout.weights(), plain.weights())
    assert workout.opt.cost == 8


@every_preset
def test_a_group_with_rho_zero_stays_at_home(name: str) -> None:
    workout = Workout(name, rest={"rho": 0.0})
    rest = workout.opt.param_groups[1]["params"]
    home: list[torch.Tensor] = []
    visits = []

    def look() -> None:
        visits.append(all(map(torch.equal, rest, home)))

    workout.before_pass = look
    asks_more = workout.opt.direction.asks_more  # these go back to earlier weights, all of them
    for _ in range(8):
        home[:] = [p.detach().clone() for p in rest]
        workout.step()
    assert all(visits) or asks_more
    assert all((p in workout.opt._memories) == asks_more for p in rest)


@every_optimizer
def test_groups_of_the_same_settings_are_one(name: str) -> None:
    together, apart = Workout(name).train(8), Workout(name, rest={}).train(8)
    assert len(apart.opt.param_groups) == 2
    assert torch.equal(together.weights(), apart.weights())


@every_optimizer
def test_a_group_without_a_learning_rate_is_borrowed_and_comes_home(name: str) -> None:
    workout = Workout(name, rest={"lr": 0.0})
    rest = workout.opt.param_groups[1]["params"]
    before = [p.detach().clone() for p in rest]
    workout.train(8)
    assert all(map(torch.equal, rest, before))


@every_optimizer
def test_a_group_that_comes_later_joins_in_and_is_saved(name: str, tmp_path: Path) -> None:
    def grown() -> Workout:
        workout = Workout(name, lambda params: torch.optim.SGD(params[:2], lr=0.1, momentum=0.9))
        early = set(workout.opt.param_groups[0]["params"])
        late = [p for p in workout.model.parameters() if p not in early]
        workout.train(3).opt.add_param_group({"params": late})
        return workout

    workout = grown()
    late = workout.opt.param_groups[1]["params"]
    before = [p.detach().clone() for p in late]
    workout.train(3).save(tmp_path / "grown.ckpt")
    assert not torch.equal(late[-1], before[-1])  # one before BatchNorm has no slope
    assert workout.opt.param_groups[0].keys() == workout.opt.param_groups[1].keys()
    resumed = grown().load(tmp_path / "grown.ckpt")
    assert torch.equal(resumed.train(3).weights(), workout.train(3).weights())


@every_optimizer
def test_a_tensor_without_gradient_in_some_steps_does_no_harm(name: str) -> None:
    workout = Workout(name)
    last = workout.model[3].bias
    for step in range(9):
        last.requires_grad_(step % 3 != 1)
        before = last.detach().clone()
        workout.step()
        if step % 3 == 1:
            assert torch.equal(last, before)
    assert bool(workout.weights().isfinite().all())
    assert workout.opt.skipped == 0


@every_optimizer
def test_the_counted_cost_is_the_formula_of_the_catalogue(name: str) -> None:
    workout = Workout(name).train(15)
    taken = Taken(15, workout.clean, workout.climbed, workout.refreshed, BATCH, DATA)
    assert workout.opt.cost == pytest.approx(OPTIMIZERS[name].cost(taken), abs=1e-9)
    assert 0 < workout.climbed <= 15


@every_optimizer
def test_the_state_has_as_many_vectors_as_the_catalogue_says(name: str) -> None:
    workout = Workout(name).train(8)
    p = workout.model[0].weight
    assert len(workout.opt._memories.get(p, {})) == int(OPTIMIZERS[name].vectors)


@every_optimizer
def test_a_copy_goes_on_like_the_original(name: str) -> None:
    workout = Workout(name).train(5)
    if "source" in OPTIMIZERS[name].needs:  # which leads back to the workout
        twin = copy.deepcopy(workout)
    else:
        twin = Workout(name)
        twin.steps = workout.steps
        twin.model, twin.opt = pickle.loads(pickle.dumps((workout.model, workout.opt)))
    assert twin.opt.base is not workout.opt.base
    assert torch.equal(twin.train(5).weights(), workout.train(5).weights())


@every_preset
def test_variance_suppression_applies_where_the_catalogue_says(name: str) -> None:
    if PRESETS[name].theta:
        workout = Workout(name, theta=0.3).train(3)
        assert workout.opt.param_groups[0]["theta"] == 0.3
    else:
        with pytest.raises(TypeError, match="takes no theta: its slope is"):
            Workout(name, theta=0.3)


@every_optimizer
def test_the_loss_curve_is_the_committed_one(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    losses = Workout(name).train(12).losses
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


def test_there_are_more_than_thirty_methods() -> None:
    assert len(methods()) > 30
