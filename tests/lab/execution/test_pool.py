"""Workers keep freed memory from step to step, and start from loaded modules; runs of two ranks."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.lab.calls import in_a_process
from tests.lab.execution.grid import processes_of
from tests.lab.runs import CPU, weights
from vasso.lab.execution import pool
from vasso.lab.store.store import Store
from vasso.lab.studies import study as studies
from vasso.lab.training.loop import train

STEPS = """
import resource, torch

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.set_num_threads(1)
for step in range(12):
    before = faults() if step == 2 else 0 if step < 2 else before
    parts = [torch.ones(1_000_000) for _ in range(8)]  # 32 MB, and gone
    total = torch.stack(parts).sum()
    del parts
print(faults() - before, total.item())
"""
FIXED = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""The default of glibc, fixed: otherwise glibc raises it by itself and keeps some memory."""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_freed_memory_is_not_fetched_again() -> None:
    def faults(more: dict[str, str]) -> float:
        done = subprocess.run(
            [sys.executable, "-c", STEPS],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | more,
        )
        counted, total = map(float, done.stdout.split())
        assert total == 8e6
        return counted

    returned = faults(FIXED)
    assert returned > 1_000  # ten steps of 32 MB, in pages of 4 kB or in huge ones
    assert faults(pool.KEEP_FREED_MEMORY) < returned / 3


def test_workers_have_the_threads_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"} | pool.KEEP_FREED_MEMORY
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = dict(os.environ)
    started: list[bool] = []
    workers = pool.WorkerPool(2, 3)
    process = type(workers.context.Process())
    monkeypatch.setattr(
        process, "start", lambda self: started.append(wanted.items() <= os.environ.items())
    )
    workers._start_worker()
    assert started == [True]
    assert dict(os.environ) == before


@pytest.mark.parametrize("name", pool.PRELOADED)
def test_preloaded_modules_exist(name: str) -> None:
    """The forkserver ignores a name that does not exist: workers would only start more slowly."""
    assert find_spec(name) is not None


GRID = """
question = "Are these four runs?"
[cpu]
seeds = 2
task = { train_size = 100, batch = 50, epochs = 1, precision = "64-true", model = "smooth:model" }
[[cpu.grid]]
methods = [{ name = "SGD" }, { name = "VaSSO", rho = 0.1 }]
"""
SMOOTH = """
from torch import manual_seed, nn

def model(classes, channels, size, seed):
    manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
"""No BatchNorm, whose statistics are those of a process."""


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.timeout(1800)
def test_two_devices_do_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of two processes side by side do what each does in one; no process is left."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "grid.toml").write_text(GRID)
    (tmp_path / "smooth.py").write_text(SMOOTH)
    words = ("study", "grid.toml", "--devices", 2, "--jobs", 2, "--accelerator", "cpu", "--store")
    runs, one = studies.load(str(tmp_path / "grid.toml")).at("cpu").runs, Store(tmp_path / "one")
    for run in runs:
        train(run, one, CPU)
    for time in range(3):
        done = in_a_process(*words, f"two-{time}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "4 of 4 runs" in done.stderr
        two = Store(tmp_path / f"two-{time}")
        for run in runs:
            assert two.folder(run.id).metrics("start")[0]["processes"] == 2
            for name, w in weights(one, run).items():
                got = weights(two, run)[name]
                assert torch.allclose(w, got, rtol=0, atol=1e-12), (run.id, name)
    assert not processes_of(tmp_path)
