"""DDP: two ranks with half of the batch each against one process with all of it."""

from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.runs import BASES, KINDS, METHODS, STEPS, batch, flat, network, train
from vasso import AESAM, SSSAM, Ema, FromGap, HalfSAM, LookSAM, SharpnessAware, VaSSO
from vasso.parts.plans import Chunks, Samples, drawn


def here() -> dict[str, int]:
    return {"rank": dist.get_rank(), "world": dist.get_world_size()}


def apart(x: Tensor) -> float:
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x.contiguous())
    return max((x - other).abs().max().item() for other in found)


def outcome(opt: Any, model: nn.Module, twin: nn.Module | None = None) -> dict[str, Any]:
    w = flat(model.parameters())
    slopes = [v for entry in opt._vectors.values() for v in entry.values()]
    result = {
        "apart": apart(w),
        "slopes apart": apart(flat(slopes)) if slopes else 0.0,
        "finite": bool(w.isfinite().all()),
        "skipped": opt.skipped,
        "cost": opt.cost,
        "steps": opt.param_groups[0]["vasso_step"],
    }
    if twin is not None:
        result["gap"] = (w - flat(twin.parameters())).abs().max().item()
    return result


def as_one_process(
    make: Any, base: str = "momentum", way: str = "closure", kind: str = "ddp", **given: Any
) -> dict[str, Any]:
    """Ranks against one process that restores by copies; `given` is for the model."""
    steps, restore = given.pop("steps", STEPS), given.pop("restore", "copy")
    twin, model = network(), KINDS[kind](network(), **given)
    theirs = make(BASES[base](twin.parameters()), model=twin)
    train(theirs, twin, steps=steps)
    opt = make(BASES[base](model.parameters()), model=model, restore=restore)
    train(opt, model, steps=steps, way=way, **here())
    costs = {"twin's cost": theirs.cost, "costs apart": apart(torch.tensor([opt.cost]))}
    return {**outcome(opt, model, twin), **costs}


def vasso(kind: str = "ddp", **options: Any) -> tuple[nn.Module, VaSSO]:
    model = KINDS[kind](network())
    return model, VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model, **options)


def spoilt_on_one_rank(number: int, kind: str = "ddp", **options: Any) -> dict[str, Any]:
    model, opt = vasso(kind, **options)
    bad = dist.get_rank() == 1
    train(opt, model, steps=6, spoilt=lambda t, n: bad and t == 2 and n == number, **here())
    return outcome(opt, model)


def overflow_on_one_rank(number: int, sync: str) -> dict[str, Any]:
    (model, opt), scaler = vasso(sync=sync), GradScaler("cpu", init_scale=2.0**10)
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


def samples(opt: SharpnessAware, model: nn.Module, data: Any) -> Samples:
    return Samples(opt.zero_grad, lambda x, y: cross_entropy(model(x), y, reduction="none"), *data)


def local_is_chunks(theta: float, way: str, base: str) -> dict[str, Any]:
    """One adversary for each rank: m-SAM in one process, with chunks of half a batch."""
    twin = network()
    theirs = SharpnessAware(
        BASES[base](twin.parameters()), rho=0.1, direction=Ema(theta), plan=Chunks(16)
    )
    for t in range(STEPS):
        theirs.step(samples(theirs, twin, batch(t)))
    model = DistributedDataParallel(network())
    opt = VaSSO(BASES[base](model.parameters()), rho=0.1, theta=theta, model=model, sync="local")
    train_locally(opt, model, way)
    return outcome(opt, model, twin)


def train_locally(opt: Any, model: DistributedDataParallel, way: str) -> None:
    if way == "closure":
        return train(opt, model, **here())
    for t in range(STEPS):
        x, y = batch(t, **here())
        with model.no_sync():  # forward and backward
            cross_entropy(model(x), y).backward()
        with opt.ascended() as up:
            if up:
                cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()


def steered(base: Any, *, model: nn.Module, **options: Any) -> VaSSO:
    """VaSSO whose radius follows the gap; held-out data in shares, as the batches are."""

    def validation() -> Tensor:
        sharded = not isinstance(model, nn.Sequential) or hasattr(model, "reshard")
        x, y = batch(45, **here()) if sharded else batch(45)
        return cross_entropy(model(x), y)

    return VaSSO(base, rho=FromGap(validation, total=30), model=model, **options)


def follows_the_gap(kind: str) -> dict[str, Any]:
    """The radius of two ranks is that of one process, after it has moved."""
    seen: list[VaSSO] = []

    def make(*given: Any, **options: Any) -> VaSSO:
        seen.append(steered(*given, **options))
        return seen[-1]

    told = as_one_process(make, kind=kind, steps=15)
    theirs, ours = (opt.last.radius["rho"] for opt in seen)
    apart_by = apart(torch.tensor([ours]))
    return {**told, "rho": ours, "twin's rho": theirs, "radii apart": apart_by}


def halves(theta: float) -> dict[str, Any]:
    """Each rank draws half of its own batch: one process on both halves together."""
    twin, model = network(), DistributedDataParallel(network())
    theirs = VaSSO(BASES["momentum"](twin.parameters()), rho=0.1, theta=theta)
    opt = HalfSAM(BASES["momentum"](model.parameters()), rho=0.1, theta=theta, model=model)
    differ = 0
    for t in range(STEPS):
        x, y = batch(t)
        rows = [drawn(16, 8, 0, t, rank) for rank in range(2)]
        differ += not torch.equal(*rows)
        both = torch.cat([rows[0], 16 + rows[1]])
        theirs.step(samples(theirs, twin, (x[both], y[both])))
        opt.step(samples(opt, model, batch(t, **here())))
    return {**outcome(opt, model, twin), "differ": differ}


def local_with_a_policy(way: str) -> dict[str, Any]:
    """A step that does not climb goes down by the mean of the ranks' gradients."""
    model = DistributedDataParallel(network())
    opt = SSSAM(BASES["momentum"](model.parameters()), rho=0.1, model=model, sync="local")
    train_locally(opt, model, way)
    return outcome(opt, model)


def accumulated(kind: str) -> dict[str, Any]:
    """Two micro-batches in a window; all passes but the last of each kind are not reduced."""
    twin, (model, opt) = network(), vasso(kind)
    train(VaSSO(BASES["momentum"](twin.parameters()), rho=0.1), twin, steps=20)

    def passes(x: Tensor, y: Tensor) -> None:
        for last, a, b in zip((False, True), x.split(8), y.split(8), strict=True):
            if kind == "fsdp":
                model.set_requires_gradient_sync(last)
            with model.no_sync() if kind == "ddp" and not last else nullcontext():
                (cross_entropy(model(a), b) / 2).backward()

    for t in range(20):
        passes(*batch(t, **here()))
        with opt.ascended():
            passes(*batch(t, **here()))
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


WAYS, SYNCS, NUMBERS = ("closure", "ascended"), ("global", "local"), (0, 1)
VIEWS = {"gradient_as_bucket_view": True}
# fmt: off
CASES = {
    **{f"global {method} {base} {way}": partial(as_one_process, METHODS[method], base,
        way) for method, base, way in product(METHODS, BASES, WAYS)},
    **{f"bucket views {method} {way}": partial(as_one_process, METHODS[method], way=way,
        **VIEWS) for method, way in product(("SAM", "GSAM", "LookSAM", "V+G"), WAYS)},
    "bucket views recompute": partial(as_one_process, METHODS["SAM"], restore="recompute", **VIEWS),
    "static graph": partial(as_one_process, METHODS["VaSSO"], static_graph=True),
    **{f"spoilt {sync} {number}": partial(spoilt_on_one_rank, number, sync=sync) for sync,
        number in product(SYNCS, NUMBERS)},
    **{f"overflow {sync} {number}": partial(overflow_on_one_rank, number, sync) for sync,
        number in product(SYNCS, NUMBERS)},
    **{f"uneven {sync} {method}": partial(uneven_gradients, method, sync) for sync,
        method in [*product(SYNCS, ("SAM", "VaSSO", "ASAM")), ("global", "GSAM")]},
    "in step SSSAM": partial(as_one_process, partial(SSSAM, rho=0.1), steps=24),
    "in step AESAM": partial(as_one_process, partial(AESAM, rho=0.1, total=24), steps=24),
    "in step LookSAM": partial(as_one_process, partial(LookSAM, rho=0.1, k=3), steps=24),
    **{f"local {theta} {way} {base}": partial(local_is_chunks, theta, way, base) for theta, way,
        base in product((1.0, 0.4), WAYS, BASES)},
    **{f"local policy {way}": partial(local_with_a_policy, way) for way in WAYS},
    "accumulated": partial(accumulated, "ddp"),
    "by micro-batch": by_micro_batch,
    "follows the gap": partial(follows_the_gap, "ddp"),
    **{f"halves {theta}": partial(halves, theta) for theta in (1.0, 0.4)},
    "batchnorm": batchnorm,
}
# fmt: on
