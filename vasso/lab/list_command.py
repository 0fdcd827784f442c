"""The command `vasso list`."""

from __future__ import annotations

from dataclasses import dataclass

import tyro
from rich.console import Console

from vasso.lab import study as studies
from vasso.lab.catalogues import KINDS, about_study, listed
from vasso.lab.settings import name_of
from vasso.lab.usage import usage


@dataclass(frozen=True)
class List:
    """Shows what there is: methods, data, models or studies; or one study in full.

    Try:
        vasso list
        vasso list methods
        vasso list studies label-noise
    """

    kind: tyro.conf.Positional[str] = "studies"
    """methods, data, models or studies"""
    name: tyro.conf.Positional[str] = ""
    """a study, to see its question, its runs and the published figures"""

    def __call__(self) -> int:
        """Prints it.

        Returns:
            The exit code.
        """
        with usage():
            kind = name_of("list", self.kind, KINDS)
            found = studies.load(self.name) if self.name else None
        text = listed(kind) if found is None else about_study(found)
        Console().print(text, highlight=False, markup=False, soft_wrap=True)
        return 0
