"""The command `vasso translate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from vasso.lab.subject import finished
from vasso.lab.usage import usage


@dataclass(frozen=True)
class Translate:
    """Translates sentences from German to English by a finished run.

    Its id is the name of the folder that `vasso train` printed, or a name in the store.

    Try:
        vasso translate multi30k-transformer-small-sam-rho-0.1-s0-0123456789 "Ein Hund schläft."
    """

    run: tyro.conf.Positional[str]
    """id of a finished run, or its folder"""
    sentences: tyro.conf.Positional[tuple[str, ...]]
    """in German, each in quotes"""
    beam: int = 5
    """translations followed at a time; 1 is greedy"""
    length_penalty: float = 1.0
    """above 0 favours long translations"""
    store: Path = Path("runs")
    """directory of runs"""
    data_root: Path | None = None
    """directory of data sets; else VASSO_DATA, else the cache of the user"""

    def __call__(self) -> int:
        """Prints a line for each sentence.

        Returns:
            The exit code.

        Raises:
            ValueError: there is nothing to translate.
        """
        from vasso.lab.translation.beam import Search
        from vasso.lab.translation.translate import translate

        with usage():
            if not self.sentences:
                raise ValueError('there is nothing to translate: give sentences, each in "quotes"')
            folder = finished(self.run, Path(self.run).expanduser(), self.store)
            search = Search(self.beam, self.length_penalty)
            found = translate(folder, self.sentences, search, self.data_root)
        print("\n".join(found))
        return 0
