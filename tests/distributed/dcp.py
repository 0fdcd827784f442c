"""Distributed checkpoints: two ranks save; two ranks, one rank and a plain process resume.

The job `save` trains, saves on the way and writes down the end. `load` reads on any number of ranks
what was saved and trains to the same end. `alone` does so with a whole model and no ranks.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.checkpoint.state_dict import StateDictOptions

from tests.distributed.runs import BASES, KINDS, METHODS, batch, closure_of, network
from tests.support import THOROUGH
from tests.support.ranks import run_cases
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
    kind: str
    method: str
    base: str

    @property
    def name(self) -> str:
        return " ".join(self)

    @property
    def layout(self) -> StateDictOptions:
        return LAYOUTS[self.base]


FEW = {("SAM", "momentum"), ("VaSSO", "momentum"), ("VaSSO", "adamw"), ("LookSAM", "adamw")}
CASES = [
    Case(*case)
    for case in product(("fsdp", "ddp"), ("SAM", "VaSSO", "V+G", "LookSAM"), BASES)
    if THOROUGH or case[1:] in FEW
]


# -- a training -----------------------------------------------------------------------------------
def start(case: Case, kind: str | None = None) -> Training:
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
    model, opt = dcp_state.get_state_dict(*training, options=options)
    dcp.save({"model": model, "opt": opt}, checkpoint_id=folder, no_dist=not ranks())


def load(training: Training, folder: Path, options: StateDictOptions) -> None:
    model, opt = dcp_state.get_state_dict(*training, options=options)
    found = {"model": model, "opt": opt}
    dcp.load(found, checkpoint_id=folder, no_dist=not ranks())
    states = {"model_state_dict": found["model"], "optim_state_dict": found["opt"]}
    dcp_state.set_state_dict(*training, **states, options=options)


# -- what a training holds ------------------------------------------------------------------------
def whole(value: Any) -> Any:
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.detach().clone() if isinstance(value, Tensor) else value


def everything(training: Training) -> dict[str, Any]:
    """All that a later step depends on, by names that do not tell the kind of the model."""
    model, opt = training
    found: dict[str, Any] = {}
    for name, p in model.named_parameters():
        name = name.removeprefix("module.")
        found[name] = whole(p)
        shown = {**opt.base.state.get(p, {}), **opt._vectors.get(p, {})}
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
    return bool(opt._vectors) and all(
        (vector.device_mesh, vector.placements, vector.to_local().shape)
        == (p.device_mesh, p.placements, p.to_local().shape)
        for p, vectors in opt._vectors.items()
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
    result = compared(everything(ours), end)
    if case.kind == "fsdp" and case.method != "SAM":
        result["cut alike"] = slopes_like_their_parameters(ours[1])
    return result


def resumed(case: Case, stop: int, folder: Path, kind: str | None = None) -> dict[str, Any]:
    end = torch.load(folder / f"{case.name}.pt", weights_only=True)
    training = start(case, kind)
    load(training, folder / f"{case.name} {stop}", case.layout)
    go_on(training, range(stop, END))
    result = compared(everything(training), end)
    if (kind or case.kind) == "fsdp" and case.method != "SAM":
        result["cut alike"] = slopes_like_their_parameters(training[1])
    return result


def resumptions(cases: list[tuple[Case, int]], folder: Path, kind: Any = None) -> dict[str, Any]:
    return {
        f"{case.name} {stop}": partial(
            resumed, case, stop, folder, OTHER[case.kind] if kind == "other" else kind
        )
        for case, stop in cases
    }


OTHER = {"fsdp": "ddp", "ddp": "fsdp"}
RESUMED = list(product(CASES, STOPS))
"""Every case at every stop: what as many ranks go on with as have saved."""
ELSEWHERE = [
    (case, stop) for case, stop in RESUMED if THOROUGH or (case.method == "VaSSO" and stop == 1)
]
"""What one rank and a plain process go on with."""
CHANGED = [
    (case, stop) for case, stop in RESUMED if case.method == "VaSSO" and (THOROUGH or stop == 1)
]
"""What shards and replicas hand over to each other."""
JOBS: dict[str, Callable[[Path], dict[str, Callable[[], Any]]]] = {
    "save": lambda folder: {
        case.name: partial(unbroken_and_saving, case, folder) for case in CASES
    },
    "load": partial(resumptions, RESUMED),
    "load on one": partial(resumptions, ELSEWHERE),
    "change": partial(resumptions, CHANGED, kind="other"),
    "alone": partial(resumptions, ELSEWHERE, kind="whole"),
}


def main(job: str, folder: str) -> None:
    cases, out = JOBS[job](Path(folder)), Path(folder, f"{job}.json")
    if job != "alone":
        run_cases(cases, out)
    else:
        out.write_text(json.dumps({name: case() for name, case in cases.items()}))
