"""Distributed checkpoints: what two ranks save, two ranks, one rank and a plain process go on with.

`torchrun -m tests.distributed.dcp save FOLDER` trains, saves on the way and writes down the end;
`... load FOLDER` on any number of ranks reads what was saved and goes on to the same end;
`python -m tests.distributed.dcp alone FOLDER` does so with a whole model and no ranks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.runs import BASES, METHODS, batch, closure_of, network
from tests.distributed.worker import leave, run
from vasso import SharpnessAware

END = 8
STOPS = (0, 1, 5)
"""Steps before the save; the first is skipped, so that after it there is a slope and no more."""
LAYOUTS = {
    "momentum": StateDictOptions(),
    "adamw": StateDictOptions(flatten_optimizer_state_dict=True),
}
"""Of the states of a base: by parameter and nested, or flat."""

Training = tuple[nn.Module, SharpnessAware]


class Case(NamedTuple):
    """A training."""

    kind: str
    method: str
    base: str

    @property
    def name(self) -> str:
        return " ".join(self)

    @property
    def layout(self) -> StateDictOptions:
        return LAYOUTS[self.base]


CASES = [
    Case(*case) for case in product(("fsdp", "ddp"), ("SAM", "VaSSO", "V+G", "LookSAM"), BASES)
]


# -- a training -----------------------------------------------------------------------------------


def sharded(model: nn.Sequential) -> nn.Module:
    """Each layer by itself, and the root."""
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


KINDS: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "fsdp": sharded,
    "ddp": DistributedDataParallel,
    "whole": lambda model: model,
}


def start(case: Case, kind: str | None = None) -> Training:
    """A model of a case's kind, or of another, and its optimizer."""
    model = KINDS[kind or case.kind](network())
    return model, METHODS[case.method](BASES[case.base](model.parameters()), model=model)


def go_on(training: Training, steps: range) -> None:
    """Steps on the digits; the second passes of the first and the fourth are spoilt."""
    model, opt = training
    where = {"rank": dist.get_rank(), "world": dist.get_world_size()} if ranks() else {}
    for t in steps:
        factor = partial(spoilt, opt, t)
        opt.step(closure_of(opt, model, batch(t, **where), factor))
        opt.zero_grad()


def spoilt(opt: SharpnessAware, t: int) -> float:
    return float("inf") if opt.perturbed and t in (0, 3) else 1.0


def ranks() -> bool:
    return dist.is_initialized()


def save(training: Training, folder: Path, options: StateDictOptions) -> None:
    """As the documents of torch do."""
    model, opt = get_state_dict(*training, options=options)
    dcp.save({"model": model, "opt": opt}, checkpoint_id=folder, no_dist=not ranks())


def load(training: Training, folder: Path, options: StateDictOptions) -> None:
    """As the documents of torch do."""
    model, opt = get_state_dict(*training, options=options)
    found = {"model": model, "opt": opt}
    dcp.load(found, checkpoint_id=folder, no_dist=not ranks())
    set_state_dict(
        *training,
        model_state_dict=found["model"],
        optim_state_dict=found["opt"],
        options=options,
    )


# -- what a training holds ------------------------------------------------------------------------


def whole(value: Any) -> Any:
    """Shards put together; a copy of what is whole."""
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.detach().clone() if isinstance(value, Tensor) else value


def everything(training: Training) -> dict[str, Any]:
    """All that a later step depends on, by names that do not tell the kind of the model."""
    model, opt = training
    found: dict[str, Any] = {}
    for name, p in model.named_parameters():
        name = name.removeprefix("module.")
        found[name] = whole(p)
        shown = {**opt.base.state.get(p, {}), **opt._memories.get(p, {})}
        found.update({f"{name}, {key}": whole(value) for key, value in shown.items()})
    group = opt.param_groups[0]
    return {**found, **{key: value for key, value in group.items() if key != "params"}}


def compared(found: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    """The largest gap between vectors on any rank, and what else differs."""
    differs = sorted(found.keys() ^ end.keys())
    gap = torch.zeros(1, dtype=torch.float64)
    for key in found.keys() & end.keys():
        a, b = found[key], end[key]
        if isinstance(a, Tensor):
            gap = torch.maximum(gap, (a - b).abs().max().double().nan_to_num(torch.inf))
        elif a != b:
            differs.append(f"{key}: {a} instead of {b}")
    if ranks():
        dist.all_reduce(gap, dist.ReduceOp.MAX)
    counters = {key: found[f"vasso_{key}"] for key in ("step", "cost", "skipped")}
    return {"gap": gap.item(), "differs": differs, **counters}


def slopes_like_their_parameters(opt: SharpnessAware) -> bool:
    """Whether every vector that we remember is cut like its parameter."""
    return bool(opt._memories) and all(
        (vector.device_mesh, vector.placements, vector.to_local().shape)
        == (p.device_mesh, p.placements, p.to_local().shape)
        for p, vectors in opt._memories.items()
        for vector in vectors.values()
    )


# -- the jobs -------------------------------------------------------------------------------------


def unbroken_and_saving(case: Case, folder: Path) -> dict[str, Any]:
    """Trains once without saving, which is the end that is wanted, and once with all the saves."""
    twin, ours = start(case), start(case)
    go_on(twin, range(END))
    end = everything(twin)
    if dist.get_rank() == 0:
        torch.save(end, folder / f"{case.name}.pt")
    for first, last in zip(STOPS, (*STOPS[1:], END), strict=True):
        save(ours, folder / f"{case.name} {first}", case.layout)
        go_on(ours, range(first, last))
    told = compared(everything(ours), end)
    if case.kind == "fsdp" and case.method != "SAM":
        told["cut alike"] = slopes_like_their_parameters(ours[1])
    return told


def resumed(case: Case, stop: int, folder: Path, kind: str | None = None) -> dict[str, Any]:
    """Loads what was saved after some steps and goes on to the end."""
    end = torch.load(folder / f"{case.name}.pt", weights_only=True)
    training = start(case, kind)
    load(training, folder / f"{case.name} {stop}", case.layout)
    go_on(training, range(stop, END))
    told = compared(everything(training), end)
    if (kind or case.kind) == "fsdp" and case.method != "SAM":
        told["cut alike"] = slopes_like_their_parameters(training[1])
    return told


OTHER = {"fsdp": "ddp", "ddp": "fsdp"}
JOBS: dict[str, Callable[[Path], dict[str, Callable[[], Any]]]] = {
    "save": lambda folder: {
        case.name: partial(unbroken_and_saving, case, folder) for case in CASES
    },
    "load": lambda folder: {
        f"{case.name} {stop}": partial(resumed, case, stop, folder)
        for case in CASES
        for stop in STOPS
    },
    "change": lambda folder: {
        f"{case.name} {stop}": partial(resumed, case, stop, folder, OTHER[case.kind])
        for case in CASES
        for stop in STOPS
        if case.method == "VaSSO"
    },
    "alone": lambda folder: {
        f"{case.name} {stop}": partial(resumed, case, stop, folder, "whole")
        for case in CASES
        for stop in STOPS
    },
}


def main(job: str, folder: Path, out: Path) -> None:
    """Does a job; the one of a plain process has no ranks."""
    cases = JOBS[job](folder)
    if job != "alone":
        run(cases, out)
        leave()
    torch.set_num_threads(1)
    out.write_text(json.dumps({name: case() for name, case in cases.items()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
