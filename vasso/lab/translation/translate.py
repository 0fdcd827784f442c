"""What does a trained run make of a sentence? `vasso translate RUN "ein Satz"`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from vasso.lab.data import DataError
from vasso.lab.folder import Folder, StoreError
from vasso.lab.runs import Run
from vasso.lab.translation.beam import Search
from vasso.lab.translation.bleu import corpus_of, model_of, translated
from vasso.lab.translation.pairs import Sequences
from vasso.lab.translation.pieces import END
from vasso.lab.translation.vocabulary import FILE, Vocabulary, kept
from vasso.lab.translation.words import detokenised, tokenised


def translate(
    folder: Folder, sentences: Sequence[str], search: Search | None = None, data: Path | None = None
) -> list[str]:
    """Translates sentences by a finished run.

    Args:
        folder: of the run.
        sentences: as one writes them.
        search: how translations are sought.
        data: where data are, for runs of older versions, which did not keep their vocabulary.

    Returns:
        Translations in lower case, put together as one writes them.

    Raises:
        ValueError: a sentence is empty.
    """
    for sentence in sentences:
        if not sentence.strip():
            raise ValueError("there is nothing to translate in an empty sentence")
    run = Run.of(folder.settings["run"], folder.id)
    words = vocabulary_of(run, folder, data)
    model = model_of(run, folder, words)
    pieces = words.cut(tokenised(sentences, "de"))
    source = Sequences.of([[*words.source.numbers(row), END] for row in pieces])
    said = translated(model, source, torch.arange(len(source)), search)
    return detokenised([words.target.text(row) for row in said], "en")


def vocabulary_of(run: Run, folder: Folder, data: Path | None) -> Vocabulary:
    """What a run has kept, or what its corpus gives.

    Args:
        run: the run.
        folder: its place.
        data: where data are.

    Returns:
        The vocabulary.

    Raises:
        StoreError: there is neither.
    """
    found = kept(folder)
    if found is not None:
        return found
    try:
        return Vocabulary.of_texts(corpus_of(run, folder, data))
    except (DataError, OSError, ValueError) as trouble:
        raise StoreError(
            f"{folder.path} has no {FILE}, which runs of older versions did not keep, and its "
            f"corpus {run.task.data} cannot be read: {trouble}"
        ) from trouble
