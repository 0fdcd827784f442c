"""Parts cross: a random choice of one of each either trains and resumes to the bit, or is refused.

What is refused is refused at construction, with an error that names the parts.
"""

import copy
import functools
import random
import re

import pytest
import torch
from torch import nn

import vasso
from tests.contract.workout import Data, Workout

CHOICES = {
    "direction": [
        vasso.Ema(1.0),
        vasso.Ema(0.4),
        vasso.Ema(vasso.schedules.frank_wolfe, init="zero"),
        vasso.Ema(0.3, stale="stay"),
        vasso.Ema(0.3, stale="follow"),
        vasso.Noisy(0.5, kappa=0.5),
        vasso.AffineEma(1.0, 0.6),
        vasso.Storm(0.2),
        vasso.Svrg(4),
        vasso.Sarah(4),
        vasso.LastGradient(),
        vasso.BaseMomentum(),
        vasso.Random(),
    ],
    "geometry": [
        vasso.L2(),
        vasso.Linf(),
        vasso.Adaptive(),
        vasso.Fisher(1.0),
        vasso.Fisher(1.0, "ema"),
        vasso.LayerRelative(),
        vasso.RandomMask(),
        vasso.DynamicMask(every=3),
        vasso.FisherMask(every=3, samples=3),
    ],
    "ascent": [vasso.OneStep(), vasso.OneStep(), vasso.MultiStep(2), vasso.FrankWolfe(3, True)],
    "descent": [
        vasso.Perturbed(),
        vasso.SurrogateGap(),
        vasso.GradientNormPenalty(),
        vasso.MeanOfPath(),
        vasso.Reuse(),
    ],
    "policy": [
        vasso.Always(),
        vasso.EveryK(2),
        vasso.Bernoulli(0.5),
        vasso.AdaptiveNorm(10),
        vasso.After(3, vasso.EveryK(2)),
        vasso.RefreshEveryK(3),
        vasso.RefreshRandomly(0.4),
        vasso.RefreshAdaptive(warm_up=2, z=1.1),
        vasso.After(2, vasso.RefreshEveryK(2)),
    ],
    "plan": [
        vasso.Same(),
        vasso.Same(),
        vasso.Chunks(10),
        vasso.SubSample(8),
        vasso.SelectTop(0.5),
    ],
    "restore": ["copy", "copy", "copy", "recompute"],
}


def crossing(seed: int) -> dict[str, object]:
    dice = random.Random(seed)
    return {name: dice.choice(parts) for name, parts in CHOICES.items()}


class Crossed(Workout):
    """A workout of any parts."""

    def __init__(self, parts: dict[str, object]) -> None:
        super().__init__("SAM")
        base = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.opt = vasso.SharpnessAware(
            base, rho=0.02, source=Data(self), model=self.model, **parts
        )


@functools.cache
def refused() -> set[int]:
    """The crossings that are refused at construction."""
    found = set()
    for seed in range(150):
        try:
            Crossed(crossing(seed))
        except ValueError:
            found.add(seed)
    return found


@pytest.mark.parametrize("seed", range(150))
def test_a_crossing_resumes_to_the_bit_or_is_refused(seed: int) -> None:
    parts = crossing(seed)
    if seed in refused():
        named = "|".join(re.escape(str(part)) for part in parts.values())
        with pytest.raises(ValueError, match=named):
            Crossed(parts)
        return
    whole = Crossed(parts).train(4)
    resumed = Crossed(parts)
    resumed.steps = whole.steps
    resumed.model.load_state_dict(whole.model.state_dict())
    resumed.opt.load_state_dict(copy.deepcopy(whole.opt.state_dict()))
    assert torch.equal(whole.train(4).weights(), resumed.train(4).weights()), parts
    assert bool(whole.weights().isfinite().all())


def test_both_outcomes_happen() -> None:
    assert 20 < len(refused()) < 130


def test_a_late_phase_with_reuse_theta_and_asam_is_one_line() -> None:
    model = nn.Linear(3, 2)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = vasso.SharpnessAware(
        base, rho=0.5, direction=vasso.Ema(0.4, stale="stay"), geometry=vasso.Adaptive(),
        policy=vasso.After(2, vasso.RefreshEveryK(3)), model=model,
    )  # fmt: skip
    costs = []
    for _ in range(8):
        before = opt.cost

        def closure() -> torch.Tensor:
            opt.zero_grad()
            loss = model(torch.ones(4, 3)).square().mean()
            loss.backward()
            return loss

        opt.step(closure)
        costs.append(opt.cost - before)
    assert costs == [1, 1, 1, 2, 1, 1, 2, 1]
