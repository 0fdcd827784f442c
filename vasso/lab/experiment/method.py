"""Method configuration: a method of the catalogue with its settings and a base optimizer.

It is a frozen value; `build` builds the optimizer. Settings are checked by building an optimizer
for a tiny model, so invalid settings are found before a run starts.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import vasso
from vasso import schedules, validation
from vasso.catalogue import Method as Entry
from vasso.lab.experiment.rates import LearningRate, ScheduleName
from vasso.lab.schema import canonical, filled, name_of, nearest
from vasso.lab.translation.language_model import LoraLinear
from vasso.parts.part import Range

Value: TypeAlias = float | int | str | bool
PLAIN = "plain"
AUTO = "auto"
"""A radius that sets itself."""
LARGEST = float(torch.finfo(torch.float32).max)
BASES: Mapping[str, type[Optimizer]] = {"SGD": SGD, "AdamW": AdamW}
SCHEDULES: Mapping[str, Callable[..., Any]] = {
    name: getattr(schedules, name)
    for name in ("proportional_to_lr", "linear", "cosine", "warmed_up", "piecewise")
}
NAMED: Mapping[str, Any] = {"frank_wolfe": schedules.frank_wolfe, "bfloat16": torch.bfloat16}
"""Values of settings that a text names."""
NO_SETTINGS = ("base", "model", "batchnorm", "same_rng", "clip_norm", "options", "pairs")
SOURCE = {"SVRG": "data", "SARAH": "data", "Entropy-SGD": "source"}
"""Methods that need data beyond the batch, and the name of that argument."""
LOSS_ARGUMENTS = ("samples", "classes", "criterion", "dtype")
OTHER_BATCH = {"SAM-db": 1.0, "SAM-db-m/2": 0.5}
"""Methods whose adversary comes from another batch, and its size as a share of the batch."""
NOT_IN_THE_LAB = {"head"}
"""What a method may need and no task of the lab has."""
LORA = {"pairs", "adapters"}
"""What only a task with adapters has."""
_TRIES = ContextVar("_TRIES", default=True)
"""Whether a method is built once to check its settings."""


@dataclass(frozen=True)
class MethodConfig:
    """A method with its settings, and the base optimizer with its learning rate.

    Args:
        name: one of `vasso list methods`; SGD, AdamW or "plain" for the base alone.
        settings: settings of the method, sorted pairs of name and value. A text such as
            "proportional_to_lr(0.6, lr_high=3e-3)" is a schedule of `vasso.schedules`. A `rho` of
            "auto" or "auto(kappa=0.7)" sets itself, see `vasso.FromGap`, by training images that
            are held out (`held_out=250`), with labels as wrong as the others. `start` below 1 is a
            share of the run.
        base: the base optimizer.
        lr: the largest learning rate of the run.
        momentum: momentum of SGD.
        nesterov: whether SGD uses Nesterov momentum.
        beta1: decay rate of AdamW's first moment.
        beta2: decay rate of AdamW's second moment.
        weight_decay: weight decay of the base optimizer.
        schedule: the shape of the learning rate; see `vasso.lab.experiment.rates`.
        per: when the learning rate changes.
        warm_up: steps in which the learning rate rises from 0; fewer than the steps of the run,
            unless the task's `steps` ends it earlier.
        lr_end: the last learning rate of cosine and linear.
        clip_norm: largest norm of the gradient of the base's step; None for no clipping.
        batchnorm: the pass that updates BatchNorm's running statistics: that at the weights
            (clean), that at the perturbed weights (perturbed), or both.
        same_rng: whether the second pass replays dropout.
        average_from: the share of the run after which weights are averaged (SWA); None for never.

    Example:
        >>> MethodConfig.of({"name": "vasso", "rho": 0.1, "theta": 0.4}).label
        'VaSSO rho=0.1 theta=0.4'
        >>> MethodConfig.of({"name": "AdamW", "lr": 1e-3}).label
        'AdamW'
    """

    name: str = PLAIN
    settings: tuple[tuple[str, Value], ...] = ()
    base: Literal["SGD", "AdamW"] = "SGD"
    lr: float = 0.05
    momentum: float = 0.9
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    schedule: ScheduleName = "cosine"
    per: Literal["step", "epoch"] = "step"
    warm_up: int = 0
    lr_end: float = 0.0
    clip_norm: float | None = None
    batchnorm: Literal["clean", "both", "perturbed"] = "clean"
    same_rng: bool = False
    average_from: float | None = None

    def __post_init__(self) -> None:
        if self.name != PLAIN:
            name_of("method", self.name, list(vasso.methods()))
            if self.name not in trainable("AdamW", lora=True):
                raise ValueError(
                    f"{self.name} needs {', '.join(vasso.methods()[self.name].needs)}, which no "
                    "task of the lab has: docs/how-to/language-models.md shows it in Python"
                )
        for name in ("lr", "weight_decay", "lr_end", "warm_up"):
            Range(least=0).check(name, getattr(self, name))
        for name, value in (*vars(self).items(), *self.settings):
            _check_size(name, value)
        for name in ("momentum", "beta1", "beta2"):
            Range(least=0, most=1).check(name, getattr(self, name))
        if self.average_from is not None:
            Range(least=0, most=1).check("average_from", self.average_from)
        if _TRIES.get():
            self._check_settings()

    @staticmethod
    def of(table: Mapping[str, Any], where: str = "the method") -> MethodConfig:
        """A method from one flat table: `name`, settings of the base and of the method itself.

        The name of a base, such as "SGD", is that base alone. The name of a class of the library,
        such as "MSAM", is its method. Messages name `where` the table comes from.
        """
        table = dict(table)
        given = str(table.pop("name", PLAIN))
        for base in BASES:
            if given.casefold() == base.casefold():
                given, table["base"] = PLAIN, base
        name = PLAIN if given == PLAIN else _name_in_catalogue(given)
        known = {field.name for field in fields(MethodConfig)} - {"name", "settings"}
        settings = {key: value for key, value in table.items() if key not in known}
        _check_settings_of(name, settings, known)
        rest = {key: value for key, value in table.items() if key in known}
        pairs = tuple(sorted(settings.items()))
        return filled(MethodConfig, {"name": name, "settings": pairs, **rest}, where)

    def as_table(self) -> dict[str, Any]:
        """One flat table of the settings that are not the default; the inverse of `of`."""
        pairs = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        table = {name: value for name, value, default in pairs if value != default}
        settings = dict(table.pop("settings", ()))
        return {**table, **settings}

    @cached_property
    def canonical(self) -> str:
        """These settings as text, for the id of a run."""
        return canonical(self.as_table())

    @property
    def label(self) -> str:
        """A short name with the settings of the method."""
        if self.name == PLAIN:
            return self.base
        shown = ((name, f"{v:g}" if isinstance(v, float) else v) for name, v in self.settings)
        return " ".join([self.name, *(f"{name}={value}" for name, value in shown)])

    @property
    def entry(self) -> Entry | None:
        """The entry of the catalogue, None for the base alone."""
        return None if self.name == PLAIN else vasso.methods()[self.name]

    @property
    def kind(self) -> str:
        """The kind of method: plain, preset, stepper, loss or averager."""
        return PLAIN if self.entry is None else self.entry.kind

    @property
    def is_wrapper(self) -> bool:
        """Whether the method is an optimizer around the base."""
        return self.kind in {"preset", "stepper"}

    @property
    def needs_outputs(self) -> bool:
        """Whether a step takes `vasso.Outputs`."""
        return self.entry is not None and "outputs" in self.entry.needs

    @property
    def needs_lora(self) -> bool:
        """Whether the method is for LoRA adapters alone."""
        return self.entry is not None and not LORA.isdisjoint(self.entry.needs)

    @property
    def other_batch_share(self) -> float:
        """The size of another batch for the adversary, as a share of the batch; 0 for none."""
        return OTHER_BATCH.get(self.name, 0.0)

    @property
    def held_out(self) -> int:
        """The number of training images that set rho and are not trained on."""
        rho = dict(self.settings).get("rho")
        return _auto_settings(str(rho))[0] if is_auto(rho) else 0

    def learning_rate(self, total: int, per_epoch: int) -> LearningRate:
        """The learning rate over a run of `total` steps, `per_epoch` of them in an epoch."""
        change = per_epoch if self.per == "epoch" else 1
        return LearningRate(self.schedule, self.lr, total, self.lr_end, self.warm_up, change)

    def build(
        self,
        model: nn.Module,
        total: int,
        seed: int = 0,
        source: Any = None,
        validation: Callable[[], float] | None = None,
    ) -> Optimizer:
        """The optimizer of a run of `total` steps: the base, wrapped if the method is a wrapper.

        `seed` is that of the method's random numbers, `source` the data beyond the batch,
        `validation` the loss of the images that are held out.
        """
        base = self.build_base(model)
        if not self.is_wrapper or self.entry is None:
            return base if self.clip_norm is None else self._clipped(base, model)
        parameters = parameters_of(self.name)
        settings = {name: _parse(value) for name, value in self.settings}
        if validation is not None and is_auto(rho := settings.get("rho")):
            own = _auto_settings(str(rho))[1]
            settings["rho"] = vasso.FromGap(validation, max(total, 1), **own)
        settings |= _length_settings(settings, parameters, total)
        options: dict[str, Any] = {"model": model, "batchnorm": self.batchnorm}
        options["clip_norm"] = self.clip_norm
        if self.same_rng:
            options["same_rng"] = True
        if "seed" in parameters and "seed" not in settings:
            settings["seed"] = seed
        if self.name in SOURCE:
            options[SOURCE[self.name]] = source
        built: Optimizer = self.entry.build(base, **settings, **options)
        return built

    def _clipped(self, base: Optimizer, model: nn.Module) -> Optimizer:
        """SAM of radius 0 is the base, bit for bit, and clips."""
        return vasso.SAM(base, rho=0.0, model=model, clip_norm=self.clip_norm)

    def build_base(self, model: nn.Module) -> Optimizer:
        """The base optimizer: SGD or AdamW."""
        params = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if self.base == "AdamW":
            betas = (self.beta1, self.beta2)
            return AdamW(params, lr=self.lr, betas=betas, weight_decay=self.weight_decay)
        return SGD(
            params,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )

    def build_loss(self, model: nn.Module, samples: int, classes: int, criterion: Any) -> Any:
        """The loss that the method adds to a criterion; None if the method is no loss."""
        if self.kind != "loss" or self.entry is None:
            return None
        settings = {name: _parse(value) for name, value in self.settings}
        if self.name == "MESA":
            return self.entry.build(model, criterion=criterion, **settings)
        return self.entry.build(samples, classes, criterion=criterion, **settings)

    def _check_settings(self) -> None:
        if self.same_rng and not self.is_wrapper:
            raise ValueError("same_rng is for methods that take two passes, not for " + self.label)
        linear = nn.Linear(1, 1)
        layer = LoraLinear(linear, rank=1) if self.needs_lora else linear
        model = nn.Sequential(layer, nn.LayerNorm(1))
        try:
            self.build(model, total=100, source=_NoData(), validation=float)
            self.build_loss(model, 2, 2, nn.functional.cross_entropy)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.label}: {error}") from None


@contextmanager
def not_built() -> Iterator[None]:
    """Inside, methods are not tried on a small model: for runs that were trained before.

    torch's first optimizer of a process imports its compiler, a second and 70 MB.
    """
    before = _TRIES.set(False)
    try:
        yield
    finally:
        _TRIES.reset(before)


def trainable(base: str = "SGD", *, lora: bool = False) -> list[str]:
    """The methods of the catalogue that the lab can train around a base, with adapters or not."""
    missing = NOT_IN_THE_LAB | ({"second moment"} if base == "SGD" else set())
    missing |= set() if lora else LORA
    return [name for name, e in vasso.methods().items() if missing.isdisjoint(e.needs)]


def _name_in_catalogue(given: str) -> str:
    classes = {
        entry.build.__name__.casefold(): name
        for name, entry in reversed(list(vasso.methods().items()))
        if isinstance(entry.build, type)
    }
    return name_of("method", classes.get(given.casefold(), given), list(vasso.methods()))


def parameters_of(name: str) -> Mapping[str, inspect.Parameter]:
    """The settings of a method, by name; none for the base alone and for averagers."""
    if name == PLAIN or vasso.methods()[name].kind == "averager":
        return {}
    no_settings = {*NO_SETTINGS, SOURCE.get(name), *LOSS_ARGUMENTS}
    parameters = inspect.signature(vasso.methods()[name].build).parameters
    return {key: value for key, value in parameters.items() if key not in no_settings}


def _check_settings_of(name: str, settings: Mapping[str, Any], known: set[str]) -> None:
    parameters = parameters_of(name)
    for key, value in settings.items():
        if key == "theta" and key not in parameters and name != PLAIN:
            raise ValueError(
                f"{name} takes no theta: its slope is not the batch gradient, which theta averages"
            )
        if key not in parameters:
            what = "the plain base" if name == PLAIN else name
            choices = [*sorted(parameters), *sorted(known)]
            raise ValueError(f"{what} has no setting {key!r}.{nearest(key, choices)}")
        if not isinstance(value, (int, float, str)):
            raise ValueError(f"{key} must be a number or text, got {value!r}")


def _length_settings(settings: Mapping[str, Any], parameters: Any, total: int) -> dict[str, int]:
    """`total`, and `start` in steps: below 1 it is a share of the run, 0.5 by default."""
    lengths = {}
    if "total" in parameters and "total" not in settings:
        lengths["total"] = max(total, 1)
    if "start" in parameters:
        start = settings.get("start", 0.5)
        if isinstance(start, float) and not (start < 1 or start.is_integer()):
            raise ValueError(f"start must be a step or a share of the run below 1, got {start}")
        lengths["start"] = round(start * total) if 0 < start < 1 else int(start)
    return lengths


def _check_size(name: str, value: Any) -> None:
    """Raise ValueError if float32 cannot hold a number."""
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise ValueError(f"{name} must be a number that float32 can hold, got {value}")


def _parse(value: Value) -> Any:
    """The schedule that a text calls; other texts and numbers as they are."""
    if not isinstance(value, str):
        return value
    if value in NAMED:
        return NAMED[value]
    name, paren, _ = value.partition("(")
    if not paren or is_auto(value):
        return value
    return _schedule(value, name_of("schedule", name.strip(), SCHEDULES))


def is_auto(value: object) -> bool:
    """Whether a radius sets itself: "auto" or "auto(...)"."""
    return isinstance(value, str) and value.partition("(")[0].strip() == AUTO


def _auto_settings(text: str) -> tuple[int, dict[str, Any]]:
    """How many images "auto(held_out=500, kappa=0.7)" holds out, and the settings of `FromGap`."""
    positional, keywords = _arguments(text if "(" in text else f"{text}()")
    known = [field.name for field in fields(vasso.FromGap)]
    for name in keywords.keys() - {*known[2:], "held_out"}:
        raise ValueError(f"{text!r} has no setting {name!r}.{nearest(name, known[2:])}")
    if positional:
        raise ValueError(f"{text!r}: name its settings, as in auto(kappa=0.7)")
    held_out = keywords.pop("held_out", 250)
    validation.count("held_out", held_out)
    return held_out, keywords


def _arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call such as "linear(1, 0.2, 100)"; only literals are evaluated."""
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError("not a call")
    positional = [ast.literal_eval(argument) for argument in call.args]
    keywords = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    for value in (*positional, *keywords.values()):
        _check_size("each number", value)
    return positional, keywords


def _schedule(text: str, name: str) -> Any:
    """The schedule of a text such as "linear(1, 0.2, 100)"."""
    try:
        positional, keywords = _arguments(text)
        return SCHEDULES[name](*positional, **keywords)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(
            f"{text!r} is not a schedule ({error}): write for example linear(1.0, 0.2, 1000)"
        ) from None


class _NoData:
    """Placeholder for a source of data while settings are checked; nothing is read from it."""

    def full(self) -> Any:
        raise RuntimeError("no data are available while settings are checked")

    fresh = full
