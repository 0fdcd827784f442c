"""Random choices of one part of each kind train and resume bit for bit, or are refused.

They are refused at construction, with an error that names a part.
"""

import copy
import functools
import random

import pytest
import torch

import vasso
from tests.contract.training import CatalogueRun, Data
from tests.support import THOROUGH

# fmt: off
CHOICES = {
    "direction": [vasso.Ema(1.0), vasso.Ema(0.4),
        vasso.Ema(vasso.schedules.frank_wolfe, init="zero"),
        vasso.Ema(0.3, stale="stay"), vasso.Ema(0.3, stale="follow"),
        vasso.Noisy(0.5, kappa=0.5), vasso.AffineEma(1.0, 0.6), vasso.Storm(0.2), vasso.Svrg(4),
        vasso.Sarah(4), vasso.LastGradient(), vasso.BaseMomentum(), vasso.Random()],
    "geometry": [vasso.L2(), vasso.Linf(), vasso.Adaptive(), vasso.Fisher(1.0),
        vasso.Fisher(1.0, "ema"), vasso.LayerRelative(), vasso.RandomMask(),
        vasso.DynamicMask(every=3), vasso.FisherMask(every=3, samples=3)],
    "ascent": [vasso.OneStep(), vasso.OneStep(), vasso.MultiStep(2), vasso.FrankWolfe(3, True)],
    "descent": [vasso.Perturbed(), vasso.SurrogateGap(), vasso.GradientNormPenalty(),
        vasso.MeanOfPath(), vasso.Reuse()],
    "policy": [vasso.Always(), vasso.EveryK(2), vasso.Bernoulli(0.5), vasso.AdaptiveNorm(10),
        vasso.After(3, vasso.EveryK(2)), vasso.RefreshEveryK(3), vasso.RefreshRandomly(0.4),
        vasso.RefreshAdaptive(warm_up=2, z=1.1), vasso.After(2, vasso.RefreshEveryK(2))],
    "plan": [vasso.Same(), vasso.Same(), vasso.Chunks(10), vasso.SubSample(8), vasso.Fraction(),
        vasso.SelectTop(0.5)],
    "restore": ["copy", "copy", "copy", "recompute"],
    "clip_norm": [None, 0.5],
    "same_rng": [False, True],
}
# fmt: on


def crossing(seed: int) -> dict[str, object]:
    dice = random.Random(seed)
    return {name: dice.choice(parts) for name, parts in CHOICES.items()}


class Crossed(CatalogueRun):
    def __init__(self, parts: dict[str, object]) -> None:
        super().__init__("SAM")
        base = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.opt = vasso.SharpnessAware(
            base, rho=0.02, source=Data(self), model=self.model, **parts
        )


SEEDS = range(150 if THOROUGH else 50)


@functools.cache
def tried(seed: int) -> Crossed | ValueError:
    try:
        return Crossed(crossing(seed))
    except ValueError as error:
        return error


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_a_crossing_resumes_to_the_bit_or_is_refused(seed: int) -> None:
    parts, whole = crossing(seed), tried(seed)
    if isinstance(whole, ValueError):
        assert any(str(part) in str(whole) for part in parts.values()), whole
        return
    whole.train(4)
    resumed = Crossed(parts)
    resumed.steps = whole.steps
    resumed.model.load_state_dict(whole.model.state_dict())
    resumed.opt.load_state_dict(copy.deepcopy(whole.opt.state_dict()))
    assert torch.equal(whole.train(4).weights(), resumed.train(4).weights()), parts
    assert bool(whole.weights().isfinite().all())


def test_some_crossings_are_refused_and_some_train() -> None:
    refused = sum(isinstance(tried(seed), ValueError) for seed in SEEDS)
    assert 0.15 < refused / len(SEEDS) < 0.85
