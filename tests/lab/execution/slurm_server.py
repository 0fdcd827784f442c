"""A real Slurm of one node, in a folder: Debian's slurmctld and slurmd with a munge of their own.

It needs root. Where it cannot be started tests skip, or fail if VASSO_REQUIRE_SLURM=1.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.execution.grid import until
from tests.support import need

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=2
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=30
SchedulerParameters=batch_sched_delay=1,sched_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=short Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
"""A job that is requeued waits until its credential has expired: two seconds here, not 120."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """Slurm commands of this process and its children talk to a Slurm of this test."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None] or ["root"]
    remedy = f"{missing[0]} is needed: apt-get install slurmctld slurmd slurm-client munge"
    need(missing == ["root"] and os.getuid() == 0, remedy, "VASSO_REQUIRE_SLURM")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    values: dict[str, Any] = {"host": socket.gethostname().partition(".")[0], "folder": folder}
    ports = {"controller": free_port(), "daemon": free_port()}
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(**values, **ports))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    started: list[subprocess.Popen[bytes]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(configuration))
        try:
            started.append(munge(folder))
            until((folder / "munge.socket").exists, 30)
            started.append(subprocess.Popen(["slurmctld", "-D", "-i"], **QUIET))
            started.append(subprocess.Popen(["slurmd", "-D"], **QUIET))
            until(lambda: "idle" in output("sinfo", "--noheader", "--format=%T"), 60)
            yield
        finally:
            subprocess.run(["scancel", "--partition=short"], check=False, capture_output=True)
            for _ in range(60):  # while a job ends, slurmd waits for its steps
                if not output("squeue", "--noheader").strip():
                    break
                time.sleep(1)
            for process in reversed(started):
                stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a daemon: nothing of it may be left for the next test."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(60)


QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def munge(folder: Path) -> subprocess.Popen[bytes]:
    files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid"}
    files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
    words = [f"--{name}={folder / file}" for name, file in files.items()]
    return subprocess.Popen(["munged", "--foreground", "--force", *words], **QUIET)


def output(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout
