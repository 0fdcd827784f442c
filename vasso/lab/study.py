"""What is a study? A question, and the grid of runs that answers it: a TOML file.

    question = "Does an averaged slope help more, the more labels are wrong?"
    shows = "Table 6"

    [cpu]
    seeds = 3
    task = { data = "cifar10", model = "resnet8", epochs = 24 }
    method = { lr = 0.05, weight_decay = 1e-3 }

    [[cpu.grid]]
    task = { wrong = [0.25, 0.5, 0.75] }
    methods = [{ name = "SAM", rho = 0.1 }, { name = "VaSSO", rho = 0.1, theta = [0.9, 0.4, 0.2] }]

A list stands for one run each. A grid's settings are laid over those of the scale. What the paper
leaves open is said in `open`; published figures stand beside in `known`, each with its source.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from vasso.lab import measures
from vasso.lab.methods import Method
from vasso.lab.runs import Run
from vasso.lab.settings import name_of, nearest
from vasso.lab.tasks import NotThereYetError, Task

T = TypeVar("T")
SCALES = ("paper", "cpu")
MEASURES = ("accuracy",)
"""What the result of a run tells by itself; the rest is in `vasso.lab.measures`."""
_STUDY = {"title", "question", "shows", "measure", "known", *SCALES}
_SCALE = {"about", "open", "seeds", "task", "method", "grid", "measurement"}


@dataclass(frozen=True)
class Scale:
    """A study at one size.

    Attributes:
        name: "paper" or "cpu".
        about: what is special about it.
        open: what the paper does not say, and what was chosen.
        runs: the grid, expanded.
        measurement: settings of what is measured, where that is more than accuracy.
    """

    name: str
    about: str
    open: tuple[str, ...]
    runs: tuple[Run, ...]
    measurement: Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """A question with its grids.

    Attributes:
        name: as asked for.
        title: in a few words.
        question: in one sentence.
        shows: the table or figure of the paper; "" for one of ours.
        measure: what is compared.
        known: published figures, as the file holds them.
        scales: by name.
    """

    name: str
    title: str
    question: str
    shows: str
    measure: str
    known: tuple[Mapping[str, Any], ...]
    scales: Mapping[str, Scale]

    def at(self, scale: str) -> Scale:
        """The study at a scale.

        Args:
            scale: its name.

        Returns:
            The scale.
        """
        return self.scales[name_of(f"scale of {self.name}", scale, self.scales)]

    def check_is_there(self, scale: str) -> None:
        """Raises if this study can be read but not be answered by this version.

        Args:
            scale: the one to be run.

        Raises:
            NotThereYetError: its measurement is not there.
        """
        at = self.at(scale)
        if self.measure in measures.MEASURES:
            where = f"study {self.name}, {scale}, measurement"
            measures.settings_of(self.measure, at.measurement, at.runs, where)
        elif self.measure not in MEASURES:
            raise NotThereYetError(
                f"the study {self.name!r} asks for a measurement that is not there yet "
                f"({self.measure}): it can be listed, not run."
                f"{nearest(self.measure, sorted((*MEASURES, *measures.MEASURES)))}"
            )


def names() -> list[str]:
    """The studies that come with the package.

    Returns:
        Names.
    """
    folder = resources.files("vasso.lab") / "studies"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def load(name: str) -> Study:
    """A study that comes with the package, or one of the user's own.

    Args:
        name: its name, or the path of a TOML file.

    Returns:
        The study, all its runs checked.

    Raises:
        ValueError: there is none of this name, or something in the file is wrong.
    """
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ValueError(f"there is no file {name!r}")
        return read(_text(Path(name)), Path(name).stem, name)
    found = _own_name(name)
    text = (resources.files("vasso.lab") / "studies" / f"{found}.toml").read_text()
    return read(text, found, f"study {found}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as trouble:
        raise ValueError(f"{path} is not TOML, which is text in UTF-8: {trouble}") from None


def _own_name(name: str) -> str:
    """The name of a study that comes with the package, as it is spelt there."""
    try:
        return name_of("study", name, names())
    except ValueError as trouble:
        if Path(name).is_file() or Path(f"{name}.toml").is_file() or Path(name).name != name:
            toml = Path(name).parent / f"{Path(name).stem or 'mine'}.toml"
            told = f"{trouble} A file of your own has to end in .toml, as {str(toml)!r} does."
            raise ValueError(told) from None
        raise


def read(text: str, name: str, where: str) -> Study:
    """A study from the text of its file.

    Args:
        text: TOML.
        name: what it is called.
        where: where it comes from, for messages.

    Returns:
        The study, all its runs checked.

    Raises:
        ValueError: something is wrong in it.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as trouble:
        raise ValueError(f"{where} is not TOML: {trouble}") from None
    _only(table, _STUDY, where)
    if "question" not in table:
        raise ValueError(f"{where} has no question: say in one sentence what it answers")
    scales = {s: _scale(s, table[s], f"{where}, {s}") for s in SCALES if s in table}
    if not scales:
        raise ValueError(f"{where} has no scale: add a table [cpu] or [paper] with a grid")
    return Study(
        name,
        table.get("title", name),
        table["question"],
        table.get("shows", ""),
        table.get("measure", "accuracy"),
        tuple(table.get("known", ())),
        scales,
    )


def _scale(name: str, table: Any, where: str) -> Scale:
    _is_table(table, where)
    _only(table, _SCALE, where)
    for part in ("task", "method", "measurement"):
        _is_table(table.get(part, {}), f"{where}, {part}")
    _are_tables(table.get("grid", [{}]), f"{where}, grid")
    if "grid" not in table and "name" not in table.get("method", {}):
        raise ValueError(
            f"{where} has no grid, which says what is trained: add [[{name}.grid]] with "
            'methods = [{ name = "SAM", rho = 0.1 }], or grid = [] to train nothing'
        )
    runs: dict[str, Run] = {}
    for number, grid in enumerate(table.get("grid", [{}])):
        _only(grid, {"task", "methods", "seeds"}, f"{where}, grid {number + 1}")
        for run in _grid(table, grid, f"{where}, grid {number + 1}"):
            runs.setdefault(run.id, run)
    about, measurement = table.get("about", ""), table.get("measurement", {})
    return Scale(name, about, tuple(table.get("open", ())), tuple(runs.values()), measurement)


def _grid(scale: Mapping[str, Any], grid: Mapping[str, Any], where: str) -> Iterator[Run]:
    _is_table(grid.get("task", {}), f"{where}, task")
    _are_tables(grid.get("methods", [{}]), f"{where}, methods")
    tables = expanded({**scale.get("task", {}), **grid.get("task", {})})
    tasks = [_made(Task.of, table, f"{where}, task") for table in tables]
    methods = [
        _made(Method.of, table, f"{where}, method")
        for chosen in grid.get("methods", [{}])
        for table in expanded({**scale.get("method", {}), **chosen})
    ]
    seeds = seeds_of(grid.get("seeds", scale.get("seeds", 1)), where)
    for task, method, seed in itertools.product(tasks, methods, seeds):
        yield Run(task, method, seed)


def _made(make: Callable[[Mapping[str, Any], str], T], table: Mapping[str, Any], where: str) -> T:
    """What a table stands for; what is wrong with it is said with its place."""
    try:
        return make(table, where)
    except ValueError as trouble:
        told = str(trouble)
        raise ValueError(told if told.startswith(where) else f"{where}: {told}") from None


def expanded(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tables that a table with lists stands for.

    Args:
        table: name -> value or list of values.

    Returns:
        One table for each combination, in order.

    Example:
        >>> expanded({"rho": [0.1, 0.2], "name": "SAM"})
        [{'rho': 0.1, 'name': 'SAM'}, {'rho': 0.2, 'name': 'SAM'}]
    """
    columns = [value if isinstance(value, list) else [value] for value in table.values()]
    return [dict(zip(table, row, strict=True)) for row in itertools.product(*columns)]


def seeds_of(given: Any, where: str) -> list[int]:
    """Seeds, given as how many or as a list.

    Args:
        given: 3 stands for 0, 1, 2.
        where: for messages.

    Returns:
        The seeds.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return list(range(given))
    if isinstance(given, list) and given and all(isinstance(seed, int) for seed in given):
        return given
    raise ValueError(f"{where}: seeds must be a number above 0 or a list of seeds, got {given!r}")


def changed(runs: Iterable[Run], overrides: Mapping[str, Any]) -> list[Run]:
    """Runs with other settings; a setting that only some methods take changes only those.

    Args:
        runs: the runs.
        overrides: name -> value, as for `Run.changed`.

    Returns:
        The new runs, each once; an error if no run takes a setting.
    """
    found = list(runs)
    for name, value in overrides.items():
        takes = [run.takes(name) for run in found]
        if found and not any(takes):
            takes[0] = True  # which says why not
        pairs = zip(found, takes, strict=True)
        found = [run.changed({name: value}) if taken else run for run, taken in pairs]
    return list({run.id: run for run in found}.values())


def _is_table(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a table of settings, got {value!r}")


def _are_tables(value: Any, where: str) -> None:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise ValueError(f"{where} must be a list of tables, such as [{{...}}], got {value!r}")


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{where} has no {key!r}.{nearest(key, sorted(known))}")
