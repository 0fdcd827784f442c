"""What does a run consist of while it runs? Everything that a checkpoint has to hold.

`train` in `train.py` is the loop in order; here is what its lines do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from vasso.lab.batches import Tensors
from vasso.lab.fabric import Fabric
from vasso.lab.how import FSDP2, How
from vasso.lab.listener import Listener
from vasso.lab.material import Drawn, material_of
from vasso.lab.onlooker import Onlooker
from vasso.lab.passes import Pass, Source
from vasso.lab.rates import Rate
from vasso.lab.runs import Run
from vasso.lab.shards import load_model, load_optimizer, whole
from vasso.lab.sums import Sums
from vasso.randomness import mixed


class Training:
    """A run under way.

    Args:
        run: what it is.
        how: how it is carried out.
        fabric: the host.

    Attributes:
        step: completed steps.
        total: steps of the run.
        per_epoch: steps of an epoch.
        best: the best epoch so far by validation, None without.
        last: the line of the last epoch.
    """

    def __init__(self, run: Run, how: How, fabric: Fabric) -> None:
        self.run, self.how, self.fabric = run, how, fabric
        self.material = material_of(run.task, run.seed, how.data, how.workers)
        self._set_up_model()
        ranks = fabric.global_rank, fabric.world_size
        self.material.settle(fabric.device, self.dtype, *ranks)
        self.batches: Drawn = self.material.batches
        task = run.task
        self.per_epoch: int = self.batches.per_epoch
        self.total = min(task.epochs * self.per_epoch, task.steps or task.epochs * self.per_epoch)
        self.rate = self._rate(task.epochs * self.per_epoch)
        self.source = Source(self.batches, self._closure_of)
        self.optimizer: Any = run.method.build(self.model, self.total, run.seed, self.source)
        self.average = self._average()
        self.onlooker = Onlooker(self.bare, self.material.losses, self.batches, self._others())
        self.adversary: dict[str, Any] | None = None
        self.listener = self._listener()
        self.snr: dict[str, Any] | None = None
        self.step = 0
        self.best: dict[str, Any] | None = None
        self.last: dict[str, Any] = {}
        self.sums = Sums()

    # -- setting up -------------------------------------------------------------------------------

    def _set_up_model(self) -> None:
        torch.manual_seed(self.run.seed)
        bare = self.material.build_model(self.fabric.device)
        self.model = self.fabric.setup_module(bare)
        self.bare, self.dtype = bare, next(bare.parameters()).dtype
        self.own_loss = self.material.own_loss(self.run.method, bare)
        if self.own_loss is not None:
            self.own_loss.to(self.fabric.device)

    def _rate(self, steps: int) -> Rate:
        """The learning rate over so many steps: more than its warm-up, if all are to be taken."""
        method = self.run.method
        if self.run.task.steps is None and method.warm_up >= steps:
            raise ValueError(
                f"warm_up must be below the {steps} steps of the run, got {method.warm_up}: the "
                "learning rate would never arrive"
            )
        return method.rate(steps, self.per_epoch)

    def _average(self) -> AveragedModel | None:
        """The averaged model (SWA), if the method asks for one."""
        method = self.run.method
        self.average_from = method.average_from
        if self.is_sharded and (method.average_from is not None or method.kind != "preset"):
            raise ValueError(f"{method.label} is not trained in shards here: use strategy=ddp")
        if self.average_from is None and method.kind == "averager":
            self.average_from = 0.75
        return None if self.average_from is None else AveragedModel(self.bare)

    def _others(self) -> int:
        """On how many other batches adversaries are looked at."""
        if self.is_sharded and self.run.task.others:
            raise ValueError(
                "adversaries are not looked at in shards: use others=0 or strategy=ddp"
            )
        return self.run.task.others

    def _listener(self) -> Listener:
        """Measures the signal-to-noise ratio as training goes, if the task asks for it."""
        if self.is_sharded and self.run.task.snr:
            raise ValueError("the SNR is not measured in shards: use snr=0")
        of = self.bare, self.onlooker.loss, self.batches
        return Listener(*of, self.run.task.snr, self.fabric.autocast)

    # -- a step -----------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the next step, from 0."""
        return self.step // self.per_epoch

    @property
    def is_at_end_of_epoch(self) -> bool:
        """Whether an epoch, or the run, has just been completed."""
        return self.step % self.per_epoch == 0 or self.step == self.total

    def take_step(self) -> None:
        """One step of the run: its batch, its learning rate, its random numbers."""
        self.snr = self.listener.at(self.step) or self.snr
        started = time.perf_counter()
        self._seed(mixed(self.run.seed, self.step, self.fabric.global_rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.step)
        self.source.begin(self.step)
        batch = self._closure_of(self.batches.at(self.step))
        take = partial(self._step_on, batch)
        loss, self.adversary = self.onlooker.at(self.step, self.optimizer, batch.tensors, take)
        if hasattr(self.own_loss, "update"):
            self.own_loss.update()
        self.step += 1
        self.sums.add(loss, self.batches.amount(self.step - 1), time.perf_counter() - started)
        self.sums.add_rise(getattr(self.optimizer, "last", None))

    def _step_on(self, batch: Pass) -> Tensor:
        share = self.run.method.other_batch
        if share:
            other = self._closure_of(self.batches.other(self.step, share))
            loss: Tensor = self.optimizer.step(batch, ascent_closure=other)
        else:
            loss = self.optimizer.step(batch)
        return loss

    def _seed(self, seed: int) -> None:
        """Of this device alone: `torch.manual_seed` asks every kind of device, for half a ms."""
        torch.default_generator.manual_seed(seed)
        if self.fabric.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _closure_of(self, tensors: Tensors) -> Pass:
        mean = self._own_mean if self.own_loss is not None else None
        return Pass(
            self._losses, self.optimizer.zero_grad, self.fabric.backward, tensors, mean_of=mean
        )

    def _losses(self, *tensors: Tensor) -> Tensor:
        return self.material.losses(self.model, *tensors)

    def _own_mean(self, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        """SAF asks which samples these are, MESA what the model was given."""
        about = index if self.run.method.name == "SAF" else x
        loss: Tensor = self.own_loss(self.model(x), y, about, epoch=self.epoch)
        return loss

    # -- the end of an epoch ----------------------------------------------------------------------

    @property
    def cost(self) -> float:
        """Gradient evaluations so far."""
        return float(getattr(self.optimizer, "cost", self.step))

    def end_epoch(self) -> dict[str, Any]:
        """Averages, tests, and tells how the epoch went.

        Returns:
            A line for the metrics.
        """
        done = self.step // self.per_epoch
        last = self.step >= self.total
        if self.average is not None and self.step >= (self.average_from or 0) * self.total:
            self.average.update_parameters(self.bare)
        line = {
            "kind": "epoch",
            "step": self.step,
            "epoch": done,
            "lr": self.rate(self.step - 1),
            "train_loss": float(self.sums.loss) / max(self.sums.steps, 1),
            "cost": self.cost,
            "skipped": getattr(self.optimizer, "skipped", 0),
            "seconds": round(self.sums.seconds, 3),
            f"{self.material.unit}_per_second": round(
                self.sums.images / max(self.sums.seconds, 1e-9), 1
            ),
        }
        if self.sums.climbs:
            line["rise"] = float(self.sums.rise) / self.sums.climbs
        if self.adversary is not None:
            line["adversary"] = self.adversary
        if self.snr is not None:
            line["snr"] = self.snr
        line |= self._scores(last or done % self.run.task.test_every == 0)
        self.sums.next_epoch()
        self.last = line
        return line

    def _scores(self, due: bool) -> dict[str, Any]:
        """How it does in validation; in the test where due or where that is the best yet."""
        found: dict[str, Any] = {}
        material = self.material
        if material.validation is None and not due:
            return found
        with self._as_tested(found) as model:
            better = False
            if material.validation is not None:
                found |= self._score(model, "validation", material.validation)
                better = self.best is None or material.worth(found) > material.worth(self.best)
            if due or better:
                found |= self._score(model, "test", material.test)
            if self.step >= self.total:
                for name, examples in material.taught.items():  # "wrong": what was learnt by heart
                    found |= self._score(model, name, examples)
        if better:
            self.best = {"epoch": self.step // self.per_epoch, "step": self.step, **found}
        return found

    @contextmanager
    def _as_tested(self, found: dict[str, Any]) -> Iterator[nn.Module]:
        """The model, or the average if there is one, with the statistics that tests use."""
        averaged = self.average is not None and int(self.average.n_averaged) > 0
        model: nn.Module = self.bare
        if averaged and self.average is not None:
            model, found["averaged"] = self.average, True
        with (
            self.fabric.autocast(),
            torch.no_grad(),
            self.material.statistics(model, anew=averaged),
        ):
            yield model

    def _score(self, model: nn.Module, name: str, examples: Any) -> dict[str, float]:
        """What the sums over all processes say."""
        if self.is_sharded:  # every pass is one of all processes: all of them take all samples
            return self.material.told(name, self.material.sums(model, examples))
        ranks = self.fabric.global_rank, self.fabric.world_size
        sums = self.material.sums(model, examples, *ranks)
        if self.fabric.world_size > 1:
            added: Any = self.fabric.all_reduce(sums.to(self.fabric.device), reduce_op="sum")
            sums = added.cpu()
        return self.material.told(name, sums)

    def result(self) -> dict[str, Any]:
        """How the run has ended.

        Returns:
            Last epoch, best epoch by validation, cost, speed.
        """
        sums = self.sums
        return {
            "last": _outcome(self.last),
            "best": self.best,
            "cost": self.cost,
            "skipped": self.last["skipped"],
            "steps": self.step,
            "seconds": round(sums.run_seconds, 3),
            f"{self.material.unit}_per_second": round(
                sums.run_images / max(sums.run_seconds, 1e-9), 1
            ),
            "wrong_labels": self.material.realised,
            "parameters": sum(p.numel() for p in self.bare.parameters()),
        }

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that is needed to go on as if nothing had happened.

        Returns:
            Tensors and plain values.
        """
        return {
            "run": self.run.id,
            "step": self.step,
            "model": whole(self.bare.state_dict()),
            "optimizer": whole(self.optimizer.state_dict()),
            "average": None if self.average is None else self.average.state_dict(),
            "own_loss": None if self.own_loss is None else self.own_loss.state_dict(),
            "best": self.best,
            "last": self.last,
            "sums": vars(self.sums).copy(),
            "snr": self.snr,
        }

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a part of every tensor; a checkpoint is whole all the same."""
        return self.how.strategy == FSDP2

    def weights(self) -> dict[str, Any]:
        """What is kept of a finished run: weights, and their average with statistics of its own.

        Returns:
            Tensors.
        """
        model = whole(self.bare.state_dict())
        found: dict[str, Any] = {"run": self.run.id, "model": model}
        if self.average is not None:
            with self._as_tested({}), torch.no_grad():
                state = self.average.module.state_dict()
                found["average"] = {name: value.clone() for name, value in state.items()}
        return found

    def resume(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint.

        Args:
            state: what `state` gave, perhaps in another process.

        Raises:
            ValueError: it is that of another run.
        """
        if state["run"] != self.run.id:
            raise ValueError(f"the checkpoint is of {state['run']}, this run is {self.run.id}")
        self.step, self.best, self.last = state["step"], state["best"], state["last"]
        self.sums = Sums(**state["sums"])
        self.snr = state.get("snr")
        load_model(self.bare, state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.own_loss is not None:
            self.own_loss.load_state_dict(state["own_loss"])


def _outcome(line: dict[str, Any]) -> dict[str, Any]:
    """What of an epoch belongs to the result."""
    scored = ("validation", "test", "training", "wrong")
    scores = [f"{name}_{what}" for name in scored for what in ("loss", "accuracy", "perplexity")]
    return {name: line[name] for name in ("epoch", "step", "train_loss", *scores) if name in line}
