"""What two ranks do: `torchrun --nproc-per-node 2 -m tests.distributed.worker SUITE OUT`.

Every case of a suite is a function of the ranks; what it returns on rank 0 goes into a JSON file,
where the tests look at it. A case that raises leaves the text of its exception.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

Case = Callable[[], Any]


def run(cases: Mapping[str, Case], out: Path) -> None:
    """Runs all cases on all ranks."""
    torch.set_num_threads(1)
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


def leave(code: int = 0) -> NoReturn:
    """Ends a rank; one of gloo sometimes aborts in the interpreter's own exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run(importlib.import_module(f"tests.distributed.{sys.argv[1]}").CASES, Path(sys.argv[2]))
    leave()
