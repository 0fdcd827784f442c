"""What does a trained run make of a sentence? `vasso translate RUN "ein Satz"`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from vasso.lab.runs import Run
from vasso.lab.store import Folder
from vasso.lab.translation.beam import Search
from vasso.lab.translation.bleu import model_of, translated
from vasso.lab.translation.pairs import Sequences
from vasso.lab.translation.pieces import END
from vasso.lab.translation.words import detokenised, tokenised


def translate(
    folder: Folder, sentences: Sequence[str], search: Search | None = None, data: Path | None = None
) -> list[str]:
    """Translates sentences by a finished run.

    Args:
        folder: of the run.
        sentences: as one writes them.
        search: how translations are sought.
        data: where data are: the run's dictionaries are made from its corpus.

    Returns:
        Translations in lower case, put together as one writes them.

    Raises:
        ValueError: a sentence is empty.
    """
    for sentence in sentences:
        if not sentence.strip():
            raise ValueError("there is nothing to translate in an empty sentence")
    run = Run.of(folder.settings["run"], folder.id)
    model, texts = model_of(run, folder, data)
    pieces = texts.cut(tokenised(sentences, "de"))
    source = Sequences.of([[*texts.source.numbers(row), END] for row in pieces])
    said = translated(model, source, torch.arange(len(source)), search)
    return detokenised([texts.target.text(row) for row in said], "en")
