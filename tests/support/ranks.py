"""Several processes on this machine: forked from one that has loaded torch, or under torchrun.

A rank that imports torch and scikit-learn by itself needs seconds for it. `launch` therefore forks
its ranks from a server that each process of pytest starts once and that has no threads.
"""

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
LIMIT = 240
"""Seconds after which ranks that wait for each other are taken for a deadlock."""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
PRELOADED = ("tests.distributed.runs", "torch.distributed.checkpoint", "torch.distributed.fsdp")


# -- in the process of pytest ---------------------------------------------------------------------


def launch(target: str, *arguments: str, ranks: int = 2, limit: int = LIMIT) -> str:
    """What `module:function` prints on so many ranks, or in one plain process if there are none."""
    job = {"target": target, "arguments": arguments, "ranks": ranks, "limit": limit}
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(job) + "\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    said: str = answer["said"]
    assert not any(answer["codes"]), f"exit codes {answer['codes']}\n{said[-4000:]}"
    return said


def torchrun(*arguments: str, ranks: int = 2, limit: int = LIMIT) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "-m", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=limit
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def results(suite: str, folder: Path) -> dict[str, Any]:
    out = folder / f"{suite}.json"
    launch("tests.support.ranks:run_suite", suite, str(out))
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT,
        env=ENVIRONMENT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    atexit.register(server.communicate)  # the end of its input ends it
    return server


# -- in the ranks ---------------------------------------------------------------------------------


def run_suite(suite: str, out: str) -> None:
    run_cases(importlib.import_module(f"tests.distributed.{suite}").CASES, Path(out))


def run_cases(cases: Mapping[str, Callable[[], Any]], out: Path) -> None:
    """Writes what the cases return on rank 0; one that raises leaves the text of its exception."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found = {}
    for name, case in cases.items():
        try:
            found[name] = case()
        except Exception:
            found[name] = traceback.format_exc()
        dist.barrier()
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()


def run_script(module: str, *arguments: str) -> None:
    import runpy

    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__")


def leave(code: int = 0) -> NoReturn:
    """Ends a rank without the interpreter's own exit.

    Where DDP has been built, torch 2.13 leaves gloo's threads running after
    `destroy_process_group`. One that still lets go of a tensor at exit aborts the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# -- in the server --------------------------------------------------------------------------------


def _serve() -> None:
    import torch

    torch.set_num_threads(1)
    for module in PRELOADED:
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(_together(**json.loads(line))), flush=True)


def _together(target: str, arguments: list[str], ranks: int, limit: int) -> dict[str, Any]:
    """Forks the ranks, waits for all of them and kills the others when one fails."""
    with tempfile.TemporaryFile("w+") as log:
        port = _free_port()
        environments = [
            {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            for rank in range(ranks)
        ]
        pids = {_fork(target, arguments, each, log.fileno()) for each in environments or [{}]}
        codes = []
        signal.signal(signal.SIGALRM, _raise_timeout)
        signal.alarm(limit)
        try:
            while pids:
                pid, status = os.wait()
                pids.remove(pid)
                codes.append(os.waitstatus_to_exitcode(status))
                if codes[-1]:
                    break
        except TimeoutError as error:
            codes.append(str(error))
        finally:
            signal.alarm(0)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        log.seek(0)
        return {"codes": codes, "said": log.read()}


def _fork(target: str, arguments: list[str], environment: dict[str, Any], log: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ.update({key: str(value) for key, value in environment.items()})
        os.dup2(log, 1)
        os.dup2(log, 2)
        module, function = target.split(":")
        getattr(importlib.import_module(module), function)(*arguments)
    except BaseException:
        traceback.print_exc()
        leave(1)
    leave()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _raise_timeout(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError("the ranks wait for each other")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # under torchrun
        run_script(*sys.argv[1:])
        leave()
    _serve()
