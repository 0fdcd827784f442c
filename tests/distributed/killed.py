"""A training that may be killed at any instant and started again, until it is done.

`python -m tests.distributed.killed FOLDER [--steps N] [--die PLACE:STEP]` in one process; under
torchrun DDP, with `--shards` FSDP2 and a distributed checkpoint. It goes on from the last
checkpoint in the folder, if there is one, says each step on its standard output, and leaves
`end.pt`; the digits are in `digits.pt` beside the folder, because scikit-learn is slow to start.
`--die` makes it kill itself in a pass or in the middle of writing, for tests that need not wait.
"""

import argparse
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from tests.support.ranks import leave
from vasso import VaSSO

EVERY, BATCH = 3, 32


def network() -> nn.Sequential:
    """With what a resumed run easily gets wrong: masks of dropout, statistics of BatchNorm."""
    return nn.Sequential(
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
    )


class Training:
    """What a script of a user's holds in its hands, and where it keeps it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.x, self.y = torch.load(options.folder.parent / "digits.pt", weights_only=True)
        self.folder, self.steps, self.die = options.folder, options.steps, options.die
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        torch.manual_seed(0)
        self.model: nn.Module = network()
        if options.shards:
            from torch.distributed.fsdp import fully_shard

            self.model = fully_shard(self.model)
        elif self.world > 1:
            self.model = DistributedDataParallel(self.model)
        self.opt = VaSSO(AdamW(self.model.parameters(), lr=1e-3), rho=0.1, model=self.model)
        self.scheduler = OneCycleLR(self.opt, max_lr=1e-2, total_steps=self.steps + 1)
        self.store = Shards(self) if options.shards else OneFile(self)
        torch.manual_seed(1 + self.rank)  # every rank drops units of its own

    def step(self, t: int) -> None:
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(t))
        share = order[self.rank * BATCH : (self.rank + 1) * BATCH]

        def closure() -> Tensor:
            self.opt.zero_grad()
            loss = cross_entropy(self.model(self.x[share]), self.y[share])
            self.die_at("second pass" if self.opt.perturbed else "first pass", t)
            loss.backward()
            return loss

        self.opt.step(closure)
        self.die_at("step", t)
        self.scheduler.step()

    def die_at(self, place: str, t: int) -> None:
        if self.die == f"{place}:{t}" and self.rank == self.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self) -> None:
        first = self.store.load()
        for t in range(first, self.steps):
            self.step(t)
            if (t + 1) % EVERY == 0:
                self.store.save(t + 1)
            print(f"\nrank {self.rank} pid {os.getpid()} step {t}", flush=True)
        end = whole(self.store.content())
        if self.rank == 0:
            torch.save(end, self.folder / "end.pt")


def whole(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: whole(value) for key, value in tree.items()}
    return tree.full_tensor() if hasattr(tree, "full_tensor") else tree


class OneFile:
    """A checkpoint of one process, or of replicas, which differ by their random numbers only."""

    def __init__(self, training: Training) -> None:
        self.training, self.path = training, training.folder / "checkpoint.pt"

    def content(self) -> dict[str, Any]:
        now = self.training
        parts = {name: vars(now)[name].state_dict() for name in ("model", "opt", "scheduler")}
        rng = [torch.get_rng_state() for _ in range(now.world)]
        if now.world > 1:
            dist.all_gather(rng, torch.get_rng_state())
        return {**parts, "rng": rng}

    def save(self, step: int) -> None:
        """The old checkpoint is there until the new one is whole."""
        now, content = self.training, self.content()
        if now.rank == 0:
            new = self.path.with_suffix(".new")
            with new.open("wb") as file:
                torch.save({**content, "step": step}, file)
                now.die_at("write", step)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)

    def load(self) -> int:
        if not self.path.exists():
            return 0
        now, saved = self.training, torch.load(self.path, weights_only=True)
        for name in ("model", "opt", "scheduler"):
            vars(now)[name].load_state_dict(saved[name])
        torch.set_rng_state(saved["rng"][now.rank])
        return int(saved["step"])


class Shards:
    """A distributed checkpoint: a folder that gets its name when all ranks have written."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def content(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        now = self.training
        model, opt = get_state_dict(now.model, now.opt)
        buffers = dict(now.model.named_buffers())  # each rank has its own; of "model" one is kept
        model = {name: value for name, value in model.items() if name not in buffers}
        own = {f"rng {now.rank}": torch.get_rng_state(), f"buffers {now.rank}": buffers}
        return {"model": model, "opt": opt, "scheduler": now.scheduler.state_dict(), **own}

    def save(self, step: int) -> None:
        from torch.distributed import checkpoint

        new = self.training.folder / "new"
        if self.training.rank == 0:
            shutil.rmtree(new, ignore_errors=True)
        dist.barrier()
        checkpoint.save(self.content(), checkpoint_id=new)
        self.training.die_at("write", step)
        dist.barrier()
        if self.training.rank == 0:
            new.rename(self.training.folder / f"checkpoint-{step}")

    def load(self) -> int:
        saved = [int(path.name.split("-")[1]) for path in self.training.folder.glob("checkpoint-*")]
        last = max(saved, default=0)
        if last:
            self._read(self.training.folder / f"checkpoint-{last}")
        dist.barrier()  # nobody saves while another looks
        return last

    def _read(self, path: Path) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import set_state_dict

        now, found = self.training, self.content()
        checkpoint.load(found, checkpoint_id=path)
        model, opt = {**found["model"], **found[f"buffers {now.rank}"]}, found["opt"]
        set_state_dict(now.model, now.opt, model_state_dict=model, optim_state_dict=opt)
        now.scheduler.load_state_dict(found["scheduler"])
        torch.set_rng_state(found[f"rng {now.rank}"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--shards", action="store_true")
    parser.add_argument("--die", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    Training(options).run()
    if dist.is_initialized():
        dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main()
