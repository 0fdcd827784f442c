"""torch's contract for optimizers, over torch's own list of optimizers, inputs and schedulers.

Every case gets the same base alone as its reference. What torch.optim does and we do not is in
`DIFFERENCES`, and listed with its reason in docs/concepts/torch-optim.md.
"""

import copy
import io
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torch's own test helpers
    from torch.testing._internal import common_optimizers as of_torch

from tests.contract.training import PRESETS
from tests.support import THOROUGH
from tests.support.problems import closure_of
from vasso import SAM, EntropySGD, FriendlySAM, VaSSO
from vasso.engine import notices

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "torch-optim.md"
INFOS = {
    info.name: info
    for info in of_torch.optim_db
    if not (info.step_requires_closure or info.only_supports_sparse_grads)
}
FAMILY = ["SAM", "VaSSO", "ASAM", "AWP", "FisherSAM", "GSAM", "LookSAM", "Friendly-SAM"]
FAMILY += ["multi-step (last)", "reuse, every k", "SS-SAM", "S2-SAM", "STORM", "AE-SAM"]
METHODS = [(PRESETS[n].build, PRESETS[n].example) for n in FAMILY] + [(EntropySGD, {"L": 1})]
Case: TypeAlias = Callable[["Setting"], None]


class Setting:
    """A method around one of torch's optimizers with one of torch's inputs; and the base alone."""

    def __init__(self, info: Any, kwargs: dict[str, Any], build: Any, example: Any) -> None:
        self.info, self.kwargs, self.build, self.example = info, kwargs, build, example

    def params(self, dtype: torch.dtype = torch.float32, **more: Any) -> list[Tensor]:
        """Two matrices, since Muon takes no others."""
        random = torch.Generator().manual_seed(0)
        shapes = [(6, 5), (3, 6)]
        values = [torch.randn(shape, generator=random, dtype=dtype) for shape in shapes]
        return [nn.Parameter(x) for x in values]

    def base(self, params: Any, **more: Any) -> Optimizer:
        made: Optimizer = self.info.optim_cls(params, **{**copy.deepcopy(self.kwargs), **more})
        return made

    def wrapped(self, base: Optimizer, off: bool = False) -> Any:
        """Our optimizer; `off`: without effect, so that it has to be the base bit for bit."""
        if self.build is EntropySGD:
            return EntropySGD(base, L=0 if off else 1)
        opt = self.build(base, **self.example)
        for group in opt.param_groups if off else ():
            group["vasso_rho" if "vasso_rho" in group else "rho"] = 0.0
        return opt

    def pair(self, **more: Any) -> tuple[list[Tensor], Any, list[Tensor], Optimizer]:
        """Ours without effect and the base alone, with weights of their own."""
        ours, theirs = self.params(), self.params()
        return (
            ours,
            self.wrapped(self.base(ours, **more), off=True),
            theirs,
            self.base(theirs, **more),
        )


@pytest.fixture(autouse=True)
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for BatchNorm layers among all objects takes longer than all the steps."""
    monkeypatch.setattr(notices, "find_batchnorm_layers", lambda params: [])


def loss_of(params: list[Tensor], t: int) -> Tensor:
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(t), dtype=params[0].dtype)
    return (params[1] @ torch.tanh(params[0] @ x) - 1).square().mean()


def closure(opt: Any, params: list[Tensor], t: int) -> Callable[[], Tensor]:
    return closure_of(opt, partial(loss_of, params, t))


def steps(opt: Any, params: list[Tensor], first: int = 0, count: int = 3) -> list[Tensor]:
    for t in range(first, first + count):
        opt.step(closure(opt, params, t))
    return [p.detach().clone() for p in params]


def same(a: Any, b: Any, where: str = "") -> None:
    """Equal bit for bit, through dicts and lists."""
    if isinstance(a, Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{i}]")
    else:
        assert a == b, where


# -- cases ----------------------------------------------------------------------------------------


def without_effect_it_is_the_base(setting: Setting) -> None:
    ours, opt, theirs, base = setting.pair()
    assert isinstance(opt, Optimizer)
    same(steps(opt, ours), steps(base, theirs))
    same(list(opt.base.state.values()), list(base.state.values()))


def a_plain_step_is_the_bases(setting: Setting) -> None:
    theirs, ours = setting.params(), setting.params()
    base, opt = setting.base(theirs), setting.wrapped(setting.base(ours))
    for t in range(3):
        closure(opt, ours, t)()
        opt.step()
        closure(base, theirs, t)()
        base.step()
    same([p.detach() for p in ours], [p.detach() for p in theirs])


def a_checkpoint_goes_on(setting: Setting) -> None:
    ours = setting.params()
    opt = setting.wrapped(setting.base(ours))
    steps(opt, ours)
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    kept = copy.deepcopy(saved)
    others = [p.detach().clone().requires_grad_() for p in ours]
    twin = setting.wrapped(setting.base(others))
    twin.load_state_dict(saved)
    same(saved, kept, "load_state_dict changed")
    same(twin.state_dict(), opt.state_dict())
    same(steps(twin, others, 3), steps(opt, ours, 3))


def an_older_checkpoint_loads(setting: Setting) -> None:
    """Flags that an older torch did not have; steps that were numbers."""
    ours = setting.params()
    opt = setting.wrapped(setting.base(ours))
    steps(opt, ours)
    for flag in setting.info.not_og_supported_flags:
        saved = copy.deepcopy(opt.state_dict())
        if all(flag in group for group in saved["param_groups"]):
            for group in saved["param_groups"]:
                del group[flag]
            opt.load_state_dict(saved)
    saved = copy.deepcopy(opt.state_dict())
    for entry in saved["state"].values():
        if "step" in entry:
            entry["step"] = float(entry["step"])
    opt.load_state_dict(saved)
    steps(opt, ours, 3)


def states_hold_tensors_only(setting: Setting) -> None:
    params = setting.params()
    opt = setting.wrapped(setting.base(params))
    steps(opt, params)
    theirs = steps(base := setting.base(ps := setting.params()), ps) and base.state
    kinds = {type(v) for entry in theirs.values() for v in entry.values()} | {Tensor}
    for p in params:
        entry = opt.state.get(p, {})
        assert {type(value) for value in entry.values()} <= kinds
        assert set(opt.base.state.get(p, {})) <= set(entry)


def hooks_of_a_step_fire_once(setting: Setting) -> None:
    params, seen = setting.params(), []
    opt = setting.wrapped(setting.base(params))
    handles = [
        opt.register_step_pre_hook(lambda o, args, kwargs: seen.append(("before", o is opt))),
        opt.register_step_post_hook(lambda o, args, kwargs: seen.append(("after", o is opt))),
        opt.base.register_step_pre_hook(lambda o, *_: seen.append(("base", o is opt.base))),
    ]
    steps(opt, params, count=2)
    assert seen == [("before", True), ("base", True), ("after", True)] * 2
    for handle in handles:
        handle.remove()
    steps(opt, params, count=1)
    assert len(seen) == 6


def a_hook_may_exchange_the_closure(setting: Setting) -> None:
    params, calls = setting.params(), []
    opt = setting.wrapped(setting.base(params))

    def exchange(opt: Any, args: Any, kwargs: Any) -> Any:
        return (args[0], lambda: calls.append(0) or args[1]()), kwargs

    opt.register_step_pre_hook(exchange)
    opt.step(closure(opt, params, 0))
    assert calls


def hooks_of_checkpoints_see_and_replace(setting: Setting) -> None:
    params, seen = setting.params(), []
    opt = setting.wrapped(setting.base(params))
    steps(opt, params)
    opt.register_state_dict_pre_hook(lambda o: seen.append("pre"))
    opt.register_state_dict_post_hook(lambda o, saved: {**saved, "mark": 1})
    opt.register_state_dict_post_hook(lambda o, saved: seen.append("post"), prepend=True)
    saved = opt.state_dict()
    assert (seen, saved["mark"]) == (["pre", "post"], 1)
    opt.register_load_state_dict_pre_hook(
        lambda o, saved: {key: saved[key] for key in ("state", "param_groups")}
    )
    opt.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    opt.load_state_dict(saved)
    assert seen[-1] == "loaded"


def copies_are_alike(setting: Setting) -> None:
    params = setting.params()
    opt = setting.wrapped(setting.base(params))
    steps(opt, params)
    for again in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        twin, others = again((opt, params))
        public = ({k for k in vars(x) if not k.startswith("_")} for x in (opt, twin))
        assert next(public) == next(public)
        ends = [steps(*again((twin, others)), 3), steps(*again((opt, params)), 3)]
        same(*ends)


def it_can_be_printed(setting: Setting) -> None:
    opt = setting.wrapped(setting.base(setting.params()))
    assert setting.info.name in repr(opt)


def parameters_without_gradients_stay(setting: Setting) -> None:
    params = setting.params()
    opt = setting.wrapped(setting.base(params))
    before = [p.detach().clone() for p in params]
    opt.step()
    same([p.detach() for p in params], before)
    params[0].requires_grad_(False)
    steps(opt, params)
    same(params[0].detach(), before[0])
    assert not torch.equal(params[1], before[1])


def groups_have_settings_of_their_own(setting: Setting) -> None:
    ours, theirs = setting.params(), setting.params()
    ends = []
    for params, off in ((ours, True), (theirs, None)):
        opt: Any = setting.base([{"params": [params[0]], "lr": torch.tensor(0.03).item()}])
        if off:
            opt = setting.wrapped(opt, off=True)
        opt.add_param_group({"params": [params[1]], "weight_decay": 0.1})
        for group in opt.param_groups if off and setting.build is not EntropySGD else ():
            group["vasso_rho" if "vasso_rho" in group else "rho"] = 0.0
        with pytest.raises(ValueError, match="appear in more than one parameter group"):
            opt.add_param_group({"params": [params[1]]})
        ends.append(steps(opt, params))
    same(*ends)


def named_parameters_keep_their_names(setting: Setting) -> None:
    params = setting.params()
    opt = setting.wrapped(setting.base([("first", params[0]), ("last", params[1])]))
    steps(opt, params)
    saved = opt.state_dict()
    assert saved["param_groups"][0]["param_names"] == ["first", "last"]
    opt.load_state_dict(saved)
    steps(opt, params)


def schedulers_drive_both(setting: Setting) -> None:
    for makers in setting.info.scheduler_inputs:
        ours, opt, theirs, base = setting.pair()
        rates: tuple[list[float], list[float]] = ([], [])
        for mine, params, found in ((opt, ours, rates[0]), (base, theirs, rates[1])):
            schedulers = [make(mine) for make in (makers if isinstance(makers, list) else [makers])]
            for t in range(12):
                loss = mine.step(closure(mine, params, t)).detach()
                for scheduler in schedulers:
                    plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
                    scheduler.step(*([loss] if plateau else []))
                found.append(float(mine.param_groups[0]["lr"]))
        same(*rates)
        same([p.detach() for p in ours], [p.detach() for p in theirs])


def weights_may_be_strided(setting: Setting) -> None:
    ends = []
    for off in (True, False):
        torch.manual_seed(0)
        params = [torch.randn(s).detach()[..., 0].requires_grad_() for s in ((6, 5, 2), (3, 6, 2))]
        opt: Any = setting.base(params)
        ends.append(steps(setting.wrapped(opt, off=True) if off else opt, params))
    same(*ends)


def gradients_are_cleared_as_torch_does(setting: Setting) -> None:
    params = setting.params()
    opt = setting.wrapped(setting.base(params))
    loss_of(params, 0).backward()
    opt.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in params)
    opt.zero_grad()
    assert all(p.grad is None for p in params)


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        without_effect_it_is_the_base,
        a_plain_step_is_the_bases,
        a_checkpoint_goes_on,
        an_older_checkpoint_loads,
        states_hold_tensors_only,
        hooks_of_a_step_fire_once,
        a_hook_may_exchange_the_closure,
        hooks_of_checkpoints_see_and_replace,
        copies_are_alike,
        it_can_be_printed,
        parameters_without_gradients_stay,
        groups_have_settings_of_their_own,
        named_parameters_keep_their_names,
        schedulers_drive_both,
        weights_may_be_strided,
        gradients_are_cleared_as_torch_does,
    )
}


def settings_of(name: str) -> Iterator[Setting]:
    """SAM and VaSSO with every input of torch's, and the others with the first; or a selection."""
    info = INFOS[name]
    inputs = of_torch._get_optim_inputs_including_global_cliquey_kwargs(
        "cpu", torch.float32, info, skip=("differentiable",)
    )
    others = METHODS if THOROUGH else METHODS[-1:]
    few = inputs if THOROUGH else inputs[1:3]
    for build, example in others:
        yield Setting(info, inputs[0].kwargs, build, example)
    for i, given in enumerate(few):
        for build, example in METHODS[:2] if THOROUGH else [METHODS[i]]:
            yield Setting(info, given.kwargs, build, example)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.* treats weights and biases differently")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", INFOS)
def test_the_contract_of_torch_optim(name: str, case: str) -> None:
    for setting in settings_of(name):
        CASES[case](setting)


@pytest.mark.parametrize("name", INFOS)
def test_what_torch_refuses_is_refused_through_us(name: str) -> None:
    """The base is wrapped where it can be made at all; errors of its step pass through."""
    for given in INFOS[name].optim_error_inputs_func("cpu", torch.float32):
        wrong = given.optimizer_error_input
        with pytest.raises(given.error_type, match=given.error_regex):
            SAM(INFOS[name].optim_cls(wrong.params, **wrong.kwargs)).step()


def test_weights_are_averaged_as_those_of_the_base() -> None:
    ends = []
    for wrap in (partial(SAM, rho=0.0), lambda base: base):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        opt: Any = wrap(SGD(model.parameters(), lr=0.1))
        averaged, scheduler = AveragedModel(model), SWALR(opt, swa_lr=0.02, anneal_epochs=2)
        x = torch.randn(16, 4)
        for _ in range(4):
            opt.step(closure_of(opt, lambda model=model, x=x: model(x).square().mean()))
            averaged.update_parameters(model)
            scheduler.step()
        update_bn([x], averaged)
        ends.append(averaged.state_dict())
    same(*ends)


# -- differences ----------------------------------------------------------------------------------


def vector(**more: Any) -> Tensor:
    return torch.tensor([3.0, 4.0], **more).requires_grad_()


def the_closure_is_called_twice() -> None:
    w, calls = vector(), []
    opt = SAM(SGD([w], lr=0.1), rho=1.0)
    run = closure_of(opt, lambda: w.square().sum())
    loss = opt.step(lambda: calls.append(w.tolist()) or run())
    assert (len(calls), calls[0], loss.item()) == (2, [3.0, 4.0], 25.0)


def a_base_that_needs_a_closure_is_refused() -> None:
    for info in of_torch.optim_db:
        if info.step_requires_closure:
            with pytest.raises(TypeError, match="calls the closure itself"):
                SAM(info.optim_cls([vector()]))


def a_closure_without_gradients_is_an_error() -> None:
    opt = SAM(SGD([vector()], lr=0.1))
    with pytest.raises(RuntimeError, match="left no gradient on any parameter"):
        opt.step(lambda: torch.zeros(()))
    SGD([vector()], lr=0.1).step(lambda: torch.zeros(()))


def global_hooks_see_two_optimizers() -> None:
    w, seen = vector(), []
    opt = SAM(SGD([w], lr=0.1))
    handles = [
        register(lambda opt, args, kwargs: seen.append(type(opt).__name__))
        for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
    ]
    opt.step(closure_of(opt, lambda: w.square().sum()))
    for handle in handles:
        handle.remove()
    assert seen == ["SAM", "SGD", "SGD", "SAM"]


def entries_of_the_state_are_copies() -> None:
    w = vector()
    opt = VaSSO(SGD([w], lr=0.1, momentum=0.9))
    opt.step(closure_of(opt, lambda: w.square().sum()))
    opt.state[w]["momentum_buffer"] = None
    assert opt.state[w]["momentum_buffer"] is opt.base.state[w]["momentum_buffer"]
    assert {"vasso_d", "vasso_has_d", "vasso_has_base"} <= set(opt.state[w])
    assert {"rho", "theta", "vasso_step"} <= set(opt.param_groups[0])


def complex_parameters_are_not_perturbed() -> None:
    for info in INFOS.values():
        if not info.supports_complex:
            continue
        ends = []
        for wrap in (partial(SAM, rho=0.0), lambda base: base):
            z = torch.tensor([[1 + 2j, 3 - 1j]], requires_grad=True)
            opt: Any = wrap(info.optim_cls([z], lr=torch.tensor(0.01).item()))
            for _ in range(2):
                opt.step(closure_of(opt, lambda z=z: z.abs().square().sum()))
            ends.append(z.detach())
        same(*ends)
        opt = SAM(info.optim_cls([z]))
        with pytest.raises(TypeError, match="is complex, which cannot be perturbed"):
            opt.step(closure_of(opt, lambda z=z: z.abs().square().sum()))


def sparse_gradients_are_not_perturbed() -> None:
    ids = torch.tensor([1, 2, 1])
    for info in of_torch.optim_db:
        if not (info.supports_sparse or info.only_supports_sparse_grads):
            continue
        ends = []
        for wrap in (partial(SAM, rho=0.0), lambda base: base):
            table = nn.Embedding(4, 2, sparse=True, _weight=torch.ones(4, 2))
            opt: Any = wrap(info.optim_cls(table.parameters(), lr=0.1))
            for _ in range(2):
                opt.step(closure_of(opt, lambda table=table: table(ids).square().sum()))
            ends.append(table.weight.detach())
        same(*ends)
        opt = SAM(info.optim_cls(table.parameters(), lr=0.1))
        with pytest.raises(TypeError, match="has a sparse gradient, which cannot be perturbed"):
            opt.step(closure_of(opt, lambda table=table: table(ids).square().sum()))


def a_gradient_that_is_not_finite_is_skipped() -> None:
    w = vector()
    opt = SAM(SGD([w], lr=0.1))
    opt.step(closure_of(opt, lambda: (w * torch.inf).sum()))
    assert (opt.skipped, w.tolist()) == (1, [3.0, 4.0])


def there_is_no_checkpoint_of_perturbed_weights() -> None:
    w = vector()
    opt = SAM(SGD([w], lr=0.1))
    w.sum().backward()
    with opt.ascended():
        w.sum().backward()
        for what in (opt.state_dict, partial(copy.deepcopy, opt), partial(pickle.dumps, opt)):
            with pytest.raises(RuntimeError, match="while the weights are perturbed"):
                what()


def a_checkpoint_of_other_parts_is_an_error() -> None:
    w = vector()
    with pytest.raises(ValueError, match="the checkpoint is of other parts"):
        SAM(SGD([w], lr=0.1)).load_state_dict(FriendlySAM(SGD([w], lr=0.1)).state_dict())


def values_are_needed_at_every_step() -> None:
    w = torch.ones(2, device="meta", requires_grad=True)
    AdamW([w]).step(lambda: w.sum().backward())
    opt = SAM(AdamW([w]))
    with pytest.raises(ValueError, match=r"meta device.*to_empty"):
        opt.step(closure_of(opt, w.sum))


def epsilon_is_not_differentiated() -> None:
    """The gradient is c w, and epsilon depends on c too: -lr (w + epsilon) is only a part of it."""
    w, c = vector().clone(), torch.tensor(1.0, requires_grad=True)
    opt = SAM(SGD([w], lr=0.1, differentiable=True), rho=1.0)

    def run() -> Tensor:
        w.grad = c * w.detach().clone()
        return w.detach().sum()

    opt.step(run)
    (found,) = torch.autograd.grad(w.sum(), c)
    assert found.item() == pytest.approx(-0.1 * (3 + 4 + 0.6 + 0.8), rel=1e-5)


DIFFERENCES: dict[str, Callable[[], None]] = {
    "A closure is called twice": the_closure_is_called_twice,
    "A closure has to leave a gradient": a_closure_without_gradients_is_an_error,
    "Bases that need a closure": a_base_that_needs_a_closure_is_refused,
    "Global step hooks": global_hooks_see_two_optimizers,
    "State and groups": entries_of_the_state_are_copies,
    "Complex parameters": complex_parameters_are_not_perturbed,
    "Sparse gradients": sparse_gradients_are_not_perturbed,
    "Gradients that are not finite": a_gradient_that_is_not_finite_is_skipped,
    "Checkpoints inside `ascended()`": there_is_no_checkpoint_of_perturbed_weights,
    "Checkpoints of another method": a_checkpoint_of_other_parts_is_an_error,
    "Parameters without values": values_are_needed_at_every_step,
    "`differentiable=True`": epsilon_is_not_differentiated,
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_difference_is_as_the_page_says(difference: str) -> None:
    DIFFERENCES[difference]()


def test_the_page_lists_every_difference_and_no_other() -> None:
    rows = re.findall(r"^\| (?!What |---)([^|]+?) +\|", PAGE.read_text(), re.MULTILINE)
    assert rows == list(DIFFERENCES)
