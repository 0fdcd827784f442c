"""Is a checkpoint one to be loaded here? Its format, its parts and its base have to be ours.

A base is known by the settings in its groups. torch itself looks at none of them: the state of an
SGD goes into an Adam without a word, and the next step fails for want of `betas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from vasso.checkpoints import PREFIX
from vasso.settings import Group

FORMAT = 1
METHOD, VERSION = f"{PREFIX}method", f"{PREFIX}format"

ADDED = {
    *("amsgrad", "capturable", "centered", "decoupled_weight_decay", "differentiable"),
    *("foreach", "fused", "maximize", "nesterov"),
}
"""What torch has added to its groups over the years, and fills in where a checkpoint has none."""
OF_SCHEDULERS = {
    *("initial_lr", "max_lr", "min_lr", "swa_lr"),
    *("base_momentum", "max_momentum", "params", "param_names"),
}
"""What schedulers and torch itself put into the groups of any base."""


def check_layout(state_dict: Mapping[str, Any]) -> None:
    """Raises unless this is what `state_dict` gives.

    Args:
        state_dict: what is to be loaded.

    Raises:
        ValueError: something is missing; perhaps it is the file of which it is an entry.
    """
    missing = [key for key in ("state", "param_groups") if key not in state_dict]
    if missing:
        raise ValueError(
            f"the checkpoint has no {' and no '.join(map(repr, missing))}, its keys are "
            f"{list(state_dict)}: pass what opt.state_dict() gave, perhaps one of its entries"
        )


def check_origin(groups: list[Group], method: str) -> None:
    """Raises unless a checkpoint is of this method, or of a plain base, in a format we know.

    Args:
        groups: the groups of the checkpoint.
        method: what is to load it.

    Raises:
        ValueError: it is not.
    """
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
    """Raises if a checkpoint is of another base: it lacks settings that this one needs.

    torch's own optimizers cannot step without them. Of others we cannot be sure: an older version
    may have had fewer settings; so there has to be a setting, too, that this base does not know.

    Args:
        groups: the groups of the checkpoint.
        base: what is to load it.

    Raises:
        ValueError: it is of another base.
    """
    certain = type(base).__module__.startswith("torch.optim.")
    for saved, own in zip(groups, base.param_groups, strict=False):
        lacks = sorted((base.defaults.keys() & own.keys()) - saved.keys() - ADDED)
        others = saved.keys() - own.keys() - OF_SCHEDULERS
        odd = sorted(key for key in others if not key.startswith(PREFIX))
        told = f", but {', '.join(odd)}" if odd else ""
        if lacks and (odd or certain):
            raise ValueError(
                f"the checkpoint is of another base: its groups have no {', '.join(lacks)}, which "
                f"{type(base).__name__} needs{told}. Build the "
                "optimizer around the base of the checkpoint."
            )
