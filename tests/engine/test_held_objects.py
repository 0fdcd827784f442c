"""The objects that a wrapper holds, each by itself: perturbation, groups, current step, notices."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from vasso import L2
from vasso.engine.amp import LossScaling
from vasso.engine.current_step import CurrentStep
from vasso.engine.perturbation import Perturbation
from vasso.parts.context import Norms, StepContext


def weight(*values: float) -> Tensor:
    return torch.tensor(values or (3.0, 4.0), requires_grad=True)


def around(perturbation: Perturbation, w: Tensor, rho: float = 0.3) -> Perturbation:
    return perturbation.around(StepContext(0, [w], [w], settings={"rho": [rho]}), L2())


@torch.no_grad()
def test_weights_can_be_moved_to_any_place_for_a_while() -> None:
    w, perturbation = weight(), Perturbation("copy")
    context = StepContext(0, [w], [w])
    with perturbation.at(context, [torch.zeros(2)]):
        assert w.tolist() == [0.0, 0.0]
    with perturbation.at(context, None):
        assert not perturbation.is_perturbed
    assert w.tolist() == [3.0, 4.0]


@torch.no_grad()
def test_the_buffers_serve_the_next_perturbation_and_stay_out_of_copies() -> None:
    w, perturbation = weight(), Perturbation("copy")
    rooms = []
    for _ in range(2):
        with around(perturbation, w) as x:
            x.move([torch.tensor([3.0, 4.0])])
        rooms.append(perturbation.weight_buffers[w].data_ptr())
    assert rooms[0] == rooms[1]
    assert not copy.deepcopy(perturbation).weight_buffers


def test_other_norms_are_read_until_those_of_the_same_tensors_were_in_range() -> None:
    norms, w = Norms(), [weight()]
    reads = []
    for scale in (1.0, 1.0, 1e30, 1.0, 1.0):
        norms.start()
        norms.read_gradient_at_w(w, [torch.ones(2) * scale])
        reads.append(norms.reads)
        norms.trust(w)
    assert reads == [True, False, True, True, False]


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_no_step_in_progress(twin_of: Any) -> None:
    current = CurrentStep(pending="skip", losses=[1.0])
    assert twin_of(current) == CurrentStep()
    assert twin_of(LossScaling())._proxies == []
