"""FSDP shards: gather a sharded state for a checkpoint, and load a full state into shards.

Checkpoints are always full states. So a run that began in one process can go on in shards, and
the other way round.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer


def shard_model(model: nn.Module, mesh: Any) -> nn.Module:
    """Shard each child that has trainable weights, then the rest; returns the same model."""
    for child in model.children():
        if any(p.requires_grad for p in child.parameters()):
            fully_shard(child, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model


def gather(value: Any) -> Any:
    """A nested state with full tensors in place of shards; all processes must call it together.

    Example:
        >>> import torch
        >>> gather({"w": torch.ones(2), "step": 3})
        {'w': tensor([1., 1.]), 'step': 3}
    """
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {key: gather(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(gather(item) for item in value)
    return value


def shard_like(value: Any, p: Tensor) -> Any:
    """The shard of a full tensor that belongs to a sharded parameter of its shape.

    Anything else is returned as it is.
    """
    if not isinstance(p, DTensor) or not isinstance(value, Tensor) or value.shape != p.shape:
        return value
    value = value.to(p.device)
    return distribute_tensor(value, p.device_mesh, p.placements, src_data_rank=None)


def load_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    own = model.state_dict()
    model.load_state_dict({name: shard_like(value, own[name]) for name, value in state.items()})


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load a full state into an optimizer of a model, sharded or not."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [n for group in state["param_groups"] for n in group["params"]]
    entries = {}
    for number, p in zip(numbers, params, strict=True):
        entry = state["state"].get(number)
        if entry is not None:
            entries[number] = {name: shard_like(value, p) for name, value in entry.items()}
    optimizer.load_state_dict({**state, "state": entries})
