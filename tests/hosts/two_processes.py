"""Two processes on this machine train together; each writes its weights for the test to compare.

Run as a script with a job and a folder, and RANK, WORLD_SIZE and the like in the environment.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]


def run_both(job: str, folder: Path, seconds: float = 150) -> list[Tensor]:
    """Runs a job on two ranks and returns the weights of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.hosts.two_processes", job, str(folder)]
    ranks = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | common | {"RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    try:
        told = [rank.communicate(timeout=seconds)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in zip(ranks, told, strict=True):
        assert rank.returncode == 0, text
    return [torch.load(folder / f"{rank}.pt") for rank in "01"]


def trainer(folder: Path) -> nn.Module:
    """The Trainer: accumulation 2, clipping."""
    from tests.hosts import test_transformers as t

    args = t.arguments(
        folder, gradient_accumulation_steps=2, ddp_backend="gloo", max_grad_norm=0.3, optim="sgd"
    )
    args.learning_rate, args.weight_decay = 0.5, 0.0
    model = t.windows.characters(torch.float64)
    settings: dict[str, Any] = {"rho": t.RHO, "theta": t.THETA}
    run = t.InOrder(model, args, train_dataset=t.lines(24), data_collator=t.collate, **settings)
    run.train()
    assert run.sharpness_aware.cost == 6
    assert run.accelerator.num_processes == 2
    return model


def accelerated(folder: Path) -> nn.Module:
    """accelerate: accumulation 2, clipping."""
    from tests.hosts import test_accelerate as t

    model, window = t.train(t.windows.characters(torch.float64), 2, clip=0.3, lr=0.5)
    assert window.optimizer.cost == 6
    assert window.accelerator.num_processes == 2
    return model


def zero(folder: Path) -> nn.Module:
    """ZeroRedundancyOptimizer as the base, under DDP."""
    from tests.hosts import test_torch_own as t

    torch.distributed.init_process_group("gloo")
    return t.train_with_zero(rank=torch.distributed.get_rank(), ranks=2)


if __name__ == "__main__":
    from tests.hosts.windows import weights

    torch.set_num_threads(1)
    _, job, folder = sys.argv
    model = globals()[job](Path(folder))
    torch.save(weights(model), Path(folder) / f"{os.environ['RANK']}.pt")
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a gloo thread may abort at a regular exit, after all is done
