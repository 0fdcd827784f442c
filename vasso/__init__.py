"""Sharpness-aware training in PyTorch: wrap the optimizer you have, in one line.

`__init__.pyi` lists the public names. Each is imported when it is first used, so that
`vasso --help` does not wait for torch.
"""

from vasso._names import load as __getattr__  # noqa: F401 (Python calls it)
from vasso._names import public_names as __dir__  # noqa: F401 (and this)

__version__ = "0.1.0"
