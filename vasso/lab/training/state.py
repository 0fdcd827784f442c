"""Training: a run in progress, with everything that a checkpoint has to hold.

`train` in `loop.py` is the loop in order; this module holds its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from vasso.lab.experiment.rates import LearningRate
from vasso.lab.experiment.run import Run
from vasso.lab.training.closures import BatchClosure, DataSource, Tensors
from vasso.lab.training.hooks import AdversaryHook, RunningSums, SnrHook
from vasso.lab.training.host import Fabric
from vasso.lab.training.options import FSDP2, RunOptions
from vasso.lab.training.sharding import gather, load_model, load_optimizer
from vasso.lab.training.workload import Batches, load_workload
from vasso.numerics.rng import mix_seed
from vasso.parts.outputs import Outputs
from vasso.parts.plans import FORWARD


class Training:
    """A run in progress; `model` is as Fabric has set it up, `bare` the module itself.

    `step` counts completed steps. `best` is the best epoch so far by validation, `last` the metrics
    of the last epoch.
    """

    def __init__(self, run: Run, options: RunOptions, fabric: Fabric) -> None:
        self.run, self.options, self.fabric = run, options, fabric
        if run.method.needs_outputs and options.micro_batch:
            raise ValueError(
                f"{run.method.name} keeps the gradient of the outputs of a whole batch: leave "
                "micro_batch at 0, or lower batch"
            )
        self.workload = load_workload(run.task, run.seed, options.data_root, options.workers)
        self._set_up_model()
        ranks = fabric.global_rank, fabric.world_size
        self.workload.hold_out(run.method.held_out)
        self.workload.prepare_batches(fabric.device, self.dtype, *ranks)
        self.batches: Batches = self.workload.batches
        task = run.task
        self.per_epoch: int = self.batches.per_epoch
        self.total = min(task.epochs * self.per_epoch, task.steps or task.epochs * self.per_epoch)
        self.learning_rate = self._learning_rate(task.epochs * self.per_epoch)
        self.source = DataSource(self.batches, self._closure_of)
        self.optimizer: Any = run.method.build(
            self.model, self.total, run.seed, self.source, self._held_out_loss()
        )
        self.average = self._average()
        self.adversary_hook = self._adversary_hook()
        self.adversary: dict[str, Any] | None = None
        self.snr_hook = self._snr_hook()
        self.snr: dict[str, Any] | None = None
        self.step = 0
        self.best: dict[str, Any] | None = None
        self.last: dict[str, Any] = {}
        self.sums = RunningSums()

    def _set_up_model(self) -> None:
        torch.manual_seed(self.run.seed)
        bare = self.workload.build_model(self.fabric.device)
        self.model = self.fabric.setup_module(bare)
        self.bare, self.dtype = bare, next(bare.parameters()).dtype
        self.method_loss = self.workload.build_method_loss(self.run.method, bare)
        if self.method_loss is not None:
            self.method_loss.to(self.fabric.device)

    def _learning_rate(self, steps: int) -> LearningRate:
        """The learning rate over so many steps; its warm-up must end before, unless cut short."""
        method = self.run.method
        if self.run.task.steps is None and method.warm_up >= steps:
            raise ValueError(
                f"warm_up must be below the {steps} steps of the run, got {method.warm_up}: the "
                "learning rate would never reach lr"
            )
        return method.learning_rate(steps, self.per_epoch)

    def _held_out_loss(self) -> Callable[[], float] | None:
        """The loss by which rho sets itself; `cost` counts its forward passes, in gradients."""
        count = self.run.method.held_out
        if not count:
            return None
        return HeldOutLoss(self, FORWARD * count / self.run.task.batch)

    def _average(self) -> AveragedModel | None:
        method = self.run.method
        self.average_from = method.average_from
        if self.is_sharded and (method.average_from is not None or method.kind != "preset"):
            raise ValueError(f"{method.label} cannot be trained in shards: use strategy=ddp")
        if self.average_from is None and method.kind == "averager":
            self.average_from = 0.75
        return None if self.average_from is None else AveragedModel(self.bare)

    def _adversary_hook(self) -> AdversaryHook:
        if self.is_sharded and self.run.task.others:
            raise ValueError("adversaries are not measured in shards: use others=0 or strategy=ddp")
        return AdversaryHook(self.bare, self._losses_at, self.batches, self.run.task.others)

    def _snr_hook(self) -> SnrHook:
        if self.is_sharded and self.run.task.snr:
            raise ValueError("the SNR is not measured in shards: use snr=0")
        inputs = self.bare, self.adversary_hook.loss, self.batches
        return SnrHook(*inputs, self.run.task.snr, self.fabric.autocast)

    @property
    def epoch(self) -> int:
        return self.step // self.per_epoch

    @property
    def is_at_end_of_epoch(self) -> bool:
        """Whether an epoch, or the run, has just been completed."""
        return self.step % self.per_epoch == 0 or self.step == self.total

    def take_step(self) -> None:
        """One step of the run: its batch, its learning rate, its random numbers."""
        self.snr = self.snr_hook.before(self.step) or self.snr
        started = time.perf_counter()
        self._seed(mix_seed(self.run.seed, self.step, self.fabric.global_rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step)
        self.source.begin(self.step)
        batch = self._closure_of(self.batches.at(self.step))
        loss, self.adversary = self.adversary_hook.around(
            self.step, self.optimizer, batch.tensors, partial(self._step_on, batch)
        )
        if hasattr(self.method_loss, "update"):
            self.method_loss.update()
        self.step += 1
        self.sums.add(loss, self.batches.amount(self.step - 1), time.perf_counter() - started)
        self.sums.add_rise(getattr(self.optimizer, "last", None))

    def _step_on(self, batch: BatchClosure) -> Tensor:
        share = self.run.method.other_batch_share
        if share:
            other = self._closure_of(self.batches.other(self.step, share))
            loss: Tensor = self.optimizer.step(batch, ascent_closure=other)
        elif self.run.method.needs_outputs:
            loss = self.optimizer.step(self._outputs_of(batch.tensors))
        else:
            loss = self.optimizer.step(batch)
        return loss

    def _outputs_of(self, tensors: tuple[Tensor, ...]) -> Outputs:
        """The closure of a batch, cut in two."""
        workload = self.workload
        return Outputs(
            self.optimizer.zero_grad,
            lambda: workload.outputs(self.model, *tensors),
            lambda z: workload.losses_of(z, *tensors).mean(),
        )

    def _seed(self, seed: int) -> None:
        """Seed this device alone: `torch.manual_seed` seeds every kind of device, in half a ms."""
        torch.default_generator.manual_seed(seed)
        if self.fabric.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _closure_of(self, tensors: Tensors) -> BatchClosure:
        mean = self._method_loss_of if self.method_loss is not None else None
        return BatchClosure(
            self._losses,
            self.optimizer.zero_grad,
            self.fabric.backward,
            tensors,
            mean,
            self.options.micro_batch,
            self._unsynchronised,
        )

    def _unsynchronised(self) -> AbstractContextManager[None]:
        """A context for a pass after which the processes do not reduce their gradients."""
        several = self.fabric.world_size > 1
        return self.fabric.no_backward_sync(self.model) if several else nullcontext()

    def _losses(self, *tensors: Tensor) -> Tensor:
        return self._losses_at(self.model, *tensors)

    def _losses_at(self, model: nn.Module, *tensors: Tensor) -> Tensor:
        return self.workload.losses_of(self.workload.outputs(model, *tensors), *tensors)

    def _method_loss_of(self, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        """SAF needs the indices of the samples, MESA the inputs of the model."""
        extra = index if self.run.method.name == "SAF" else x
        loss: Tensor = self.method_loss(self.model(x), y, extra, epoch=self.epoch)
        return loss

    @property
    def cost(self) -> float:
        return float(getattr(self.optimizer, "cost", self.step))

    def end_epoch(self) -> dict[str, Any]:
        """Average the weights, test, and return the metrics of the epoch."""
        done = self.step // self.per_epoch
        last = self.step >= self.total
        if self.average is not None and self.step >= (self.average_from or 0) * self.total:
            self.average.update_parameters(self.bare)
        sums = self.sums
        line = {
            "kind": "epoch",
            "step": self.step,
            "epoch": done,
            "lr": self.learning_rate(self.step - 1),
            "train_loss": float(sums.loss) / max(sums.steps, 1),
            "cost": self.cost,
            "skipped": getattr(self.optimizer, "skipped", 0),
            "seconds": round(sums.seconds, 3),
            self._speed_name: _speed(sums.samples, sums.seconds),
        }
        if sums.rises:
            line["rise"] = float(sums.rise) / sums.rises
        if self.adversary is not None:
            line["adversary"] = self.adversary
        if self.snr is not None:
            line["snr"] = self.snr
        line |= self._scores(last or done % self.run.task.test_every == 0)
        sums.next_epoch()
        self.last = line
        return line

    def _scores(self, due: bool) -> dict[str, Any]:
        """The scores in validation, and in the test if it is due or validation is the best yet."""
        scores: dict[str, Any] = {}
        workload = self.workload
        if workload.validation is None and not due:
            return scores
        with self._test_mode() as (model, is_average):
            if is_average:
                scores["averaged"] = True
            better = False
            if workload.validation is not None:
                scores |= self._score(model, "validation", workload.validation)
                score = workload.validation_score
                better = self.best is None or score(scores) > score(self.best)
            if due or better:
                scores |= self._score(model, "test", workload.test)
            if self.step >= self.total:
                for name, examples in workload.training_examples.items():
                    scores |= self._score(model, name, examples)
        if better:
            self.best = {"epoch": self.step // self.per_epoch, "step": self.step, **scores}
        return scores

    @contextmanager
    def _test_mode(self) -> Iterator[tuple[nn.Module, bool]]:
        """The model to test, with the statistics of tests, and whether it is the average."""
        is_average = self.average is not None and int(self.average.n_averaged) > 0
        model: nn.Module = self.bare
        if is_average and self.average is not None:
            model = self.average
        statistics = self.workload.test_statistics(model, reestimate=is_average)
        with self.fabric.autocast(), torch.no_grad(), statistics:
            yield model, is_average

    def _score(self, model: nn.Module, name: str, examples: Any) -> dict[str, float]:
        if self.is_sharded:  # every pass needs all processes: each of them takes all samples
            return self.workload.scores(name, self.workload.loss_sums(model, examples))
        ranks = self.fabric.global_rank, self.fabric.world_size
        sums = self.workload.loss_sums(model, examples, *ranks)
        if self.fabric.world_size > 1:
            added: Any = self.fabric.all_reduce(sums.to(self.fabric.device), reduce_op="sum")
            sums = added.cpu()
        return self.workload.scores(name, sums)

    def result(self) -> dict[str, Any]:
        """The result of the run: last epoch, best epoch by validation, cost, speed."""
        sums = self.sums
        return {
            "last": _summary(self.last),
            "best": self.best,
            "cost": self.cost,
            "skipped": self.last["skipped"],
            "steps": self.step,
            "seconds": round(sums.run_seconds, 3),
            self._speed_name: _speed(sums.run_samples, sums.run_seconds),
            "wrong_labels": self.workload.wrong_share,
            "parameters": sum(p.numel() for p in self.bare.parameters()),
        }

    @property
    def _speed_name(self) -> str:
        return f"{self.workload.unit}_per_second"

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a part of every tensor; checkpoints are full all the same."""
        return self.options.strategy == FSDP2

    def state(self) -> dict[str, Any]:
        """Everything that is needed to go on: tensors and plain values."""
        return {
            "run": self.run.id,
            "step": self.step,
            "model": gather(self.bare.state_dict()),
            "optimizer": gather(self.optimizer.state_dict()),
            "average": None if self.average is None else self.average.state_dict(),
            "method_loss": None if self.method_loss is None else self.method_loss.state_dict(),
            "best": self.best,
            "last": self.last,
            "sums": vars(self.sums).copy(),
            "snr": self.snr,
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Load a checkpoint, perhaps of another process; it must be of the same run."""
        if state["run"] != self.run.id:
            raise ValueError(f"the checkpoint is of {state['run']}, this run is {self.run.id}")
        step, last = state["step"], dict(state["last"])
        if type(step) is not int or not 0 < step <= self.total:
            raise ValueError(f"it is of step {step}, the run has {self.total}")
        epoch_end = step if step == self.total else step - step % self.per_epoch
        if last.get("step", 0) != epoch_end:
            raise ValueError(f"it is of step {step}, its last epoch ended at {last.get('step')}")
        self.step, self.best, self.last = step, state["best"] and dict(state["best"]), last
        self.sums = RunningSums(**state["sums"])
        self.snr = state["snr"]
        load_model(self.bare, state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.method_loss is not None:
            self.method_loss.load_state_dict(state["method_loss"])

    def weights(self) -> dict[str, Any]:
        """The weights that are stored at the end, and their average with statistics of its own."""
        weights: dict[str, Any] = {"run": self.run.id, "model": gather(self.bare.state_dict())}
        if self.average is not None:
            with self._test_mode():
                state = self.average.module.state_dict()
                weights["average"] = {name: value.clone() for name, value in state.items()}
        return weights


@dataclass
class HeldOutLoss:
    """The loss of the samples that set rho, at the present weights; `cost` is in gradients."""

    training: Training
    cost: float

    def __call__(self) -> float:
        fabric, workload = self.training.fabric, self.training.workload
        ranks = fabric.global_rank, fabric.world_size
        with fabric.autocast():
            sums = workload.loss_sums(self.training.model, workload.held_out, *ranks)
        return float(sums[0] / sums[2])


def _speed(samples: int, seconds: float) -> float:
    return round(samples / max(seconds, 1e-9), 1)


def _summary(line: dict[str, Any]) -> dict[str, Any]:
    tested = ("validation", "test", "training", "wrong")
    scores = [f"{name}_{what}" for name in tested for what in ("loss", "accuracy", "perplexity")]
    return {name: line[name] for name in ("epoch", "step", "train_loss", *scores) if name in line}
