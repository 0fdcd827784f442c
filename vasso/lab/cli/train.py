"""`vasso train`: trains one run in this process; each of its settings is an option."""

import os
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Annotated, Any, get_type_hints

import docstring_parser
import tyro

from vasso.lab.cli.errors import INTERRUPTED, UsageError, say, usage_errors
from vasso.lab.cli.paths import ResultsOption
from vasso.lab.cli.study import train_all
from vasso.lab.execution.placement import Placement
from vasso.lab.experiment.method import MethodConfig
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.task import Task
from vasso.lab.schema import assignments, value_of
from vasso.lab.store.store import STORE, Store
from vasso.lab.training.options import RunOptions
from vasso.lab.training.setup import prepare_data

RENAMED = {"name": "method"}
OMITTED = ("settings",)
RHO = (
    "radius of the perturbation: a number, or a schedule of `vasso.schedules` in quotes: "
    "'linear(0.1, 0.02, 200)' goes from 0.1 to 0.02 in 200 steps; auto sets itself."
)
THETA = "weight of the newest gradient in the averaged slope; 1 is SAM's."
SET = "further settings of the method, as name=value; `vasso list methods NAME` shows them."
SEED = "seed of all random numbers of the run."


class _RunTables:
    """Turns the flags of a run into tables for `Run.of`."""

    def as_tables(self) -> dict[str, Any]:
        """The tables task, method and seed."""
        flags: dict[str, Any] = dict(vars(self))
        own = {key: value_of(flags[key]) for key in ("rho", "theta") if flags[key] is not None}
        more = assignments(flags["set"])
        self._check_once(more)
        own |= more
        task = {f.name: flags[f.name] for f in fields(Task)}
        names = [f.name for f in fields(MethodConfig) if f.name not in OMITTED]
        method = {name: flags[RENAMED.get(name, name)] for name in names}
        of_task = {key: own.pop(key) for key in list(own) if key in task}
        return {"task": task | of_task, "method": method | own, "seed": flags["seed"]}

    def _check_once(self, more: dict[str, Any]) -> None:
        """Raises if a flag and `--set` give different values to one setting."""
        defaults = {f.name: f.default for f in fields(self)}  # type: ignore[arg-type]
        for name, value in more.items():
            given = getattr(self, name) if name in defaults else None
            if name in defaults and given != defaults[name] and str(given) != str(value):
                flag = name.replace("_", "-")
                raise ValueError(
                    f"{name} is given twice, by --{flag} {given} and by --set {name}={value}: "
                    "leave one out"
                )


def _flags(source: type, defaults: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """One flag for each field of a dataclass, with the field's documentation as its help."""
    hints = get_type_hints(source)
    documented = docstring_parser.parse_from_object(source).params
    texts = {one.arg_name: " ".join((one.description or "").split()) for one in documented}
    found = []
    for f in fields(source):
        if f.name not in OMITTED:
            name, hint = RENAMED.get(f.name, f.name), hints[f.name]
            found.append(_flag(name, hint, defaults.get(name, f.default), texts[f.name]))
    return found


def _flag(name: str, kind: Any, default: Any, text: str, **options: Any) -> tuple[str, Any, Any]:
    return name, Annotated[kind, tyro.conf.arg(help=text, **options)], field(default=default)


_OWN_DEFAULT = {
    "metavar": "NUMBER|SCHEDULE",
    "help_behavior_hint": "(default: the method's own)",
}
RunFlags: Any = make_dataclass(
    "RunFlags",
    [
        *_flags(MethodConfig, {"method": "VaSSO"}),
        _flag("rho", str | None, None, RHO, **_OWN_DEFAULT),
        _flag("theta", str | None, None, THETA, **_OWN_DEFAULT),
        _flag("set", tuple[str, ...], (), SET),
        *_flags(Task, {}),
        _flag("seed", int, 0, SEED),
    ],
    bases=(_RunTables,),
    frozen=True,
)
"""A flag for every setting of `MethodConfig` and `Task`: a new setting has its flag at once."""


@dataclass(frozen=True)
class TrainCommand:
    """Trains one run, or continues it from its last checkpoint; prints its result directory.

    Try:
        vasso train
        vasso train --method VaSSO --rho 0.1 --theta 0.4 --wrong 0.5 --epochs 20
        vasso train --method SAM --rho "linear(0.1, 0.02, 200)"
        vasso train --data cifar10 --model resnet8 --size 16 --method LookSAM --set k=5 alpha=0.7
        vasso train --data my_module:my_data --model my_module:my_model --method SGD
    """

    run: tyro.conf.OmitArgPrefixes[RunFlags]
    store: ResultsOption = STORE
    execution: tyro.conf.OmitArgPrefixes[RunOptions] = field(default_factory=RunOptions)

    def __call__(self) -> int:
        from vasso.lab.training.host import check_accelerator  # imports Fabric: slow

        with usage_errors():
            run = Run.of(self.run.as_tables())
            self.execution.check()
            check_accelerator(self.execution.accelerator)
            prepare_data([run.task], self.execution.data_root)
            store = Store(self.store)
        code = self._train(run, store)
        print(store.folder(run.id).path)
        return code

    def _train(self, run: Run, store: Store) -> int:
        """Trains in this process; a run on several devices in a process for each of them."""
        from vasso.lab.cli.display import RunBars
        from vasso.lab.execution.job import LAUNCHED, StopRequest
        from vasso.lab.training.loop import SetupError, Stopped, train

        if self.execution.devices > 1 and LAUNCHED not in os.environ:
            return train_all([run], store, self.execution, 1, Placement())
        with RunBars(1) as bars, StopRequest() as stop:
            bars.started(0, run)

            def watch(step: int, total: int) -> bool:
                bars.advanced(0, step, total)
                return stop(step, total)

            try:
                result = train(run, store, self.execution, watch)
            except SetupError as error:
                raise UsageError(str(error)) from error
            except Stopped as stopped:
                say(f"vasso: {stopped}; run the same command again to continue")
                return INTERRUPTED
            bars.ended(0, run, "done", result)
        return 0
