"""SAF and MESA against plain loops, and what they promise."""

import copy
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, mse_loss
from torch.optim import SGD

from tests.reference import mesa, saf
from tests.reference.digits import digits, flat, net, output
from tests.support.compare import assert_same
from tests.support.problems import closure_of
from vasso import SAM
from vasso.losses import MESA, SAF, divergence

SAMPLES, SIZE, EPOCHS = 96, 16, 10
NEAR = 1e-12  # sixty steps of float64 on weights of order 1; measured: 2e-15
Batch = tuple[int, Tensor, Tensor, Tensor]


def batches(epochs: int = EPOCHS) -> Iterator[Batch]:
    """Epoch, samples, inputs, labels; each epoch in its own order and without a sixth of them."""
    luck = torch.Generator().manual_seed(3)
    x, y = digits()
    for epoch in range(epochs):
        order = torch.randperm(SAMPLES, generator=luck)[: SAMPLES * 5 // 6]
        for index in order.split(SIZE):
            yield epoch, index, x[index], y[index]


def train(model: nn.Module, loss_of: Callable[..., Tensor], data: Any, after: Any = None) -> None:
    opt = SGD(model.parameters(), lr=0.5)
    for epoch, index, x, y in data:
        opt.zero_grad()
        loss_of(model(x), y, index, x, epoch).backward()
        opt.step()
        if after is not None:
            after()


def with_saf(loss: SAF) -> Callable[..., Tensor]:
    return lambda logits, y, index, x, epoch: loss(logits, y, index, epoch)


def with_mesa(loss: MESA) -> Callable[..., Tensor]:
    return lambda logits, y, index, x, epoch: loss(logits, y, x, epoch)


def assert_near(ours: Tensor, theirs: Tensor, atol: float = NEAR) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def small_saf(**options: Any) -> SAF:
    settings = {"lam": 0.7, "tau": 3.0, "start": 3, "window": 2, "dtype": torch.float64}
    return SAF(SAMPLES, 10, **settings | options)


def test_the_divergence_is_that_of_torch_from_the_past_to_now() -> None:
    luck = torch.Generator().manual_seed(0)
    past, now = torch.randn(2, 8, 5, generator=luck, dtype=torch.float64) * 4
    p, q = log_softmax(past / 3, 1), log_softmax(now / 3, 1)
    expected = 9 * kl_div(q, p, reduction="none", log_target=True).sum(1)
    assert_near(divergence(past, now, 3.0), expected, 1e-14)


def test_the_divergence_survives_logits_that_a_softmax_does_not() -> None:
    past, now = torch.tensor([[0.0, 2000.0]]), torch.tensor([[2000.0, 0.0]], requires_grad=True)
    value = divergence(past, now, 1.0)
    value.backward()
    assert value.item() == 2000.0
    assert now.grad is not None
    assert_same(now.grad, torch.tensor([[1.0, -1.0]]))


def test_only_the_present_is_differentiated() -> None:
    past, now = (torch.zeros(1, 3, requires_grad=True) for _ in range(2))
    divergence(past + 1.0, now, 2.0).sum().backward()
    assert past.grad is None


def test_saf_is_the_plain_loop() -> None:
    ours, theirs, said = net(), net(), {}
    train(ours, with_saf(small_saf()), batches())

    def plain(logits: Tensor, y: Tensor, index: Tensor, x: Tensor, epoch: int) -> Tensor:
        settings = {"lam": 0.7, "tau": 3.0, "start": 3, "window": 2}
        return saf.loss(said, logits, y, index, epoch, **settings)

    train(theirs, plain, batches())
    assert_near(flat(ours), flat(theirs))


@pytest.mark.parametrize("options", [{"lam": 0.0}, {"start": EPOCHS}, {"window": EPOCHS}])
def test_saf_without_its_term_is_the_criterion(options: dict[str, Any]) -> None:
    ours, plain = net(), net()
    train(ours, with_saf(small_saf(**options)), batches())
    train(plain, lambda logits, y, *_: cross_entropy(logits, y), batches())
    assert_same(flat(ours), flat(plain))


def test_saf_by_hand() -> None:
    loss = SAF(3, 2, lam=2.0, tau=1.0, start=1, window=1, dtype=torch.float64)
    half, z = torch.zeros(2, 2, dtype=torch.float64), math.log(3.0)
    sharp = torch.tensor([[z, 0.0], [z, 0.0]], dtype=torch.float64)  # 3/4 and 1/4
    y = torch.tensor([0, 0])
    loss(half, y, torch.tensor([0, 1]), epoch=1)
    value = loss(sharp, y, torch.tensor([0, 2]), epoch=2)  # sample 2 was not seen
    kl = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert value.item() == pytest.approx(math.log(4 / 3) + 2.0 * kl / 2, rel=1e-14)


def test_saf_looks_back_exactly_as_far_as_its_window() -> None:
    loss = SAF(1, 2, lam=1.0, tau=1.0, start=0, window=3, dtype=torch.float64)
    said = [torch.tensor([[float(epoch), 0.0]], dtype=torch.float64) for epoch in range(9)]
    y, index = torch.tensor([0]), torch.tensor([0])
    for epoch, logits in enumerate(said):
        value = loss(logits, y, index, epoch)
        term = divergence(said[epoch - 3], logits, 1.0) if epoch >= 3 else logits.new_zeros(1)
        assert_near(value, (cross_entropy(logits, y) + term).squeeze(), 1e-14)


def test_saf_notes_what_the_model_says_and_not_the_adversary() -> None:
    model, loss = net(), small_saf()
    opt = SAM(SGD(model.parameters(), lr=0.5), rho=1.0, model=model)
    epoch, index, x, y = next(batches())
    with torch.no_grad():
        said = model(x)
    closure = closure_of(opt, lambda: loss(model(x), y, index, epoch))
    opt.step(closure)
    assert_same(loss.logits[0, index], said)


def test_saf_resumes_bit_for_bit() -> None:
    straight = net()
    train(straight, with_saf(small_saf()), batches())
    model, loss, data = net(), small_saf(), list(batches())
    half = len(data) // 2 + 1  # in the middle of an epoch
    train(model, with_saf(loss), data[:half])
    file = io.BytesIO()
    torch.save([model.state_dict(), loss.state_dict()], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model, loss = net(), small_saf()
    model.load_state_dict(saved[0])
    loss.load_state_dict(saved[1])
    train(model, with_saf(loss), data[half:])
    assert_same(flat(model), flat(straight))


def test_saf_in_eval_mode_is_the_criterion_and_notes_nothing() -> None:
    loss = small_saf().eval()
    epoch, index, x, y = next(batches())
    logits = net()(x)
    assert_same(loss(logits, y, index, epoch), cross_entropy(logits, y))
    assert (loss.epochs == -1).all()


def test_saf_does_not_note_what_is_not_finite() -> None:
    loss = SAF(2, 2, start=0, window=1)
    logits, y = torch.tensor([[math.nan, 0.0], [1.0, 0.0]]), torch.tensor([0, 0])
    loss(logits, y, torch.tensor([0, 1]), epoch=0)
    assert loss(torch.ones(2, 2), y, torch.tensor([0, 1]), epoch=1).isfinite()
    assert loss.epochs[0].tolist() == [-1, 0]


def test_saf_has_room_for_one_epoch_more_than_its_window() -> None:
    loss = SAF(50, 10, window=3)
    assert loss.logits.numel() * loss.logits.itemsize == 50 * 10 * 4 * 4
    assert SAF(50, 10, dtype=torch.float16).logits.dtype == torch.float16


def test_saf_and_mesa_wrap_any_criterion() -> None:
    logits, y = torch.ones(2, 2), torch.zeros(2, 2)
    loss = SAF(5, 2, criterion=mse_loss)
    assert loss(logits, y, torch.tensor([0, 1]), epoch=0).item() == 1.0
    assert MESA(nn.Linear(2, 2), criterion=mse_loss)(logits, y, y, epoch=0).item() == 1.0


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        ([0, 5], (2, 3), "index must be in 0 to 4, got 0 to 5: SAF was made for 5 samples"),
        ([-1, 0], (2, 3), "index must be in 0 to 4, got -1 to 0"),
        ([0, 1], (2, 4), r"logits must be 2 samples x 3 classes, got shape \(2, 4\)"),
        ([0], (2, 3), r"logits must be 1 samples x 3 classes, got shape \(2, 3\)"),
    ],
)
def test_saf_refuses_what_does_not_fit(
    index: list[int], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises((IndexError, ValueError), match=message):
        SAF(5, 3)(torch.zeros(shape), torch.zeros(2).long(), torch.tensor(index), epoch=0)


def test_mesa_is_the_plain_loop() -> None:
    model = net()
    start, settings = flat(model), {"lam": 0.6, "tau": 2.0, "start": 2, "decay": 0.9}
    loss = MESA(model, **settings)
    train(model, with_mesa(loss), batches(), loss.update)
    plain = [(epoch, x, y) for epoch, _, x, y in batches()]
    x, average = mesa.train(start, output, plain, lr=0.5, **settings)
    assert_near(flat(model), x)
    assert_near(flat(loss.average), average)


@pytest.mark.parametrize("options", [{"lam": 0.0}, {"start": EPOCHS}])
def test_mesa_without_its_term_is_the_criterion(options: dict[str, Any]) -> None:
    ours, plain = net(), net()
    loss = MESA(ours, decay=0.9, **options)
    train(ours, with_mesa(loss), batches(), loss.update)
    train(plain, lambda logits, y, *_: cross_entropy(logits, y), batches())
    assert_same(flat(ours), flat(plain))


def test_the_average_of_mesa_has_batchnorms_statistics_too_and_uses_them() -> None:
    model = net(norm=True)
    loss = MESA(model, decay=0.75, start=0)
    mean, weight = model[1].running_mean.clone(), model[0].weight.detach().clone()
    for _, _, x, _ in list(batches(1))[:3]:
        model(x)
        with torch.no_grad():
            model[0].weight.add_(0.1)
        loss.update()
        mean = 0.75 * mean + 0.25 * model[1].running_mean
        weight = 0.75 * weight + 0.25 * model[0].weight.detach()
    assert_near(loss.average.module[1].running_mean, mean, 1e-15)
    assert_near(loss.average.module[0].weight, weight, 1e-15)
    before = copy.deepcopy(loss.average.state_dict())
    loss.train()
    loss(model(x), torch.zeros(len(x)).long(), x, epoch=1)
    assert not loss.average.module[1].training
    for name, value in loss.average.state_dict().items():
        assert_same(value, before[name])


def test_mesa_resumes_bit_for_bit() -> None:
    data, settings = list(batches(6)), {"start": 1, "decay": 0.9}
    straight = net(norm=True)
    loss = MESA(straight, **settings)
    train(straight, with_mesa(loss), data, loss.update)
    model = net(norm=True)
    loss = MESA(model, **settings)
    train(model, with_mesa(loss), data[:17], loss.update)
    saved = copy.deepcopy([model.state_dict(), loss.state_dict()])
    model = net(norm=True)
    loss = MESA(model, **settings)
    model.load_state_dict(saved[0])
    loss.load_state_dict(saved[1])
    train(model, with_mesa(loss), data[17:], loss.update)
    assert_same(flat(model), flat(straight))


def test_mesa_keeps_the_average_once_and_the_model_not_at_all() -> None:
    model = net()
    loss = MESA(model)
    assert set(loss.state_dict()) == {
        "average.n_averaged",
        *(f"average.module.{name}" for name in model.state_dict()),
    }
    assert not any(p.requires_grad for p in loss.parameters())


def test_mesa_averages_weights_at_home_under_an_optimizer_that_climbs() -> None:
    model = net()
    loss, average = MESA(model, decay=0.5, start=0), flat(model)
    opt = SAM(SGD(model.parameters(), lr=0.5), rho=1.0, model=model)
    for epoch, _, x, y in list(batches(3))[:8]:
        closure = closure_of(opt, lambda epoch=epoch, x=x, y=y: loss(model(x), y, x, epoch))
        opt.step(closure)
        loss.update()
        average = 0.5 * average + 0.5 * flat(model)
    assert_near(flat(loss.average), average)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SAF(5, 3, lam=-1.0), "lam must be at least 0, got -1"),
        (lambda: MESA(net(), lam=-1.0), "lam must be at least 0, got -1"),
        (lambda: SAF(5, 3, tau=0.0), "tau must be above 0, got 0"),
        (lambda: MESA(net(), tau=0.0), "tau must be above 0, got 0"),
        (lambda: MESA(net(), decay=2.0), "decay must be at least 0 and at most 1, got 2"),
        (lambda: SAF(5, 3, window=0), "window must be at least 1, got 0"),
        (
            lambda: SAF(5, 3)(torch.zeros(1, 3), *torch.zeros(2, 1).long(), epoch=-1),
            "epoch must be at least 0, got -1",
        ),
    ],
)
def test_settings_out_of_range(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_defaults_are_those_of_the_authors_readme() -> None:
    one, other = SAF(5, 3), MESA(net())
    assert (one.lam, one.tau, one.start, one.window) == (0.3, 5.0, 5, 3)
    assert (other.lam, other.tau, other.start) == (0.8, 5.0, 5)
