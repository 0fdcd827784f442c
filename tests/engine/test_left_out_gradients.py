"""Gradients at w that no part reads are not computed, and the step is the same to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from tests.reference import single_steps as twins
from tests.support import problems
from vasso import (
    AESAM,
    SAMON,
    Adaptive,
    Normalisation,
    SharpnessAware,
    Storm,
    StormSAM,
    VaSSO,
)
from vasso.lab.models import build
from vasso.numerics.vectors import Vector

Make = Callable[..., SharpnessAware]
DRAWS = partial(torch.Generator().manual_seed, 11)


class Net(nn.Module):
    """Convolutions, three kinds of norms, and a head; `form` says how the body is run."""

    def __init__(self, form: str = "plain") -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.stem = nn.Conv2d(1, 4, 3, padding=1)
            self.body = nn.Sequential(
                nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)
            )
            self.norm = nn.LayerNorm(4)
            self.head = nn.Linear(4, 3)
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        reentrant = self.form == "reentrant"
        if self.form == "plain":
            x = self.body(x)
        else:
            x = checkpoint(self.body, x, use_reentrant=reentrant)
        return self.head(self.norm(x.tanh().mean((2, 3))))


def batch(t: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(t)
    return torch.randn(8, 1, 6, 6, generator=random), torch.randint(3, (8,), generator=random)


class Wanted:
    """Which weights of convolutions want a gradient, in each forward pass."""

    def __init__(self, net: Net) -> None:
        self.seen: list[bool] = []
        net.stem.register_forward_hook(lambda m, x, y: self.seen.append(m.weight.requires_grad))


def closure_of(opt: SharpnessAware, model: Any, t: int) -> Callable[[], Tensor]:
    x, y = batch(t)
    return problems.closure_of(opt, lambda: cross_entropy(model(x), y))


def trained(
    make: Make, *, all_gradients: bool = False, form: str = "plain", split: bool = False
) -> tuple[Vector, list[bool], SharpnessAware]:
    """Weights and statistics after five steps, what the passes wanted, and the optimizer."""
    net = Net(form)
    wanted = Wanted(net)
    groups: Any = list(net.parameters())
    if split:
        groups = [{"params": net.body.parameters()}, {"params": net.stem.parameters(), "rho": 0.0}]
    opt = make(SGD(groups, lr=0.1, momentum=0.9), model=net)
    opt._passes.leaves_out = not all_gradients
    for t in range(5):
        opt.step(closure_of(opt, net, t))
    return [x.detach() for x in net.state_dict().values()], wanted.seen, opt


@pytest.mark.parametrize(
    ("make", "split", "steps"),
    [
        (partial(SAMON, theta=0.4), False, [False, True] * 5),
        (partial(SAMON, geometry=Adaptive()), False, [False, True] * 5),
        (partial(SAMON, restore="recompute"), False, [False, True] * 5),
        # in groups with rho = 0 a closure keeps all its gradients
        (partial(VaSSO, rho=0.1), True, [True] * 10),
        (partial(StormSAM, rho=0.1), True, [True] * 14),
    ],
    ids=str,
)
def test_nobody_misses_what_is_left_out(make: Make, split: bool, steps: list[bool]) -> None:
    spared, wanted, opt = trained(make, split=split)
    full, always, other = trained(make, all_gradients=True, split=split)
    assert all(map(torch.equal, spared, full))
    assert wanted == steps
    assert all(always)
    assert opt.cost == other.cost


def test_a_step_that_may_not_perturb_computes_all_gradients() -> None:
    _, wanted, _ = trained(partial(AESAM, total=5), split=True)
    assert all(wanted)


@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_the_normalisation_layers_alone_are_perturbed(theta: float) -> None:
    """SAM-ON against its twin, in float64: rounding after five steps."""
    net = Net().double().eval()
    opt = SAMON(SGD(net.parameters(), lr=0.1), rho=0.3, theta=theta, model=net)
    names = [name for name, _ in net.named_parameters()]
    flags = [name.startswith(("body.0", "body.3", "norm")) for name in names]
    x = [p.detach().clone() for p in net.parameters()]
    memory: dict[str, Any] = {}
    for t in range(5):
        images, labels = batch(t)

        def losses(w: Vector, images: Tensor = images, labels: Tensor = labels) -> Tensor:
            given = dict(zip(names, w, strict=True))
            scores = torch.func.functional_call(net, given, images.double())
            return cross_entropy(scores, labels, reduction="none")

        step = twins.Step(t, x, names, losses, 8, memory=memory)
        u = twins.on_some(step, rho=0.3, perturbed=flags, theta=theta)
        x = [w - 0.1 * down for w, down in zip(x, u, strict=True)]
        inputs = images.double()
        problems.take_step(opt, lambda x=inputs, y=labels: cross_entropy(net(x), y))
    for ours, theirs in zip(net.parameters(), x, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=0, atol=1e-13)


def test_layers_are_known_by_their_type_and_not_by_their_name() -> None:
    class Scale(nn.Module):
        """A norm of somebody's own."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x / x.square().mean(-1, keepdim=True).sqrt() * self.weight

    model = nn.Sequential()
    model.add_module("norm", nn.Linear(3, 4))
    model.add_module("plain", Scale())
    base = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="covers no layer of Sequential: name the types"):
        SAMON(base, model=model)
    opt = SAMON(base, model=model, also=(Scale,))
    assert opt._groups.covered() == {model.get_submodule("plain").weight}


def test_what_cannot_be_is_a_sentence() -> None:
    base = SGD(Net().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="knows layers by their type: pass model="):
        SAMON(base)
    with pytest.raises(ValueError, match="remembers all weights"):
        SharpnessAware(base, direction=Storm(), geometry=Normalisation(), model=Net())
    with pytest.raises(TypeError, match="inner must be a Geometry"):
        Normalisation(inner=0.1)  # type: ignore[arg-type]


class StopError(Exception):
    """What a pass raises."""


@pytest.mark.parametrize("way", ["closure", "loop"])
def test_an_exception_in_the_first_pass_leaves_every_parameter_trainable(way: str) -> None:
    net = Net()
    opt = SAMON(SGD(net.parameters(), lr=0.1), model=net)

    def trouble() -> Tensor:
        assert not net.head.weight.requires_grad
        raise StopError

    with pytest.raises(StopError), opt.first_pass() if way == "loop" else nullcontext():
        trouble() if way == "loop" else opt.step(trouble)
    assert all(p.requires_grad for p in net.parameters())
    closure_of(opt, net, 0)()
    opt.step()  # a plain one


def asks_for_all(opt: SharpnessAware, net: Net, t: int) -> Callable[[], Tensor]:
    x, y = batch(t)

    def closure() -> Tensor:
        loss = cross_entropy(net(x), y)
        params = list(net.parameters())
        for p, gradient in zip(params, torch.autograd.grad(loss, params), strict=True):
            p.grad = gradient
        return loss

    return closure


def test_where_autograd_is_asked_for_all_gradients_the_pass_is_made_again() -> None:
    ends = []
    for all_gradients in (False, True):
        net = Net()
        wanted = Wanted(net)
        opt = SAMON(SGD(net.parameters(), lr=0.1), model=net)
        opt._passes.leaves_out = not all_gradients
        for t in range(3):
            opt.step(asks_for_all(opt, net, t))
        ends.append([x.detach() for x in net.state_dict().values()])
        assert wanted.seen[:2] == [all_gradients, True]
        assert all(wanted.seen[1:])
        assert opt.cost == (6 if all_gradients else 7)
    assert all(map(torch.equal, *ends))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_behind_a_left_out_layer_is_told_and_later_steps_are_whole() -> None:
    net = Net("reentrant")
    wanted = Wanted(net)
    opt = SAMON(SGD(net.parameters(), lr=0.1), model=net)
    with pytest.warns(UserWarning, match="tensors had no gradient in the pass at w.*use_reentrant"):
        opt.step(closure_of(opt, net, 0))
    for t in (1, 2):
        opt.step(closure_of(opt, net, t))
    assert not wanted.seen[0]
    assert all(wanted.seen[1:])
    assert opt.cost == 6


def test_checkpoints_that_are_not_reentrant_leave_out_too() -> None:
    plain, _, _ = trained(SAMON)
    checkpointed, wanted, opt = trained(SAMON, form="not reentrant")
    assert opt._passes.leaves_out
    assert wanted[:2] == [False, True]
    for ours, theirs in zip(checkpointed, plain, strict=True):  # BatchNorm sees twice the batches
        if ours.dim() == 4:
            assert torch.equal(ours, theirs)


def test_a_compiled_model_has_a_graph_for_each_of_the_two_passes_and_no_more() -> None:
    graphs = 0

    def count(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    torch._dynamo.reset()
    net = Net()
    model = torch.compile(net, backend=count)
    opt = SAMON(SGD(net.parameters(), lr=0.1, momentum=0.9), model=net)
    for t in range(5):
        opt.step(closure_of(opt, model, t))
    assert graphs == 2
    expected, _, _ = trained(SAMON)
    assert all(map(torch.equal, [x.detach() for x in net.state_dict().values()], expected))


def loop(opt: SharpnessAware, net: Net, t: int) -> None:
    x, y = batch(t)
    with opt.first_pass():
        cross_entropy(net(x), y).backward()
    with opt.ascended():
        cross_entropy(net(x), y).backward()
    opt.step()
    opt.zero_grad()


def test_a_loop_leaves_out_gradients_with_first_pass() -> None:
    expected, seen, _ = trained(SAMON)
    net = Net()
    wanted = Wanted(net)
    opt = SAMON(SGD(net.parameters(), lr=0.1, momentum=0.9), model=net)
    for t in range(5):
        loop(opt, net, t)
    assert all(map(torch.equal, [x.detach() for x in net.state_dict().values()], expected))
    assert wanted.seen == seen


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_first_pass_says_what_is_missing_and_what_has_to_follow() -> None:
    net = Net("reentrant")
    opt = SAMON(SGD(net.parameters(), lr=0.1), model=net)
    x, y = batch(0)
    message = "4 of 6 parameters to be perturbed have no gradient"
    with pytest.raises(RuntimeError, match=message), opt.first_pass():
        cross_entropy(net(x), y).backward()
    net.form = "plain"
    with opt.first_pass():
        cross_entropy(net(x), y).backward()
    with pytest.raises(RuntimeError, match="needs ascended"):
        opt.step()


def test_a_loop_that_ascends_inside_its_closure_has_all_gradients_there() -> None:
    """As hosts do whose callbacks make the second pass."""
    expected, _, _ = trained(SAMON)
    net = Net()
    opt = SAMON(SGD(net.parameters(), lr=0.1, momentum=0.9), model=net)
    for t in range(5):
        x, y = batch(t)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()
            with opt.ascended():
                cross_entropy(net(x), y).backward()
            return loss

        opt.step(closure)
    assert all(map(torch.equal, [x.detach() for x in net.state_dict().values()], expected))


def test_slope_and_copy_of_the_weights_are_below_a_hundredth_of_the_parameters() -> None:
    model = build("resnet18", classes=10, seed=0)
    opt = SAMON(SGD(model.parameters(), lr=0.1), theta=0.4, model=model)
    x = torch.randn(2, 3, 8, 8, generator=DRAWS())
    problems.take_step(opt, lambda: model(x).square().mean())
    slopes = [x for entry in opt._vectors.values() for x in entry.values()]
    held = sum(x.numel() for x in [*slopes, *opt._perturbation.weight_buffers.values()])
    assert 0 < held < 0.01 * sum(p.numel() for p in model.parameters())
