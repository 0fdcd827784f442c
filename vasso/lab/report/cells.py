"""Cells: the runs that differ only in the seed, the numbers known of each run, their provenance.

A cell is one number of a table, a mean over seeds with its confidence interval.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

from vasso.diagnostics.estimates import Estimate
from vasso.lab.experiment.method import PLAIN, MethodConfig, is_auto
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.task import Task
from vasso.lab.report.read import TrainedRun, mean_of_known
from vasso.lab.statistics import mean

Quantity: TypeAlias = Callable[[TrainedRun], float | None]
GREEK = {"rho": "ρ", "theta": "θ", "alpha": "α", "kappa": "κ", "eta": "η"}


@dataclass(frozen=True)
class Cell:
    """Runs of one task and one method, by seed.

    `wanted` are the seeds that the study asks for. The seed of `run` is not used.
    """

    run: Run
    wanted: tuple[int, ...]
    finished: tuple[TrainedRun, ...]
    under_way: tuple[TrainedRun, ...]
    _values: dict[str, dict[int, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def task(self) -> Task:
        return self.run.task

    @property
    def method(self) -> MethodConfig:
        return self.run.method

    @property
    def n(self) -> int:
        return len(self.finished)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(trained.run.seed for trained in self.finished)

    @property
    def missing(self) -> tuple[int, ...]:
        """Seeds that the study asks for and that are not finished."""
        return tuple(seed for seed in self.wanted if seed not in self.seeds)

    @property
    def rho(self) -> float | None:
        value = dict(self.method.settings).get("rho")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def variant(self) -> str:
        return variant(self.method)

    def values(self, name: str) -> dict[int, float]:
        """A number of `NUMBERS` by seed, for runs that have it."""
        if name not in self._values:
            pairs = ((trained.run.seed, NUMBERS[name](trained)) for trained in self.finished)
            self._values[name] = {seed: value for seed, value in pairs if value is not None}
        return self._values[name]

    def estimate(self, name: str) -> Estimate | None:
        """The mean of a number over seeds, with its confidence interval."""
        values = list(self.values(name).values())
        return mean(values) if values else None


def without_radius(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method but rho; one that sets itself is a method of its own."""
    return {name: v for name, v in settings.items() if name != "rho" or is_auto(v)}


def variant(method: MethodConfig) -> str:
    if method.name == PLAIN:
        return method.base
    known = without_radius(dict(method.settings))
    own = ((GREEK.get(name, name), value) for name, value in known.items())
    settings = (
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in own
    )
    return " ".join([method.name, *settings])


def cells_of(wanted: Iterable[Run], there: Iterable[TrainedRun]) -> list[Cell]:
    """All cells that a study wants, in its order; runs of further seeds count too."""
    asked: dict[str, list[Run]] = {}
    for run in wanted:
        asked.setdefault(run.cell_key, []).append(run)
    found: dict[str, list[TrainedRun]] = {key: [] for key in asked}
    for trained in there:
        if (key := trained.run.cell_key) in found:
            found[key].append(trained)
    return [_cell(asked[key], found[key]) for key in asked]


def _cell(wanted: list[Run], there: list[TrainedRun]) -> Cell:
    by_seed = sorted(there, key=lambda trained: trained.run.seed)
    done = tuple(trained for trained in by_seed if trained.result is not None)
    begun = tuple(trained for trained in by_seed if trained.result is None)
    return Cell(wanted[0], tuple(run.seed for run in wanted), done, begun)


def effective_radius(trained: TrainedRun) -> float | None:
    """The mean rise of the loss of a step's own batch at the adversary, over the first epoch.

    In the first epoch all methods are in about the same place. Later rises are an outcome: a
    network that memorizes wrong labels has larger ones, whatever its radius.
    """
    return mean_of_known([epoch.get("rise") for epoch in trained.epochs[:1]])


def own_rise(trained: TrainedRun) -> float | None:
    """The mean rise of the loss of the own batch, at the recorded steps that `carried` uses."""
    return mean_of_known([own for _, own in _recorded_rises(trained)])


def carried(trained: TrainedRun) -> float | None:
    """The rise of the loss of other batches over that of the own batch.

    Only the first half of the training counts: a network that has begun to memorize wrong labels
    has steep walls around each batch, whatever the adversary.
    """
    found = _recorded_rises(trained)
    total = math.fsum(own for _, own in found)
    return math.fsum(others for others, _ in found) / total if total > 0 else None


def _recorded_rises(trained: TrainedRun) -> list[tuple[float, float]]:
    """The rise on other batches and on the own one, in epochs of the first half."""
    half = trained.epochs[: (len(trained.epochs) + 1) // 2]
    recorded = [epoch["adversary"] for epoch in half if epoch.get("adversary")]
    pairs = [(mean_of_known(one.get("others", ())), one.get("own")) for one in recorded]
    return [(others, own) for others, own in pairs if others is not None and own is not None]


def skipped_steps(trained: TrainedRun) -> float | None:
    """Steps skipped because a gradient was not finite, in %."""
    result = trained.result or {}
    skipped, steps = result.get("skipped", 0), result.get("steps", 0)
    return 100 * skipped / steps if steps else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _of_epoch(which: str, name: str) -> Quantity:
    return lambda trained: _number(((trained.result or {}).get(which) or {}).get(name))


def _log_of(name: str) -> Quantity:
    """The loss of sentences, of which a report keeps the perplexity."""

    def number(trained: TrainedRun) -> float | None:
        perplexity = _of_epoch("last", name)(trained)
        return math.log(perplexity) if perplexity else None

    return number


def _of_result(name: str) -> Quantity:
    return lambda trained: float((trained.result or {})[name])


def rows_of(trained: TrainedRun, name: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of a measurement; empty if it was not made."""
    return trained.measured[name].rows if name in trained.measured else ()


def _of_first_row(measurement: str, name: str) -> Quantity:
    def number(trained: TrainedRun) -> float | None:
        rows = rows_of(trained, measurement)
        return _number(rows[0].get(name)) if rows else None

    return number


def eigenvalue_ratio(trained: TrainedRun) -> float | None:
    """lambda_1 / lambda_5; None where fewer eigenvalues were measured."""
    first, fifth = (_of_first_row("spectrum", name)(trained) for name in ("lambda1", "lambda5"))
    return first / fifth if first is not None and fifth else None


def _snr_over_epochs(of: Callable[[list[float]], float]) -> Quantity:
    def number(trained: TrainedRun) -> float | None:
        values = [row["snr"] for row in rows_of(trained, "noise") if row.get("snr") is not None]
        return of(values) if values else None

    return number


ALWAYS: Mapping[str, Quantity] = {
    "last": _of_epoch("last", "test_accuracy"),
    "best": _of_epoch("best", "test_accuracy"),
    "validation": _of_epoch("last", "validation_accuracy"),
    "training": _of_epoch("last", "training_accuracy"),
    "wrong": _of_epoch("last", "wrong_accuracy"),
    "cost": _of_result("cost"),
    "seconds": _of_result("seconds"),
    "skipped": skipped_steps,
    "rise": effective_radius,
    "own": own_rise,
    "carried": carried,
}
"""Known of every finished run: accuracies in %, gradient evaluations, seconds, rises."""
NUMBERS: Mapping[str, Quantity] = {
    **ALWAYS,
    "bleu": _of_first_row("bleu", "bleu"),
    "detokenised": _of_first_row("bleu", "detokenised"),
    "endless": _of_first_row("bleu", "endless"),
    "perplexity": _of_epoch("last", "validation_perplexity"),
    "test_loss": _log_of("test_perplexity"),
    "validation_loss": _log_of("validation_perplexity"),
    "test_perplexity": _of_epoch("last", "test_perplexity"),
    "lambda1": _of_first_row("spectrum", "lambda1"),
    "ratio": eigenvalue_ratio,
    "training_loss": _of_epoch("last", "training_loss"),
    "snr_median": _snr_over_epochs(median),
    "snr_lowest": _snr_over_epochs(min),
    "snr_highest": _snr_over_epochs(max),
}
"""The same, and numbers of measurements."""


@dataclass(frozen=True)
class Provenance:
    """Where the numbers of some runs come from.

    `facts` counts the runs by value; `seconds` and `cost` (gradient evaluations) are sums.
    """

    facts: dict[str, list[tuple[str, int]]]
    seconds: float
    cost: float
    seeds: tuple[int, ...]
    first: str
    last: str


NOT_NOTED = "not noted"
"""Some runs of records/ were made before this was noted."""
FACTS: dict[str, Callable[[Any], object]] = {
    "commit": lambda c: c.get("commit") or "not under version control",
    "vasso": lambda c: c.get("vasso"),
    "Python": lambda c: c.get("python"),
    "torch": lambda c: c.get("packages", {}).get("torch"),
    "numpy": lambda c: c.get("packages", {}).get("numpy"),
    # some runs of records/ had Fabric from the package `lightning`
    "Fabric": lambda c: (p := c.get("packages", {})).get("lightning-fabric", p.get("lightning")),
    "processor": lambda c: c.get("processor"),
    "instructions": lambda c: c.get("instructions", NOT_NOTED),
    "threads of a run": lambda c: c.get("threads", NOT_NOTED),
    "machine": lambda c: f"{c.get('system')} {c.get('machine')}, {c.get('cores')} cores",
    "devices": lambda c: ", ".join(c.get("devices", ())) or "no GPU",
}


def provenance_of(finished: Iterable[TrainedRun]) -> Provenance | None:
    """The provenance of finished runs; None if there are none."""
    runs = list(finished)
    if not runs:
        return None
    counts = {name: Counter(str(f(t.certificate)) for t in runs) for name, f in FACTS.items()}
    results = [dict(t.result or {}) for t in runs]
    return Provenance(
        {name: count.most_common() for name, count in counts.items()},
        math.fsum(r["seconds"] for r in results),
        math.fsum(r["cost"] for r in results),
        tuple(sorted({t.run.seed for t in runs})),
        min(t.begun for t in runs),
        max(str(r.get("ended", "")) for r in results),
    )
