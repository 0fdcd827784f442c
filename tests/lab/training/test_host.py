"""Fabric starts the processes of a run as the command line says, in whatever job it is called."""

import os
from pathlib import Path

import pytest

from tests.lab.runs import CPU
from vasso.lab.training.host import start_fabric


def test_a_job_of_slurm_is_not_taken_for_the_ranks_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    start_fabric(CPU, "32-true")
    assert not [w for w in recwarn if "srun" in str(w.message)]
    for name, value in {"JOB_ID": "7", "JOB_NAME": "sweep", "NTASKS": "4", "PROCID": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    fabric = start_fabric(CPU, "32-true")
    assert (fabric.world_size, fabric.global_rank) == (1, 0)
