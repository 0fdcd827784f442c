"""The measures of a probe, and the loop that takes them in order.

| measure        | what it is                                                                 |
|----------------|----------------------------------------------------------------------------|
| `snr`          | signal against noise of batch gradients                                    |
| `slope`        | error of the slope of each theta, and its cosine with the true gradient    |
| `friendliness` | gain on the own batch and on others, and how many others gain              |
| `radius`       | the rise of the loss over rho, and the rho of equal effect                 |
| `sharpness`    | the rise at SAM's adversary, the highest in the ball, the mean nearby      |
| `eigenvalues`  | the five largest of the Hessian                                            |
| `trace`        | the sum of all eigenvalues                                                 |
| `density`      | the distribution of all eigenvalues (on request)                           |
| `landscape`    | the loss over a plane (on request)                                         |

Nothing of the model is changed. Ctrl-C keeps what has been measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch

from vasso.optional import needs_extra

with needs_extra("lab"):
    import numpy as np

from vasso.diagnostics.adversary.equal_effect import equal_effect
from vasso.diagnostics.adversary.friendliness import friendliness_of
from vasso.diagnostics.adversary.radius import Rises, adversaries_of, curve_of, rises_of, spacing
from vasso.diagnostics.adversary.slope_error import check_theta, slope_errors, warm_up
from vasso.diagnostics.adversary.snr import snr
from vasso.diagnostics.batches import samples_in
from vasso.diagnostics.curvature.density import spectral_density
from vasso.diagnostics.curvature.eigen import top_eigenpairs
from vasso.diagnostics.curvature.products import Hessian
from vasso.diagnostics.curvature.trace import hutch_plus_plus
from vasso.diagnostics.landscape import slice_2d
from vasso.diagnostics.passes import LossFn, OfModel, gradient_of, objective
from vasso.diagnostics.sharpness import average_sharpness, sharpness
from vasso.lab.probe.target import Subject
from vasso.lab.schema import name_of

ON_REQUEST = ("density", "landscape")
OF_SLOPES = ("slope", "friendliness", "radius")
OF_CURVATURE = ("eigenvalues", "trace", "density")
FORWARD, GRADIENT, PRODUCT = 1.0, 3.0, 7.0
"""Approximate cost of a pass, in forward passes, for the estimate of the time left."""


@dataclass(frozen=True)
class Depth:
    """How thoroughly to measure.

    Args:
        rho: the radius of SAM.
        thetas: slopes to measure; 1 is SAM's.
        radii: multiples of rho at which the rise is measured; 1 must be among them.
        adversaries: number of adversaries of each slope.
        steps: steps of the search for the highest loss in the ball.
        draws: number of random weights nearby.
        eigenvalues: number of eigenvalues.
        products: products of the Hessian with a vector, for the trace.
        grid: points on a side of the landscape.
        level: confidence level of the intervals.
    """

    rho: float
    thetas: tuple[float, ...] = (1.0, 0.9, 0.4, 0.2)
    radii: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    adversaries: int = 8
    steps: int = 50
    draws: int = 20
    eigenvalues: int = 5
    products: int = 30
    grid: int = 21
    level: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.rho < math.inf:
            raise ValueError(f"rho must be above 0 and finite, got {self.rho}")
        if not self.thetas:
            raise ValueError("thetas is empty: give at least one, 1 is SAM's")
        for theta in self.thetas:
            check_theta(theta)
        if 1.0 not in self.radii:
            raise ValueError(f"1 must be among the radii, got {list(self.radii)}")

    def quick(self) -> Depth:
        """The same with fewer of everything."""
        few: dict[str, Any] = {"adversaries": 4, "draws": 8, "products": 12, "grid": 9}
        return replace(self, radii=(0.5, 1.0, 2.0, 4.0), steps=20, **few)


@dataclass
class ProbeResults:
    """What has been measured so far: by measure its results, seconds and number of losses computed.

    `notes` tell what could not be measured, and why. `interrupted` says that Ctrl-C came.
    """

    results: dict[str, list[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False


def chosen(only: Sequence[str], also: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the measures to take, in order; if `only` is empty, the usual ones."""
    usual = [name for name in MEASURES if name not in ON_REQUEST]
    wanted = {name_of("measure", word, MEASURES) for word in [*(only or usual), *also]}
    return tuple(name for name in MEASURES if name in wanted)


def check_thetas(subject: Subject, depth: Depth, wanted: Sequence[str]) -> None:
    """Raises ValueError if slopes are to be measured and there are enough batches for none."""
    if set(wanted) & set(OF_SLOPES) and not _measurable(depth.thetas, subject.count):
        theta = max(depth.thetas)
        raise ValueError(f"theta {theta:g} {_too_few_batches(theta, subject.count)}")


def _measurable(thetas: Sequence[float], batches: int) -> tuple[float, ...]:
    """Those with enough batches for the slope to forget its first gradient."""
    return tuple(theta for theta in thetas if warm_up(theta) < batches)


def _too_few_batches(theta: float, batches: int) -> str:
    least = warm_up(theta)
    return (
        f"is left out: its slope needs more than {least} batches, there are {batches}: give "
        f"--batches {least + 1} or more, and as many in the loader of a function of yours"
    )


class Work:
    """A subject with what several measures share: a counting loss, rises, the Hessian.

    `tick` is called with the cost of each pass, in forward passes.
    """

    def __init__(
        self,
        subject: Subject,
        depth: Depth,
        wanted: Sequence[str],
        tick: Callable[[float], None] = lambda cost: None,
    ) -> None:
        self.subject, self.depth, self.wanted = subject, depth, wanted
        self.passes, self.tick, self.price = 0, tick, GRADIENT
        self.loss_fn = self._counted(subject.loss_fn)
        self.notes: list[str] = []
        self._rises: dict[float, Rises] = {}

    def _counted(self, loss_fn: LossFn | OfModel) -> LossFn | OfModel:
        def count() -> None:
            self.passes += 1
            self.tick(self.price if torch.is_grad_enabled() else FORWARD)

        if isinstance(loss_fn, OfModel):
            inner = loss_fn.loss

            def of_model(model: Any, batch: Any) -> Any:
                count()
                return inner(model, batch)

            return OfModel(of_model)

        def of_outputs(*given: Any) -> Any:
            count()
            return loss_fn(*given)

        return of_outputs

    @cached_property
    def thetas(self) -> tuple[float, ...]:
        """Those with enough batches; a note for each of the others."""
        able = _measurable(self.depth.thetas, self.subject.count)
        count, left_out = self.subject.count, [t for t in self.depth.thetas if t not in able]
        self.notes += [f"theta {theta:g} {_too_few_batches(theta, count)}" for theta in left_out]
        return able

    @cached_property
    def rhos(self) -> list[float]:
        """The radii at which rises are measured."""
        radii = self.depth.radii if "radius" in self.wanted else (1.0,)
        return [radius * self.depth.rho for radius in radii]

    def rises(self, theta: float) -> Rises:
        """Rises at the adversaries of a slope; friendliness and radius share them."""
        if theta not in self._rises:
            s, most = self.subject, self.depth.adversaries
            settings: dict[str, Any] = {"batchnorm": "batch", "dropout": True}
            with objective(s.model, self.loss_fn, s.batches, s.others, **settings) as f:
                made = adversaries_of(f, s.batches, theta, most)
                self._rises[theta] = rises_of(f, made, s.others, self.rhos)
        return self._rises[theta]

    @cached_property
    def hessian(self) -> Hessian:
        """The Hessian at the fixed samples."""
        return Hessian(self.subject.model, self.loss_fn, self.subject.fixed_batches)

    def cost_of_rises(self) -> float:
        """The estimated cost of the rises of all thetas."""
        d, total = self.depth, 0.0
        for theta in self.thetas:
            wanted = warm_up(theta) + 1 + (d.adversaries - 1) * spacing(theta)
            gradients, others = min(wanted, self.subject.count), len(self.subject.others)
            forwards = others + d.adversaries * (1 + len(self.rhos) * (1 + others))
            total += GRADIENT * gradients + FORWARD * forwards
        return total

    def cost(self, name: str) -> float:
        """The estimated cost of a measure, in forward passes of a batch."""
        still, d = len(self.subject.fixed_batches), self.depth
        rises = "friendliness" if "friendliness" in self.wanted else "radius"
        batches = self.subject.all_batches
        number = getattr(batches, "number", 0) or len(list(batches))
        known = {
            "snr": GRADIENT * self.subject.count,
            "slope": GRADIENT * (self.subject.count + number),
            rises: self.cost_of_rises(),
            "sharpness": still * (GRADIENT * (d.steps + 2) + FORWARD * (d.draws + 2)),
            "eigenvalues": PRODUCT * still * 30,
            "trace": PRODUCT * still * d.products,
            "density": PRODUCT * still * 160,
            "landscape": FORWARD * still * d.grid**2,
        }
        return known.get(name, 1.0)


def _slope(work: Work) -> list[Any]:
    s, settings = work.subject, {"batchnorm": "batch", "dropout": True}
    full = gradient_of(s.model, work.loss_fn, s.all_batches, **settings)  # type: ignore[arg-type]
    args = (s.model, work.loss_fn, s.batches, full, work.thetas)
    return list(slope_errors(*args, level=work.depth.level))


def _friendliness(work: Work) -> list[Any]:
    at, level = work.rhos.index(work.depth.rho), work.depth.level
    return [friendliness_of(work.rises(theta), theta, level)[at] for theta in work.thetas]


def _radius(work: Work) -> list[Any]:
    level = work.depth.level
    curves = [curve_of(work.rises(theta), theta, level) for theta in work.thetas]
    equal = []
    if 1.0 not in work.thetas or len(work.thetas) == 1:
        work.notes.append(
            "radius has no rho of equal effect: that compares the slope of each theta with SAM's, "
            "so give 1 and another, as in --thetas 1 0.4"
        )
    if 1.0 in work.thetas:
        for theta in (t for t in work.thetas if t != 1):
            pair = work.rises(1.0), work.rises(theta), work.depth.rho
            equal += [
                equal_effect(*pair, on=on, theta=theta, level=level) for on in ("own", "others")
            ]
    return [*curves, *equal]


def _sharpness(work: Work) -> list[Any]:
    s, d = work.subject, work.depth
    args, m = (s.model, work.loss_fn, s.fixed_batches, d.rho), min(map(samples_in, s.fixed_batches))
    one = sharpness(*args, search="one-step", m=m, level=d.level)
    most = sharpness(*args, search="apgd", steps=d.steps, m=m, level=d.level)
    size = sum(p.numel() for p in s.model.parameters() if p.requires_grad)
    near = d.rho / math.sqrt(size)  # of each weight: together they go about rho away
    mean = average_sharpness(*args[:3], near, draws=d.draws, level=d.level)
    return [one, most, mean]


def _landscape(work: Work) -> list[Any]:
    s, at = work.subject, np.linspace(-1, 1, work.depth.grid)
    return [slice_2d(s.model, work.loss_fn, s.fixed_batches, across=at, along=at)]


MEASURES: dict[str, Callable[[Work], list[Any]]] = {
    "snr": lambda w: [snr(w.subject.model, w.loss_fn, w.subject.batches, level=w.depth.level)],
    "slope": _slope,
    "friendliness": _friendliness,
    "radius": _radius,
    "sharpness": _sharpness,
    "eigenvalues": lambda work: [top_eigenpairs(work.hessian, work.depth.eigenvalues)],
    "trace": lambda work: [hutch_plus_plus(work.hessian, work.depth.products)],
    "density": lambda work: [spectral_density(work.hessian)],
    "landscape": _landscape,
}


class ProbeDisplay(Protocol):
    """Shows how far a probe is."""

    def plan(self, costs: dict[str, float], /) -> None:
        """Takes the estimated cost of each measure."""
        return

    def begin(self, name: str, /) -> None:
        """A measure begins."""
        return

    def tick(self, cost: float, /) -> None:
        """A pass of this cost has begun."""
        return

    def end(self, name: str, /) -> None:
        """A measure has ended."""
        return


class NoDisplay(ProbeDisplay):
    """Shows nothing."""


def probe(
    subject: Subject, depth: Depth, wanted: Sequence[str] = (), display: ProbeDisplay | None = None
) -> ProbeResults:
    """Measures a model at its weights; leaves it unchanged, also when interrupted by Ctrl-C.

    `wanted` names measures; if empty, all that are not on request. After Ctrl-C the results until
    then are returned.
    """
    display, names = display or NoDisplay(), chosen(wanted)
    work, findings = Work(subject, depth, names, display.tick), ProbeResults()
    display.plan({name: work.cost(name) for name in names})
    try:
        for name in names:
            display.begin(name)
            _measure(work, name, findings)
            display.end(name)
    except KeyboardInterrupt:
        findings.interrupted = True
    findings.notes = [*work.notes, *findings.notes]
    return findings


def _measure(work: Work, name: str, findings: ProbeResults) -> None:
    started, before = time.perf_counter(), work.passes
    work.price = PRODUCT if name in OF_CURVATURE else GRADIENT
    try:
        findings.results[name] = MEASURES[name](work)
    except (ValueError, RuntimeError) as error:  # the others can still be measured
        findings.notes.append(f"{name} could not be measured: {error}")
    findings.seconds[name] = round(time.perf_counter() - started, 3)
    findings.passes[name] = work.passes - before
