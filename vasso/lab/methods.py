"""What trains a task? A method of the catalogue with its settings, around a base optimizer.

A method is a frozen value; `build` makes the optimizer. Settings are checked by making one for a
model of three numbers: what the method itself would refuse is refused before anything starts.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import vasso
from vasso import schedules
from vasso.catalogue import Method as Entry
from vasso.lab.rates import Rate, Schedule
from vasso.lab.settings import filled, name_of, nearest
from vasso.parts import Range

Value: TypeAlias = float | int | str | bool
PLAIN = "plain"
BASES: Mapping[str, type[Optimizer]] = {"SGD": SGD, "AdamW": AdamW}
SCHEDULES: Mapping[str, Callable[..., Any]] = {
    "proportional_to_lr": schedules.proportional_to_lr,
    "linear": schedules.linear,
    "cosine": schedules.cosine,
    "warmed_up": schedules.warmed_up,
    "piecewise": schedules.piecewise,
}
NOT_SETTINGS = ("base", "model", "batchnorm", "same_rng", "clip_norm", "options")
SOURCE = {"SVRG": "data", "SARAH": "data", "Entropy-SGD": "source"}
"""Methods that need data beyond the batch, and what they call it."""
OF_LOSSES = ("samples", "classes", "criterion", "dtype")
OTHER_BATCH = {"SAM-db": 1.0, "SAM-db-m/2": 0.5}
"""Methods whose adversary comes from another batch, and how large that is."""


@dataclass(frozen=True)
class Method:
    """A method and how its base descends.

    Args:
        name: one of `vasso list methods`; SGD, AdamW or "plain" for the base alone.
        settings: of the method, sorted pairs of name and value. A text such as
            "proportional_to_lr(0.6, lr_high=3e-3)" is a schedule of `vasso.schedules`. `start`
            below 1 is a share of the run.
        base: the optimizer that descends.
        lr: its learning rate, the largest of the run.
        momentum: of SGD.
        nesterov: of SGD.
        beta1: of AdamW.
        beta2: of AdamW.
        weight_decay: of the base.
        schedule: the shape of the learning rate; see `vasso.lab.rates`.
        per: when the learning rate changes.
        warm_up: steps in which the learning rate rises from 0; fewer than the run has,
            unless `steps` ends it earlier.
        lr_end: where the learning rate of cosine and linear ends.
        clip_norm: clips the gradient that goes down to this norm; None for never.
        batchnorm: the pass that moves BatchNorm's running statistics: that at the weights (clean),
            that above (perturbed), or both.
        same_rng: whether the second pass replays dropout.
        average_from: the share of the run after which weights are averaged (SWA); None for never.

    Example:
        >>> Method.of({"name": "vasso", "rho": 0.1, "theta": 0.4}).label
        'VaSSO rho=0.1 theta=0.4'
        >>> Method.of({"name": "AdamW", "lr": 1e-3}).label
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
    schedule: Schedule = "cosine"
    per: Literal["step", "epoch"] = "step"
    warm_up: int = 0
    lr_end: float = 0.0
    clip_norm: float | None = None
    batchnorm: Literal["clean", "both", "perturbed"] = "clean"
    same_rng: bool = False
    average_from: float | None = None

    def __post_init__(self) -> None:
        if self.name != PLAIN:
            name_of("method", self.name, names())
        for name in ("lr", "weight_decay", "lr_end", "warm_up"):
            Range(least=0).check(name, getattr(self, name))
        for name in ("momentum", "beta1", "beta2"):
            Range(least=0, most=1).check(name, getattr(self, name))
        if self.average_from is not None:
            Range(least=0, most=1).check("average_from", self.average_from)
        self._check_settings()

    @staticmethod
    def of(table: Mapping[str, Any], where: str = "the method") -> Method:
        """A method from one flat table: `name`, settings of the base and of the method itself.

        Args:
            table: setting -> value; the name of a base, such as "SGD", is that base alone, and that
                of a class of the library, such as "MSAM", is the method that it is.
            where: where the table comes from, for messages.

        Returns:
            The method.
        """
        table = dict(table)
        given = str(table.pop("name", PLAIN))
        for base in BASES:
            if given.casefold() == base.casefold():
                given, table["base"] = PLAIN, base
        name = PLAIN if given == PLAIN else _catalogued(given)
        known = {field.name for field in fields(Method)} - {"name", "settings"}
        own = {key: value for key, value in table.items() if key not in known}
        _check_names(name, own, known)
        rest = {key: value for key, value in table.items() if key in known}
        settings = tuple(sorted(own.items()))
        return filled(Method, {"name": name, "settings": settings, **rest}, where)

    def as_table(self) -> dict[str, Any]:
        """One flat table of what is not the default; the inverse of `of`.

        Returns:
            setting -> value.
        """
        pairs = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        table = {name: value for name, value, default in pairs if value != default}
        own = dict(table.pop("settings", ()))
        return {**table, **own}

    @property
    def label(self) -> str:
        """A short name with the settings of the method."""
        if self.name == PLAIN:
            return self.base
        told = ((name, f"{v:g}" if isinstance(v, float) else v) for name, v in self.settings)
        return " ".join([self.name, *(f"{name}={value}" for name, value in told)])

    @property
    def entry(self) -> Entry | None:
        """What the catalogue says of it, None for the base alone."""
        return None if self.name == PLAIN else vasso.methods()[self.name]

    @property
    def kind(self) -> str:
        """What it is: plain, preset, stepper, loss or averager."""
        return PLAIN if self.entry is None else self.entry.kind

    @property
    def wraps(self) -> bool:
        """Whether it is an optimizer around the base."""
        return self.kind in {"preset", "stepper"}

    @property
    def other_batch(self) -> float:
        """How large another batch for the adversary is, as a share of the batch; 0 for none."""
        return OTHER_BATCH.get(self.name, 0.0)

    def rate(self, total: int, per_epoch: int) -> Rate:
        """The learning rate over a run.

        Args:
            total: steps of the run.
            per_epoch: steps of an epoch.

        Returns:
            A function of the step.
        """
        change = per_epoch if self.per == "epoch" else 1
        return Rate(self.schedule, self.lr, total, self.lr_end, self.warm_up, change)

    def build(self, model: nn.Module, total: int, seed: int = 0, source: Any = None) -> Optimizer:
        """Makes the optimizer.

        Args:
            model: whose parameters it moves.
            total: steps of the run.
            seed: of what the method draws.
            source: for methods that need data beyond the batch.

        Returns:
            The base, wrapped if the method is a wrapper.
        """
        base = self.build_base(model)
        if not self.wraps or self.entry is None:
            return base if self.clip_norm is None else self._clipped(base, model)
        takes = parameters_of(self.name)
        given = {name: _meaning(value) for name, value in self.settings}
        given |= _in_steps(given, takes, total)
        options: dict[str, Any] = {"model": model, "batchnorm": self.batchnorm}
        options["clip_norm"] = self.clip_norm
        if self.same_rng:
            options["same_rng"] = True
        if "seed" in takes and "seed" not in given:
            given["seed"] = seed
        if self.name in SOURCE:
            options[SOURCE[self.name]] = source
        built: Optimizer = self.entry.build(base, **given, **options)
        return built

    def _clipped(self, base: Optimizer, model: nn.Module) -> Optimizer:
        """SAM of radius 0 is the base, bit for bit, and clips."""
        return vasso.SAM(base, rho=0.0, model=model, clip_norm=self.clip_norm)

    def build_base(self, model: nn.Module) -> Optimizer:
        """Makes the optimizer that descends.

        Args:
            model: whose parameters it moves.

        Returns:
            SGD or AdamW.
        """
        params = list(model.named_parameters())
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
        """Makes the loss, if the method is one.

        Args:
            model: the model.
            samples: in the training set.
            classes: of the labels.
            criterion: the loss it is added to.

        Returns:
            A module, None if the method is none.
        """
        if self.kind != "loss" or self.entry is None:
            return None
        given = {name: _meaning(value) for name, value in self.settings}
        if self.name == "MESA":
            return self.entry.build(model, criterion=criterion, **given)
        return self.entry.build(samples, classes, criterion=criterion, **given)

    def _check_settings(self) -> None:
        """Makes the optimizer, and the loss, of a tiny model."""
        if self.same_rng and not self.wraps:
            raise ValueError("same_rng is for methods that take two passes, not for " + self.label)
        model = nn.Sequential(nn.Linear(1, 1), nn.LayerNorm(1))
        try:
            self.build(model, total=100, source=_NoData())
            self.build_loss(model, 2, 2, nn.functional.cross_entropy)
        except (TypeError, ValueError) as trouble:
            raise ValueError(f"{self.label}: {trouble}") from None


def names() -> list[str]:
    """All methods that can train.

    Returns:
        Names of the catalogue.
    """
    return list(vasso.methods())


def _catalogued(given: str) -> str:
    """The name in the catalogue; a class has the first of its names there."""
    classes = {
        entry.build.__name__.casefold(): name
        for name, entry in reversed(list(vasso.methods().items()))
        if isinstance(entry.build, type)
    }
    return name_of("method", classes.get(given.casefold(), given), names())


def parameters_of(name: str) -> Mapping[str, inspect.Parameter]:
    """The settings that a method takes.

    Args:
        name: of the method.

    Returns:
        name -> parameter; none for the base alone and for averagers.
    """
    if name == PLAIN or vasso.methods()[name].kind == "averager":
        return {}
    ours = {*NOT_SETTINGS, SOURCE.get(name), *OF_LOSSES}
    found = inspect.signature(vasso.methods()[name].build).parameters
    return {key: parameter for key, parameter in found.items() if key not in ours}


def _check_names(name: str, own: Mapping[str, Any], known: set[str]) -> None:
    """Every setting that is not of the base has to be one of the method."""
    takes = parameters_of(name)
    for key, value in own.items():
        if key == "theta" and key not in takes and name != PLAIN:
            raise ValueError(
                f"{name} takes no theta: its slope is not the batch gradient, which theta averages"
            )
        if key not in takes:
            told = "the plain base" if name == PLAIN else name
            raise ValueError(
                f"{told} has no setting {key!r}.{nearest(key, [*sorted(takes), *sorted(known)])}"
            )
        if not isinstance(value, (int, float, str)):
            raise ValueError(f"{key} must be a number or text, got {value!r}")


def _in_steps(given: Mapping[str, Any], takes: Any, total: int) -> dict[str, int]:
    """`total` is that of the run; `start` below 1 is a share of it, half of it if not given."""
    found = {}
    if "total" in takes and "total" not in given:
        found["total"] = max(total, 1)
    if "start" in takes:
        start = given.get("start", 0.5)
        if isinstance(start, float) and not (start < 1 or start.is_integer()):
            raise ValueError(f"start must be a step or a share of the run below 1, got {start}")
        found["start"] = round(start * total) if 0 < start < 1 else int(start)
    return found


def _meaning(value: Value) -> Any:
    """A number or text as it is; a text that calls a schedule, the schedule."""
    if not isinstance(value, str):
        return value
    if value == "frank_wolfe":
        return schedules.frank_wolfe
    name, paren, _ = value.partition("(")
    if not paren:
        return value
    return _schedule(value, name_of("schedule", name.strip(), SCHEDULES))


def _schedule(text: str, name: str) -> Any:
    """The schedule that a text such as "linear(1, 0.2, 100)" names; only literals are read."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("not a call")
        positional = [ast.literal_eval(argument) for argument in call.args]
        keywords = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        return SCHEDULES[name](*positional, **keywords)
    except (SyntaxError, TypeError, ValueError) as trouble:
        raise ValueError(
            f"{text!r} is not a schedule ({trouble}): write for example linear(1.0, 0.2, 1000)"
        ) from None


class _NoData:
    """Stands for a source of data while settings are checked; it is never asked."""

    def full(self) -> Any:
        raise RuntimeError("settings are being checked: there is no data yet")

    fresh = full
