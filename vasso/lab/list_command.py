"""The command `vasso list`."""

from __future__ import annotations

from dataclasses import dataclass

import tyro
from rich.console import Console

from vasso.lab.catalogues import KINDS, listed
from vasso.lab.entries import about
from vasso.lab.settings import name_of
from vasso.lab.usage import usage


@dataclass(frozen=True)
class List:
    """Shows what there is: studies, methods, data or models; or one of them in full.

    Try:
        vasso list
        vasso list methods
        vasso list methods VaSSO
        vasso list studies label-noise
    """

    kind: tyro.conf.Positional[str] = "studies"
    """studies, methods, data or models"""
    name: tyro.conf.Positional[str] = ""
    """one of them, to see all that there is to know of it"""

    def __call__(self) -> int:
        """Prints it.

        Returns:
            The exit code.
        """
        with usage():
            kind = name_of("list", self.kind, KINDS)
            text = about(kind, self.name) if self.name else listed(kind)
        Console().print(text, highlight=False, markup=False, soft_wrap=True)
        return 0
