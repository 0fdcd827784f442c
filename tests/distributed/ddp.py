"""DDP: two ranks with half of the batch each against one process with all of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.runs import BASES, METHODS, batch, flat, network, train
from vasso import AESAM, SAM, SSSAM, Ema, LookSAM, SharpnessAware, VaSSO
from vasso.plans import Chunks, Samples


def here() -> dict[str, int]:
    return {"rank": dist.get_rank(), "world": dist.get_world_size()}


def apart(x: Tensor) -> float:
    """How much the ranks differ."""
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x.contiguous())
    return max((x - other).abs().max().item() for other in found)


def outcome(opt: Any, model: nn.Module, twin: nn.Module | None = None) -> dict[str, Any]:
    """What a test wants to know of a run."""
    w = flat(model.parameters())
    slopes = [v for entry in opt._memories.values() for v in entry.values()]
    told = {
        "apart": apart(w),
        "slopes apart": apart(flat(slopes)) if slopes else 0.0,
        "finite": bool(w.isfinite().all()),
        "skipped": opt.skipped,
        "cost": opt.cost,
        "steps": opt.param_groups[0]["vasso_step"],
    }
    if twin is not None:
        told["gap"] = (w - flat(twin.parameters())).abs().max().item()
    return told


def alone(method: str, base: str) -> nn.Module:
    model = network()
    train(METHODS[method](BASES[base](model.parameters()), model=model), model)
    return model


def as_one_process(method: str, base: str, way: str, **options: Any) -> dict[str, Any]:
    model = DistributedDataParallel(network(), **options)
    opt = METHODS[method](BASES[base](model.parameters()), model=model)
    train(opt, model, way=way, **here())
    return outcome(opt, model, alone(method, base))


def recompute_with_bucket_views() -> dict[str, Any]:
    twin = network()
    train(SAM(BASES["momentum"](twin.parameters()), rho=0.1), twin)
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    opt = SAM(BASES["momentum"](model.parameters()), rho=0.1, restore="recompute")
    train(opt, model, **here())
    return outcome(opt, model, twin)


def spoilt_on_one_rank(number: int, sync: str) -> dict[str, Any]:
    """Rank 1's loss is infinite in one pass of the third step."""
    model = DistributedDataParallel(network())
    opt = VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model, sync=sync)
    bad = dist.get_rank() == 1
    train(opt, model, steps=6, spoilt=lambda t, n: bad and t == 2 and n == number, **here())
    return outcome(opt, model)


def overflow_on_one_rank(number: int, sync: str) -> dict[str, Any]:
    model, scaler = DistributedDataParallel(network()), GradScaler("cpu", init_scale=2.0**10)
    opt = VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model, sync=sync)
    for t in range(4):
        x, y = batch(t, **here())
        calls = iter(range(9))

        def closure(x: Tensor = x, y: Tensor = y, t: int = t, calls: Any = calls) -> Tensor:
            opt.zero_grad()
            loss = cross_entropy(model(x), y)
            spoilt = dist.get_rank() == 1 and t == 1 and next(calls) == number
            (scaler.scale(loss) * (float("inf") if spoilt else 1.0)).backward()
            return loss

        opt.step(closure, scaler=scaler)
    scale = torch.tensor([scaler.get_scale()])
    return {**outcome(opt, model), "scale": scale.item(), "scales apart": apart(scale)}


class Forked(nn.Module):
    """One branch for all, one that a rank may leave out, one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.some, self.none = (nn.Linear(64, 10).double() for _ in range(3))

    def forward(self, x: Tensor, both: bool) -> Tensor:
        y: Tensor = self.all(x)
        return y + self.some(x) if both else y


def uneven_gradients(method: str, sync: str) -> dict[str, Any]:
    """Rank 1 never uses one branch, and in some steps nobody does."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Forked(), find_unused_parameters=True)
    options = {"sync": sync} if sync == "local" else {}
    opt = METHODS[method](BASES["momentum"](model.parameters()), model=model, **options)
    for t in range(8):
        x, y = batch(t, **here())

        def closure(x: Tensor = x, y: Tensor = y, t: int = t) -> Tensor:
            opt.zero_grad()
            loss = cross_entropy(model(x, both=dist.get_rank() == 0 and t % 3 != 2), y)
            loss.backward()
            return loss

        opt.step(closure)
    return outcome(opt, model)


def in_step(make: Any) -> dict[str, Any]:
    """Policies that toss coins or look at gradients decide alike on all ranks."""
    twin = network()
    theirs = make(BASES["momentum"](twin.parameters()))
    train(theirs, twin, steps=24)
    model = DistributedDataParallel(network())
    opt = make(BASES["momentum"](model.parameters()))
    train(opt, model, steps=24, **here())
    told = outcome(opt, model, twin)
    return {**told, "twin's cost": theirs.cost, "costs apart": apart(torch.tensor([opt.cost]))}


def local_is_chunks(theta: float, way: str, base: str) -> dict[str, Any]:
    """One adversary for each rank: m-SAM in one process, with chunks of half a batch."""
    twin = network()
    theirs = SharpnessAware(
        BASES[base](twin.parameters()), rho=0.1, direction=Ema(theta), plan=Chunks(16)
    )
    for t in range(50):
        theirs.step(
            Samples(
                theirs.zero_grad,
                lambda x, y: cross_entropy(twin(x), y, reduction="none"),
                *batch(t),
            )
        )
    model = DistributedDataParallel(network())
    opt = VaSSO(BASES[base](model.parameters()), rho=0.1, theta=theta, model=model, sync="local")
    if way == "closure":
        train(opt, model, **here())
    else:
        train_locally(opt, model)
    return outcome(opt, model, twin)


def train_locally(opt: Any, model: DistributedDataParallel) -> None:
    for t in range(50):
        x, y = batch(t, **here())
        with model.no_sync():  # forward and backward
            cross_entropy(model(x), y).backward()
        with opt.ascended() as up:
            if up:
                cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()


def local_with_a_policy(way: str) -> dict[str, Any]:
    """A step that does not climb goes down by the mean of the ranks' gradients."""
    model = DistributedDataParallel(network())
    opt = SSSAM(BASES["momentum"](model.parameters()), rho=0.1, model=model, sync="local")
    if way == "closure":
        train(opt, model, **here())
    else:
        train_locally(opt, model)
    return outcome(opt, model)


def accumulated(sync: str) -> dict[str, Any]:
    """Two micro-batches in a window, all passes but the last of each kind in no_sync."""
    twin = network()
    theirs = VaSSO(BASES["momentum"](twin.parameters()), rho=0.1)
    train(theirs, twin, steps=20)
    model = DistributedDataParallel(network())
    opt = VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model)
    for t in range(20):
        x, y = batch(t, **here())
        halves = list(zip(x.split(8), y.split(8), strict=True))

        def passes(halves: Any = halves) -> None:
            with model.no_sync():
                (cross_entropy(model(halves[0][0]), halves[0][1]) / 2).backward()
            (cross_entropy(model(halves[1][0]), halves[1][1]) / 2).backward()

        passes()
        with opt.ascended():
            passes()
        opt.step()
        opt.zero_grad()
    return outcome(opt, model, twin)


def by_micro_batch() -> dict[str, Any]:
    """`accumulate=True`, with DDP's gradients as views that the next pass overwrites."""
    found = []
    for views in (False, True):
        model = DistributedDataParallel(network(), gradient_as_bucket_view=views)
        opt = VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model)
        for t in range(10):
            x, y = batch(t, **here())
            for half in zip(x.split(8), y.split(8), strict=True):
                (cross_entropy(model(half[0]), half[1]) / 2).backward()
                with opt.ascended(accumulate=True):
                    (cross_entropy(model(half[0]), half[1]) / 2).backward()
            opt.step()
            opt.zero_grad()
        found.append(flat(model.parameters()))
    return {**outcome(opt, model), "gap": (found[0] - found[1]).abs().max().item()}


def batchnorm() -> dict[str, Any]:
    """Statistics count each step once; DDP hands those of rank 0 to all before a pass."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 10)).double()
    model = DistributedDataParallel(net)
    opt = VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model)
    train(opt, model, steps=7, **here())
    return {**outcome(opt, model), "batches": int(net[1].num_batches_tracked)}


CASES = {
    **{
        f"global {method} {base} {way}": partial(as_one_process, method, base, way)
        for method in METHODS
        for base in BASES
        for way in ("closure", "ascended")
    },
    **{
        f"bucket views {method} {way}": partial(
            as_one_process, method, "momentum", way, gradient_as_bucket_view=True
        )
        for method in ("SAM", "GSAM", "LookSAM", "V+G")
        for way in ("closure", "ascended")
    },
    "bucket views recompute": recompute_with_bucket_views,
    "static graph": partial(as_one_process, "VaSSO", "momentum", "closure", static_graph=True),
    **{
        f"spoilt {sync} {number}": partial(spoilt_on_one_rank, number, sync)
        for sync in ("global", "local")
        for number in (0, 1)
    },
    **{
        f"overflow {sync} {number}": partial(overflow_on_one_rank, number, sync)
        for sync in ("global", "local")
        for number in (0, 1)
    },
    **{
        f"uneven {sync} {method}": partial(uneven_gradients, method, sync)
        for sync in ("global", "local")
        for method in ("SAM", "VaSSO", "ASAM")
    },
    "uneven global GSAM": partial(uneven_gradients, "GSAM", "global"),
    "in step SSSAM": partial(in_step, partial(SSSAM, rho=0.1)),
    "in step AESAM": partial(in_step, partial(AESAM, rho=0.1, total=24)),
    "in step LookSAM": partial(in_step, partial(LookSAM, rho=0.1, k=3)),
    **{
        f"local {theta} {way} {base}": partial(local_is_chunks, theta, way, base)
        for theta in (1.0, 0.4)
        for way in ("closure", "ascended")
        for base in BASES
    },
    **{f"local policy {way}": partial(local_with_a_policy, way) for way in ("closure", "ascended")},
    "accumulated": partial(accumulated, "global"),
    "by micro-batch": by_micro_batch,
    "batchnorm": batchnorm,
}
