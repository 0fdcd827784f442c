"""Errors of the diagnostics name the argument, its value and the remedy."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.diagnostics.nets import batches, net
from vasso import SAM
from vasso.diagnostics.adversary.equal_effect import equal_effect
from vasso.diagnostics.adversary.friendliness import friendliness, friendliness_of
from vasso.diagnostics.adversary.radius import Rises, rise_along, rise_curve
from vasso.diagnostics.adversary.slope_error import slope_errors
from vasso.diagnostics.adversary.snr import snr
from vasso.diagnostics.adversary.sphere import cloud
from vasso.diagnostics.batches import samples_in
from vasso.diagnostics.curvature.density import spectral_density
from vasso.diagnostics.curvature.eigen import top_eigenpairs
from vasso.diagnostics.curvature.products import GaussNewton, Hessian
from vasso.diagnostics.curvature.trace import hutch_plus_plus, hutchinson
from vasso.diagnostics.estimates import mean_of, share_of
from vasso.diagnostics.landscape import interpolation, slice_1d, slice_2d
from vasso.diagnostics.passes import OfModel, gradient_of, loss_of
from vasso.diagnostics.probe import Probe
from vasso.diagnostics.sharpness import sharpness
from vasso.diagnostics.theory import Problem, convergence, m_sharpness

X, Y = torch.ones(3, 2), torch.zeros(3, 1)
MSE, CE = nn.MSELoss(), cross_entropy
SOME = batches(4)
RISES = Rises((0.1,), np.ones((2, 1)), np.ones((2, 3, 1)))
NAN = Rises((0.1,), np.ones((2, 1)), np.array([[[1.0]] * 3, [[1.0], [1.0], [math.nan]]]))


def line() -> nn.Module:
    return nn.Linear(2, 1, bias=False)


def curvature() -> Hessian:
    return Hessian(line(), MSE, [(X, Y)])


def full() -> list[torch.Tensor]:
    return gradient_of(net(), CE, SOME[:1])


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)


def sharp(**settings: Any) -> Any:
    return sharpness(net(), CE, **{"rho": 0.1, "batches": SOME[:1], **settings})


# fmt: off
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: mean_of([]), "no values"),
    (lambda: share_of(3, 2), "3 of 2 is not a share"),
    (lambda: mean_of([1.0, 2.0], level=95), r"such as 0\.95, got 95"),
    (lambda: slice_1d(line(), MSE, [(X, Y)], at=[0.0]), "at least two"),
    (lambda: slice_2d(line(), MSE, [(X, Y)], seeds=(1, 1)), "seeds must differ"),
    (lambda: slice_1d(line(), MSE, []), "batches is empty"),
    (lambda: interpolation(line(), line().state_dict(), {}, MSE, [(X, Y)]),
     "end does not fit the model at 'weight'"),
    (lambda: rise_curve(net(), CE, SOME, [], [0.1]), "others is empty"),
    (lambda: rise_curve(net(), CE, SOME, SOME, [-1]), r"at least 0, got \[-1\]"),
    (lambda: rise_curve(net(), CE, SOME, SOME, [0.1], theta=0.2), "needs more than 16 batches"),
    (lambda: friendliness(net(), CE, SOME, SOME, rho=0.0), "must be above 0"),
    (lambda: rise_along(net(), CE, [], SOME, [0.1]), "no adversaries"),
    # NaN < 0 is false: such a batch would make adversaries look good
    (lambda: friendliness_of(NAN), "1 of 8 rises are not finite"),
    (lambda: slope_errors(net(), CE, SOME, full(), [0.2]), "needs more than 16 batches"),
    (lambda: slope_errors(net(), CE, SOME, full()[1:], [1.0]), "gradient_of"),
    (lambda: slope_errors(net(), CE, SOME, full(), [0.0]),
     "theta must be above 0 and at most 1, got 0"),
    (lambda: snr(net(), CE, SOME[:2]), "at least 3 batches, got 2"),
    (lambda: equal_effect(RISES, RISES, 0.3), r"rho 0\.3 is not among the reference's radii"),
    (lambda: equal_effect(RISES, RISES, 0.1, on="other"), "Did you mean 'others'"),  # type: ignore[arg-type]
    (lambda: cloud(0), "snr must be above 0 and finite, got 0"),
    (lambda: cloud(1, 0), "theta"),
    (lambda: cloud(1, gradient=(1.0, 2.0)), "must have the same length"),
    (lambda: cloud(1, gradient=(0.0, 0.0, 0.0)), "the gradient must not be 0"),
    (lambda: cloud(1, variances=(1.0, -1.0, 1.0)), "variances must be at least 0"),
    (lambda: cloud(1, adversaries=2), "adversaries must be at least 3"),
    (lambda: Hessian(net(), nn.CrossEntropyLoss(reduction="sum"), SOME), "reduction='sum'"),
    (lambda: Hessian(net(), CE, []), "batches is empty"),
    (lambda: Hessian(nn.Tanh(), MSE, [(X, Y)]), "unfreeze"),
    (lambda: curvature() @ torch.ones(3), r"\(3,\)"),
    (lambda: top_eigenpairs(curvature(), which="LAA"), "Did you mean 'LA'"),  # type: ignore[arg-type]
    (lambda: top_eigenpairs(curvature(), 1000), "got 1000"),
    (lambda: hutchinson(curvature(), 1), "got 1"),
    (lambda: hutch_plus_plus(curvature(), 5), "got 5"),
    (lambda: spectral_density(curvature(), probes=1, steps=4), "got 1 and 4"),
    (lambda: spectral_density(curvature(), probes=2, steps=4).at(np.zeros(1), 0.0), "width"),
    (lambda: sharp(norm="l22"), "Did you mean 'l2'"),
    (lambda: sharp(search="agpd"), "Did you mean 'apgd'"),
    (lambda: sharp(rho=-1.0), "rho must be at least 0 and finite, got -1"),
    (lambda: sharp(m=0), "m must be at least 1"),
    (lambda: sharp(m=99), "no batch has 99 samples"),
    (lambda: sharp(steps=0), "steps must be at least 1"),
    (lambda: sharp(batches=[]), "batches is empty"),
    (lambda: convergence(Problem((1.0,)), np.ones((2, 1)), 1, eta0=1.0, rho0=1.0), "2 / "),
    (lambda: Problem((1.0, -1.0)), "above 0"),
    (lambda: Problem((1.0,), shape="bowls"), "Did you mean 'bowl'"),  # type: ignore[arg-type]
    (lambda: gradient_of(net(), CE, [], batchnorm="runing"), "Did you mean 'running'"),  # type: ignore[arg-type]
    (lambda: gradient_of(net(), CE, []), "batches is empty"),
    (lambda: gradient_of(net().requires_grad_(False), CE, SOME), "pass params="),
    (lambda: loss_of(net(), CE, {"x": torch.ones(1)}), "OfModel"),
    (lambda: loss_of(net(), lambda out, y: out.sum(1), SOME[0]),
     r"shape \(16,\), not one number"),
    (lambda: samples_in((1, 2)), "no tensor"),
    (lambda: GaussNewton(line(), OfModel(lambda m, b: m(b[0]).mean()), [(X, Y)]) @ torch.ones(2),
     "use Hessian"),
    (lambda: Probe(sgd()), "observes a SharpnessAware optimizer, got SGD"),  # type: ignore[arg-type]
    (lambda: Probe(SAM(sgd()), measures={"one": lambda: 1.0}), "measures need model="),
    (lambda: Probe(SAM(sgd()), every=3, measure_every=4), "a multiple of it, got 3 and 4"),
    (lambda: m_sharpness(Fraction(0), Fraction(1), [[1, 2], [3]]), "each of 1, 2, 3, 4"),
]
# fmt: on


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_wrong_input_is_named_with_its_remedy(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()
