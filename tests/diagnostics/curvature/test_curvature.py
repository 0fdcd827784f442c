"""Products with the Hessian and the Gauss-Newton matrix against matrices from formulas."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.diagnostics.nets import batches, check_nothing_touched
from vasso.diagnostics.curvature.density import spectral_density
from vasso.diagnostics.curvature.eigen import dense, top_eigenpairs
from vasso.diagnostics.curvature.products import GaussNewton, Hessian
from vasso.diagnostics.curvature.trace import hutch_plus_plus, hutchinson
from vasso.diagnostics.passes import OfModel

SAMPLES, FEATURES, CLASSES = 30, 4, 3


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, FEATURES).double(), torch.randint(0, CLASSES, (SAMPLES,))


def in_batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Batches of 13, 13 and 4: the last must count for less."""
    return list(zip(x.split(13), y.split(13), strict=True))


def network() -> nn.Module:
    """Curved, with BatchNorm that has seen data and dropout: in training mode."""
    model = nn.Sequential(
        nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, CLASSES)
    ).double()
    model(data()[0])
    return model


@pytest.mark.parametrize("kind", [Hessian, GaussNewton])
@pytest.mark.parametrize("name", ["linear", "logistic", "softmax"])
def test_regressions_have_the_matrix_of_their_formula(kind, name: str) -> None:
    x, y = data()
    model = nn.Linear(FEATURES, CLASSES if name == "softmax" else 1, bias=False).double()
    w = model.weight.detach()
    loss: nn.Module = nn.CrossEntropyLoss()
    if name == "linear":
        loss, y, expected = nn.MSELoss(), torch.randn(SAMPLES, 1).double(), 2 * x.T @ x / SAMPLES
    elif name == "logistic":
        loss, y, p = nn.BCEWithLogitsLoss(), (y > 0).double()[:, None], torch.sigmoid(x @ w[0])
        expected = x.T @ ((p * (1 - p))[:, None] * x) / SAMPLES
    else:
        p = torch.softmax(x @ w.T, 1)
        inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        expected = torch.einsum("nij,na,nb->iajb", inner, x, x).reshape(w.numel(), -1) / SAMPLES
    found = dense(kind(model, loss, in_batches(x, y)))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_a_network_by_differences_of_its_gradient() -> None:
    model, (x, y) = network(), data()
    H = Hessian(model, nn.CrossEntropyLoss(), in_batches(x, y))
    v = torch.randn(H.size).double()
    found = H @ v
    model.eval()

    def gradient(shift: float) -> Tensor:
        home = [p.detach().clone() for p in model.parameters()]
        nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector(home) + shift * v, model.parameters()
        )
        loss = nn.functional.cross_entropy(model(x), y)
        found = torch.autograd.grad(loss, list(model.parameters()))
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(home), model.parameters())
        return nn.utils.parameters_to_vector(found)

    step = 1e-5  # error step^2 of the formula, 1e-16 / step of rounding
    expected = (gradient(step) - gradient(-step)) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_gauss_newton_of_a_network_is_the_jacobian_around_the_curvature_of_the_loss() -> None:
    model, (x, y) = network(), data()
    G = GaussNewton(model, nn.CrossEntropyLoss(), in_batches(x, y))
    model.eval()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    jacobians = torch.func.jacrev(lambda w: torch.func.functional_call(model, w, (x,)))(weights)
    J = torch.cat([j.reshape(SAMPLES, CLASSES, -1) for j in jacobians.values()], dim=2)
    p = torch.softmax(model(x), 1).detach()
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    expected = torch.einsum("nia,nij,njb->ab", J, inner, J) / SAMPLES
    np.testing.assert_allclose(dense(G), expected, rtol=1e-10, atol=1e-14)


def test_graphs_that_are_kept_change_nothing() -> None:
    model, (x, y) = network(), data()
    for kind in (Hessian, GaussNewton):
        fresh = kind(model, nn.CrossEntropyLoss(), in_batches(x, y))
        kept = kind(model, nn.CrossEntropyLoss(), in_batches(x, y), keep_graphs=True)
        for _ in range(3):
            v = torch.randn(fresh.size)
            assert torch.equal(fresh @ v, kept @ v)


def test_float32_products_add_up_in_float64() -> None:
    """Equal batches of one number: float32 would lose digits that float64 keeps."""
    model = nn.Linear(1, 1, bias=False)
    many = [(torch.full((1, 1), 0.1), torch.zeros(1, 1))] * 700
    (found,) = dense(Hessian(model, nn.MSELoss(), many)).flatten()
    (one,) = dense(Hessian(model, nn.MSELoss(), many[:1])).flatten()
    assert abs(found / one - 1) < 1e-12


def test_dropout_that_evaluation_mode_leaves_on_is_the_same_in_every_product() -> None:
    x, y = data()
    model = nn.Linear(FEATURES, CLASSES).double()
    loss = OfModel(
        lambda m, batch: nn.functional.cross_entropy(
            nn.functional.dropout(m(batch[0]), 0.5, training=True), batch[1]
        )
    )
    H = Hessian(model, loss, in_batches(x, y))
    v = torch.randn(H.size)
    before = torch.get_rng_state()
    first = H @ v
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    assert torch.equal(H @ v, first)


def test_attention_can_be_differentiated_twice() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(8, 24)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.mix(x).view(2, 3, 3, 8).unbind(2)
            attend = nn.functional.scaled_dot_product_attention
            return attend(q[:, None], k[:, None], v[:, None]).mean((1, 2))

    H = Hessian(Attention(), nn.CrossEntropyLoss(), [(torch.randn(2, 3, 8), torch.tensor([0, 1]))])
    u, v = torch.randn(2, H.size).double()
    assert torch.isclose(u @ (H @ v), v @ (H @ u), rtol=1e-4)


def test_a_linear_loss_and_an_unused_weight_have_no_curvature() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    batches = [(torch.ones(3, 2), torch.ones(3, 1))]
    for kind in (Hessian, GaussNewton):
        flat = kind(Half(), lambda outputs, targets: (outputs * targets).mean(), batches)
        assert not (flat @ torch.ones(flat.size)).any()
        found = kind(Half(), nn.MSELoss(), batches) @ torch.ones(6)
        assert torch.equal(found, torch.tensor([6.0, 6, 6, 0, 0, 0]).double())


def test_some_of_the_parameters_give_a_block() -> None:
    model, (x, y) = network(), data()
    whole = dense(Hessian(model, nn.CrossEntropyLoss(), [(x, y)]))
    last = list(model[4].parameters())
    block = dense(Hessian(model, nn.CrossEntropyLoss(), [(x, y)], params=last))
    size = len(block)
    np.testing.assert_allclose(block, whole[-size:, -size:], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
def test_eigenpairs_of_a_network_are_those_of_its_matrix(which: str) -> None:
    model, (x, y) = network(), data()
    H = Hessian(model, nn.CrossEntropyLoss(), in_batches(x, y))
    values = np.linalg.eigvalsh(dense(H))
    keys = {"LA": -values, "SA": values, "LM": -np.abs(values)}
    expected = values[np.argsort(keys[which])][:5]
    found = top_eigenpairs(H, 5, which=which, tolerance=1e-10)
    np.testing.assert_allclose(found.values, expected, rtol=1e-9)
    assert found.worst < 1e-9
    assert found.row()["lambda1/lambda5"] == pytest.approx(expected[0] / expected[4])


def test_the_tolerance_is_kept_and_bought_with_products() -> None:
    model, (x, y) = network(), data()
    H = Hessian(model, nn.CrossEntropyLoss(), in_batches(x, y))
    rough, fine = (top_eigenpairs(H, 2, tolerance=t, basis=6) for t in (1e-1, 1e-8))
    assert rough.worst < 1e-1
    assert fine.worst < 1e-8
    assert rough.products < fine.products


@pytest.mark.parametrize("kind", [Hessian, GaussNewton])
@pytest.mark.parametrize("keep_graphs", [False, True])
def test_nothing_is_touched(kind, keep_graphs: bool) -> None:
    few = batches(2)

    def diagnose(model: nn.Module, loss_fn) -> None:
        H = kind(model, loss_fn, few, keep_graphs=keep_graphs)
        H @ torch.ones(H.size)
        hutchinson(H, 2)
        hutch_plus_plus(H, 6)
        spectral_density(H, probes=2, steps=2)
        top_eigenpairs(H, 1, tolerance=0.5, basis=4)

    check_nothing_touched(diagnose, passes=1)


def test_a_matrix_that_is_not_finite_is_said_to_be_so() -> None:
    x, y = data()
    x[20, 0] = float("nan")
    H = Hessian(network(), nn.CrossEntropyLoss(), in_batches(x, y))
    for measure in (top_eigenpairs, hutchinson, spectral_density):
        with pytest.raises(ValueError, match="the product is not finite: at these weights"):
            measure(H)
