"""What is one number of a table? A cell: the runs that differ in nothing but the seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from vasso.diagnostics.estimates import Estimate
from vasso.lab.methods import PLAIN, Method
from vasso.lab.report.quantities import NUMBERS
from vasso.lab.report.reading import Trained
from vasso.lab.runs import Run
from vasso.lab.statistics import mean
from vasso.lab.tasks import Task

GREEK = {"rho": "ρ", "theta": "θ", "alpha": "α", "kappa": "κ", "eta": "η"}


@dataclass(frozen=True)
class Cell:
    """Runs of one task and one method.

    Attributes:
        run: any of them; its seed means nothing.
        wanted: the seeds that the study asks for.
        finished: those with a result, by seed.
        under_way: those begun and not finished.
    """

    run: Run
    wanted: tuple[int, ...]
    finished: tuple[Trained, ...]
    under_way: tuple[Trained, ...]

    @property
    def task(self) -> Task:
        """What is learnt."""
        return self.run.task

    @property
    def method(self) -> Method:
        """What trains it."""
        return self.run.method

    @property
    def n(self) -> int:
        """Finished runs."""
        return len(self.finished)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of finished runs."""
        return tuple(trained.run.seed for trained in self.finished)

    @property
    def missing(self) -> tuple[int, ...]:
        """Seeds that are asked for and not finished."""
        return tuple(seed for seed in self.wanted if seed not in self.seeds)

    @property
    def rho(self) -> float | None:
        """The radius, if it is a number."""
        value = dict(self.method.settings).get("rho")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def variant(self) -> str:
        """The method without its radius."""
        return variant(self.method)

    def values(self, name: str) -> dict[int, float]:
        """A number of each run.

        Args:
            name: one of `NUMBERS`.

        Returns:
            seed -> value, where it is known.
        """
        pairs = ((trained.run.seed, NUMBERS[name](trained)) for trained in self.finished)
        return {seed: value for seed, value in pairs if value is not None}

    def estimate(self, name: str) -> Estimate | None:
        """The mean over seeds.

        Args:
            name: one of `NUMBERS`.

        Returns:
            With its interval; None if no run has it.
        """
        values = list(self.values(name).values())
        return mean(values) if values else None


def variant(method: Method) -> str:
    """A method without its radius, as one reads it.

    Args:
        method: the method.

    Returns:
        Its name and the settings that are its own.

    Example:
        >>> variant(Method.of({"name": "VaSSO", "rho": 0.1, "theta": 0.4}))
        'VaSSO θ=0.4'
        >>> variant(Method.of({"name": "SGD"}))
        'SGD'
    """
    if method.name == PLAIN:
        return method.base
    own = ((GREEK.get(name, name), value) for name, value in method.settings if name != "rho")
    told = (
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in own
    )
    return " ".join([method.name, *told])


def key_of(run: Run) -> str:
    """What all runs of a cell share.

    Args:
        run: one of them.

    Returns:
        The id of the one with seed 0.
    """
    return replace(run, seed=0).id


def cells_of(wanted: Iterable[Run], there: Iterable[Trained]) -> list[Cell]:
    """Runs by cells, in the order in which they are wanted; runs of further seeds count too.

    Args:
        wanted: what a study asks for.
        there: what a store holds.

    Returns:
        All cells that are wanted.
    """
    asked: dict[str, list[Run]] = {}
    for run in wanted:
        asked.setdefault(key_of(run), []).append(run)
    found: dict[str, list[Trained]] = {key: [] for key in asked}
    for trained in there:
        if (key := key_of(trained.run)) in found:
            found[key].append(trained)
    return [_cell(asked[key], found[key]) for key in asked]


def _cell(wanted: list[Run], there: list[Trained]) -> Cell:
    by_seed = sorted(there, key=lambda trained: trained.run.seed)
    done = tuple(trained for trained in by_seed if trained.result is not None)
    begun = tuple(trained for trained in by_seed if trained.result is None)
    return Cell(wanted[0], tuple(run.seed for run in wanted), done, begun)
