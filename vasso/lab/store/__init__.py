"""Result store: run directories, atomic files, provenance."""

from importlib.util import find_spec

from vasso.lab.schema import LabError

if find_spec("fcntl") is None:
    raise LabError(
        "the lab locks its files with fcntl, which this system does not have: use Linux, macOS or "
        "WSL. The optimizers, vasso.diagnostics and vasso.integrations work here."
    )
