"""Checkpoints of a run: when they are written, and how a run resumes from them.

`RunRecorder` writes all files of a run. `Training.state` says what a checkpoint holds, and
`RunDirectory.save_checkpoint` is the file with its digest.
"""

import time
import warnings
from typing import Any

import torch

from vasso.lab.store.lock import RunLock, StoreError
from vasso.lab.store.provenance import certificate, now, peak_memory, reset_peak_memory
from vasso.lab.store.run_directory import FORMAT, RunDirectory
from vasso.lab.training.options import FSDP2, RunOptions
from vasso.lab.training.state import Training


class RunRecorder:
    """Writes settings, metrics, checkpoints and the result of a run.

    One process of a run holds its `lock`, and it alone writes.
    """

    def __init__(self, directory: RunDirectory, options: RunOptions, lock: RunLock | None) -> None:
        self.directory, self.options, self.lock = directory, options, lock
        self.saved_at = time.monotonic()

    def open(self, training: Training) -> None:
        """Resume from a checkpoint, if there is one, and write the settings of the run."""
        unfit = ""
        for path, state in self.directory.checkpoints():
            try:
                training.resume(state)
            except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
                unfit = f"{path} does not fit the run ({type(error).__name__}: {error})"
                continue
            if unfit:
                warnings.warn(f"{unfit}: {path.name} is used", stacklevel=2)
            break
        else:
            if unfit:
                raise StoreError(f"{unfit}. {self.directory.remedy}")
        if self.writes:
            run, started = training.run, now()
            read = {"name": run.task.data, "digest": training.workload.data_digest}
            made_by = certificate() | {"data": read}
            settings = {"format": FORMAT, "id": run.id, "run": run.in_full()}
            self.directory.write_settings({**settings, "begun": started, "certificate": made_by})
            self._check_is_of(read)
            start = {"kind": "start", "step": training.step, "time": started}
            start |= {"threads": torch.get_num_threads(), "processes": training.fabric.world_size}
            self.directory.append({**start, "certificate": made_by})
        self.note(training)
        reset_peak_memory()

    def _check_is_of(self, data: dict[str, str]) -> None:
        """A run that goes on with other data would be one of neither."""
        before = self.directory.settings.get("certificate", {}).get("data", data)
        if before != data:
            raise StoreError(
                f"the data {data['name']} have changed since {self.directory.id} was begun: their "
                f"digest was {before['digest']} and is {data['digest']}. Put the earlier data "
                f"back. {self.directory.remedy}"
            )

    @property
    def writes(self) -> bool:
        return self.lock is not None

    def note(self, training: Training) -> None:
        """Tell in the lock how far the run is."""
        if self.lock is not None:
            self.lock.note(training.step, training.total)

    def append(self, line: dict[str, Any]) -> None:
        if self.writes:
            self.directory.append(line)

    def is_checkpoint_due(self, step: int) -> bool:
        """Whether a checkpoint is due, by steps or by time."""
        every = self.options.checkpoint_steps
        late = time.monotonic() - self.saved_at >= self.options.checkpoint_seconds
        by_time = late and self.options.strategy != FSDP2  # there all processes save together
        return by_time or bool(every and step % every == 0)

    def save(self, training: Training) -> None:
        if self.writes or training.is_sharded:
            state = training.state()
            if self.lock is not None:
                self.lock.check()
                self.directory.save_checkpoint(state)
        self.saved_at = time.monotonic()

    def close(self, training: Training) -> dict[str, Any]:
        """Write the weights and the result: the run is finished."""
        result = {**training.result(), "peak_memory": peak_memory(), "ended": now()}
        weights = training.weights() if self.writes or training.is_sharded else {}
        if self.lock is not None:
            self.lock.check()
            self.directory.save("weights.pt", weights)
            for name, table in training.workload.tables().items():
                self.directory.write_table(name, table)
            self.directory.write_result(result)
            self.directory.drop_checkpoints()
        training.fabric.barrier()
        return result
