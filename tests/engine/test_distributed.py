"""Adversaries of single ranks: what is refused, and why; one rank alone is one process."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from tests.support.problems import closure_of
from vasso import AESAM, ESAM, GSAM, PGN, SAM, LookSAM, SharpnessAware, SparseSAM, VaSSO
from vasso.parts.ascents import MultiStep
from vasso.parts.descents import MeanOfPath
from vasso.parts.directions import Storm
from vasso.parts.radii import FromGap


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped(**options: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(3, 2).double(), **options)


@pytest.mark.parametrize("model", [None, nn.Linear(3, 2)], ids=["no model", "Linear"])
def test_a_model_that_is_not_wrapped_is_refused(model: nn.Module | None) -> None:
    params = (model or nn.Linear(3, 2)).parameters()
    named = "no model" if model is None else "Linear"
    with pytest.raises(TypeError, match=rf"DistributedDataParallel.*got {named}.*global"):
        SAM(SGD(params, lr=0.1), model=model, sync="local")


@pytest.mark.usefixtures("rank")
def test_a_static_graph_is_refused() -> None:
    model = wrapped(static_graph=True)
    with pytest.raises(ValueError, match=r"static_graph=True.*global"):
        SAM(SGD(model.parameters(), lr=0.1), model=model, sync="local")


@pytest.mark.usefixtures("rank")
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (GSAM, "SurrogateGap"),
        (PGN, "GradientNormPenalty"),
        (LookSAM, "Reuse"),
        (partial(AESAM, total=10), "AdaptiveNorm"),
        (ESAM, "SelectTop"),
        (SparseSAM, "FisherMask"),
        (partial(SharpnessAware, direction=Storm(0.1)), "Storm"),
        (partial(SharpnessAware, ascent=MultiStep(2), descent=MeanOfPath()), "MeanOfPath"),
    ],
)
def test_what_would_let_ranks_drift_apart_is_refused(make: Any, named: str) -> None:
    model = wrapped()
    with pytest.raises(ValueError, match=rf'{named}.*sync="local".*sync="global"'):
        make(SGD(model.parameters(), lr=0.1), model=model, sync="local")


@pytest.mark.usefixtures("rank")
@pytest.mark.parametrize("options", [{"accumulate": True}, {"unscaled": True}], ids=str)
def test_what_a_loop_cannot_do_with_local_adversaries_is_refused(options: Any) -> None:
    model = wrapped()
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model, sync="local")
    model(torch.ones(4, 3).double()).sum().backward()
    scaler = GradScaler("cpu") if "unscaled" in options else None
    with (
        pytest.raises(ValueError, match=rf'{next(iter(options))}=True.*sync="local"'),
        opt.ascended(scaler=scaler, **options),
    ):
        pass


@pytest.mark.usefixtures("rank")
@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_one_rank_alone_is_one_process(theta: float) -> None:
    model = wrapped()
    twin = nn.Linear(3, 2).double()
    twin.load_state_dict(model.module.state_dict())
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    for net, options in ((model, {"model": model, "sync": "local"}), (twin, {})):
        opt = VaSSO(SGD(net.parameters(), lr=0.1, momentum=0.9), rho=0.1, theta=theta, **options)
        closure = closure_of(opt, lambda net=net: net(x).square().mean())
        for _ in range(5):
            opt.step(closure)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


class ReducedError(Exception):
    """The device of what the ranks were about to reduce."""


def test_losses_are_averaged_on_the_device_of_the_parameters(
    rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL reduces nothing that is on the host; without `model=` too."""

    def reduced(x: torch.Tensor, group: Any) -> None:
        raise ReducedError(x.device.type)

    monkeypatch.setattr(dist, "all_reduce", reduced)
    w = torch.ones(2, device="meta", requires_grad=True)
    opt = SAM(SGD([w], lr=0.1), rho=FromGap(lambda: 0.0, total=9))
    with pytest.raises(ReducedError, match="meta"):
        opt.note_losses(torch.tensor(1.0), torch.tensor(2.0))
