"""What is measured of a model at its weights, in which order, and how far is it?

| measure        | what it tells                                                              |
|----------------|----------------------------------------------------------------------------|
| `snr`          | signal against noise of batch gradients                                    |
| `slope`        | error and cosine of the slope of each theta                                |
| `friendliness` | gain on the own batch and on others, and whose loss falls                  |
| `radius`       | the rise of the loss over rho, and the rho of equal effect                 |
| `sharpness`    | the rise at SAM's adversary, the highest in the ball, the mean nearby      |
| `eigenvalues`  | the five largest of the Hessian                                            |
| `trace`        | the sum of all                                                             |
| `density`      | how they are spread (on request)                                           |
| `landscape`    | the loss over a plane (on request)                                         |

Nothing of the model is touched; what has been measured when Ctrl-C comes is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from vasso.extras import brought_by

with brought_by("lab"):
    import numpy as np

from vasso.diagnostics.batches import samples_in
from vasso.diagnostics.density import spectral_density
from vasso.diagnostics.eigen import top_eigenpairs
from vasso.diagnostics.equal_effect import equal_effect
from vasso.diagnostics.friendliness import friendliness_of
from vasso.diagnostics.landscape import slice_2d
from vasso.diagnostics.passes import LossFn, OfModel, gradient_of, objective
from vasso.diagnostics.products import Hessian
from vasso.diagnostics.radius import Rises, adversaries_of, curve_of, rises_of, spacing
from vasso.diagnostics.sharpness import average_sharpness, sharpness
from vasso.diagnostics.slope_error import check_theta, slope_errors, warm_up
from vasso.diagnostics.snr import snr
from vasso.diagnostics.trace import hutch_plus_plus
from vasso.lab.settings import name_of
from vasso.lab.subject import Subject

ON_REQUEST = ("density", "landscape")
OF_CURVATURE = ("eigenvalues", "trace", "density")
FORWARD, GRADIENT, PRODUCT = 1.0, 3.0, 7.0
"""What a pass costs, in forward passes: about, for the estimate of the time left."""


@dataclass(frozen=True)
class Depth:
    """How thoroughly to measure.

    Args:
        rho: the radius of SAM that everything is about.
        thetas: slopes to look at; 1 is SAM's.
        radii: at which multiples of rho the rise is measured; 1 must be among them.
        adversaries: of each slope.
        steps: of the search for the highest loss in the ball.
        draws: random weights nearby.
        eigenvalues: how many.
        products: of the Hessian with a vector, for the trace.
        grid: points a side of the landscape.
        level: how often each interval is to hold the truth.
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
        if not 0 < self.rho < float("inf"):
            raise ValueError(f"rho must be above 0 and finite, got {self.rho}")
        if not self.thetas:
            raise ValueError("thetas is empty: give at least one, 1 is SAM's")
        for theta in self.thetas:
            check_theta(theta)
        if 1.0 not in self.radii:
            raise ValueError(f"1 must be among the radii, got {list(self.radii)}")

    def quick(self) -> Depth:
        """A first look.

        Returns:
            Fewer of everything.
        """
        few: dict[str, Any] = {"adversaries": 4, "draws": 8, "products": 12, "grid": 9}
        return replace(self, radii=(0.5, 1.0, 2.0, 4.0), steps=20, **few)


@dataclass
class Findings:
    """What has been measured so far.

    Attributes:
        results: measure -> its results, in order.
        seconds: measure -> how long it took.
        passes: measure -> losses taken, with or without gradients.
        notes: what could not be measured, and why.
        interrupted: whether Ctrl-C came before the end.
    """

    results: dict[str, list[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False


def chosen(only: Sequence[str], also: Sequence[str] = ()) -> tuple[str, ...]:
    """The measures that are wanted, in their order.

    Args:
        only: these; all that need no request if empty.
        also: besides.

    Returns:
        Names.

    Example:
        >>> chosen(["SNR"], ["landscape"])
        ('snr', 'landscape')
        >>> chosen(["friendlyness"])
        Traceback (most recent call last):
        ...
        ValueError: no measure is called 'friendlyness'. Did you mean 'friendliness'?
    """
    usual = [name for name in MEASURES if name not in ON_REQUEST]
    wanted = {name_of("measure", word, MEASURES) for word in [*(only or usual), *also]}
    return tuple(name for name in MEASURES if name in wanted)


class Work:
    """A subject under measurement.

    Args:
        subject: what is looked at.
        depth: how thoroughly.
        wanted: which measures.
        tick: is told what each pass costs, in forward passes.
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
        """Those whose slopes have batches enough to forget how they began."""
        able = tuple(t for t in self.depth.thetas if warm_up(t) < self.subject.count)
        for theta in self.depth.thetas:
            if theta not in able:
                self.notes.append(
                    f"theta {theta:g} is left out: its slope needs more than {warm_up(theta)} "
                    f"batches, there are {self.subject.count}: give --batches {warm_up(theta) + 1} "
                    "or more, and as many in the loader of a function of yours"
                )
        return able

    @cached_property
    def rhos(self) -> list[float]:
        """Radii at which rises are measured."""
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
        """That of the still samples."""
        return Hessian(self.subject.model, self.loss_fn, self.subject.still)

    # -- what it costs ----------------------------------------------------------------------------

    def cost_of_rises(self) -> float:
        """Of all thetas together."""
        d, total = self.depth, 0.0
        for theta in self.thetas:
            gradients = min(warm_up(theta) + 1 + (d.adversaries - 1) * spacing(theta), self.count)
            others = len(self.subject.others)
            forwards = others + d.adversaries * (1 + len(self.rhos) * (1 + others))
            total += GRADIENT * gradients + FORWARD * forwards
        return total

    @property
    def count(self) -> int:
        """How many batches there are."""
        return self.subject.count

    def cost(self, name: str) -> float:
        """What a measure will cost, about, in forward passes of a batch.

        Args:
            name: of the measure.

        Returns:
            A number.
        """
        still, d = len(self.subject.still), self.depth
        rises = "friendliness" if "friendliness" in self.wanted else "radius"
        known = {
            "snr": GRADIENT * self.count,
            "slope": GRADIENT * (self.count + _length(self.subject.everything)),
            rises: self.cost_of_rises(),
            "sharpness": still * (GRADIENT * (d.steps + 2) + FORWARD * (d.draws + 2)),
            "eigenvalues": PRODUCT * still * 30,
            "trace": PRODUCT * still * d.products,
            "density": PRODUCT * still * 160,
            "landscape": FORWARD * still * d.grid**2,
        }
        return known.get(name, 1.0)


def _length(batches: Iterable[Any]) -> int:
    return int(getattr(batches, "number", 0)) or len(list(batches))


# -- the measures ---------------------------------------------------------------------------------


def _snr(work: Work) -> list[Any]:
    s = work.subject
    return [snr(s.model, work.loss_fn, s.batches, level=work.depth.level)]


def _slope(work: Work) -> list[Any]:
    s, settings = work.subject, {"batchnorm": "batch", "dropout": True}
    full = gradient_of(s.model, work.loss_fn, s.everything, **settings)  # type: ignore[arg-type]
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
    args, m = (s.model, work.loss_fn, s.still, d.rho), min(map(samples_in, s.still))
    one = sharpness(*args, search="one-step", m=m, level=d.level)
    most = sharpness(*args, search="apgd", steps=d.steps, m=m, level=d.level)
    size = sum(p.numel() for p in s.model.parameters() if p.requires_grad)
    near = d.rho / math.sqrt(size)  # of each weight: together they go about rho away
    mean = average_sharpness(*args[:3], near, draws=d.draws, level=d.level)
    return [one, most, mean]


def _eigenvalues(work: Work) -> list[Any]:
    return [top_eigenpairs(work.hessian, work.depth.eigenvalues)]


def _trace(work: Work) -> list[Any]:
    return [hutch_plus_plus(work.hessian, work.depth.products)]


def _density(work: Work) -> list[Any]:
    return [spectral_density(work.hessian)]


def _landscape(work: Work) -> list[Any]:
    s, at = work.subject, np.linspace(-1, 1, work.depth.grid)
    return [slice_2d(s.model, work.loss_fn, s.still, across=at, along=at)]


MEASURES: dict[str, Callable[[Work], list[Any]]] = {
    "snr": _snr,
    "slope": _slope,
    "friendliness": _friendliness,
    "radius": _radius,
    "sharpness": _sharpness,
    "eigenvalues": _eigenvalues,
    "trace": _trace,
    "density": _density,
    "landscape": _landscape,
}


class Silent:
    """Watches a probe and says nothing; what a display has to offer."""

    def plan(self, costs: dict[str, float]) -> None:
        """What each measure will cost, about."""

    def begin(self, name: str) -> None:
        """A measure begins."""

    def tick(self, cost: float) -> None:
        """A pass has begun."""

    def end(self, name: str) -> None:
        """A measure has ended."""


def probe(
    subject: Subject, depth: Depth, wanted: Sequence[str] = (), display: Silent | None = None
) -> Findings:
    """Measures a model at its weights; nothing of it is touched, also when it is interrupted.

    Args:
        subject: what is looked at.
        depth: how thoroughly.
        wanted: names of measures; all that need no request if empty.
        display: is told how far it is.

    Returns:
        What was found; what had been found, if Ctrl-C came.
    """
    display, names = display or Silent(), chosen(wanted)
    work, findings = Work(subject, depth, names, display.tick), Findings()
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


def _measure(work: Work, name: str, findings: Findings) -> None:
    started, before = time.perf_counter(), work.passes
    work.price = PRODUCT if name in OF_CURVATURE else GRADIENT
    try:
        findings.results[name] = MEASURES[name](work)
    except (ValueError, RuntimeError) as trouble:  # the others can still be measured
        findings.notes.append(f"{name} could not be measured: {trouble}")
    findings.seconds[name] = round(time.perf_counter() - started, 3)
    findings.passes[name] = work.passes - before
