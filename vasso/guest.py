"""What does torch.optim demand of an optimizer that wraps another? Groups, state, checkpoints.

* `param_groups` and `defaults` are the base's own objects, so that schedulers drive both.
* Nothing is written into the base's state: AdamW would skip its own initialisation.
* `state` is a view that merges the base's entries with the vectors we remember, so that one
  `state_dict` is complete. Counters and the method's name are flat values in every group, because
  torch's distributed-checkpoint getters keep nothing else.
* Those getters initialise an empty optimizer by a step on zero gradients at lr 0. We recognise that
  probe, note what the base's state looks like, and leave nothing behind.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Mapping, MutableMapping
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from vasso import checks
from vasso.checkpoints import PREFIX, Form, StateView, form_of, on_devices, split
from vasso.here import Memories
from vasso.origins import FORMAT, METHOD, VERSION, check_base, check_layout, check_origin
from vasso.parts import Part, Schedule, Setting
from vasso.settings import (
    COST,
    SKIPPED,
    STEP,
    Declared,
    Group,
    current,
    declare,
    kept_by,
    scheduled,
)
from vasso.vectors import copy_

_guests: weakref.WeakKeyDictionary[Optimizer, weakref.ref[Guest]] = weakref.WeakKeyDictionary()


class Guest(Optimizer):
    """An optimizer that lives in another one's groups.

    Args:
        base: the optimizer to wrap.
        rho: the radius, a setting like those of the parts.
        parts: what the method is made of.

    Attributes:
        base: the wrapped optimizer.
        parts: what the method is made of.
        settings: what of it lives in the groups.

    Raises:
        ValueError: the base is wrapped already, or a setting is out of range.
    """

    base: Optimizer
    parts: tuple[Part, ...]
    settings: tuple[Declared, ...]
    _memories: Memories
    _schedules: list[dict[str, Schedule]]
    _form: Form

    def __new__(cls, *given: Any, **settings: Any) -> Self:
        """An empty one, if it is called as it should be; copies call it without anything."""
        checks.called(cls, given, settings)
        return super().__new__(cls)

    def __init__(self, base: Optimizer, rho: Setting, parts: tuple[Part, ...]) -> None:
        checks.base(base)
        host = base if isinstance(base, Guest) else _guests.get(base, lambda: None)()
        if host is not None:
            raise ValueError(
                f"base is wrapped by a {type(host).__name__} already: call its unwrap() first"
            )
        settings = declare(base, rho, parts)
        strip(base, settings)
        for group in base.param_groups:
            current(settings, group, scheduled(settings, group))
        fields = {"base": base, "parts": parts, "settings": settings}
        self.__setstate__({**fields, "_memories": {}, "_schedules": [], "_form": {}})
        self._adopt_groups()

    # -- groups and settings ----------------------------------------------------------------------

    @property
    def param_groups(self) -> list[Group]:
        """The base's own groups, with our settings in them."""
        self._adopt_groups()
        return self.base.param_groups

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
        """Adds a group to the base; what it does not say of our settings it gets from us.

        Args:
            param_group: as for any torch optimizer, with `rho` and the like if wanted.
        """
        current(self.settings, param_group, scheduled(self.settings, param_group))
        self.base.add_param_group(param_group)
        self._adopt_groups()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients as the base does.

        Args:
            set_to_none: whether they become None instead of zero.
        """
        self.base.zero_grad(set_to_none)

    @property
    def method(self) -> str:
        """The parts, without the settings that may change."""
        return " ".join(str(part) for part in self.parts)

    def _params(self) -> list[Tensor]:
        return [p for group in self.base.param_groups for p in group["params"]]

    def _adopt_groups(self) -> None:
        """Gives groups that we have not seen the constructor's values; a user's own value wins."""
        for index, group in enumerate(self.base.param_groups):
            if METHOD in group and index < len(self._schedules):
                continue
            schedules = scheduled(self.settings, group)
            values = current(self.settings, group, schedules)
            self._schedules[index : index + 1] = [schedules]
            group.update({s.key: values[s.name] for s in self.settings} | self._stamp())

    def _stamp(self) -> Group:
        """Counters and the method's name, as every group carries them."""
        known: Group = next((g for g in self.base.param_groups if METHOD in g), {})
        zeros: Group = {STEP: 0, SKIPPED: 0, COST: 0.0, **self._first_numbers()}
        counters = {key: known.get(key, zero) for key, zero in zeros.items()}
        return {**counters, METHOD: self.method, VERSION: FORMAT}

    def _current_settings(self) -> list[dict[str, float]]:
        """The settings of each group for this step; what a schedule says is written into it."""
        found = []
        for group, schedules in zip(self.param_groups, self._schedules, strict=True):
            values = current(self.settings, group, schedules)
            group.update({s.key: values[s.name] for s in self.settings if s.name in schedules})
            found.append(values)
        return found

    def _first_numbers(self) -> dict[str, float]:
        """The keys of the numbers that the parts remember, with what they are at first."""
        found = (part.counts for part in self.parts)
        return {PREFIX + name: value for counts in found for name, value in counts.items()}

    def _numbers(self) -> dict[str, float]:
        """The numbers that the parts remember."""
        group = self.param_groups[0]
        return {key.removeprefix(PREFIX): group[key] for key in self._first_numbers()}

    def _keep_numbers(self, numbers: Mapping[str, float]) -> None:
        for group in self.param_groups:
            group.update({PREFIX + name: value for name, value in numbers.items()})

    def _count(self, key: str, amount: float = 1) -> None:
        for group in self.param_groups:
            group[key] += amount

    # -- state ------------------------------------------------------------------------------------

    @property  # type: ignore[override]
    def state(self) -> MutableMapping[Tensor, Any]:
        """The base's state and what we remember, merged by parameter; entries are copies."""
        return StateView(self.base, self._memories, self._form, self._kept)

    @state.setter
    def state(self, state: Mapping[Tensor, Any]) -> None:
        entries = dict(state.items())  # it may be our own view
        self.base.state.clear()
        self._memories.clear()
        self.state.update(entries)

    def _kept(self) -> dict[Tensor, list[str]]:
        """The names of the vectors that its settings ask us to remember of each parameter."""
        kept = {}
        for group, schedules in zip(self.param_groups, self._schedules, strict=True):
            values = {s.name: group[s.key] for s in self.settings}
            idle = values["rho"] == 0 and "rho" not in schedules
            parts = [part for part in self.parts if part.remembers_all or not idle]
            names = [name for part in parts for name in kept_by(part, values, schedules)]
            kept.update(dict.fromkeys(group["params"], names))
        return kept

    def _is_probe(self) -> bool:
        """Whether this is the getters' step on zero gradients, to initialise an empty state."""
        return (
            not self.state
            and all(float(group.get("lr") or 0.0) == 0 for group in self.base.param_groups)
            and not any(p.grad.any() for p in self._params() if p.grad is not None)
        )

    def _learn_form(self) -> None:
        """Lets the base make a state, notes what it looks like, and leaves nothing else behind."""
        params, state = self._params(), dict(self.base.state)
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

    def _learn_form_of_orphans(self) -> None:
        """So that a plain base can read our checkpoint: to it an entry of ours means nothing."""
        orphans = [p for p in self.state if not self.base.state.get(p) and p not in self._form]
        if not orphans:
            return
        gradients = [(p, p.grad) for p in self._params()]
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
        """The base's state, what we remember and the counters, in torch's own layout.

        Returns:
            A dict that `torch.load(..., weights_only=True)` reads back.
        """
        self._refuse_away("state_dict()")
        self._learn_form_of_orphans()
        return super().state_dict()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a checkpoint of this method or of the plain base.

        Args:
            state_dict: what `state_dict` gave, here or at the base.
        """
        self._refuse_away("load_state_dict()")
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        check_layout(state_dict)
        groups = self.param_groups
        check_origin(state_dict["param_groups"], self.method)
        check_base(state_dict["param_groups"], self.base)
        for group in state_dict["param_groups"]:
            current(self.settings, group, {})
        theirs, ours = self._take_apart(state_dict)
        self.base.load_state_dict(theirs)
        self._memories.clear()
        self._memories.update(on_devices(ours))
        self._settle(groups)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _take_apart(self, state_dict: dict[str, Any]) -> tuple[dict[str, Any], Memories]:
        """The base's share of a checkpoint and ours, before anything is changed."""
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        params = dict(zip(saved, self._params(), strict=False))
        theirs, ours = {}, {}
        for key, entry in state_dict["state"].items():
            their_entry, vectors = split(entry) if key in params else (entry, {})
            if their_entry:
                theirs[key] = their_entry
            for name, vector in vectors.items():
                if vector.shape != params[key].shape:
                    raise ValueError(
                        f"the checkpoint's {name!r} has shape {tuple(vector.shape)}, its parameter "
                        f"{tuple(params[key].shape)}: the checkpoint belongs to another model"
                    )
            ours[params.get(key, key)] = vectors
        return {**state_dict, "state": theirs}, {p: v for p, v in ours.items() if v}

    def _settle(self, before: list[Group]) -> None:
        """After a load: the checkpoint's settings win, what it does not have stays as it was."""
        differs = {}
        keys = [*self._stamp(), *(s.key for s in self.settings)]
        for old, new, schedules in zip(
            before, self.base.param_groups, self._schedules, strict=True
        ):
            for key in keys:
                new.setdefault(key, old[key])
            for s in self.settings:
                s.range.check(s.name, new[s.key])
                if new[s.key] != old[s.key] and s.name not in schedules:
                    differs[f"{s.name}={new[s.key]:g} (was {old[s.key]:g})"] = True
        if differs:
            warnings.warn(
                f"the checkpoint's settings win: {', '.join(differs)}. Set them in "
                "opt.param_groups after loading to have others.",
                stacklevel=4,
            )

    def unwrap(self) -> Optimizer:
        """Gives the base back without our keys, fit to be used alone or wrapped again.

        Returns:
            The base.

        Example:
            >>> from vasso import SAM
            >>> base = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
            >>> SAM(base).unwrap() is base and "rho" not in base.param_groups[0]
            True
        """
        self._refuse_away("unwrap()")
        strip(self.base, self.settings)
        _guests.pop(self.base, None)
        self._memories.clear()
        self._give_back()
        return self.base

    def _refuse_away(self, what: str) -> None:
        """Raises where `what` would see weights that are not at home, or no base any more."""
        raise NotImplementedError

    def _give_back(self) -> None:
        """Makes every later use an error."""
        raise NotImplementedError

    # -- copies -----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """All but hooks and a `step` that a scheduler has patched, as torch leaves them out."""
        self._refuse_away("a copy")
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("step", "_opt_called") and not name.startswith("_optimizer_")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        had = "differentiable" in state["base"].defaults
        super().__setstate__(state)
        if not had:  # torch adds it to our defaults, which are the base's
            self.base.defaults.pop("differentiable", None)
        _guests[self.base] = weakref.ref(self)


def strip(base: Optimizer, settings: tuple[Declared, ...]) -> None:
    """Removes what a guest has left in a base: in its groups and, after a load, in its state.

    Args:
        base: the optimizer.
        settings: what to remove along with the counters.
    """
    keys = {s.key for s in settings}
    for group in base.param_groups:
        if METHOD in group:
            for key in [key for key in group if key in keys or key.startswith(PREFIX)]:
                del group[key]
    for p, entry in list(base.state.items()):
        if isinstance(entry, dict) and any(str(key).startswith(PREFIX) for key in entry):
            base.state[p] = split(entry)[0]
