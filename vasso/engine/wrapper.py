"""The wrapper: what torch.optim demands of an optimizer around another one, and its status.

* `param_groups` and `defaults` are the base's own objects, so that schedulers drive both.
* Nothing is written into the base's state: AdamW would skip its own initialisation.
* `state` is a view that merges the base's entries with the vectors we remember, so that one
  `state_dict` is complete. Counters and the method's name are flat values in every group, because
  torch's distributed-checkpoint getters keep nothing else.
* Those getters initialise an empty optimizer by a step on zero gradients at lr 0. We recognise that
  probe, note the form of the base's state, and undo the rest.
* After the constructor nothing is rebound on `self`: a wrapper of a host may hold a copy of our
  attributes. What changes, changes inside the objects held here.
"""

from __future__ import annotations

import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, ClassVar, Literal, NoReturn, Self, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from vasso import validation
from vasso.engine.accumulation import Accumulation
from vasso.engine.amp import LossScaling
from vasso.engine.batchnorm import BatchNormStatistics, Mode
from vasso.engine.checkpoint import (
    Form,
    StateView,
    check_base,
    check_layout,
    check_origin,
    form_of,
    is_plain,
    on_devices,
    split,
    strip_state,
)
from vasso.engine.current_step import CurrentStep
from vasso.engine.distributed import Distributed, Sync
from vasso.engine.groups import COST, SKIPPED, STEP, Declared, Group, Groups
from vasso.engine.notices import Notices, warn
from vasso.engine.passes import NonFiniteError, Passes, clip
from vasso.engine.perturbation import Perturbation, Restore
from vasso.engine.radius import RadiusControl
from vasso.numerics.vectors import Gradient, Vector, copy_
from vasso.parts.context import Norms, StepContext
from vasso.parts.memory import KeptVectors, PartState
from vasso.parts.part import Part, Setting
from vasso.parts.radii import Given, Radius
from vasso.records import StepRecord, StepSummary

_wrappers: weakref.WeakKeyDictionary[Optimizer, weakref.ref[OptimizerWrapper]] = (
    weakref.WeakKeyDictionary()
)


class CommonOptions(TypedDict, total=False):
    """Options of every method besides its settings; see `SharpnessAware`."""

    model: nn.Module | None
    batchnorm: Mode
    nonfinite: Literal["skip", "raise", "ignore"]
    clip_norm: float | None


class _FromSamPy:
    """`first_step` and `second_step` of other implementations: an error that names the remedy."""

    def __get__(self, opt: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__} has neither first_step() nor second_step(): call step(closure), or "
            "take the second gradient inside `with opt.ascended():`, then step(). See "
            "docs/how-to/coming-from-sam-py.md"
        )


class OptimizerWrapper(Optimizer):
    """An optimizer around another one: status, observers, groups, state and checkpoints.

    It has no `step`: a method brings its own, made of the objects held here.

    Attributes:
        base: the wrapped optimizer.
        parts: what the method is made of.
        model: the model, if it was given.
        statistics: the running statistics of the model's BatchNorm layers.
    """

    first_step = second_step = _FromSamPy()
    _options: ClassVar[type] = CommonOptions

    def __new__(cls, *given: Any, **settings: Any) -> Self:
        """Checks the base first: `SAM(model.parameters(), SGD, lr=0.1)` fails by its cause."""
        if given and "base" in inspect.signature(cls.__init__).parameters:
            validation.base(given[0], cls.__name__)
        if cls.__module__.startswith("vasso."):
            validation.arguments(cls, given, settings, cls._options.__annotations__)
        return super().__new__(cls)

    def __init__(
        self,
        base: Optimizer,
        rho: Setting | None,
        parts: tuple[Part, ...],
        *,
        model: nn.Module | None = None,
        batchnorm: Mode = "clean",
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
        clip_norm: float | None = None,
        restore: Restore = "copy",
        sync: Sync = "global",
    ) -> None:
        validation.one_of("batchnorm", batchnorm, "clean", "both", "perturbed")
        validation.one_of("nonfinite", nonfinite, "skip", "raise", "ignore")
        validation.positive_or_none("clip_norm", clip_norm)
        validation.base(base)
        validation.model(model, base)
        for group in base.param_groups:
            validation.writable(group["params"])
        for part in parts:
            part.check_base(base)
        other = base if isinstance(base, OptimizerWrapper) else _wrappers.get(base, lambda: None)()
        if other is not None:
            raise ValueError(
                f"base is wrapped by a {type(other).__name__} already: call its unwrap() first"
            )
        statistics, distributed = BatchNormStatistics(model, batchnorm), Distributed(model, sync)
        groups, current = Groups(base, rho, parts, model), CurrentStep()
        groups.strip()
        strip_state(base)
        for group in base.param_groups:
            groups.check(group)
        norms, scaling = Norms(checks=nonfinite != "ignore"), LossScaling()
        perturbation = Perturbation(restore, distributed.clear_weight_caches)
        self.base, self.parts, self.model, self.statistics = base, parts, model, statistics
        self.nonfinite, self.clip_norm, self.restore, self.sync = (
            nonfinite,
            clip_norm,
            restore,
            sync,
        )
        self._groups, self._current, self._norms = groups, current, norms
        self._distributed, self._perturbation, self._scaling = distributed, perturbation, scaling
        like_gradients = frozenset(name for part in parts for name in part.like_gradients)
        self._accumulation = Accumulation(groups, like_gradients)
        self._passes = Passes(groups, current, norms, perturbation, statistics, scaling)
        rule = next((part for part in parts if isinstance(part, Radius)), Given())
        self._radius = RadiusControl(rule, groups, current, distributed, statistics, model)
        self._notices = Notices(type(self).__name__, groups, model)
        self._vectors: KeptVectors = {}
        self._form: Form = {}
        self._observers: OrderedDict[int, Callable[[StepRecord], None]] = OrderedDict()
        self.__setstate__({})
        groups.adopt()

    # -- status -----------------------------------------------------------------------------------

    @property
    def cost(self) -> float:
        """Gradient evaluations so far: forwards with backward, in units of one batch."""
        return float(self.param_groups[0][COST])

    @property
    def skipped(self) -> int:
        """Steps skipped so far because a gradient was not finite."""
        return int(self.param_groups[0][SKIPPED])

    @property
    def perturbed(self) -> bool:
        """Whether the weights are at w + epsilon now: a closure should not log there."""
        return self._perturbation.is_perturbed

    @property
    def last(self) -> StepSummary:
        """Summary of the last step: losses, norms, whether it perturbed the weights."""
        return self._current.summary

    def metrics(self) -> dict[str, float]:
        """Settings, losses, norms and counters of the last step, for a logger.

        If a rule sets rho, "rho" is the radius of the step, and what it follows from is beside it.
        "rise" is the perturbed loss less the loss at w, "cosine" that of the slope and the batch
        gradient. A setting that differs between groups has an entry for each, such as "rho/0". What
        the step did not compute is left out: in `ascended()` only the loop knows the losses, which
        `note_losses` takes. The numbers are read from the device, which waits for it.

        Example:
            >>> import torch
            >>> from vasso import SAM
            >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
            >>> opt = SAM(torch.optim.SGD([w], lr=0.1), rho=0.5)
            >>> w.square().sum().backward()
            >>> with opt.ascended():
            ...     w.square().sum().backward()
            >>> opt.step()
            >>> {name: opt.metrics()[name] for name in ("rho", "g_norm", "cost")}
            {'rho': 0.5, 'g_norm': 10.0, 'cost': 2.0}
        """
        found: dict[str, float] = {}
        radius = dict(self.last.radius)
        for s in self.settings:
            scale = radius.pop("rho", 1.0) if s.name == "rho" else 1.0
            values = [scale * float(group[s.key]) for group in self.param_groups]
            same = len(set(values)) == 1
            found |= {s.name if same else f"{s.name}/{i}": value for i, value in enumerate(values)}
        names = ("loss", "perturbed_loss", "g_norm", "d_norm", "cosine", "h_norm")
        read = {name: getattr(self.last, name) for name in names}
        found |= {name: float(value) for name, value in read.items() if value is not None}
        if self.last.loss_at == "w" and "perturbed_loss" in found:
            found["rise"] = found["perturbed_loss"] - found["loss"]
        climbed, skipped = float(self.last.climbed), float(self.skipped)
        return found | radius | {"climbed": climbed, "skipped": skipped, "cost": self.cost}

    def note_losses(self, at_w: Tensor, perturbed: Tensor) -> None:
        """Notes the losses of a step made in `ascended()`, for `last` and `metrics()`.

        A rule for the radius (`FromGap`) needs them, once for each step.

        Args:
            at_w: the loss at w.
            perturbed: the loss of the same data at w + epsilon.

        Example:
            >>> import torch
            >>> from vasso import SAM
            >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
            >>> opt = SAM(torch.optim.SGD([w], lr=0.1), rho=0.5)
            >>> (loss := w.square().sum()).backward()
            >>> with opt.ascended():
            ...     (above := w.square().sum()).backward()
            >>> opt.note_losses(loss, above)
            >>> opt.metrics()["rise"]
            5.25
        """
        if self._radius.rule.observes:  # it may take a loss of its own
            self._require_restored("note_losses()")
        self._current.note(loss=at_w.detach(), loss_at="w", perturbed_loss=perturbed.detach())
        self._radius.observe()

    @property
    def settings(self) -> tuple[Declared, ...]:
        """The settings that live in the param groups."""
        return self._groups.settings

    @property
    def method(self) -> str:
        """The parts, without the settings that may change."""
        return self._groups.method

    def observe(self, observer: Callable[[StepRecord], None]) -> RemovableHandle:
        """Calls a function with the vectors of each step, before the base steps.

        The observer has to clone what it keeps of the record. `remove()` of the handle ends it.
        Without observers no record is made.

        Example:
            >>> import torch
            >>> from vasso import SAM
            >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
            >>> opt = SAM(torch.optim.SGD([w], lr=0.1), rho=0.5)
            >>> handle = opt.observe(lambda record: print(record.epsilon))
            >>> w.square().sum().backward()
            >>> with opt.ascended():
            ...     w.square().sum().backward()
            [tensor([0.3000, 0.4000])]
            >>> handle.remove()
        """
        handle = RemovableHandle(self._observers)
        self._observers[handle.id] = observer
        return handle

    def __getattr__(self, name: str) -> Any:
        """Methods that only the base has, such as `train()` and `eval()` of schedule-free ones."""
        base = self.__dict__.get("base")
        inherited = name.startswith("_") or name in vars(OptimizerWrapper)
        if not inherited and callable(getattr(type(base), name, None)):
            return getattr(base, name)
        if inherited:
            getattr(type(self), name)  # raises for `first_step`
        remedy = f": its base has one, opt.base.{name}" if hasattr(base, name) else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{remedy}")

    def __repr__(self) -> str:
        group = self.param_groups[0]
        values = ", ".join(f"{s.name}={group[s.key]:g}" for s in self.settings)
        return f"{type(self).__name__}({values}; {self.method})\n{self.base!r}"

    def _require_restored(self, what: str) -> None:
        if self._groups.released:
            raise RuntimeError(
                f"{what}: this {type(self).__name__} has given its base back (unwrap)"
            )
        if self._current.in_ascended or self.perturbed:
            raise RuntimeError(
                f"{what} was called while the weights are perturbed (inside `with "
                "opt.ascended():` or during the second closure call). Leave the block first."
            )

    # -- groups -----------------------------------------------------------------------------------

    @property
    def param_groups(self) -> list[Group]:
        """The base's own groups, with our settings in them."""
        return self._groups.adopt()

    @param_groups.setter
    def param_groups(self, groups: list[Group]) -> None:
        self.base.param_groups = groups

    @property
    def defaults(self) -> dict[str, Any]:
        """The base's own defaults."""
        return self.base.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.base.defaults = defaults

    def add_param_group(self, param_group: Group) -> None:
        """Adds a group to the base; settings that it does not name are the constructor's."""
        self._groups.check(param_group)
        self.base.add_param_group(param_group)
        self._groups.adopt()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients as the base does; also ends a step that was to be skipped."""
        self.base.zero_grad(set_to_none)
        if self._current.pending == "skip" and not self._current.in_ascended:
            self._current.pending = None

    # -- how a step ends --------------------------------------------------------------------------

    def _skip(self, error: NonFiniteError) -> None:
        """Skips the step, or raises if the user wants that."""
        self.statistics.recover()
        if self.nonfinite == "raise":
            # at w + epsilon the slope has been updated with the gradient at w already
            kept = "weights and base" if error.perturbed else "weights, slope and base"
            raise FloatingPointError(
                f"{error}: {kept} are as before. Lower lr or rho, clip, or let "
                'nonfinite="skip" pass over such steps.'
            ) from None
        if not self._accumulation.failed:
            self._groups.count(SKIPPED)
        self._current.pending = "skip"
        self._current.note(skipped=True)

    def _step_base(self) -> None:
        """x_{t+1} = x_t - lr u, as the base does it; nothing if the step is skipped."""
        pending, self._current.pending = self._current.pending, None
        self._passes.partial = False
        if pending == "skip":
            return
        clip(self._clipped(), self.clip_norm, self._norms.of_descent)
        self.base.step()
        for part in () if self._current.plain else self.parts:
            if part.moves_past_base:
                part.after_base(self._part_state(), self.base)
        self._groups.count(STEP)

    def _clipped(self) -> Vector:
        """The parameters whose gradients `clip_norm` limits."""
        return self._groups.params()

    def _begin_plain_step(self) -> None:
        """A step of the base by the gradients there are: the caller's own pass is counted."""
        self._current.summary = StepSummary(loss_at="not seen, in your loop")
        self._current.plain = True
        self._norms.descent_in_range = True
        self._groups.count(COST)

    def _publish(
        self,
        context: StepContext,
        g: Vector | None,
        d: Vector | None,
        epsilon: Vector | None,
        h: Gradient | None,
    ) -> None:
        self._current.note_losses(self._current.losses)
        if self._observers:
            summary = self._current.summary
            record = StepRecord(context.step, context.w, g or [], d or [], epsilon, h, summary)
            for observer in list(self._observers.values()):
                observer(record)

    def _part_state(self) -> PartState:
        return PartState(self._vectors, self._groups.numbers())

    # -- state ------------------------------------------------------------------------------------

    @property  # type: ignore[override]
    def state(self) -> StateView:
        """The base's state and what we remember, merged by parameter; entries are copies."""
        return StateView(self.base, self._vectors, self._form, self._groups.dtypes_of_vectors)

    @state.setter
    def state(self, state: Mapping[Tensor, Any]) -> None:
        entries = dict(state.items())  # it may be our own view
        self.base.state.clear()
        self._vectors.clear()
        self.state.update(entries)

    def _is_probe(self) -> bool:
        """Whether this is the getters' step on zero gradients, to initialise an empty state."""
        return (
            not self.state
            and all(float(group.get("lr") or 0.0) == 0 for group in self.base.param_groups)
            and not any(p.grad.any() for p in self._groups.params() if p.grad is not None)
        )

    def _learn_form(self) -> None:
        """Notes the form of a state that the base makes, and undoes everything else.

        A base that keeps more than a state is left alone: what a step does to it is not known.
        """
        params, state = self._groups.params(), dict(self.base.state)
        if not is_plain(self.base):
            self._form.update({p: {} for p in params if p.requires_grad})
            return
        weights = [p.detach().clone() for p in params]
        groups = [dict(group) for group in self.base.param_groups]
        self.base.state.clear()
        try:
            with torch.random.fork_rng(devices=[]):
                inspect.unwrap(type(self.base).step)(self.base)
            for p in params:
                if p.requires_grad:
                    self._form[p] = form_of(self.base.state.get(p, {}))
        finally:
            self.base.state.clear()
            self.base.state.update(state)
            copy_(params, weights)
            for group, before in zip(self.base.param_groups, groups, strict=True):
                group.clear()
                group.update(before)

    def _learn_missing_forms(self) -> None:
        """Gives every entry of a checkpoint the base's keys too: a plain base has to read it."""
        missing = [p for p in self.state if not self.base.state.get(p) and p not in self._form]
        if not missing:
            return
        gradients = [(p, p.grad) for p in self._groups.params()]
        try:
            for p, _ in gradients:
                p.grad = torch.zeros_like(p) if p.requires_grad else None
            self._learn_form()
        finally:
            for p, gradient in gradients:
                p.grad = gradient

    # -- checkpoints ------------------------------------------------------------------------------

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """What the base saves, with what the parts remember and the counters in it."""
        self._require_restored("state_dict()")
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        self._learn_missing_forms()
        groups = self.param_groups
        saved = self.state.packed(self.base.state_dict(), groups)
        for group in saved["param_groups"]:  # a user may have put a number of numpy there
            group.update({s.key: float(group[s.key]) for s in self.settings})
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, saved)
            saved = saved if changed is None else changed
        return saved

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a checkpoint of this method or of the plain base; the model's, if any, before."""
        self._require_restored("load_state_dict()")
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        check_layout(state_dict, self.base)
        state_dict = {"state": {}, "param_groups": [], **state_dict}
        groups = self.param_groups
        check_origin(state_dict["param_groups"], self.method)
        check_base(state_dict["param_groups"], self.base)
        for group in state_dict["param_groups"]:
            self._groups.values(group, {})
        theirs, ours = self._split(state_dict)
        self.base.load_state_dict(theirs)
        self._current.pending = None
        self._vectors.clear()
        self._vectors.update(on_devices(ours))
        self._merge_settings(groups)
        self.statistics.remember()  # restored if the next pass at w is not finite
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _split(self, state_dict: dict[str, Any]) -> tuple[dict[str, Any], KeptVectors]:
        """The base's share of a checkpoint and our vectors, before anything is changed."""
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        params = dict(zip(saved, self._groups.params(), strict=False))
        theirs, ours = {}, {}
        for key, entry in state_dict["state"].items():
            their_entry, vectors = split(entry) if key in params else (entry, {})
            if key not in params or their_entry:
                theirs[key] = their_entry
            for name, vector in vectors.items():
                if vector.shape != params[key].shape:
                    raise ValueError(
                        f"the checkpoint's {name!r} has shape {tuple(vector.shape)}, its parameter "
                        f"{tuple(params[key].shape)}: the checkpoint belongs to another model"
                    )
            ours[params.get(key, key)] = vectors
        return {**state_dict, "state": theirs}, {p: v for p, v in ours.items() if v}

    def _merge_settings(self, before: list[Group]) -> None:
        """After a load: the checkpoint's settings win, what it does not have stays as it was."""
        differs = {}
        keys = [*self._groups.stamp(), *(s.key for s in self.settings)]
        for old, new in zip(before, self.base.param_groups, strict=True):
            schedules = self._groups.schedules_of(new)
            for key in keys:
                new.setdefault(key, old[key])
            for s in self.settings:
                s.range.check(s.name, new[s.key])
                if new[s.key] != old[s.key] and s.name not in schedules:
                    differs[f"{s.name}={new[s.key]:g} (was {old[s.key]:g})"] = True
        if differs:
            warn(
                f"the checkpoint's settings win: {', '.join(differs)}. Set them in "
                "opt.param_groups after loading to have others."
            )

    def unwrap(self) -> Optimizer:
        """Returns the base without our keys, to be used alone or wrapped again.

        Example:
            >>> from vasso import SAM
            >>> base = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
            >>> SAM(base).unwrap() is base and "rho" not in base.param_groups[0]
            True
        """
        self._require_restored("unwrap()")
        self._groups.strip()
        strip_state(self.base)
        _wrappers.pop(self.base, None)
        self._vectors.clear()
        self._perturbation.weight_buffers.clear()
        self._groups.released = True
        return self.base

    # -- copies -----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """All but hooks, observers, and a `step` that a scheduler has patched."""
        self._require_restored("a copy")
        state = {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("step", "_opt_called") and not name.startswith("_optimizer_")
        }
        return {**state, "_observers": OrderedDict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        had = "differentiable" in self.base.defaults
        super().__setstate__({})
        if not had:  # torch adds it to our defaults, which are the base's
            self.base.defaults.pop("differentiable", None)
        _wrappers[self.base] = weakref.ref(self)
