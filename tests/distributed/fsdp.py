"""FSDP2: weights, gradients and slopes in shards against one process that has them whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from tests.distributed.ddp import here, outcome
from tests.distributed.runs import BASES, METHODS, batch, flat, network, train
from vasso import SAM, Method, Samples, SharpnessAware, VaSSO, methods


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    """Each layer by itself, and the root."""
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def as_one_process(method: str, base: str, way: str) -> dict[str, Any]:
    twin = network()
    train(METHODS[method](BASES[base](twin.parameters()), model=twin), twin)
    model = sharded(network())
    opt = METHODS[method](BASES[base](model.parameters()), model=model)
    train(opt, model, way=way, **here())
    return outcome(opt, model, twin)


def empty_shards() -> dict[str, Any]:
    """Some rank has no row of some layer, so that its shard is empty."""
    model = sharded(network())
    sizes = torch.tensor([min(p.to_local().numel() for p in model.parameters())])
    dist.all_reduce(sizes, dist.ReduceOp.MIN)
    return {"smallest": int(sizes)}


def recompute() -> dict[str, Any]:
    twin = network()
    train(VaSSO(BASES["momentum"](twin.parameters()), rho=0.1), twin)
    model = sharded(network())
    opt = VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model, restore="recompute")
    train(opt, model, **here())
    return outcome(opt, model, twin)


def spoilt_on_one_rank(number: int) -> dict[str, Any]:
    model = sharded(network())
    opt = VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model)
    bad = dist.get_rank() == 1
    train(opt, model, steps=6, spoilt=lambda t, n: bad and t == 2 and n == number, **here())
    return outcome(opt, model)


def nan_in_one_shard(number: int) -> dict[str, Any]:
    """A single NaN in the gradient of a shard of rank 1, which only that rank can see."""
    model = sharded(network())
    opt = VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model)
    for t in range(4):
        x, y = batch(t, **here())
        calls = iter(range(9))

        def closure(x: Tensor = x, y: Tensor = y, t: int = t, calls: Any = calls) -> Tensor:
            opt.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            if t == 1 and next(calls) == number and dist.get_rank() == 1:
                next(iter(model.parameters())).grad.to_local()[0] = torch.nan
            return loss

        opt.step(closure)
    return outcome(opt, model)


def scaled(number: int | None) -> dict[str, Any]:
    """A GradScaler, and an overflow on one rank in one pass."""
    twin = network()
    train(VaSSO(BASES["momentum"](twin.parameters()), rho=0.1), twin, steps=4)
    model, scaler = sharded(network()), GradScaler("cpu", init_scale=2.0**10)
    opt = VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model)
    for t in range(4):
        x, y = batch(t, **here())
        bad = dist.get_rank() == 1 and t == 1
        factors = [float("inf") if bad and number == n else 1.0 for n in (0, 1)]
        (scaler.scale(cross_entropy(model(x), y)) * factors[0]).backward()
        with opt.ascended(scaler=scaler) as up:
            if up:
                (scaler.scale(cross_entropy(model(x), y)) * factors[1]).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    return {**outcome(opt, model, twin), "scale": scaler.get_scale()}


def accumulated() -> dict[str, Any]:
    twin = network()
    train(VaSSO(BASES["momentum"](twin.parameters()), rho=0.1), twin, steps=10)
    model = sharded(network())
    opt = VaSSO(BASES["momentum"](model.parameters()), rho=0.1, model=model)
    for t in range(10):
        x, y = batch(t, **here())
        halves = list(zip(x.split(8), y.split(8), strict=True))

        def passes(halves: Any = halves) -> None:
            for i, (a, b) in enumerate(halves):
                model.set_requires_gradient_sync(i == len(halves) - 1)
                (cross_entropy(model(a), b) / 2).backward()

        passes()
        with opt.ascended():
            passes()
        opt.step()
        opt.zero_grad()
    return outcome(opt, model, twin)


def looks_in_between(known: bool) -> dict[str, Any]:
    """A forward pass without backward gathers weights; after the climb they are stale."""
    model = sharded(network(), reshard_after_forward=False)
    opt = SAM(BASES["momentum"](model.parameters()), rho=0.5, model=model if known else None)
    x, y = batch(0, **here())
    cross_entropy(model(x), y).backward()
    with torch.no_grad():
        model(x)  # a metric, say: it leaves gathered weights behind
    with opt.ascended():
        above = cross_entropy(model(x), y)
        above.backward()
    twin = network()
    theirs = SAM(BASES["momentum"](twin.parameters()), rho=0.5)
    wx, wy = batch(0)
    cross_entropy(twin(wx), wy).backward()
    with theirs.ascended():
        expected = cross_entropy(twin(x), y)
        cross_entropy(twin(wx), wy).backward()
    return {"gap": abs(above.item() - expected.item())}


def samples(opt: SharpnessAware, model: nn.Module, data: Any) -> Samples:
    return Samples(opt.zero_grad, lambda x, y: cross_entropy(model(x), y, reduction="none"), *data)


class Source:
    """All data of the test, as far as they go."""

    def __init__(self, model: nn.Module, **where: int) -> None:
        self.model, self.where = model, where
        self.opt: Any = None

    def full(self) -> Samples:
        return samples(self.opt, self.model, batch(0, **self.where))

    def fresh(self) -> Samples:
        raise AssertionError


def trained(method: Method, model: nn.Module, **where: int) -> Any:
    settings = dict(method.example)
    source = Source(model, **where)
    if "source" in method.needs:
        settings["data"] = source
    opt = method.build(BASES["momentum"](model.parameters()), model=model, **settings)
    source.opt = opt
    for t in range(6):
        other = {}
        if "other batch" in method.needs:
            other["ascent_closure"] = samples(opt, model, batch(t + 20, **where))
        opt.step(samples(opt, model, batch(t, **where)), **other)
    return opt


def of_the_catalogue(name: str) -> dict[str, Any]:
    """Six steps of any preset; those that choose samples choose others on each rank."""
    method, twin, model = methods()[name], network(), sharded(network())
    theirs, ours = trained(method, twin), trained(method, model, **here())
    return {**outcome(ours, model, twin), "twin's cost": theirs.cost}


def bfloat16() -> dict[str, Any]:
    """Shards of eight bits climb by rho, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 10)).to(torch.bfloat16)
    opt = SAM(BASES["momentum"](sharded(model).parameters()), rho=0.01, model=model)
    found: list[float] = []

    def look(record: Any) -> None:
        d, epsilon = flat(record.d).double(), flat(record.epsilon).double()
        found.append((epsilon @ d / d.norm()).item() / 0.01)

    opt.observe(look)
    for t in range(8):
        x, y = batch(t, **here())
        cross_entropy(model(x.bfloat16()).float(), y).backward()
        with opt.ascended():
            cross_entropy(model(x.bfloat16()).float(), y).backward()
        opt.step()
        opt.zero_grad()
    return {"projection": sum(found) / len(found)}


PRESETS = [name for name, method in methods().items() if method.kind == "preset"]
CASES = {
    "empty": empty_shards,
    **{
        f"{method} {base} closure": partial(as_one_process, method, base, "closure")
        for method in METHODS
        for base in BASES
    },
    "V+G momentum ascended": partial(as_one_process, "V+G", "momentum", "ascended"),
    "recompute": recompute,
    **{f"spoilt {number}": partial(spoilt_on_one_rank, number) for number in (0, 1)},
    **{f"nan {number}": partial(nan_in_one_shard, number) for number in (0, 1)},
    **{f"scaled {number}": partial(scaled, number) for number in (None, 0, 1)},
    "accumulated": accumulated,
    **{f"stale {known}": partial(looks_in_between, known) for known in (True, False)},
    "bfloat16": bfloat16,
    **{f"preset {name}": partial(of_the_catalogue, name) for name in PRESETS},
}
