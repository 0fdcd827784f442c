"""Settings: values out of range are refused by name."""

import math
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD

import vasso
from tests.support.batches import batch, closure_of, conv, made, mlp, simple
from tests.support.compare import assert_same, flat
from tests.support.slopes import Make, Task, momentum

BASE = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(vasso.After, -1), "start must be at least 0, got -1"),
        (partial(vasso.RefreshEveryK, 0), "k must be a whole number, at least 1, got 0"),
        (partial(vasso.RefreshRandomly, 1.5), "p must be at least 0 and at most 1, got 1.5"),
        (partial(vasso.RefreshAdaptive, "flatt"), "rule must be one of .* Did you mean 'flat'"),
        (partial(vasso.RefreshAdaptive, z=1.0), "z must be above 1, got 1"),
        (partial(vasso.RefreshAdaptive, lam=1.5), "lam must be at least 0 and at most 1, got 1.5"),
        (partial(vasso.Ema, stale="wait"), "stale must be one of 'stay', 'follow', None, got"),
        (partial(vasso.MultiStep, 0), "n must be a whole number, at least 1, got 0"),
        (partial(vasso.MultiStep, 2, "n"), "stride must be one of 'rho', 'rho/n', got"),
        (partial(vasso.FrankWolfe, 0), "K must be a whole number, at least 1, got 0"),
        (partial(vasso.Storm, 0.0), "a must be above 0 and at most 1, got 0"),
        (partial(vasso.Svrg, 0), "every must be a whole number, at least 1, got 0"),
        (partial(vasso.Sarah, 0), "every must be a whole number, at least 1, got 0"),
        (partial(vasso.DynamicMask, sparsity=1.0), "sparsity must be below 1"),
        (partial(vasso.DynamicMask, every=0), "every at least 1, got 0.5, 0"),
        (partial(vasso.FisherMask, sparsity=-0.1), "sparsity must be at least 0, got -0.1"),
        (partial(vasso.DynamicMask, drop=1.5), "drop must be at least 0 and at most 1, got 1.5"),
        (partial(vasso.FriendlySAM, BASE, lam=1.0), "lam must be at least 0 and below 1, got 1"),
        (partial(vasso.FriendlySAM, BASE, use="newest"), "use must be one of 'new', 'old', got"),
        (partial(vasso.SparseSAM, BASE, mask="fish"),
         "mask must be one of .* Did you mean 'fisher'"),
        (partial(vasso.ASAM, BASE, eta=-1.0), r"eta must be at least 0, got -1"),
        (partial(vasso.FisherSAM, BASE, eta=-1.0), r"eta must be at least 0, got -1"),
        (partial(vasso.FisherSAM, BASE, source="batches"),
         "source must be .*'ema'.* got 'batches'"),
        (partial(vasso.GSAM, BASE, minimise="both"),
         "minimise must be one of 'perturbed', 'clean', got 'both'"),
        (partial(vasso.GSAM, BASE, alpha=math.nan), r"alpha must be finite, got nan"),
        (partial(vasso.NoisySAM, BASE, kappa=-1.0), r"kappa must be at least 0, got -1"),
        (partial(vasso.NoisySAM, BASE, sigma=-1.0), r"sigma must be at least 0, got -1"),
        (partial(vasso.ChunkedSAM, BASE, m=0), r"m must be a whole number, at least 1, got 0"),
        (partial(vasso.HalfSAM, BASE, fraction=0), "fraction must be above 0 and at most 1, got 0"),
        (partial(vasso.SubSampledSAM, BASE, m=0), r"m must be a whole number, at least 1, got 0"),
        (partial(vasso.LookSAM, BASE, k=2.5), r"k must be a whole number, at least 1, got 2.5"),
        (partial(vasso.LookSAM, BASE, k="two"), r"k must be a whole number, at least 1, got 'two'"),
        (partial(vasso.LookSAM, BASE, k=0), r"k must be a whole number, at least 1, got 0"),
        (partial(vasso.ESAM, BASE, beta=0.0), r"beta must be above 0 and at most 1, got 0"),
        (partial(vasso.ESAM, BASE, beta=1.5), r"beta must be above 0 and at most 1, got 1.5"),
        (partial(vasso.ESAM, BASE, gamma=0.0), r"gamma must be above 0 and at most 1, got 0"),
        (partial(vasso.ESAM, BASE, level="layer"),
         "level must be one of 'element', 'tensor', got 'layer'"),
        (partial(vasso.SSSAM, BASE, p=1.5), r"p must be at least 0 and at most 1, got 1.5"),
        (partial(vasso.AESAM, BASE, total=0), r"total must be a whole number, at least 1, got 0"),
        (partial(vasso.AESAM, BASE, total=9, delta=2.0),
         r"delta must be at least 0 and at most 1, got 2"),
        (partial(vasso.SurrogateGap, decompose="both"),
         "decompose must be one of 'batch', 'slope', got 'both'"),
        (partial(vasso.Adaptive, p=1), "p must be 2 or infinity, got 1"),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused_by_name(make: Make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_probability_that_differs_by_group_is_refused() -> None:
    net = made(mlp)
    groups = [{"params": list(net[0].parameters())}, {"params": list(net[2].parameters()), "p": 1}]
    opt = vasso.SSSAM(SGD(groups, lr=0.1), p=0.5, model=net)
    message = r"p belongs to the policy and must be the same in all groups: \[0\.5, 1\.0\]"
    with pytest.raises(ValueError, match=message):
        opt.step(closure_of(opt, net, *batch(0)))
    assert_same(flat(net.parameters()), flat(made(mlp).parameters()))


def test_losses_that_are_not_one_for_each_sample() -> None:
    opt, net = simple(vasso.ChunkedSAM, m=11)
    whole = vasso.Samples(opt.zero_grad, lambda x, y: cross_entropy(net(x), y), *batch(0))
    message = r"one loss for each of 11 samples, got shape \(\): use reduction=\"none\""
    with pytest.raises(ValueError, match=message):
        opt.step(whole)


def test_samples_that_do_not_fit_together() -> None:
    x, y = batch(0)
    with pytest.raises(ValueError, match=r"one length above 0, got \{.*\}"):
        vasso.Samples(lambda: None, lambda x, y: x, x, y[1:])


def test_asam_warns_if_it_cannot_tell_biases_by_their_names() -> None:
    net = made(conv)
    opt = vasso.ASAM(SGD(net.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=r"names of the parameters are not known.*pass model="):
        opt.step(closure_of(opt, net, *batch(0)))


def test_asam_takes_names_from_torch() -> None:
    def run(named: bool) -> Tensor:
        net = made(conv)
        params = net.named_parameters() if named else net.parameters()
        opt = vasso.ASAM(SGD(params, lr=0.1), model=None if named else net)
        opt.step(closure_of(opt, net, *batch(0)))
        return flat(net.parameters())

    assert_same(run(named=True), run(named=False))


@pytest.mark.parametrize("other", [0.7, lambda step, lr: 0.7], ids=["number", "schedule"])
def test_the_p_of_a_late_coin_does_not_bind_a_checkpoint(other: Any) -> None:
    def late(p: Any) -> vasso.LateSAM:
        task = Task()
        return vasso.LateSAM(
            momentum(task.params()), start=2, then=vasso.Bernoulli(p), model=task.model
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checkpoint's p wins
        late(other).load_state_dict(late(0.5).state_dict())


@pytest.mark.parametrize(
    "base",
    [
        partial(torch.optim.SGD, lr=0.1),
        partial(torch.optim.Adagrad, lr=0.1),
        partial(torch.optim.RMSprop, lr=0.1),
    ],
)
def test_msam_needs_a_base_with_momentum(base: Any) -> None:
    with pytest.raises(ValueError, match=rf"{base.func.__name__} has no momentum to perturb along"):
        vasso.MSAM(base(Task().params()))


def test_msam_needs_momentum_in_every_group() -> None:
    first, *rest = Task().params()
    with pytest.raises(ValueError, match="SGD has no momentum"):
        vasso.MSAM(momentum([{"params": [first], "momentum": 0.0}, {"params": rest}]))
