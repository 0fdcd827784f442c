"""Torch's own helpers around ours, each against a plain loop that does their work by hand."""

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, relu
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, from torch itself
    from torch.distributed.optim import ZeroRedundancyOptimizer

from tests.hosts.problem import on_two_ranks
from tests.reference.digits import batch, closure_on_batch, flat, net
from tests.support.problems import Way, closure_of, take_step
from vasso import SAM, SharpnessAware, VaSSO

RHO, THETA = 0.3, 0.4


def vasso(model: nn.Module, lr: float = 0.5, **more: Any) -> VaSSO:
    base = SGD(model.parameters(), lr=lr, momentum=0.9)
    return VaSSO(base, rho=RHO, theta=THETA, model=model, **more)


def by_hand(rates: list[float]) -> Tensor:
    model = net()
    opt = vasso(model)
    for t, lr in enumerate(rates):
        opt.base.param_groups[0]["lr"] = lr
        opt.step(closure_on_batch(opt, model, t))
    return flat(model)


def test_a_plateau_is_judged_by_the_loss_at_w() -> None:
    model = net()
    opt = vasso(model)
    scheduler = ReduceLROnPlateau(opt, factor=0.5, patience=0, threshold=0.0)
    rates, losses = [], []
    for t in range(8):
        rates.append(opt.param_groups[0]["lr"])
        losses.append(opt.step(closure_on_batch(opt, model, t)).item())
        scheduler.step(losses[-1])
    expected, best = [0.5], float("inf")
    for loss in losses[:-1]:
        expected.append(expected[-1] * (1.0 if loss < best else 0.5))
        best = min(best, loss)
    assert rates == expected
    assert len(set(rates)) > 1, "never on a plateau"
    assert torch.equal(flat(model), by_hand(rates))


def test_a_scheduler_saved_with_the_optimizer_goes_on() -> None:
    def start() -> tuple[nn.Module, VaSSO, CosineAnnealingLR]:
        model = net()
        opt = vasso(model)
        return model, opt, CosineAnnealingLR(opt, T_max=8)

    def go_on(parts: tuple[nn.Module, VaSSO, CosineAnnealingLR], steps: range) -> Tensor:
        model, opt, scheduler = parts
        for t in steps:
            opt.step(closure_on_batch(opt, model, t))
            scheduler.step()
        return flat(model)

    first = start()
    go_on(first, range(4))
    saved = [copy.deepcopy(part.state_dict()) for part in first]
    whole = go_on(first, range(4, 8))
    second = start()
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    assert torch.equal(go_on(second, range(4, 8)), whole)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("same_rng", [False, True])
def test_activation_checkpointing_changes_nothing(dropout: float, same_rng: bool) -> None:
    def train(forward: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        torch.manual_seed(3)
        model = net(dropout=dropout)
        opt = vasso(model, same_rng=same_rng)
        for t in range(4):
            opt.step(closure_on_batch(opt, lambda x: forward(model, x), t))
        return flat(model)

    plain = train(lambda model, x: model(x))
    whole = train(lambda model, x: checkpoint(model, x, use_reentrant=False))
    pieces = train(lambda model, x: checkpoint_sequential(model, 2, x, use_reentrant=False))
    assert torch.equal(whole, plain)
    assert torch.equal(pieces, plain)


def train_with_zero(folder: Path, ranks: int = 2) -> Tensor:
    """Each rank keeps a share of the momentum; the data of a step are shared out too."""
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    rank, model = torch.distributed.get_rank(), net()
    parallel = DistributedDataParallel(model)
    base = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.5, momentum=0.9)
    opt = VaSSO(base, rho=RHO, theta=THETA, model=model)
    for t in range(6):

        def closure(t: int = t) -> Tensor:
            opt.zero_grad()
            x, y = batch(t)
            share = slice(rank * len(x) // ranks, (rank + 1) * len(x) // ranks)
            loss = cross_entropy(parallel(x[share]), y[share])
            loss.backward()
            return loss

        opt.step(closure)
    assert opt.cost == 12
    return flat(model)


def without_zero() -> Tensor:
    model = net()
    opt = vasso(model)
    for t in range(6):
        opt.step(closure_on_batch(opt, model, t))
    return flat(model)


@pytest.mark.ranks
def test_a_sharded_base_of_two_processes(tmp_path: Path) -> None:
    for rank in on_two_ranks(f"{__name__}:train_with_zero", tmp_path):
        torch.testing.assert_close(rank, without_zero(), rtol=0, atol=1e-14)


def two_nets() -> tuple[nn.Module, nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 64))
        critic = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 1))
    return generator.double(), critic.double()


def noise(t: int) -> Tensor:
    return torch.randn(32, 4, generator=torch.Generator().manual_seed(t), dtype=torch.float64)


def critic_loss(generator: nn.Module, critic: nn.Module, t: int) -> Tensor:
    real, fake = critic(batch(t)[0]), critic(generator(noise(t)).detach())
    ones, zeros = torch.ones_like(real), torch.zeros_like(fake)
    return binary_cross_entropy_with_logits(real, ones) + binary_cross_entropy_with_logits(
        fake, zeros
    )


def generator_loss(generator: nn.Module, critic: nn.Module, t: int) -> Tensor:
    fake = critic(generator(noise(t)))
    return binary_cross_entropy_with_logits(fake, torch.ones_like(fake))


def sam_by_hand(model: nn.Module, loss: Callable[[], Tensor], lr: float) -> None:
    params = list(model.parameters())
    w = [p.detach().clone() for p in params]
    g = torch.autograd.grad(loss(), params)
    length = torch.cat([x.flatten() for x in g]).norm()
    with torch.no_grad():
        for p, x in zip(params, g, strict=True):
            p.add_(x, alpha=RHO / length.item())
    h = torch.autograd.grad(loss(), params)
    with torch.no_grad():
        for p, home, x in zip(params, w, h, strict=True):
            p.copy_(home - lr * x)


def test_two_optimizers_in_one_loop_leave_each_other_alone() -> None:
    ours, theirs = two_nets(), two_nets()
    opts = [SAM(SGD(model.parameters(), lr=0.1), rho=RHO) for model in ours]
    for t in range(5):
        for opt, loss in ((opts[1], critic_loss), (opts[0], generator_loss)):
            closure = closure_of(opt, lambda loss=loss, t=t: loss(*ours, t))
            opt.step(closure)
        sam_by_hand(theirs[1], lambda t=t: critic_loss(*theirs, t), 0.1)
        sam_by_hand(theirs[0], lambda t=t: generator_loss(*theirs, t), 0.1)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(flat(a), flat(b), rtol=0, atol=1e-13)
    assert [opt.cost for opt in opts] == [10, 10]


class Normalised(nn.Module):
    """With BatchNorm, whose statistics have to be held still without a recompilation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(relu(self.norm(self.first(x))))


def normalised() -> Normalised:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Normalised().double()


@pytest.fixture
def dynamo() -> Iterator[Any]:
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()
    counters.clear()


def compiled(thing: Any) -> Any:
    """Traced into graphs, which are then run as they are: no C++ compiler is waited for."""
    return torch.compile(thing, backend="aot_eager")


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_a_compiled_model_is_one_graph_and_is_never_compiled_again(dynamo: Any, way: Way) -> None:
    model, twin = normalised(), normalised()
    fast = compiled(model)
    opt, plain = vasso(model), vasso(twin)
    after_the_first = None
    for t in range(6):
        take_step(opt, lambda t=t: cross_entropy(fast(batch(t)[0]), batch(t)[1]), way)
        plain.step(closure_on_batch(plain, twin, t))
        after_the_first = after_the_first or dynamo["stats"]["unique_graphs"]
    assert after_the_first == 1
    assert dynamo["stats"]["unique_graphs"] == 1
    assert not dynamo["graph_break"]
    assert not dynamo["recompiles"]
    torch.testing.assert_close(flat(model), flat(twin), rtol=0, atol=1e-12)
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def loop_of(opt: SharpnessAware, model: nn.Module, way: str) -> Callable[[Tensor, Tensor], Tensor]:
    def with_closure(x: Tensor, y: Tensor) -> Tensor:
        closure = closure_of(opt, lambda: cross_entropy(model(x), y))
        return opt.step(closure)

    def with_ascended(x: Tensor, y: Tensor) -> Tensor:
        opt.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        with opt.ascended():
            cross_entropy(model(x), y).backward()
        opt.step()
        return loss.detach()

    return with_closure if way == "closure" else with_ascended


ignore_looks = pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's, at a loss


@ignore_looks
@pytest.mark.parametrize(("way", "graphs"), [("closure", 0), ("ascended", 2)])
def test_a_whole_training_function_can_be_compiled(dynamo: Any, way: str, graphs: int) -> None:
    """Ours is left out of the graphs; with a closure, so is what we call."""
    model, twin = normalised(), normalised()
    opt, plain = vasso(model), vasso(twin)
    fast = compiled(loop_of(opt, model, way))
    for t in range(5):
        fast(*batch(t))
        plain.step(closure_on_batch(plain, twin, t))
        assert dynamo["stats"]["unique_graphs"] == graphs, f"compiled again in step {t}"
    torch.testing.assert_close(flat(model), flat(twin), rtol=0, atol=1e-12)


@ignore_looks
def test_a_compiled_model_inside_a_compiled_function_stays_compiled(dynamo: Any) -> None:
    model, twin = normalised(), normalised()
    opt, plain = vasso(model), vasso(twin)
    fast = compiled(loop_of(opt, compiled(model), "closure"))
    for t in range(3):
        fast(*batch(t))
        plain.step(closure_on_batch(plain, twin, t))
    assert dynamo["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(flat(model), flat(twin), rtol=0, atol=1e-12)
