"""Random sequences of everything a user can do with an optimizer, for any method of the catalogue.

Two trainings run in parallel and stay equal bit for bit. What must not matter happens to one of
them alone: a checkpoint, a copy, gradient memory that is written to again, the form of `zero_grad`,
an exception or a NaN, a closure or the passes of a loop. What does matter happens to both. For SAM
and VaSSO each step also equals the plain twins of `tests/reference`.
"""

import copy
import inspect
import io
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from tests.contract.training import OPTIMIZERS, STEPPERS
from tests.reference import sam, vasso
from tests.support import THOROUGH
from vasso import FromGap, LossBudget, Outputs, Samples
from vasso.engine.checkpoint import split
from vasso.engine.groups import Groups
from vasso.engine.perturbation import Perturbation
from vasso.engine.wrapper import OptimizerWrapper
from vasso.parts.directions import Ema

pytestmark = pytest.mark.thorough
Way: TypeAlias = Literal["closure", "ascended", "first pass", "ascended, body always run", "plain"]
EXPLORE = bool(os.environ.get("VASSO_EXPLORE"))
"""New sequences in each run (`make explore`); else the same ones, so that CI repeats itself."""
TWINS = ("SAM", "VaSSO")
NEAR = 1e-10
"""Of one step in float64, from equal weights: roundings of 1e-16, in AdamW divided by small g."""
BATCH = 6
BASES: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "adamw": partial(AdamW, lr=1e-2, weight_decay=1e-1),
}
WITHOUT_ADAPTERS = sorted(name for name, row in OPTIMIZERS.items() if "adapters" not in row.needs)
"""Bi-LoRA has groups of its own, and the network here no LoRA layer: tests/standalone has both."""
FREEZABLE = ["first.bias", "norm.weight", "last.weight"]
BASE_OF_NEED = {"momentum": ("momentum",), "SGD": ("sgd", "momentum"), "second moment": ("adamw",)}
RULES: dict[str, Callable[..., Any]] = {
    "budget": lambda side, factor: LossBudget(0.05, most=0.3, factor=factor),
    "gap": lambda side, factor: FromGap(side.held_out, total=20, start=0.2, factor=factor),
}


class MishapError(Exception):
    """Something fails in a closure."""


class Net(nn.Module):
    """With BatchNorm, and two parameters that no optimizer has at first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.scale, self.shift = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(2))

    def body(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.first(x)) * self.scale)

    def head(self, a: Tensor) -> Tensor:
        y: Tensor = self.last(a) + self.shift
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def rho_of_step(step: int, lr: float) -> float:
    """A schedule that passes 0."""
    return (0.3, 0.0, 0.1)[step % 3]


class Side:
    """A model and its optimizer."""

    def __init__(
        self, method: str, base: str, dtype: torch.dtype, rule: str, **options: Any
    ) -> None:
        self.method, self.base, self.dtype, self.options = method, base, dtype, options
        self.rule, self.needs = rule, OPTIMIZERS[method].needs
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.model = Net().to(dtype)
        self.opt: Any = None
        self.evaluated = 0.0
        self.zero_form: Literal["none", "zeros", "by hand", "memory"] = "none"
        self.fault: tuple[int, str] = (0, "")
        self.passes = self.t = self.drawn = 0

    def names(self) -> list[list[str]]:
        """The parameters of each group."""
        names = {p: name for name, p in self.model.named_parameters()}
        return [[names[p] for p in group["params"]] for group in self.opt.param_groups]

    def build(self, groups: list[list[str]]) -> None:
        """An optimizer for the model, as a new process would make it."""
        row, params = OPTIMIZERS[self.method], dict(self.model.named_parameters())
        given = {**row.example, **{name: 4 for name in row.example if name in ("m", "every")}}
        if "source" in row.needs:
            given |= {"source": self, "L": 3} if self.method in STEPPERS else {"data": self}
        if "pairs" in row.needs:
            given["pairs"] = [(params["first.weight"], params["last.weight"])]
        given |= self.options
        if self.rule:
            given["rho"] = RULES[self.rule](self, given.get("rho", 1.0))
        base = BASES[self.base]([{"params": [params[name] for name in some]} for some in groups])
        self.opt = row.build(base, model=self.model, **given)

    def params(self) -> list[Tensor]:
        return [p for group in self.opt.param_groups for p in group["params"]]

    # -- data and passes

    def data(self, first: int, size: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        rows = torch.arange(first, first + size) % len(x)
        return x[rows].to(self.dtype), (x[rows].sum(1) > 0).long()

    def full(self) -> Samples:
        return self.samples(0, 40)

    def fresh(self) -> Samples:
        self.drawn += 1
        return self.samples(self.t * BATCH + 7 * self.drawn, BATCH)

    def held_out(self) -> Tensor:
        return self.losses(*self.data(20, BATCH)).mean()

    def samples(self, first: int, size: int) -> Samples:
        return Samples(self.zero_grad, self.losses, *self.data(first, size))

    def batch(self, t: int) -> Any:
        """The batch of a step, in the form that the method wants."""
        whole = self.samples(t * BATCH, BATCH)
        if {"outputs", "head"}.isdisjoint(self.needs):
            return whole
        x, y = whole.tensors
        at_head = "head" in self.needs

        def outputs() -> Tensor:
            self.evaluated += 1 / 3
            z: Tensor = self.model.body(x) if at_head else self.model(x)
            z.register_hook(self.count_backward)
            return z if at_head else self.pass_of(z)

        def loss_of(z: Tensor) -> Tensor:
            loss = cross_entropy(self.model.head(z) if at_head else z, y)
            return self.pass_of(loss) if at_head and torch.is_grad_enabled() else loss

        return Outputs(self.zero_grad, outputs, loss_of, head=self.model.last)

    def count_backward(self, gradient: Tensor) -> None:
        self.evaluated += 2 / 3

    def pass_of(self, value: Tensor) -> Tensor:
        """Counts a pass over a value, which is where its fault happens."""
        self.passes += 1
        number, kind = self.fault
        if self.passes == number and kind == "exception":
            raise MishapError
        return value * torch.nan if self.passes == number else value

    def zero_grad(self) -> None:
        if self.zero_form in ("none", "zeros"):
            self.opt.zero_grad(self.zero_form == "none")
            return
        for i, p in enumerate(self.params()):
            if self.zero_form == "by hand" or not p.requires_grad:
                p.grad = None
            else:
                p.grad = self.memory[i].zero_()

    def use_memory(self) -> None:
        """From now on every pass writes into the same tensors, every other a view of a buffer."""
        flat = torch.zeros(sum(p.numel() for p in self.params()), dtype=self.dtype)
        parts = zip(flat.split([p.numel() for p in self.params()]), self.params(), strict=True)
        views = [part.view_as(p) for part, p in parts]
        self.memory = [view.clone() if i % 2 else view for i, view in enumerate(views)]
        self.zero_form = "memory"

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(self.model(x), y, reduction="none")
        if torch.is_grad_enabled():
            losses = self.pass_of(losses)
        self.evaluated += (1 if torch.is_grad_enabled() else 1 / 3) * len(x) / BATCH
        return losses

    def step(self, t: int, way: Way, fault: tuple[int, str] = (0, "")) -> None:
        """One step; the fault is the number of a pass and what happens in it."""
        self.t, self.drawn, self.passes, self.fault = t, 0, 0, fault
        batch = self.batch(t)
        if "pairs" in self.needs and way != "closure" and not fault[0]:
            way = "plain"  # its loop is that of the base
        try:
            if way == "closure" or (way != "plain" and self.closure_only()):
                other = {}
                if "other batch" in self.needs:
                    half = self.method == "SAM-db-m/2"
                    other["ascent_closure"] = self.samples(t * BATCH + 20, BATCH // (1 + half))
                self.opt.step(batch, **other)
                return
            loss = None
            if way == "plain" or self.opt.wants_clean:
                with self.opt.first_pass() if way == "first pass" else nullcontext():
                    loss = batch()
            if way != "plain":
                above = loss
                with self.opt.ascended() as up:
                    if up or (way != "ascended" and "batchnorm" not in self.options):
                        above = self.losses(*batch.tensors).mean()
                        above.backward()
            self.opt.step()
            if way != "plain" and self.rule == "gap" and loss is not None:
                self.opt.note_losses(loss, above)
        except MishapError:
            pass
        finally:
            self.fault = (0, "")

    def abandon(self, t: int) -> None:
        batch = self.samples(t * BATCH, BATCH)
        if self.opt.wants_clean:
            batch()
        with self.opt.ascended() as up:
            if up:
                batch()

    def accumulate(self, t: int) -> None:
        """A step of two micro-batches, each of which counts as half of a batch."""
        before, losses = self.evaluated, []
        self.opt.zero_grad()
        for part in range(2):
            batch = self.samples((t + part) * BATCH, BATCH)
            if self.opt.wants_clean:
                losses += [self.losses(*batch.tensors).mean()]
                losses[-1].backward()
            with self.opt.ascended(accumulate=True) as up:
                if up:
                    above = self.losses(*batch.tensors).mean()
                    above.backward()
        self.evaluated = before + (self.evaluated - before) / 2
        self.opt.step()
        if self.rule == "gap" and losses:
            self.opt.note_losses(losses[-1], above if up else losses[-1])

    def closure_only(self) -> bool:
        return (
            self.method in STEPPERS
            or self.opt.needs_own_passes is not None
            or "other batch" in self.needs
        )

    # -- what must not matter

    def through_a_file(self) -> None:
        """Saves, and goes on with new objects."""
        file = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "opt": self.opt.state_dict()}, file)
        file.seek(0)
        saved, old = torch.load(file, weights_only=True), self.model
        groups = self.names()
        self.model = Net().to(self.dtype).train(old.training)
        for p, before in zip(self.model.parameters(), old.parameters(), strict=True):
            p.requires_grad_(before.requires_grad)
        self.build(groups)
        self.model.load_state_dict(saved["model"])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the checkpoint's settings win")
            self.opt.load_state_dict(saved["opt"])
        self.forget_memory()

    def copied(self, way: Callable[[Any], Any]) -> None:
        self.model, self.opt = way((self.model, self.opt))
        self.forget_memory()

    def forget_memory(self) -> None:
        self.zero_form = "none" if self.zero_form == "memory" else self.zero_form


class Sequences(RuleBasedStateMachine):
    """What may happen to an optimizer, in any order."""

    begun = 0
    abandoned = False
    """Whether passes were left without a step: the next closure is called once more, unused."""

    @initialize(
        like_twin=st.booleans(),
        twin=st.sampled_from(TWINS),
        method=st.sampled_from(WITHOUT_ADAPTERS),
        base=st.sampled_from(sorted(BASES)),
        dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
        groups=st.integers(1, 3),
        scheduled=st.booleans(),
        options=st.sampled_from([{}, {}, {"clip_norm": 0.1}, {"batchnorm": "both"}]),
        rule=st.sampled_from(["", "", "budget", "gap"]),
        memory=st.booleans(),
    )
    def start(
        self,
        like_twin: bool,
        twin: str,
        method: str,
        base: str,
        dtype: torch.dtype,
        groups: int,
        scheduled: bool,
        options: dict[str, Any],
        rule: str,
        memory: bool,
    ) -> None:
        """Every other sequence is one that the reference follows."""
        Sequences.begun += 1
        if like_twin:
            method, dtype, options, rule = twin, torch.float64, {}, ""
        for need in OPTIMIZERS[method].needs:
            allowed = BASE_OF_NEED.get(need, (base,))
            base = base if base in allowed else allowed[-1]
        rho = inspect.signature(OPTIMIZERS[method].build).parameters.get("rho")
        scheduled = scheduled and rho is not None
        if rho is None or rho.annotation != "Rho" or "other batch" in OPTIMIZERS[method].needs:
            rule = ""
        options = options | ({"rho": rho_of_step} if scheduled else {})
        names = [n for n, _ in Net().named_parameters() if n not in ("scale", "shift")]
        rows = [names[i::groups] for i in range(groups)]
        self.sides = [Side(method, base, dtype, rule, **options) for _ in range(2)]
        for side in self.sides:
            try:
                side.build(rows)
            except ValueError:  # some parts do not go with a rule
                side.rule = ""
                side.build(rows)
        self.one, self.other = self.sides
        if memory:
            self.one.use_memory()
        self.scheduled = {name for name in names if scheduled}
        self.t = self.completed = self.skipped = 0
        self.to_add = ["scale", "shift"]
        self.slope: dict[str, Tensor] = {}

    def accumulable(self) -> bool:
        """The reference knows nothing of micro-batches."""
        one = self.one
        return not (one.closure_only() or one.opt.geometry.keeps_mask or one.method in TWINS)

    # -- steps

    @rule(way=st.sampled_from([*get_args(Way)]))
    def step(self, way: Way) -> None:
        if self.abandoned and way == "plain":
            way = "closure"  # a step() would end those passes, and know of no other
        self.take(way, (0, ""))

    @precondition(lambda self: not self.abandoned)
    @rule(
        way=st.sampled_from(["closure", "ascended"]),
        number=st.integers(1, 3),
        kind=st.sampled_from(["exception", "nan"]),
    )
    def fail(self, way: Way, number: int, kind: str) -> None:
        self.take(way, (number, kind))

    def take(self, way: Way, fault: tuple[int, str]) -> None:
        """One step of both; the other one's fails with a NaN only, and in a closure."""
        self.abandoned = False
        places = [p.data_ptr() for p in self.one.params()]
        twin = self.one.method in TWINS and self.one.dtype == torch.float64
        twin = twin and "clip_norm" not in self.one.options and not self.one.rule
        expected = self.expected(way, fault[0]) if twin else None
        self.one.step(self.t, way, fault)
        self.other.step(self.t, "plain" if way == "plain" else "closure", (fault[0], "nan"))
        failed = 0 < fault[0] <= self.other.passes
        for side in self.sides if failed else ():  # a forward pass counts with what it is for
            assert -1e-9 < side.evaluated - side.opt.cost < 0.5
            side.evaluated = side.opt.cost
        self.completed += not failed
        self.skipped += failed and fault[1] == "nan"
        self.t += 1
        assert places == [p.data_ptr() for p in self.one.params()]
        if expected is not None:
            for name, p in self.one.model.named_parameters():
                torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=NEAR)
            self.check_slope()

    @precondition(lambda self: not self.one.closure_only() and self.one.method not in TWINS)
    @rule()
    def abandon(self) -> None:
        """Both passes of a loop without the step."""
        self.abandoned = True
        for side in self.sides:
            side.abandon(self.t)

    @precondition(lambda self: self.accumulable())
    @rule()
    def accumulate(self) -> None:
        """A step of two micro-batches."""
        self.abandoned = False
        for side in self.sides:
            side.accumulate(self.t)
        self.completed += 1
        self.t += 2

    # -- what does not matter

    @rule()
    def save_and_load(self) -> None:
        self.one.through_a_file()

    @precondition(lambda self: "source" not in self.one.needs and self.one.rule != "gap")
    @rule(way=st.sampled_from([copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))]))
    def copy(self, way: Callable[[Any], Any]) -> None:
        self.one.copied(way)

    @rule(form=st.sampled_from(["none", "by hand", "zeros"]))
    def clear_gradients(self, form: Any) -> None:
        self.one.zero_form = form
        self.one.zero_grad()

    @rule()
    def write_into_the_same_memory(self) -> None:
        self.one.use_memory()

    # -- what does

    @rule(
        data=st.data(), name=st.sampled_from(["rho", "theta"]), value=st.sampled_from([0, 0.3, 1])
    )
    def set(self, data: st.DataObject, name: str, value: float) -> None:
        row = data.draw(st.integers(0, len(self.one.opt.param_groups) - 1))
        settings = {s.name for s in self.one.opt.settings}
        if name not in settings or (name == "theta" and value == 0):
            return
        for side in self.sides:
            side.opt.param_groups[row][name] = value

    @rule(training=st.booleans())
    def train_or_evaluate(self, training: bool) -> None:
        for side in self.sides:
            side.model.train(training)

    @rule(name=st.sampled_from(FREEZABLE), free=st.booleans())
    def freeze(self, name: str, free: bool) -> None:
        if name == "last.weight" and "head" in self.one.needs:
            return
        for side in self.sides:
            p = side.model.get_parameter(name)
            p.requires_grad_(free)
            p.grad = None

    @precondition(lambda self: self.to_add)
    @rule(through_base=st.booleans())
    def add_group(self, through_base: bool) -> None:
        name = self.to_add.pop()
        if "rho" in self.one.options:
            self.scheduled.add(name)
        for side in self.sides:
            made = side.opt.base if through_base else side.opt
            made.add_param_group({"params": [side.model.get_parameter(name)]})
            side.forget_memory()

    @precondition(lambda self: len(self.one.opt.param_groups) > 1)
    @rule()
    def reorder_groups(self) -> None:
        for side in self.sides:
            side.opt.param_groups.reverse()
            side.forget_memory()

    @precondition(lambda self: len(self.one.opt.param_groups) > 2)
    @precondition(lambda self: {"head", "pairs"}.isdisjoint(self.one.needs))
    @rule()
    def delete_group(self) -> None:
        for side in self.sides:
            for p in side.opt.param_groups.pop(0)["params"]:
                side.opt.base.state.pop(p, None)  # torch's own state_dict fails otherwise
                p.grad = None
            side.forget_memory()

    # -- what holds at any time

    @invariant()
    def nothing_but_the_steps_mattered(self) -> None:
        one, other = self.one, self.other
        values = one.model.state_dict(), other.model.state_dict()
        for name, value in values[0].items():
            assert torch.equal(value, values[1][name]), f"{name} differs"
        for side in self.sides:
            opt = side.opt
            assert not opt.perturbed
            assert opt.param_groups is opt.base.param_groups
            assert opt.cost == pytest.approx(side.evaluated, abs=1e-6)
            assert {group["vasso_step"] for group in opt.param_groups} == {self.completed}
        assert one.opt.skipped == self.skipped
        for group, same in zip(one.opt.param_groups, other.opt.param_groups, strict=True):
            for key in group.keys() - {"params", "vasso_cost", "vasso_skipped"}:
                assert group[key] == same[key], key

    # -- the twin

    def expected(self, way: Way, fault: int) -> dict[str, Tensor]:
        """The weights after the next step, by the reference; learns the slope."""
        side, opt = self.one, self.one.opt
        model = copy.deepcopy(side.model)
        params = dict(model.named_parameters())
        rows = [[list(params).index(n) for n in some] for some in side.names()]
        numbers = list(params)
        x, y = side.data(self.t * BATCH, BATCH)

        def gradient(weights: list[Tensor], number: int) -> sam.Gradients:
            with torch.no_grad():
                for p, w in zip(params.values(), weights, strict=True):
                    p.copy_(w)
            ours = [i for some in rows for i in some if params[numbers[i]].requires_grad]
            found = torch.autograd.grad(
                cross_entropy(model(x), y), [params[numbers[i]] for i in ours]
            )
            return dict(zip(ours, found, strict=True))

        groups = []
        for some, group in zip(rows, opt.param_groups, strict=True):
            scheduled = bool(some) and numbers[some[0]] in self.scheduled
            rho = rho_of_step(self.completed, group["lr"]) if scheduled else group["rho"]
            groups.append(sam.Group(some, group["lr"], rho, group["theta"], scheduled))
        start = [p.detach().clone() for p in params.values()]
        climbs = way != "plain" and any(group.rho > 0 for group in groups)
        failed = fault == 1 or (fault == 2 and climbs)
        if way == "plain":
            u = gradient(start, 0)
        else:
            d = {numbers.index(name): value for name, value in self.slope.items()}
            u, d = vasso.adversary(start, d, gradient, groups)
            if fault != 1:
                self.slope = {numbers[i]: value for i, value in d.items()}
        with torch.no_grad():
            for p, w in zip(params.values(), start, strict=True):
                p.copy_(w)
        if not failed:
            for i, p in enumerate(params.values()):
                p.grad = u.get(i)
            base = BASES[side.base]([
                {"params": [params[n] for n in some]} for some in side.names()
            ])
            base.load_state_dict(copy.deepcopy(opt.base.state_dict()))
            base.step()
        return {name: p.detach() for name, p in params.items()}

    def check_slope(self) -> None:
        """What the state holds is the twin's slope."""
        for name, slope in self.slope.items():
            p = self.one.model.get_parameter(name)
            kept = self.one.opt.state[p]["vasso_d"] if p in self.one.opt.state else None
            if kept is not None:
                torch.testing.assert_close(kept, slope, rtol=0, atol=NEAR)


def run_sequences(number: int, length: int, shrink: bool = True) -> None:
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    given = settings(
        max_examples=number,
        stateful_step_count=length,
        phases=phases,
        report_multiple_bugs=False,
        derandomize=not EXPLORE,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Sequences, settings=given)  # type: ignore[no-untyped-call]


@pytest.mark.timeout(3600)
def test_any_sequence_keeps_the_promises() -> None:
    run_sequences(2000 if THOROUGH else 100, 20 if THOROUGH else 15)


def stays_perturbed(self: Perturbation) -> None:
    if sys.exc_info()[1] is None:
        RESTORE(self)


def steps_on_nan(self: Any) -> None:
    self._current.pending = None
    STEP_BASE(self)


def without_vectors(self: Any) -> dict[str, Any]:
    return {**GETSTATE(self), "_vectors": {}}


def a_step_late(self: Groups, group: Any, schedules: Any) -> dict[str, float]:
    return VALUES(self, {**group, "vasso_step": group.get("vasso_step", 0) + 1}, schedules)


def counts_skips_as_steps(self: Groups, key: str, amount: float = 1) -> None:
    COUNT(self, "vasso_step" if key == "vasso_skipped" else key, amount)


def older_slope(self: Ema, g: Any, memory: Any, context: Any, *, theta: list[float]) -> Any:
    return EMA(self, g, memory, context, theta=[1 - t if t < 1 else t for t in theta])


@contextmanager
def moved_twice(self: Any, only: bool = False) -> Iterator[None]:
    yield


RESTORE, STEP_BASE, GETSTATE = (
    Perturbation.restore,
    OptimizerWrapper._step_base,
    OptimizerWrapper.__getstate__,
)
VALUES, COUNT, EMA = Groups.values, Groups.count, Ema.__call__
BROKEN: dict[str, tuple[str, Any]] = {
    "weights stay perturbed after an exception": (
        "vasso.engine.perturbation.Perturbation.restore",
        stays_perturbed,
    ),
    "the slope is not loaded": ("vasso.engine.wrapper.split", lambda entry: (split(entry)[0], {})),
    "a copy forgets the slope": (
        "vasso.engine.wrapper.OptimizerWrapper.__getstate__",
        without_vectors,
    ),
    "a chunk costs a whole gradient": ("vasso.engine.passes.cost_of", lambda data, size: 1.0),
    "a schedule is a step late": ("vasso.engine.groups.Groups.values", a_step_late),
    "gradients are kept, not copied": ("vasso.optimizer.copied", lambda gradient: gradient),
    "a NaN is stepped by": ("vasso.engine.wrapper.OptimizerWrapper._step_base", steps_on_nan),
    "a skip is counted as a step": ("vasso.engine.groups.Groups.count", counts_skips_as_steps),
    "theta is the weight of the old slope": ("vasso.parts.directions.Ema.__call__", older_slope),
    "BatchNorm moves in both passes": (
        "vasso.engine.batchnorm.BatchNormStatistics.second_pass",
        moved_twice,
    ),
    "the first gradient is not cleared": ("vasso.optimizer.clear", lambda params: None),
    "epsilon goes down": ("vasso.parts.directions.Direction.sign", -1),
}


@pytest.mark.parametrize("fault", BROKEN if THOROUGH else ["epsilon goes down"])
def test_sequences_notice_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BROKEN[fault])
    Sequences.begun = 0
    with pytest.raises((AssertionError, RuntimeError, KeyError, ValueError)):
        run_sequences(1000, 15, shrink=False)
    print(f"{fault}: sequence {Sequences.begun}")
