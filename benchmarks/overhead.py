"""The cost of a sharpness-aware step beyond the step of its base: time, memory, operations.

    python benchmarks/overhead.py                      # all networks, one thread, half an hour
    python benchmarks/overhead.py --shapes resnet18 --json out.json
    python benchmarks/overhead.py --show out.json      # the tables again, from the file alone

Time. No network is run: the closure hangs prepared gradients on the parameters, other ones in each
of the two passes, so that what remains is vector algebra. Its natural unit is one read or one write
of the whole parameter vector: half the time of `b.copy_(a)` on one flat vector of the same size,
measured in the same run. By default the base is an optimizer whose step does nothing, and two
closures with that step are subtracted: then no large number is subtracted from another, and no base
can hide a cost of its wrapper in the cache that it leaves warm. `--base sgd` subtracts a real step
of SGD with momentum instead.

A copy writes where it has not read, for which most processors first fetch the old content. So it is
dear, and an update in place, which by counting reads and writes is 3 units, can take less than 2.
The floor shows what that makes of the count: VaSSO's algebra on one flat vector, nothing else.

With one thread the clock is that of the processor, which does not run while others have the core.
Every round visits all methods in a new order; a visit builds the method anew, warms it up and times
a few steps. So only one method's memory exists at a time, a disturbance meets all methods alike,
and the place of a vector in memory, which matters, changes. Minima say what the code
costs; medians say how quiet the machine was. A method that allocates vectors at every step has a
wide gap between the two on any machine: whether freed memory comes back with or without its pages
is up to the allocator, and changes with the history of the process.

Memory. The peak of three steps on SGD with momentum 0.9, the first one included, as the allocator
saw it, less the peak of three steps of SGD alone: weights, momentum and one gradient. The closure
drops the old gradients and makes new ones, as `zero_grad` and `backward` do. In vectors.

Operations. Calls of tensor operations in one step, for networks of 10 and of 100 tensors, without
the base's. One foreach call counts once: what grows here is time in Python and the dispatcher.

Agreement. Methods that are compared should do the same: all are run on a quadratic, and the largest
difference of the weights from those of the usual scheme is reported, relative to what climbing
changes at all.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from certificate import certificate
from methods import BASES, METHODS, RHO, THETA, Base, Build, Closure, alone, usual
from shapes import NETWORKS, PARAMETERS, Shapes, parameters, shapes_of
from tables import show
from torch import Tensor
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

from vasso.lab.probe.advice import peak_bytes

Samples: TypeAlias = dict[str, list[float]]

WARM_UP = 2  # steps: the first makes the vectors, the second finds them
UNIT, ALONE = "unit", "base alone"
FLOORS = ("floor recompute", "floor copy")


# -- time -----------------------------------------------------------------------------------------


def random_vector(shapes: Shapes, seed: int) -> list[Tensor]:
    """Normal numbers of the size of weights; never zeros, whose pages might not exist."""
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draws).mul_(0.02) for shape in shapes]


def parameters_of(shapes: Shapes) -> list[Tensor]:
    """Weights to be optimized."""
    return [p.requires_grad_() for p in random_vector(shapes, seed=0)]


def hang(params: list[Tensor], passes: list[list[Tensor]]) -> Closure:
    """A closure that computes nothing: it hangs the gradients of each pass in turn."""
    loss, calls = torch.zeros(()), 0

    def closure() -> Tensor:
        nonlocal calls
        for p, gradient in zip(params, passes[calls % len(passes)], strict=True):
            p.grad = gradient
        calls += 1
        return loss

    return closure


def clock() -> Callable[[], int]:
    """Time of the processor if one thread does all, which leaves out waiting for it; else time."""
    return time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns


def milliseconds(act: Callable[[], object], times: int) -> list[float]:
    """How long each of several repetitions takes, after a warm-up."""
    for _ in range(WARM_UP):
        act()
    now, taken = clock(), []
    for _ in range(times):
        start = now()
        act()
        taken.append((now() - start) / 1e6)
    return taken


def flat_algebra(size: int, keep_copy: bool) -> Callable[[], object]:
    """The least that VaSSO has to do: d.lerp_(g), ||d||, w + epsilon and back, on flat vectors."""
    g, w, d, copy = (torch.full((size,), 0.02) for _ in range(4))

    def act() -> None:
        scale = RHO / float(d.lerp_(g, THETA).norm())
        if keep_copy:
            copy.copy_(w)
        w.add_(d, alpha=scale)
        _ = w.copy_(copy) if keep_copy else w.sub_(d, alpha=scale)

    return act


def timers(shapes: Shapes, base: Base) -> dict[str, Callable[[int], list[float]]]:
    """What there is to be timed: unit, floors, base alone and every method, built when called."""
    params, size = parameters_of(shapes), parameters(shapes)
    closure = hang(params, [random_vector(shapes, seed=1), random_vector(shapes, seed=2)])

    def unit(times: int) -> list[float]:
        a, b = torch.ones(size), torch.ones(size)
        return [round(both / 2, 6) for both in milliseconds(lambda: b.copy_(a), times)]

    def timer(build: Build) -> Callable[[int], list[float]]:
        def visit(times: int) -> list[float]:
            step = build(params, base)
            return milliseconds(lambda: step(closure), times)

        return visit

    def floor(keep_copy: bool) -> Callable[[int], list[float]]:
        return lambda times: milliseconds(flat_algebra(size, keep_copy), times)

    floors = {label: floor(label.endswith("copy")) for label in FLOORS}
    methods = {label: timer(build) for label, build in {ALONE: alone, **METHODS}.items()}
    return {UNIT: unit, **floors, **methods}


def timed(name: str, base: Base, rounds: int, steps: int) -> Samples:
    """Milliseconds of every timed step, in interleaved rounds of shuffled order."""
    visits = timers(shapes_of(name), base)
    samples: Samples = {label: [] for label in visits}
    order = random.Random(0)
    gc.disable()  # as timeit does: a collection would hit whoever comes next
    try:
        for count in range(rounds):
            progress(f"{name}: round {count + 1} of {rounds}")
            for label in order.sample(list(visits), len(visits)):
                samples[label] += visits[label](steps)
                gc.collect()
    finally:
        gc.enable()
    return samples


def in_units(samples: Samples) -> dict[str, dict[str, float]]:
    """Time beyond the base of floors and methods in units, by minima and by medians."""
    kinds: dict[str, Callable[[list[float]], float]] = {"min": min, "median": statistics.median}
    units: dict[str, dict[str, float]] = {label: {} for label in (*METHODS, *FLOORS)}
    for kind, of in kinds.items():
        for label, entry in units.items():
            base = 0 if label in FLOORS else of(samples[ALONE])  # a floor has no closures, no base
            entry[kind] = round((of(samples[label]) - base) / of(samples[UNIT]), 2)
    return units


# -- memory, operations, agreement ----------------------------------------------------------------


def peak(build: Build, shapes: Shapes) -> float:
    """The most memory that three steps need, weights, gradient and all, in vectors."""

    def run() -> None:
        params = parameters_of(shapes)

        def closure() -> Tensor:
            for p in params:
                p.grad = None
            for p in params:
                p.grad = torch.full_like(p, 1e-3)
            return torch.zeros(())

        step = build(params, BASES["sgd"])
        for _ in range(3):
            step(closure)

    return peak_bytes(run) / (4 * parameters(shapes))


def memory_of(name: str) -> dict[str, float]:
    """Peak memory of the base alone, and of each method beyond that, in vectors."""
    shapes = shapes_of(name)
    baseline = peak(alone, shapes)
    extra = {ALONE: round(baseline, 3)}
    for label, build in METHODS.items():
        progress(f"{name}: memory of {label}")
        extra[label] = round(peak(build, shapes) - baseline, 3)
    return extra


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the tensor operations that reach torch's dispatcher; a profiler's marks are none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func.namespace == "aten"
        return func(*args, **(kwargs or {}))


def operations(build: Build, tensors: int) -> int:
    """Calls into torch during one step of a network of so many tensors, without the base's."""
    shapes: Shapes = [(8, 8)] * tensors
    params = parameters_of(shapes)
    closure = hang(params, [random_vector(shapes, seed=1), random_vector(shapes, seed=2)])
    step = build(params, BASES["nothing"])
    for _ in range(WARM_UP):
        step(closure)
    with Calls() as calls:
        step(closure)
    return int(calls.count)


def quadratic(params: list[Tensor]) -> Closure:
    """The gradients of sum_i c_i w_i^2 / 2 with c from 0.5 to 2: epsilon changes where one goes."""

    def closure() -> Tensor:
        for i, p in enumerate(params):
            p.grad = p.detach() * (0.5 + 1.5 * i / len(params))
        return torch.zeros(())

    return closure


def destination(build: Build, steps: int = 5) -> Tensor:
    """Where a method arrives on the quadratic, as one flat vector."""
    params = parameters_of(shapes_of("tiny"))
    step = build(params, (SGD, {"lr": 0.1, "momentum": 0.9}))
    closure = quadratic(params)
    for _ in range(steps):
        step(closure)
    return torch.cat([p.detach().flatten() for p in params])


def agreement() -> dict[str, float]:
    """The largest difference of each method from the usual scheme, relative to SAM - SGD.

    That is the way that is due to epsilon: 1 would mean a method that does not climb at all.
    """
    ends = {"SAM": destination(usual(1.0)), "VaSSO": destination(usual(THETA))}
    due = (ends["SAM"] - destination(alone)).abs().max()
    found = {}
    for label, build in METHODS.items():
        twin = ends["VaSSO" if "VaSSO" in label else "SAM"]
        found[label] = float((destination(build) - twin).abs().max() / due)
    return found


# -- the certificate ------------------------------------------------------------------------------


def born(args: argparse.Namespace) -> dict[str, Any]:
    """When, where, with what and how."""
    names = ("shapes", "rounds", "steps", "base")
    settings = {
        **{name: getattr(args, name) for name in names},
        **{"rho": RHO, "theta": THETA, "warm_up": WARM_UP, "clock": clock().__name__},
    }
    packages = ("torch", "pytorch_optimizer", "vasso")
    return certificate("cost of an optimizer step beyond its base", packages, settings)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one JSON value, which is also written after every network."""
    result = born(args)
    result["agreement"] = agreement()
    result["operations"] = {
        label: {str(count): operations(build, count) for count in (10, 100)}
        for label, build in METHODS.items()
    }
    result["shapes"] = {}
    for name in args.shapes:
        samples = timed(name, BASES[args.base], args.rounds, args.steps)
        result["shapes"][name] = {
            "parameters": parameters(shapes_of(name)),
            "tensors": len(shapes_of(name)),
            "units": in_units(samples),
            "memory": memory_of(name),
            "milliseconds": samples,
        }
        if args.json:
            args.json.write_text(json.dumps(result) + "\n")
    progress("")
    return result


def progress(text: str) -> None:
    """One line that is overwritten."""
    print(f"\r{text:<70}", end="" if text else "\r", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=NETWORKS, default=list(PARAMETERS))
    parser.add_argument("--rounds", type=int, default=20, help="visits to each method")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a visit")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--base", choices=BASES, default="nothing", help="what is wrapped")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--quick", action="store_true", help="a tiny network: times mean nothing")
    parser.add_argument("--show", type=Path, help="print the tables of a stored file and stop")
    args = parser.parse_args()
    if args.quick:
        args.shapes, args.rounds, args.steps = ["tiny"], 2, 1
    return args


def main() -> None:
    """Measures, or reads, and prints."""
    args = arguments()
    if args.show:
        print(show(json.loads(args.show.read_text())))
        return
    torch.set_num_threads(args.threads)
    print(show(measure(args)))


if __name__ == "__main__":
    main()
