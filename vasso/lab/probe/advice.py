"""Advice before a training: is there noise for an averaged slope, which rho, what does a step cost.

    noise   signal / noise of batch gradients: below 1 an averaged slope helps, above 10 it cannot
    rho     of SAM first, then the one with which VaSSO raises the loss of its own batch as much
    cost    time and peak memory of a step of the base, SAM, VaSSO, VaSSO with half batches

A number whose interval spans more than a factor of ten is not told: more batches are asked for.
"""

import copy
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from vasso.diagnostics.adversary.equal_effect import EqualEffect
from vasso.diagnostics.adversary.radius import adversaries_of, rises_of, spacing
from vasso.diagnostics.adversary.slope_error import warm_up
from vasso.diagnostics.batches import rows_of, samples_in
from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.passes import loss_of, objective, untouched
from vasso.lab.experiment.method import BASES
from vasso.lab.probe.run import Depth, ProbeDisplay, probe
from vasso.lab.probe.target import Subject
from vasso.presets import SAM, VaSSO

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else two lines on stderr for every profile

FACTOR = 10.0
"""The widest interval that counts as an answer: its upper over its lower end."""
NOISY, CLEAN = 1.0, 10.0
"""Signal / noise below which averaging pays, and above which there is nothing to average."""
LEAST_RISE, MOST_RISE = 0.02, 1.3
"""Rise over loss in the first epoch at the best rho of SAM in the records of this repository."""
SECONDS = 3.0
"""Time to spend on the steps of each method."""


@dataclass(frozen=True)
class Answer:
    """An answer in a sentence; `more` batches are missing if it cannot be told yet."""

    text: str
    more: int = 0


@dataclass(frozen=True)
class StepCost:
    """What a step of a method costs: gradients, seconds, peak bytes beyond the model."""

    name: str
    gradients: float
    seconds: float
    memory: int


@dataclass(frozen=True)
class Advice:
    """The answers, and the constructor to paste; "" if it cannot be told yet."""

    noise: Answer
    rho: Answer
    costs: tuple[StepCost, ...]
    code: str

    @property
    def more(self) -> int:
        """How many more batches are needed."""
        return max(self.noise.more, self.rho.more)


def advise(
    subject: Subject,
    base: str = "SGD",
    rho: float | None = None,
    theta: float = 0.4,
    display: ProbeDisplay | None = None,
) -> Advice:
    """Measures a model at its weights and answers; nothing of it is changed.

    `rho` is a radius that is known to suit SAM; None starts from that of the subject or 0.05.
    """
    if not 0 < theta < 1:
        raise ValueError(f"theta must be above 0 and below 1, got {theta}: 1 is SAM")
    least = warm_up(theta) + 1 + 2 * spacing(theta)
    if subject.count < least:
        raise ValueError(
            f"theta {theta:g} needs at least {least} batches and there are {subject.count}: give "
            "--batches, and as many in the loader of your function"
        )
    radius = rho or subject.rho
    start = radius or starting_rho(subject)
    most = 1 + (subject.count - warm_up(theta) - 1) // spacing(theta)
    depth = Depth(start, (1.0, theta), radii=(0.25, 0.5, 1.0, 2.0, 4.0), adversaries=most)
    found = probe(subject, depth, ("snr", "radius"), display)
    if found.interrupted:
        raise KeyboardInterrupt
    for note in found.notes:
        raise ValueError(f"{subject.name}: {note}")
    (snr,) = found.results["snr"]
    equal = next(x for x in found.results["radius"] if isinstance(x, EqualEffect))
    noise = about_noise(snr.snr, subject.count)
    chosen = about_rho(equal, subject.count, chosen=radius is None)
    costs = step_costs(subject, base, start, theta)
    code = f"VaSSO(base, rho={equal.rho.value:.2g}, theta={theta:g}, model=model)"
    if snr.snr.low > CLEAN:
        code, chosen = f"SAM(base, rho={start:.2g}, model=model)", Answer(chosen.text)
    return Advice(noise, chosen, costs, "" if noise.more or chosen.more else code)


def more_batches(x: Estimate, count: int) -> int:
    """How many more batches bring an interval within a factor of ten; 0 if it is there.

    Its width on a logarithmic scale falls with the root of their number.
    """
    if not (0 < x.low <= x.high < math.inf):
        return 3 * count
    width = math.log(x.high / x.low, FACTOR)
    return math.ceil(count * min(width**2 - 1, 99)) if width > 1 else 0


def about_noise(x: Estimate, count: int) -> Answer:
    """Whether batch gradients have noise enough for an averaged slope."""
    ends = f"signal / noise of a batch gradient is {_told(x)}"
    if x.high < NOISY:
        return Answer(f"enough: {ends}, so an averaged slope is much nearer to the true gradient.")
    if x.low > CLEAN:
        return Answer(f"too little: {ends}, there is nothing to average; SAM does as well.")
    if more := more_batches(x, count):
        return Answer(f"cannot tell yet: {ends}; {_ask(more)}.", more)
    return Answer(f"some: {ends}, so an averaged slope is nearer to the true gradient.")


def about_rho(found: EqualEffect, count: int, *, chosen: bool) -> Answer:
    """The rho of VaSSO with which it raises the loss as SAM does with its rho."""
    rise, rho = found.rise, found.rho
    source = "chosen by its rise" if chosen else "as given"
    sam = f"SAM with rho {found.reference_rho:.2g} ({source}) raises the loss of its own batch by"
    if math.isnan(rho.value):
        return Answer(f"cannot tell yet: {sam} nothing; {_ask(3 * count)}.", 3 * count)
    same = f"{sam} {rise.value:.2g}, VaSSO with theta {found.theta:g} by as much with rho"
    if more := more_batches(rho, count):
        return Answer(f"cannot tell yet: {same} {_told(rho)}; {_ask(more)}.", more)
    return Answer(f"{rho.value:.2g} to start with: {same} {_told(rho)}.")


def _told(x: Estimate) -> str:
    return f"{x.value:.2g} [{x.low:.2g}, {x.high:.2g}]"


def _ask(more: int) -> str:
    return f"give it {more} more batches"


def starting_rho(subject: Subject, rho: float = 0.05) -> float:
    """SAM's usual rho, halved or doubled until its rise is one that suited SAM elsewhere."""
    for _ in range(10):
        share = _rise_over_loss(subject, rho)
        if share < LEAST_RISE:
            rho *= 2
        elif share > MOST_RISE:
            rho /= 2
        else:
            break
    return rho


def _rise_over_loss(subject: Subject, rho: float) -> float:
    settings: dict[str, Any] = {"batchnorm": "batch", "dropout": True}
    args = subject.model, subject.loss_fn, subject.batches, subject.others
    with objective(*args, **settings) as f:
        made = list(adversaries_of(f, subject.batches, most=4))
        rises = rises_of(f, made, subject.others[:1], [rho])
        loss = fmean(f.loss(adversary.batch, key=adversary.key) for adversary in made)
    return float(rises.own.mean()) / max(loss, 1e-12)


def step_costs(subject: Subject, base: str, rho: float, theta: float) -> tuple[StepCost, ...]:
    """Cost of a step of each method, measured on a copy of the model."""
    wrap: dict[str, Callable[[Any, Any], Any]] = {
        base: lambda inner, model: inner,
        "SAM": lambda inner, model: SAM(inner, rho=rho, model=model),
        "VaSSO": lambda inner, model: VaSSO(inner, rho=rho, theta=theta, model=model),
    }
    with untouched(subject.model, subject.batches):
        found = [_cost(subject, name, base, build) for name, build in wrap.items()]
        half = _cost(subject, "VaSSO, half batches", base, wrap["VaSSO"], share=0.5)
    return (*found, half)


def _cost(
    subject: Subject, name: str, base: str, build: Callable[[Any, Any], Any], share: float = 1.0
) -> StepCost:
    model = copy.deepcopy(subject.model).train()
    batches, loss_fn = cycle(subject.batches), subject.loss_fn

    def step(optimizer: Any) -> None:
        batch = next(batches)
        part = rows_of(batch, slice(0, max(2, int(share * samples_in(batch)))))
        optimizer.step(closure_of(optimizer, part))

    def closure_of(optimizer: Any, batch: Any) -> Callable[[], Any]:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, loss_fn, batch)
            torch.autograd.backward(loss)
            return loss

        return closure

    made: list[Any] = []

    def first_steps() -> None:
        settings: dict[str, Any] = {"lr": 1e-6} | ({"momentum": 0.9} if base == "SGD" else {})
        weights = [p for p in model.parameters() if p.requires_grad]
        made.append(build(BASES[base](weights, **settings), model))
        for _ in range(2):
            step(made[0])

    memory = peak_bytes(first_steps, next(model.parameters()).device)
    gradients = 1.0 if name == base else 2 * share
    return StepCost(name, gradients, _seconds(lambda: step(made[0])), memory)


def _seconds(step: Callable[[], None]) -> float:
    """The time of the fastest step: other programs on the machine only add to it."""
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 100):
        started = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)


def peak_bytes(run: Callable[[], object], device: torch.device | None = None) -> int:
    """The most bytes of tensors alive at any moment of `run`, beyond those alive before it.

    On the CPU the profiler notes every allocation and release, temporaries inside an operation
    included. What is to be counted has to be made during `run`.
    """
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        already = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - already
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        run()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    events = sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: float(e["ts"]))
    notes = [event["args"] for event in events]
    before: int = notes[0]["Total Allocated"] - notes[0]["Bytes"]
    peak: int = max(note["Total Allocated"] for note in notes)
    return peak - before
