"""Functional-SAM and logits-SAM against plain loops, and what they may not be given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

from tests.support.compare import flat
from vasso import SAM, Ema, FunctionalSAM, HeadOnly, LogitsSAM, Outputs, SharpnessAware, VaSSO
from vasso.parts.policies import EveryK, RefreshEveryK

STEPS, SIZE, WORDS = 12, 6, 5
NEAR = {"rtol": 0.0, "atol": 1e-13}  # a dozen steps of float64 on weights of order 1


class Language(nn.Module):
    """Predicts the next of five words; the head may share its weight with the embedding."""

    def __init__(self, tied: bool = False, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(8, WORDS, bias=bias)
        if tied:
            self.head.weight = self.words.weight
        self.double()

    def hidden(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(self.words(x))
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.hidden(x))
        return found


def batch(t: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(t)
    x = torch.randint(WORDS, (SIZE,), generator=random)
    return x, (x + torch.randint(2, (SIZE,), generator=random)) % WORDS


def whole(model: Language, opt: Any, t: int, **more: Any) -> Outputs:
    x, y = batch(t)
    return Outputs(opt.zero_grad, lambda: model(x), lambda z: cross_entropy(z, y), **more)


def cut(model: Language, opt: Any, t: int, **more: Any) -> Outputs:
    x, y = batch(t)
    return Outputs(
        opt.zero_grad,
        lambda: model.hidden(x),
        lambda a: cross_entropy(model.head(a), y),
        head=model.head,
        **more,
    )


def trained(model: Language, opt: Any, of: Callable[..., Outputs], **more: Any) -> Tensor:
    path = []
    for t in range(STEPS):
        opt.step(of(model, opt, t, **more))
        path.append(flat(model.parameters()))
    return torch.stack(path)


def descend(model: Language, u: dict[str, Tensor], lr: float) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            p -= lr * u[name]


def functional_twin(rho: float, theta: float = 1.0) -> Tensor:
    """By torch.func: the same vector, pulled back through the network at other weights."""
    model, path = Language(), []
    d: dict[str, Tensor] = {}
    for t in range(STEPS):
        x, y = batch(t)
        w = {name: p.detach().clone() for name, p in model.named_parameters()}
        z, pull_back = vjp(lambda w, x=x: functional_call(model, w, (x,)), w)
        v = (z.softmax(1) - nn.functional.one_hot(y, WORDS)) / SIZE  # dL/dz of cross-entropy
        (g,) = pull_back(v)
        d = {n: g[n] if n not in d else (1 - theta) * d[n] + theta * g[n] for n in g}
        size = torch.cat([a.flatten() for a in d.values()]).norm()
        there = {n: w[n] + rho * d[n] / size for n in w}
        _, pull_back_there = vjp(lambda w, x=x: functional_call(model, w, (x,)), there)
        (u,) = pull_back_there(v)
        descend(model, u, 0.1)
        path.append(flat(model.parameters()))
    return torch.stack(path)


@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_functional_sam_pulls_the_gradient_at_w_back_at_the_perturbed_weights(theta: float) -> None:
    model = Language()
    opt = FunctionalSAM(SGD(model.parameters(), lr=0.1), rho=0.3, theta=theta)
    ours = trained(model, opt, whole)
    torch.testing.assert_close(ours, functional_twin(0.3, theta), **NEAR)
    assert opt.cost == 2 * STEPS
    other = Language()
    sam = VaSSO(SGD(other.parameters(), lr=0.1), rho=0.3, theta=theta)
    assert not torch.allclose(trained(other, sam, whole), ours, atol=1e-3)  # no SAM


def test_for_a_network_that_is_linear_in_its_weights_it_is_the_base() -> None:
    """J does not depend on w there, so u = g, whatever rho is."""
    ends = []
    for rho in (0.0, 5.0):
        torch.manual_seed(0)
        model = nn.Linear(3, 4).double()
        opt = FunctionalSAM(SGD(model.parameters(), lr=0.1), rho=rho)
        x, y = torch.randn(7, 3, dtype=torch.float64), torch.arange(7) % 4
        for _ in range(5):
            outputs, loss_of = partial(model, x), partial(cross_entropy, target=y)
            opt.step(Outputs(opt.zero_grad, outputs, loss_of))
        ends.append(flat(model.parameters()))
    torch.testing.assert_close(*ends, **NEAR)


def test_two_lines_around_sam_are_the_same_in_a_loop_of_ones_own() -> None:
    model, other = Language(), Language()
    opt = FunctionalSAM(SGD(model.parameters(), lr=0.1), rho=0.3)
    ours = trained(model, opt, whole)
    loop, path = SAM(SGD(other.parameters(), lr=0.1), rho=0.3), []
    for t in range(STEPS):
        x, y = batch(t)
        z = other(x)
        z.retain_grad()
        cross_entropy(z, y).backward()
        with loop.ascended():
            other(x).backward(z.grad)
        loop.step()
        loop.zero_grad()
        path.append(flat(other.parameters()))
    torch.testing.assert_close(torch.stack(path), ours, **NEAR)


def test_a_term_that_does_not_go_through_the_logits_is_that_of_sam() -> None:
    """u = J^T v + the gradient of the penalty at w + epsilon, and the losses have it too."""

    def penalty(model: Language) -> Tensor:
        return sum((p.pow(4).sum() for p in model.parameters()), start=torch.zeros(()).double())

    model, other = Language(), Language()
    opt = FunctionalSAM(SGD(model.parameters(), lr=0.1), rho=0.3)
    x, y = batch(0)
    loss = opt.step(
        Outputs(opt.zero_grad, lambda: (model(x), penalty(model)), lambda z: cross_entropy(z, y))
    )
    assert loss.item() == pytest.approx(
        (cross_entropy(other(x), y) + penalty(other)).item(), rel=1e-14
    )
    z = other(x)
    v = torch.autograd.grad(cross_entropy(z, y), z, retain_graph=True)[0]
    params = list(other.parameters())
    g = torch.autograd.grad(cross_entropy(z, y) + penalty(other), params)
    start = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, a in zip(params, g, strict=True):
            p += 0.3 * a / flat(g).norm()
    u = torch.autograd.grad((other(x) * v).sum() + penalty(other), params)
    above = (cross_entropy(other(x), y) + penalty(other)).item()
    ends = [a - 0.1 * b for a, b in zip(start, u, strict=True)]
    torch.testing.assert_close(flat(model.parameters()), flat(ends), **NEAR)
    assert opt.last.perturbed_loss.item() == pytest.approx(above, rel=1e-13)


def test_what_is_logged_is_a_loss() -> None:
    """The scalar of the second pass, sum(z v), is negative where the prediction is right."""
    model = Language()
    opt = FunctionalSAM(SGD(model.parameters(), lr=0.5), rho=0.1)
    for t in range(40):
        loss = opt.step(whole(model, opt, t % 3))
    assert 0 < loss.item() < opt.last.perturbed_loss.item()
    assert opt.metrics()["rise"] > 0


def test_both_passes_draw_the_same_dropout() -> None:
    seen: list[Tensor] = []
    model = Language(dropout=0.5)
    model.body[2].register_forward_hook(lambda module, x, z: seen.append(z.detach() == 0))
    opt = FunctionalSAM(SGD(model.parameters(), lr=0.1), rho=0.1)
    trained(model, opt, whole)
    pairs = list(zip(seen[::2], seen[1::2], strict=True))
    assert len(pairs) == STEPS
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(seen[0], seen[2])


# -- logits-SAM ------------------------------------------------------------------------------------


def logits_twin(rho: float, bias: bool, tied: bool, theta: float = 1.0) -> Tensor:
    """The loss of a (W + E)^T + b, with E a constant, differentiated as a whole."""
    model, path = Language(tied, bias), []
    D: Any = None
    for t in range(STEPS):
        x, y = batch(t)
        a = model.hidden(x)
        W, b = model.head.weight, model.head.bias
        G = torch.autograd.grad(cross_entropy(nn.functional.linear(a.detach(), W, b), y), W)[0]
        D = G if D is None else (1 - theta) * D + theta * G
        z = nn.functional.linear(a, W + rho * D / D.norm(), b)
        names, params = zip(*model.named_parameters(), strict=True)
        u = torch.autograd.grad(cross_entropy(z, y), params)
        descend(model, dict(zip(names, u, strict=True)), 0.1)
        path.append(flat(model.parameters()))
    return torch.stack(path)


@pytest.mark.parametrize("theta", [1.0, 0.4])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_logits_sam_perturbs_the_weight_of_the_head_alone(
    bias: bool, tied: bool, theta: float
) -> None:
    """Also where it is the embedding's weight: the body has read that before."""
    model, forwards = Language(tied, bias), []
    model.body.register_forward_hook(lambda *_: forwards.append(1))
    opt = LogitsSAM(SGD(model.parameters(), lr=0.1), rho=0.5, theta=theta)
    ours = trained(model, opt, cut)
    torch.testing.assert_close(ours, logits_twin(0.5, bias, tied, theta), **NEAR)
    assert len(forwards) == opt.cost == STEPS
    slopes = {n for n, p in model.named_parameters() if p in opt._vectors}
    assert slopes == (set() if theta == 1 else {"words.weight" if tied else "head.weight"})


def test_zeros_in_the_place_of_no_gradients_move_no_body() -> None:
    def zeroed(model: Language, opt: Any, t: int) -> Outputs:
        found = cut(model, opt, t)
        found.zero_grad = partial(opt.zero_grad, set_to_none=False)
        return found

    one, other = Language(), Language()
    paths = [
        trained(model, LogitsSAM(SGD(model.parameters(), lr=0.1), rho=0.5), of)
        for model, of in ((one, cut), (other, zeroed))
    ]
    assert torch.equal(*paths)


def test_a_body_that_is_not_perturbed_goes_down_all_the_same() -> None:
    """Its gradients are not read at w, but the same forward pass gives them at w + epsilon."""
    model = Language()
    head = [model.head.weight]
    rest = [p for p in model.parameters() if p is not model.head.weight]
    base = SGD([{"params": rest, "rho": 0.0}, {"params": head, "rho": 0.5}], lr=0.1)
    ours = trained(model, LogitsSAM(base), cut)
    torch.testing.assert_close(ours, logits_twin(0.5, bias=True, tied=False), **NEAR)


def test_a_head_that_may_not_move_leaves_the_base() -> None:
    model, other = Language(), Language()
    opt = LogitsSAM(SGD(model.parameters(), lr=0.1), rho=0.0)
    base = SGD(other.parameters(), lr=0.1)
    for t in range(STEPS):
        x, y = batch(t)
        base.zero_grad()
        cross_entropy(other(x), y).backward()
        base.step()
    assert torch.equal(trained(model, opt, cut)[-1], flat(other.parameters()))


def test_a_step_that_does_not_climb_goes_down_by_the_gradient_of_all() -> None:
    model, other = Language(), Language()
    base = SGD(model.parameters(), lr=0.1)
    opt = SharpnessAware(base, rho=0.5, plan=HeadOnly(), policy=EveryK(5))
    climbs = []
    for t in range(STEPS):
        opt.step(cut(model, opt, t))
        climbs.append(opt.last.climbed)
        if not climbs[-1] and t > 0:
            before = flat(other.parameters())
            x, y = batch(t)
            g = torch.autograd.grad(cross_entropy(other(x), y), list(other.parameters()))
            torch.testing.assert_close(flat(model.parameters()), before - 0.1 * flat(g), **NEAR)
        other.load_state_dict(copy.deepcopy(model.state_dict()))
    assert 0 < sum(climbs) < STEPS
    assert opt.cost == pytest.approx(STEPS)


def test_the_loss_of_a_step_is_that_at_w() -> None:
    model, other = Language(), Language()
    opt = LogitsSAM(SGD(model.parameters(), lr=0.1), rho=0.5)
    loss = opt.step(cut(model, opt, 0))
    x, y = batch(0)
    assert loss.item() == pytest.approx(cross_entropy(other(x), y).item(), rel=1e-15)
    assert opt.last.loss_at == "w"
    assert opt.metrics()["rise"] > 0


# -- both ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "of"), [(FunctionalSAM, whole), (LogitsSAM, cut)])
def test_a_loss_scale_changes_nothing(preset: Any, of: Any) -> None:
    ends = []
    for scaled in (False, True):
        model = Language().float()
        opt = preset(AdamW(model.parameters(), lr=0.01), rho=0.3)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
        for t in range(STEPS):
            opt.step(of(model, opt, t, scaler=scaler), scaler=scaler)
        ends.append(flat(model.parameters()))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)  # a power of two, but for the norm's root


@pytest.mark.parametrize("preset", [FunctionalSAM, LogitsSAM])
def test_what_cannot_be_done_is_refused(preset: Any) -> None:
    model = Language()
    opt = preset(SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match=r"has to see outputs: pass a vasso.Outputs to step\(\)"):
        opt.step(lambda: model(batch(0)[0]).sum())
    with pytest.raises(ValueError, match="takes both gradients from one batch: no ascent_closure"):
        opt.step(whole(model, opt, 0), ascent_closure=whole(model, opt, 1))
    model(batch(0)[0]).sum().backward()
    refused = pytest.raises(RuntimeError, match=r"needs passes of its own.*use step\(closure\)")
    with refused, opt.ascended():
        pass
    with pytest.raises(ValueError, match="needs the gradient at w in every step"):
        SharpnessAware(
            SGD(model.parameters(), lr=0.1),
            direction=Ema(0.4, stale="stay"),
            plan=opt.plan,
            policy=RefreshEveryK(2),
        )


def test_a_head_has_to_be_named_and_trained() -> None:
    model = Language()
    opt = LogitsSAM(SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match=r"pass Outputs\(..., head=\), a module whose weight is"):
        opt.step(whole(model, opt, 0))
    model.head.requires_grad_(False)
    with pytest.raises(TypeError, match="whose weight is trained, got Linear"):
        opt.step(cut(model, opt, 0))


def test_functions_are_asked_for() -> None:
    with pytest.raises(TypeError, match=r"Outputs takes three functions, .*got \(Tensor, "):
        Outputs(torch.ones(1), lambda: torch.ones(1), lambda z: z)  # type: ignore[arg-type]
    outputs = Outputs(lambda: None, lambda: torch.ones(1), lambda z: z)
    with pytest.raises(RuntimeError, match="comes after a call at w"):
        outputs.vjp()
