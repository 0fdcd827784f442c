"""How do the state of a base and the vectors of its guest become one checkpoint, and two again?

The layout is what torch's `state_dict` and its distributed-checkpoint getters can carry: for every
parameter the base's entries, then `vasso_<name>` for each vector we remember, and a flag
`vasso_has_...` for each of the two that says whether it is real or only zeros of the right form. A
checkpoint is read into a fresh optimizer by the getters, which have to find the same keys there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from vasso.here import Memories
from vasso.vectors import shards

PREFIX = "vasso_"
HAS = f"{PREFIX}has_"

Form: TypeAlias = dict[Tensor, dict[str, Any]]
"""What the base's state of each parameter looks like, without its values."""


class StateView(MutableMapping[Tensor, Any]):
    """The state of base and guest as one mapping, parameter -> entries (copies of the dicts).

    Empty until one of them has something. Then every parameter that requires a gradient has an
    entry, so that a checkpoint and a fresh optimizer have the same keys.

    Args:
        base: the wrapped optimizer.
        memories: what the guest remembers.
        form: what the base's state looks like where it has none yet.
        names: parameter -> the names of the vectors that its settings ask to remember, when asked.
    """

    def __init__(
        self,
        base: Optimizer,
        memories: Memories,
        form: Form,
        names: Callable[[], dict[Tensor, list[str]]],
    ) -> None:
        self.base, self.memories, self.form, self._names = base, memories, form, names

    @cached_property
    def kept(self) -> dict[Tensor, list[str]]:
        """The names of the vectors to show, for every parameter."""
        return self._names()

    def __bool__(self) -> bool:
        return bool(self.form or self.memories or any(self.base.state.values()))

    def __getitem__(self, p: Tensor) -> dict[str, Any]:
        if p not in self.kept:
            if p not in self.base.state:
                raise KeyError(p)
            return dict(self.base.state[p])  # an entry of the base's own
        real = self.base.state.get(p)
        entry = dict(real) if real else zeros_of(self.form.get(p, {}))
        entry[f"{HAS}base"] = int(bool(real))
        vectors = self.memories.get(p, {})
        for name in dict.fromkeys((*vectors, *self.kept[p])):
            entry[PREFIX + name] = vectors[name] if name in vectors else _slope_of_zeros(p)
            entry[HAS + name] = int(name in vectors)
        return entry

    def __setitem__(self, p: Tensor, entry: Mapping[str, Any]) -> None:
        theirs, ours = split(entry)
        for store, part in ((self.base.state, theirs), (self.memories, ours)):
            store.pop(p, None)
            if part:
                store[p] = part

    def __delitem__(self, p: Tensor) -> None:
        if p not in self.base.state and p not in self.memories:
            raise KeyError(p)
        self.base.state.pop(p, None)
        self.memories.pop(p, None)

    def __iter__(self) -> Iterator[Tensor]:
        if not self:
            return iter(())
        others = [key for key in self.base.state if key not in self.kept]
        shown = (p for p in self.kept if p.requires_grad or self._has(p))
        return iter((*shown, *others))

    def __contains__(self, p: object) -> bool:
        return any(p is key for key in self)

    def _has(self, p: Tensor) -> bool:
        return bool(self.base.state.get(p)) or p in self.memories

    def __len__(self) -> int:
        return sum(1 for _ in self)


def split(entry: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Takes a merged entry apart into what is the base's and what is ours; zeros of a form go.

    Args:
        entry: the entries of one parameter.

    Returns:
        The base's entries and our vectors, each only where it is real.

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
    """The entries with every tensor replaced by one zero that is spread over its shape.

    Args:
        entry: the base's entries of one parameter.

    Returns:
        The same keys, at no cost in memory.
    """
    return {
        key: _spread_zero(value) if isinstance(value, Tensor) else value
        for key, value in entry.items()
    }


def zeros_of(form: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of this form, with zeros that can be written to.

    Args:
        form: what `form_of` gave.

    Returns:
        The same keys.
    """
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


def _slope_of_zeros(p: Tensor) -> Tensor:
    return torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)).detach()


def on_devices(memories: Mapping[Tensor, Mapping[str, Tensor]]) -> Memories:
    """Copies of loaded vectors on the devices of their parameters, in the dtypes they came in.

    Args:
        memories: what a checkpoint holds of ours.

    Returns:
        What a guest can keep.
    """
    return {
        p: {name: vector.detach().to(p.device, copy=True) for name, vector in vectors.items()}
        for p, vectors in memories.items()
        if vectors
    }
