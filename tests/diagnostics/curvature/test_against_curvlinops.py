"""A second opinion on curvature: curvlinops, in float64; `make` installs it."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from vasso.diagnostics.curvature.eigen import top_eigenpairs
from vasso.diagnostics.curvature.products import GaussNewton, Hessian

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a dependency of its own still scripts with torch.jit
    import curvlinops

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.fixture(name="problem")
def _problem():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)
    ).double()
    batches = [(torch.randn(n, 1, 8, 8).double(), torch.randint(0, 10, (n,))) for n in (20, 20, 7)]
    model(batches[0][0])
    return model.eval(), nn.CrossEntropyLoss(), batches


def theirs(kind, model, loss, batches):
    """Their operator over the same parameters; deterministic data need no check."""
    params = list(model.parameters())
    return kind(model, loss, params, batches, check_deterministic=False)


@pytest.mark.parametrize("name", ["HessianLinearOperator", "GGNLinearOperator"])
def test_products(problem, name: str) -> None:
    ours = {"HessianLinearOperator": Hessian, "GGNLinearOperator": GaussNewton}[name](*problem)
    operator = theirs(getattr(curvlinops, name), *problem)
    for v in torch.randn(3, ours.size).double():
        torch.testing.assert_close(ours @ v, operator @ v, rtol=1e-6, atol=1e-10)


def test_eigenvalues(problem) -> None:
    from scipy.sparse.linalg import eigsh

    operator = theirs(curvlinops.HessianLinearOperator, *problem).to_scipy()
    expected = eigsh(operator, 5, which="LA", tol=1e-10)[0][::-1]
    found = top_eigenpairs(Hessian(*problem), 5, tolerance=1e-10)
    np.testing.assert_allclose(found.values, expected, rtol=1e-6)
