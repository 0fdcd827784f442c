"""Study: a question and the grid of runs that answers it, in a TOML file.

    question = "Does an averaged slope help more, the more labels are wrong?"
    shows = "Table 6"

    [cpu]
    seeds = 3
    task = { data = "cifar10", model = "resnet8", epochs = 24 }
    method = { lr = 0.05, weight_decay = 1e-3 }

    [[cpu.grid]]
    task = { wrong = [0.25, 0.5, 0.75] }
    methods = [{ name = "SAM", rho = 0.1 }, { name = "VaSSO", rho = 0.1, theta = [0.9, 0.4, 0.2] }]

A list stands for one run each. The settings of a grid override those of its scale. `open` says what
the paper leaves open; `known` holds published figures, each with its source.
"""

import itertools
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vasso.lab.experiment.method import MethodConfig
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.task import Task
from vasso.lab.schema import UnsupportedError, name_of, nearest
from vasso.lab.studies import measurement_settings, names, text_of

T = TypeVar("T")
SCALES = ("paper", "desk", "cpu")
"""From large to small; a study has at least one of them."""
MEASURES = ("accuracy", "loss")
"""What the result of a run holds; `measurement_settings` lists the other measurements."""
MOST_RUNS = 100_000
"""Of one grid: more is a slip, such as a digit too many, and would fill the memory."""
_TEXTS = ("title", "question", "shows", "measure")
_STUDY = {*_TEXTS, "known", *SCALES}
_SCALE = {"about", "open", "seeds", "task", "method", "grid", "measurement"}


@dataclass(frozen=True)
class Scale:
    """A study at one size; `open` is what the paper does not say, and what was chosen.

    `runs` is the grid, expanded. `measurement` has settings where more than accuracy is measured.
    """

    name: str
    about: str
    open: tuple[str, ...]
    runs: tuple[Run, ...]
    measurement: Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """A question with its grids, as in its file.

    `shows` is the table or figure of the paper, "" for a study of ours. `measure` is what is
    compared, `known` holds published figures.
    """

    name: str
    title: str
    question: str
    shows: str
    measure: str
    known: tuple[Mapping[str, Any], ...]
    scales: Mapping[str, Scale]

    def at(self, scale: str) -> Scale:
        """The scale of this name."""
        return self.scales[name_of(f"scale of {self.name}", scale, self.scales)]

    def check_supported(self, scale: str) -> None:
        """Raise UnsupportedError if this version does not have the study's measurement."""
        at = self.at(scale)
        if self.measure in measurement_settings.MEASURES:
            where = f"study {self.name}, {scale}, measurement"
            measurement_settings.parse_settings(self.measure, at.measurement, at.runs, where)
        elif self.measure not in MEASURES:
            raise UnsupportedError(
                f"the study {self.name!r} asks for a measurement that is not supported yet "
                f"({self.measure}): it can be listed, but not run."
                f"{nearest(self.measure, sorted((*MEASURES, *measurement_settings.MEASURES)))}"
            )


def load(name: str) -> Study:
    """A study of the package by its name, or a user's study by the path of its TOML file.

    All its runs are checked.
    """
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ValueError(f"there is no file {name!r}")
        try:
            text = Path(name).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} is not TOML, which is text in UTF-8: {error}") from None
        return read(text, Path(name).stem, name)
    found = _packaged_name(name)
    return read(text_of(found), found, f"study {found}")


def _packaged_name(name: str) -> str:
    try:
        return name_of("study", name, names())
    except ValueError as error:
        if Path(name).is_file() or Path(f"{name}.toml").is_file() or Path(name).name != name:
            toml = Path(name).parent / f"{Path(name).stem or 'mine'}.toml"
            raise ValueError(
                f"{error} A file of your own has to end in .toml, as {str(toml)!r} does."
            ) from None
        raise


def read(text: str, name: str, where: str) -> Study:
    """A study from the text of its TOML file, all its runs checked; messages begin with `where`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where} is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{where} is not TOML: it is nested too deeply") from None
    _check_keys(table, _STUDY, where)
    for key in _TEXTS:
        if not isinstance(table.get(key, ""), str):
            raise ValueError(f"{where}, {key} must be text, got {table[key]!r}")
    _check_tables(table.get("known", []), f"{where}, known")
    if "question" not in table:
        raise ValueError(f"{where} has no question: say in one sentence what it answers")
    scales = {s: _scale(s, table[s], f"{where}, {s}") for s in SCALES if s in table}
    if not scales:
        raise ValueError(f"{where} has no scale: add a table [cpu], [desk] or [paper] with a grid")
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
    _check_table(table, where)
    _check_keys(table, _SCALE, where)
    for part in ("task", "method", "measurement"):
        _check_table(table.get(part, {}), f"{where}, {part}")
    _check_tables(table.get("grid", [{}]), f"{where}, grid")
    if "grid" not in table and "name" not in table.get("method", {}):
        raise ValueError(
            f"{where} has no grid, which says what is trained: add [[{name}.grid]] with "
            'methods = [{ name = "SAM", rho = 0.1 }], or grid = [] to train nothing'
        )
    runs: dict[str, Run] = {}
    for number, grid in enumerate(table.get("grid", [{}])):
        _check_keys(grid, {"task", "methods", "seeds"}, f"{where}, grid {number + 1}")
        for run in _grid(table, grid, f"{where}, grid {number + 1}"):
            runs.setdefault(run.id, run)
    about, measurement = table.get("about", ""), table.get("measurement", {})
    return Scale(name, about, tuple(table.get("open", ())), tuple(runs.values()), measurement)


def _grid(scale: Mapping[str, Any], grid: Mapping[str, Any], where: str) -> Iterator[Run]:
    _check_table(grid.get("task", {}), f"{where}, task")
    _check_tables(grid.get("methods", [{}]), f"{where}, methods")
    tables = expanded({**scale.get("task", {}), **grid.get("task", {})}, where)
    tasks = [_build(Task.of, table, f"{where}, task") for table in tables]
    methods = [
        _build(MethodConfig.of, table, f"{where}, method")
        for chosen in grid.get("methods", [{}])
        for table in expanded({**scale.get("method", {}), **chosen}, where)
    ]
    seeds = seeds_of(grid.get("seeds", scale.get("seeds", 1)), where)
    if not tasks or not methods:
        raise ValueError(f"{where} has an empty list: grid = [] is a study that trains nothing")
    _check_number(len(tasks) * len(methods) * len(seeds), where)
    for task, method, seed in itertools.product(tasks, methods, seeds):
        yield Run(task, method, seed)


def _build(make: Callable[[Mapping[str, Any], str], T], table: Mapping[str, Any], where: str) -> T:
    """The object of a table; an error names its place."""
    try:
        return make(table, where)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith(where) else f"{where}: {text}") from None


def expanded(table: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """One table for each combination of the values in the lists of a table."""
    columns = [value if isinstance(value, list) else [value] for value in table.values()]
    _check_number(math.prod(map(len, columns)), where)
    return [dict(zip(table, row, strict=True)) for row in itertools.product(*columns)]


def seeds_of(given: Any, where: str) -> list[int]:
    """Seeds, given as a list or as their number: 3 stands for 0, 1, 2."""
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        _check_number(given, where)
        return list(range(given))
    if isinstance(given, list) and given and all(isinstance(seed, int) for seed in given):
        return given
    raise ValueError(f"{where}: seeds must be a number above 0 or a list of seeds, got {given!r}")


def changed(runs: Iterable[Run], overrides: Mapping[str, Any]) -> list[Run]:
    """The runs with other settings, each once; only runs that have a setting are changed.

    A setting that no run has is an error.
    """
    new = list(runs)
    for name, value in overrides.items():
        has_setting = [run.takes(name) for run in new]
        if new and not any(has_setting):
            has_setting[0] = True  # its error says why
        pairs = zip(new, has_setting, strict=True)
        new = [run.changed({name: value}) if has else run for run, has in pairs]
    return list({run.id: run for run in new}.values())


def _check_number(runs: int, where: str) -> None:
    if runs > MOST_RUNS:
        raise ValueError(f"{where} has {runs:,} runs, at most {MOST_RUNS:,} are possible")


def _check_table(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a table of settings, got {value!r}")


def _check_tables(value: Any, where: str) -> None:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise ValueError(f"{where} must be a list of tables, such as [{{...}}], got {value!r}")


def _check_keys(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{where} has no {key!r}.{nearest(key, sorted(known))}")
