"""Methods that look at the batch follow slow plain versions of themselves."""

import pytest
import torch

from tests.reference import single_steps as twins
from tests.reference.single_steps import Step
from tests.support.batches import CASES, STEPS, assert_twins, conv, mlp
from vasso import AdaptiveNorm
from vasso.parts.context import StepContext
from vasso.parts.memory import PartState


@pytest.mark.parametrize("name", CASES)
def test_a_network_trained_with_momentum_follows_the_twin(name: str) -> None:
    """Where there is a policy, it has to say yes and no: else the twin is that of SAM."""
    climbs = sum(assert_twins(CASES[name], mlp, "momentum").climbed)
    assert climbs == STEPS or 9 < climbs < STEPS - 9 or "radius" in name


@pytest.mark.parametrize(
    "name",
    [
        "VaSSO",
        "VaSSO+ASAM",
        "VaSSO+FisherSAM, average",
        "V+G",
        "NoisySAM + theta",
        "RandomSAM",
        "ChunkedSAM + theta, ragged",
        "LookSAM",
        "ESAM, tensors",
        "AELookSAM + theta",
    ],
)
def test_a_convolution_trained_with_adamw_follows_the_twin(name: str) -> None:
    assert_twins(CASES[name], conv, "adamw")


@pytest.mark.parametrize("name", ["GSAM", "LookSAM"])
def test_a_base_with_an_alpha_of_its_own_follows_the_twin(name: str) -> None:
    assert_twins(CASES[name], mlp, "rmsprop")


@pytest.mark.parametrize(("total", "delta"), [(400, 0.9), (150, 0.7)])
def test_aesam_decides_as_its_equations_say(total: int, delta: float) -> None:
    """On 300 gradients whose norms spread over two decades, which training does not have."""
    luck = torch.Generator().manual_seed(2)
    policy, step = AdaptiveNorm(total, delta, lambda_1=-0.8, lambda_2=0.3), None
    memory, decided, expected = PartState({}, dict(policy.counts)), [], []
    for t in range(300):
        size = torch.randn((), generator=luck, dtype=torch.float64).exp()
        g = [size * torch.randn(3, generator=luck, dtype=torch.float64) for _ in range(2)]
        decided.append(policy.climb(g, memory, StepContext(t, g, g, g)))
        step = Step(t, [], [], len, 0, memory={} if step is None else step.memory)
        expected.append(twins.large_for_its_time(step, g, total, delta, -0.8, 0.3))
    assert decided == expected
    assert 50 < sum(decided) < 250
