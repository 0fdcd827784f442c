"""`vasso translate`: translates sentences with a finished run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from vasso.lab.cli.errors import usage_errors
from vasso.lab.cli.paths import StoreOption
from vasso.lab.experiment.run import Run
from vasso.lab.probe.target import finished
from vasso.lab.store.run_directory import RunDirectory
from vasso.lab.store.store import STORE
from vasso.lab.studies.bleu import load_translator, load_vocabulary, translate_rows
from vasso.lab.translation.beam import Search
from vasso.lab.translation.pairs import Sequences
from vasso.lab.translation.pieces import END
from vasso.lab.translation.words import detokenised, tokenised


@dataclass(frozen=True)
class TranslateCommand:
    """Translates sentences from German to English with a finished run.

    Try:
        vasso translate multi30k-transformer-small-sam-rho-0.1-s0-0123456789 "Ein Hund schläft."
    """

    run: tyro.conf.Positional[str]
    """id of a finished run, or its directory as `vasso train` prints it"""
    sentences: tyro.conf.Positional[tuple[str, ...]]
    """in German, each in quotes"""
    beam: int = 5
    """width of the beam search; 1 is greedy"""
    length_penalty: float = 1.0
    """above 0 favours long translations"""
    store: StoreOption = STORE

    def __call__(self) -> int:
        with usage_errors():
            if not self.sentences:
                raise ValueError('there is nothing to translate: give sentences, each in "quotes"')
            folder = finished(self.run, Path(self.run).expanduser(), self.store)
            search = Search(self.beam, self.length_penalty)
            found = translate(folder, self.sentences, search)
        print("\n".join(found))
        return 0


def translate(
    folder: RunDirectory, sentences: Sequence[str], search: Search | None = None
) -> list[str]:
    """Translations in lower case, as plain text, by a finished run."""
    for sentence in sentences:
        if not sentence.strip():
            raise ValueError("there is nothing to translate in an empty sentence")
    run = Run.of(folder.settings["run"], folder.id)
    words = load_vocabulary(run, folder)
    model = load_translator(run, folder, words)
    pieces = words.cut(tokenised(sentences, "de"))
    source = Sequences.of([[*words.source.numbers(row), END] for row in pieces])
    said = translate_rows(model, source, torch.arange(len(source)), search)
    return detokenised([words.target.text(row) for row in said], "en")
