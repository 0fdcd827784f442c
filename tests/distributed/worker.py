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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Case = Callable[[], Any]


def main(suite: str, out: Path) -> int:
    """Runs all cases of a suite."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases: dict[str, Case] = importlib.import_module(f"tests.distributed.{suite}").CASES
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
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1], Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a gloo rank sometimes aborts in the interpreter's own exit
