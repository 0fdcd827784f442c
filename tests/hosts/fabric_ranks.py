"""Trains with Fabric on several ranks and saves the weights: ``fabric_ranks.py ranks file``.

Run as a script, since Fabric starts its ranks by running the script again.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy

from tests.hosts.problem import loader, net, vasso


def train(ranks: int) -> dict[str, Any] | None:
    """The weights and the state of the optimizer at the end, on the first rank."""
    strategy = "ddp" if ranks > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    ours = net(torch.float64)
    model, opt = fabric.setup(ours, vasso(ours))
    batches = [[t[fabric.global_rank :: ranks] for t in batch] for batch in loader(torch.float64)]
    for window in (batches[0:3], batches[3:6], batches[6:7]):
        opt.zero_grad()
        accumulate(fabric, model, window)
        with opt.ascended():
            accumulate(fabric, model, window)
        fabric.clip_gradients(model, opt, max_norm=0.1)
        opt.step()
    if fabric.global_rank > 0:
        return None
    return {"weights": ours.state_dict(), "state": opt.state_dict()["state"]}


def accumulate(fabric: Fabric, model: Any, window: list[Any]) -> None:
    for number, (x, y) in enumerate(window, start=1):
        with fabric.no_backward_sync(model, enabled=number < len(window)):
            fabric.backward(cross_entropy(model(x), y) / 3)


def main(ranks: int, path: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    result = train(ranks)
    if result:
        torch.save(result, path)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # a rank of gloo may abort at exit after all its work is done


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
