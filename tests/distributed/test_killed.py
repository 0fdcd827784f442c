"""A training that is killed and started again ends where an unbroken one ends, bit for bit."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults import assert_same_tree
from tests.support.compare import digits
from tests.support.ranks import ENVIRONMENT, LIMIT, ROOT

pytestmark = pytest.mark.ranks
SCRIPT = "tests.distributed.killed"
Ranks = dict[int, int]
"""The process of each rank."""


@pytest.fixture(autouse=True)
def _digits(tmp_path: Path) -> None:
    x, y = digits()
    torch.save((x.float(), y), tmp_path / "digits.pt")


def command(ranks: int, *arguments: str) -> list[str]:
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    start = [sys.executable, "-m", *(launcher if ranks > 1 else [])]
    return [*start, *(["-m"] if ranks > 1 else []), SCRIPT, *arguments]


@contextmanager
def launched(folder: Path, ranks: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A job under way; what it complains of is appended to the folder's log."""
    folder.mkdir(exist_ok=True)
    with (
        (folder / "log").open("a") as log,
        subprocess.Popen(
            command(ranks, str(folder), *arguments),
            cwd=ROOT,
            env=ENVIRONMENT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as job,
    ):
        try:
            yield job
        finally:
            job.kill()


def run(folder: Path, *arguments: str, ranks: int = 1, code: int = 0) -> None:
    """A job that nobody stops from outside, and the code it has to end with."""
    with launched(folder, ranks, *arguments) as job:
        job.communicate(timeout=LIMIT)
    assert job.returncode == code, (folder / "log").read_text()[-4000:]


def end(folder: Path) -> Any:
    return torch.load(folder / "end.pt", weights_only=True)


def test_a_blow_in_a_pass_and_one_while_writing_change_no_bit(tmp_path: Path) -> None:
    run(tmp_path / "unbroken")
    for die in ("second pass:4", "write:9"):
        run(tmp_path / "broken", "--die", die, code=-signal.SIGKILL)
    assert (tmp_path / "broken" / "checkpoint.new").exists()
    run(tmp_path / "broken")
    assert_same_tree(end(tmp_path / "broken"), end(tmp_path / "unbroken"))


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--shards"]], ids=["replicas", "shards"])
def test_the_death_of_one_rank_in_a_climb_changes_no_bit(tmp_path: Path, form: list[str]) -> None:
    run(tmp_path / "unbroken", *form, ranks=2)
    run(tmp_path / "broken", *form, "--die", "second pass:4", ranks=2, code=1)
    assert not (tmp_path / "broken" / "end.pt").exists()
    run(tmp_path / "broken", *form, ranks=2)
    assert_same_tree(end(tmp_path / "broken"), end(tmp_path / "unbroken"))


def watched(job: subprocess.Popen[str], steps: int, ranks: int) -> Ranks:
    """The processes of the ranks, once each has said so many steps."""
    assert job.stdout is not None
    said: dict[int, int] = {}
    found: Ranks = {}
    for line in job.stdout:
        if match := re.fullmatch(r"rank (\d+) pid (\d+) step \d+\n", line):
            rank = int(match[1])
            found[rank], said[rank] = int(match[2]), said.get(rank, 0) + 1
            if len(said) == ranks and min(said.values()) >= steps:
                return found
    raise AssertionError(f"the job ended by itself, with code {job.wait()}")


def killed_at_random(folder: Path, draw: random.Random, victims: str, *arguments: str) -> None:
    """One launch: some steps, a moment more, and a blow to one rank or to the whole job."""
    ranks = 1 if victims == "process" else 2
    with launched(folder, ranks, *arguments) as job:
        pids = watched(job, draw.randint(1, 6), ranks)
        time.sleep(draw.uniform(0, 0.02))
        struck = [pids[draw.randrange(ranks)]] if victims == "rank" else [job.pid, *pids.values()]
        for pid in dict.fromkeys(struck):
            os.kill(pid, signal.SIGKILL)
        job.communicate(timeout=LIMIT)
    assert not (folder / "end.pt").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_process_killed_at_twenty_random_instants_changes_no_bit(tmp_path: Path) -> None:
    draw, long = random.Random(0), ["--steps", "600"]
    run(tmp_path / "unbroken", *long)
    for _ in range(20):
        killed_at_random(tmp_path / "broken", draw, "process", *long)
    assert torch.load(tmp_path / "broken" / "checkpoint.pt", weights_only=True)["step"] < 600
    run(tmp_path / "broken", *long)
    assert_same_tree(end(tmp_path / "broken"), end(tmp_path / "unbroken"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("form", "rounds"),
    [
        (["--steps", "300"], ["rank", "job", "rank", "job"]),
        (["--steps", "60", "--shards"], ["rank", "job"]),
    ],
    ids=["replicas", "shards"],
)
def test_ranks_killed_at_random_instants_change_no_bit(
    tmp_path: Path, form: list[str], rounds: list[str]
) -> None:
    draw = random.Random(1)
    run(tmp_path / "unbroken", *form, ranks=2)
    for victims in rounds:
        killed_at_random(tmp_path / "broken", draw, victims, *form)
    run(tmp_path / "broken", *form, ranks=2)
    assert_same_tree(end(tmp_path / "broken"), end(tmp_path / "unbroken"))
