"""FSDP2: weights, gradients and slopes in shards against one process that has them whole."""

from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy

from tests.distributed import ddp
from tests.distributed.runs import BASES, KINDS, METHODS, batch, flat, network, sharded, train
from tests.support import THOROUGH
from vasso import SAM, SAMON, Method, Samples, VaSSO, methods


def empty_shards() -> dict[str, Any]:
    """Some rank has no row of some layer, so that its shard is empty."""
    model = sharded(network())
    sizes = torch.tensor([min(p.to_local().numel() for p in model.parameters())])
    dist.all_reduce(sizes, dist.ReduceOp.MIN)
    return {"smallest": int(sizes)}


def nan_in_one_shard(number: int) -> dict[str, Any]:
    """A single NaN in the gradient of a shard of rank 1, which only that rank can see."""
    model, opt = ddp.vasso("fsdp")
    for t in range(4):
        x, y = batch(t, **ddp.here())
        calls = iter(range(9))

        def closure(x: Tensor = x, y: Tensor = y, t: int = t, calls: Any = calls) -> Tensor:
            opt.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            if t == 1 and next(calls) == number and dist.get_rank() == 1:
                next(iter(model.parameters())).grad.to_local()[0] = torch.nan
            return loss

        opt.step(closure)
    return ddp.outcome(opt, model)


def scaled(number: int | None) -> dict[str, Any]:
    twin = network()
    train(VaSSO(BASES["momentum"](twin.parameters()), rho=0.1), twin, steps=4)
    (model, opt), scaler = ddp.vasso("fsdp"), GradScaler("cpu", init_scale=2.0**10)
    for t in range(4):
        x, y = batch(t, **ddp.here())
        bad = dist.get_rank() == 1 and t == 1
        factors = [float("inf") if bad and number == n else 1.0 for n in (0, 1)]
        (scaler.scale(cross_entropy(model(x), y)) * factors[0]).backward()
        with opt.ascended(scaler=scaler) as up:
            if up:
                (scaler.scale(cross_entropy(model(x), y)) * factors[1]).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    return {**ddp.outcome(opt, model, twin), "scale": scaler.get_scale()}


def looks_in_between(known: bool) -> dict[str, Any]:
    """A forward pass without backward gathers weights; after the climb they are stale."""
    model = sharded(network(), reshard_after_forward=False)
    opt = SAM(BASES["momentum"](model.parameters()), rho=0.5, model=model if known else None)
    x, y = batch(0, **ddp.here())
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


class Source:
    """All data of the test, as far as they go."""

    def __init__(self, model: nn.Module, **where: int) -> None:
        self.model, self.where = model, where
        self.opt: Any = None

    def full(self) -> Samples:
        return ddp.samples(self.opt, self.model, batch(0, **self.where))

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
            other["ascent_closure"] = ddp.samples(opt, model, batch(t + 20, **where))
        opt.step(ddp.samples(opt, model, batch(t, **where)), **other)
    return opt


def of_the_catalogue(name: str) -> dict[str, Any]:
    """Six steps of any preset; those that choose samples choose others on each rank."""
    method, twin, model = methods()[name], network(), sharded(network())
    theirs, ours = trained(method, twin), trained(method, model, **ddp.here())
    return {**ddp.outcome(ours, model, twin), "twin's cost": theirs.cost}


def normalised() -> nn.Sequential:
    """Its normalisation layer is the only one that SAM-ON perturbs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = [nn.Linear(64, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 10)]
        return nn.Sequential(*layers).double()


def normalisation(kind: str, **options: Any) -> dict[str, Any]:
    """VaSSO-ON, whose pass at w leaves out the gradients of the linear layers where it can."""
    twin, model = normalised(), KINDS[kind](normalised())
    theirs = SAMON(BASES["momentum"](twin.parameters()), theta=0.4, model=twin)
    train(theirs, twin, steps=4)
    opt = SAMON(BASES["momentum"](model.parameters()), theta=0.4, model=model, **options)
    layer = model.module[0] if kind == "ddp" else model[0]
    seen = []

    def look(module: nn.Module, args: Any, output: Any) -> None:
        seen.append(module.weight.requires_grad)

    layer.register_forward_hook(look)
    train(opt, model, steps=4, **ddp.here())
    slopes = sum(len(entry) for entry in opt._vectors.values())
    return {**ddp.outcome(opt, model, twin), "wanted": seen, "tensors with a slope": slopes}


def bfloat16() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 10)).to(torch.bfloat16)
    opt = SAM(BASES["momentum"](sharded(model).parameters()), rho=0.01, model=model)
    found: list[float] = []

    def look(record: Any) -> None:
        d, epsilon = flat(record.d).double(), flat(record.epsilon).double()
        found.append((epsilon @ d / d.norm()).item() / 0.01)

    opt.observe(look)
    for t in range(8):
        x, y = batch(t, **ddp.here())
        cross_entropy(model(x.bfloat16()).float(), y).backward()
        with opt.ascended():
            cross_entropy(model(x.bfloat16()).float(), y).backward()
        opt.step()
        opt.zero_grad()
    return {"projection": sum(found) / len(found)}


def slope_in_bfloat16() -> dict[str, Any]:
    twin = network()
    train(VaSSO(BASES["momentum"](twin.parameters()), rho=0.1), twin, steps=4)
    model, opt = ddp.vasso("fsdp", slope_dtype=torch.bfloat16)
    train(opt, model, steps=4, **ddp.here())
    dtypes = sorted({str(entry["d"].to_local().dtype) for entry in opt._vectors.values()})
    return {**ddp.outcome(opt, model, twin), "dtypes": dtypes}


def part_classes(name: str) -> set[type]:
    method = methods()[name]
    model = network()
    data = {"data": Source(model)} if "source" in method.needs else {}
    opt = method.build(BASES["momentum"](model.parameters()), **{**method.example, **data})
    kinds = ("direction", "geometry", "ascent", "descent", "policy", "plan")
    return {type(getattr(opt, kind)) for kind in kinds}


def chosen(names: list[str]) -> list[str]:
    """The first preset with each class of a part, from the composed ones on."""
    seen: set[type] = set()
    found = []
    for name in reversed(names):
        classes = part_classes(name)
        if classes - seen:
            found.append(name)
            seen |= classes
    return found


ELSEWHERE = {"outputs", "head", "second moment", "model"}
"""What these batches and bases do not have; the plans of outputs take no other path to shards."""
PRESETS = [
    name
    for name, method in methods().items()
    if method.kind == "preset" and ELSEWHERE.isdisjoint(method.needs)
]
CHOSEN = PRESETS if THOROUGH else chosen(PRESETS)
COMPARED = [
    (method, base)
    for method, base in product(METHODS, BASES)
    if THOROUGH or base == "momentum" or method == "VaSSO"
]
as_one = partial(ddp.as_one_process, kind="fsdp")
CASES = {
    "empty": empty_shards,
    **{
        f"{method} {base} closure": partial(as_one, METHODS[method], base)
        for method, base in COMPARED
    },
    "V+G momentum ascended": partial(as_one, METHODS["V+G"], way="ascended"),
    "recompute": partial(as_one, METHODS["VaSSO"], restore="recompute"),
    **{f"spoilt {number}": partial(ddp.spoilt_on_one_rank, number, "fsdp") for number in (0, 1)},
    **{f"nan {number}": partial(nan_in_one_shard, number) for number in (0, 1)},
    **{f"scaled {number}": partial(scaled, number) for number in (None, 0, 1)},
    "accumulated": partial(ddp.accumulated, "fsdp"),
    **{f"stale {known}": partial(looks_in_between, known) for known in (True, False)},
    "bfloat16": bfloat16,
    "slope in bfloat16": slope_in_bfloat16,
    "follows the gap": partial(ddp.follows_the_gap, "fsdp"),
    "normalisation fsdp": partial(normalisation, "fsdp"),
    "normalisation ddp": partial(normalisation, "ddp"),
    "normalisation ddp local": partial(normalisation, "ddp", sync="local"),
    **{f"preset {name}": partial(of_the_catalogue, name) for name in CHOSEN},
}
