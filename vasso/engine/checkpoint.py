"""Checkpoint format: the state of the base and the vectors of the parts in one `state_dict`.

The layout is what torch's `state_dict` and its distributed-checkpoint getters can carry. Each
parameter has the base's entries, then `vasso_<name>` for each vector that we remember. A flag
`vasso_has_...` says of each whether it is real or only zeros of the right form. The getters read a
checkpoint into a fresh optimizer, in which they have to find the same keys.
Whatever else the base's own `state_dict` holds stays where the base has put it.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from vasso.engine.groups import FORMAT, METHOD, PREFIX, VERSION, Group
from vasso.numerics.vectors import shards
from vasso.parts.memory import KeptVectors

HAS = f"{PREFIX}has_"

Form: TypeAlias = dict[Tensor, dict[str, Any]]
"""What the base's state of each parameter looks like, without its values."""


class StateView(MutableMapping[Tensor, Any]):
    """The state of the base and our vectors as one mapping: parameter -> a dict of both.

    Empty until one of them has something. Then every parameter that requires a gradient has an
    entry, so that a checkpoint and a fresh optimizer have the same keys. `dtypes` gives the vectors
    to remember of each parameter, by name.
    """

    def __init__(
        self,
        base: Optimizer,
        vectors: KeptVectors,
        form: Form,
        dtypes: Callable[[], dict[Tensor, dict[str, torch.dtype]]],
    ) -> None:
        self.base, self.vectors, self.form, self._dtypes = base, vectors, form, dtypes

    @cached_property
    def kept(self) -> dict[Tensor, dict[str, torch.dtype]]:
        """The vectors to show of every parameter: name -> dtype."""
        return self._dtypes()

    def __bool__(self) -> bool:
        return bool(self.form or self.vectors or any(self.base.state.values()))

    def __getitem__(self, p: Tensor) -> Any:
        if p in self.kept:
            return self.merged(p, self.base.state.get(p))
        if p not in self.base.state:
            raise KeyError(p)
        entry = self.base.state[p]  # of the base's own
        return dict(entry) if isinstance(entry, Mapping) else entry

    def merged(self, p: Tensor, real: Mapping[str, Any] | None) -> dict[str, Any]:
        """An entry of the base with our vectors of a parameter."""
        entry = dict(real) if real else zeros_of(self.form.get(p, {}))
        entry[f"{HAS}base"] = _flag(bool(real))
        vectors = self.vectors.get(p, {})
        for name in dict.fromkeys((*vectors, *self.kept[p])):
            known = name in vectors
            entry[PREFIX + name] = vectors[name] if known else _zeros(p, self.kept[p][name])
            entry[HAS + name] = _flag(known)
        return entry

    def packed(self, theirs: Mapping[str, Any], groups: list[Group]) -> dict[str, Any]:
        """The base's own `state_dict` with our vectors, settings and counters in it."""
        numbers: dict[Tensor, int] = {}
        for p in (p for group in groups for p in group["params"]):
            numbers.setdefault(p, len(numbers))
        state = dict(theirs.get("state", {}))
        for p in (p for p in self if p in numbers):
            state[numbers[p]] = self.merged(p, state.get(numbers[p]))
        own = [{**group, "params": [numbers[p] for p in group["params"]]} for group in groups]
        saved = theirs.get("param_groups", own)
        merged = [{**a, **b} for a, b in zip(own, saved, strict=True)]
        return {**theirs, "state": state, "param_groups": merged}

    def __setitem__(self, p: Tensor, entry: Any) -> None:
        if p not in self.kept:
            self.base.state[p] = entry
            return
        theirs, ours = split(entry)
        for store, part in ((self.base.state, theirs), (self.vectors, ours)):
            store.pop(p, None)
            if part:
                store[p] = part

    def __delitem__(self, p: Tensor) -> None:
        if p not in self.base.state and p not in self.vectors:
            raise KeyError(p)
        self.base.state.pop(p, None)
        self.vectors.pop(p, None)

    def clear(self) -> None:
        """Forgets the state of all parameters; popping one after the other would not end."""
        self.base.state.clear()
        self.vectors.clear()

    def __iter__(self) -> Iterator[Tensor]:
        if not self:
            return iter(())
        others = [key for key in self.base.state if key not in self.kept]
        mine = (
            p for p in self.kept if p.requires_grad or self.base.state.get(p) or p in self.vectors
        )
        return iter((*mine, *others))

    def __contains__(self, p: object) -> bool:
        return any(p is key for key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def split(entry: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Splits a merged entry into the base's entries and our vectors, each only where it is real.

    Example:
        >>> split({"momentum_buffer": 1, "vasso_has_base": 1, "vasso_d": 2, "vasso_has_d": 0})
        ({'momentum_buffer': 1}, {})
    """
    theirs = {key: value for key, value in entry.items() if not str(key).startswith(PREFIX)}
    ours = {
        key.removeprefix(PREFIX): value
        for key, value in entry.items()
        if str(key).startswith(PREFIX) and not key.startswith(HAS)
    }
    real = {name: vector for name, vector in ours.items() if entry.get(HAS + name, 1)}
    return (theirs if entry.get(f"{HAS}base", 1) else {}), real


def form_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entries with every tensor replaced by one zero that is expanded to its shape."""
    return {
        key: _spread_zero(value) if isinstance(value, Tensor) else value
        for key, value in entry.items()
    }


def zeros_of(form: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of this form, with zeros that can be written to."""
    return {
        key: torch.zeros_like(value, memory_format=torch.contiguous_format)
        if isinstance(value, Tensor)
        else value
        for key, value in form.items()
    }


def _spread_zero(x: Tensor) -> Tensor:
    """One zero for all of x; of a DTensor the form is cut among the ranks as x is."""
    (own,) = shards([x])
    zero = torch.zeros((), dtype=x.dtype, device=x.device).expand(own.shape)
    if not (hasattr(x, "device_mesh") and hasattr(x, "placements")):
        return zero
    from torch.distributed.tensor import DTensor

    mesh, cut = x.device_mesh, x.placements
    return DTensor.from_local(zero, mesh, cut, run_check=False, shape=x.shape, stride=x.stride())


def _flag(value: bool) -> Tensor:
    """A flag as a tensor: torch's tools expect nothing else in a state."""
    return torch.tensor(float(value))


def _zeros(p: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(p, dtype=dtype).detach()


def on_devices(vectors: Mapping[Tensor, Mapping[str, Tensor]]) -> KeptVectors:
    """Copies of loaded vectors on the devices of their parameters, in the dtypes they came in."""
    return {
        p: {name: vector.detach().to(p.device, copy=True) for name, vector in of_p.items()}
        for p, of_p in vectors.items()
        if of_p
    }


def strip_state(base: Optimizer) -> None:
    """Removes our vectors from the state of a base that has loaded a checkpoint of ours."""
    for p, entry in list(base.state.items()):
        if isinstance(entry, dict) and any(str(key).startswith(PREFIX) for key in entry):
            base.state[p] = split(entry)[0]


LAYOUT = ("state", "param_groups")
"""The keys of torch's own `state_dict`."""


def is_plain(base: Optimizer) -> bool:
    """Whether a base saves its state as torch's own do, with nothing beside it."""
    return set(base.state_dict()) == set(LAYOUT)


def check_layout(state_dict: Mapping[str, Any], base: Optimizer) -> None:
    """Raises ValueError unless this is what `state_dict` gives, of us or of the base."""
    missing = [key for key in LAYOUT if key not in state_dict]
    if missing and is_plain(base):
        raise ValueError(
            f"the checkpoint has no {' and no '.join(map(repr, missing))}, its keys are "
            f"{list(state_dict)}: pass what opt.state_dict() gave, perhaps one of its entries"
        )


def check_origin(groups: list[Group], method: str) -> None:
    """Raises ValueError unless a checkpoint is of this method or of a plain base, and readable."""
    for group in groups:
        if group.get(VERSION, FORMAT) not in range(1, FORMAT + 1):
            raise ValueError(
                f"the checkpoint has format {group[VERSION]!r}, this version of vasso reads "
                f"formats 1 to {FORMAT}: upgrade vasso"
            )
        if group.get(METHOD, method) != method:
            raise ValueError(
                f"the checkpoint is of other parts: it holds {group[METHOD]}, this optimizer is "
                f"{method}. Build the optimizer with the parts of the checkpoint."
            )


def check_base(groups: list[Group], base: Optimizer) -> None:
    """Raises ValueError if a checkpoint lacks settings without which a base of torch cannot step.

    torch itself does not look: the state of an SGD goes into an Adam without a word. Flags may be
    missing: torch fills in those that an older version did not have.
    """
    if not type(base).__module__.startswith("torch.optim."):
        return
    flags = {key for key, value in base.defaults.items() if value is None or type(value) is bool}
    for saved, own in zip(groups, base.param_groups, strict=False):
        lacks = sorted((base.defaults.keys() & own.keys()) - saved.keys() - flags)
        if lacks:
            raise ValueError(
                f"the checkpoint is of another base: its groups have no {', '.join(lacks)}, which "
                f"{type(base).__name__} needs. Build the optimizer around the base of the "
                "checkpoint."
            )
