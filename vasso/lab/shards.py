"""How does a sharded state become whole, and the other way round? So checkpoints are always whole.

A run that was begun in one process goes on in shards, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    """Shards a model: each child with weights by itself, then the rest.

    Args:
        model: the model.
        mesh: the processes.

    Returns:
        The same model.
    """
    for child in model.children():
        if any(p.requires_grad for p in child.parameters()):
            fully_shard(child, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model


def whole(value: Any) -> Any:
    """A state without shards; all processes have to ask for it at the same time.

    Args:
        value: tensors in dictionaries, lists and tuples.

    Returns:
        The same, each sharded tensor gathered.

    Example:
        >>> import torch
        >>> whole({"w": torch.ones(2), "step": 3})
        {'w': tensor([1., 1.]), 'step': 3}
    """
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(whole(item) for item in value)
    return value


def like(value: Any, p: Tensor) -> Any:
    """A whole tensor as a parameter is sharded, if it has its shape.

    Args:
        value: a tensor of a state, or something else, which stays.
        p: the parameter.

    Returns:
        This process's share of it.
    """
    fits = isinstance(p, DTensor) and isinstance(value, Tensor) and value.shape == p.shape
    if not (fits and isinstance(p, DTensor)):
        return value
    value = value.to(p.device)
    return distribute_tensor(value, p.device_mesh, p.placements, src_data_rank=None)


def load_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads a whole state into a model, sharded or not.

    Args:
        model: the model.
        state: as `whole` gave it.
    """
    own = model.state_dict()
    model.load_state_dict({name: like(value, own[name]) for name, value in state.items()})


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Loads a whole state into an optimizer of a model, sharded or not.

    Args:
        optimizer: the optimizer.
        state: as `whole` gave it.
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [n for group in state["param_groups"] for n in group["params"]]
    entries = {}
    for number, p in zip(numbers, params, strict=True):
        found = state["state"].get(number)
        if found is not None:
            entries[number] = {name: like(value, p) for name, value in found.items()}
    optimizer.load_state_dict({**state, "state": entries})
