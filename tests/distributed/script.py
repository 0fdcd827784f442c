"""A module as a rank's main program, without the interpreter's own exit: `... script MODULE ARGS`.

Where DDP has been built, torch 2.13 leaves gloo's threads running after `destroy_process_group`.
One that still lets go of a tensor while Python shuts down aborts the process, its work all done.
"""

from __future__ import annotations

import runpy
import sys

from tests.distributed.worker import leave

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__")
    leave()
