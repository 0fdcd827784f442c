"""Checkpoints of the present format, for all later versions to read.

`python -m tests.data.checkpoints` writes `checkpoint-format-N.pt` for the present format N, and
refuses to write over one: a checkpoint of an old format is what users have on their disks. A change
of the layout takes a new number in `vasso.origins.FORMAT` and a new file; the old files stay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

from vasso import AESAM, GSAM, SAM, LookSAM, SharpnessAware, VaSSO
from vasso.origins import FORMAT

FOLDER = Path(__file__).parent
BEFORE, AFTER = 4, 5
"""Steps before the checkpoint and after it."""

Training = tuple[nn.Module, SharpnessAware]
momentum = partial(SGD, lr=0.1, momentum=0.9)
adamw = partial(AdamW, lr=0.02, weight_decay=0.1)
METHODS: dict[str, tuple[Callable[..., SharpnessAware], Callable[..., Any]]] = {
    "SAM, SGD": (partial(SAM, rho=0.1), momentum),
    "VaSSO, AdamW": (partial(VaSSO, rho=0.1, theta=0.4), adamw),
    "V+G, SGD": (partial(GSAM, rho=0.1, alpha=0.4, theta=0.4), momentum),
    "LookSAM, AdamW": (partial(LookSAM, rho=0.1, k=3), adamw),
    "AE-SAM, SGD": (partial(AESAM, rho=0.1, total=BEFORE + AFTER), momentum),
}


def start(name: str) -> Training:
    """A small net and a method."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2)).double()
    method, base = METHODS[name]
    return model, method(base(model.parameters()), model=model)


def go_on(training: Training, x: Tensor, y: Tensor, steps: range) -> None:
    """Steps on stored data, a few samples at a time."""
    model, opt = training
    for t in steps:

        def closure(cut: slice = slice(4 * t, 4 * t + 4)) -> Tensor:
            opt.zero_grad()
            loss = cross_entropy(model(x[cut]), y[cut])
            loss.backward()
            return loss

        opt.step(closure)


def flat(model: nn.Module) -> Tensor:
    """All weights end to end."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def made(name: str, x: Tensor, y: Tensor) -> dict[str, Any]:
    """A checkpoint and what it goes on to."""
    torch.manual_seed(20230926)
    model, opt = start(name)
    go_on((model, opt), x, y, range(BEFORE))
    saved = {"model": model.state_dict(), "opt": opt.state_dict()}
    frozen = {key: clone(value) for key, value in saved.items()}
    go_on((model, opt), x, y, range(BEFORE, BEFORE + AFTER))
    return {**frozen, "end": flat(model), "cost": opt.cost}


def clone(tree: Any) -> Any:
    """A copy that shares no tensor."""
    if isinstance(tree, dict):
        return {key: clone(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [clone(value) for value in tree]
    return tree.clone() if isinstance(tree, Tensor) else tree


def main() -> None:
    """Writes the file of the present format."""
    path = FOLDER / f"checkpoint-format-{FORMAT}.pt"
    if path.exists():
        raise SystemExit(f"{path.name} exists: raise FORMAT in vasso/guest.py for another layout")
    torch.manual_seed(0)
    x = torch.randn(4 * (BEFORE + AFTER), 4, dtype=torch.float64)
    y = (x.sum(1) + 0.5 * torch.randn(len(x)) > 0).long()
    torch.save({"x": x, "y": y, **{name: made(name, x, y) for name in METHODS}}, path)
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
