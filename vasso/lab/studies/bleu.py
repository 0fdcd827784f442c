"""BLEU of translations, by sacrebleu in two conventions, from the weights of a run.

| name | hypothesis | reference |
|---|---|---|
| `bleu` | Moses's tokens in lower case, as the model has them | likewise: the paper's convention |
| `detokenised` | put together again, in lower case | as written, in lower case; sacrebleu cuts it |

The first is fairseq's convention and that of Table 4. Values of the two cannot be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vasso.lab.experiment.run import Run
from vasso.lab.experiment.user_functions import is_user_function
from vasso.lab.store.run_directory import RunDirectory, StoreError
from vasso.lab.training.image_batches import evenly_spaced
from vasso.lab.training.sentences import batch_sizes
from vasso.lab.training.setup import build_text_model, load_data
from vasso.lab.translation.beam import LONGEST, Search, translations
from vasso.lab.translation.corpora import CORPORA
from vasso.lab.translation.pairs import Sequences, Texts
from vasso.lab.translation.pieces import VOCABULARY_FILE, Vocabulary
from vasso.lab.translation.transformer import Transformer
from vasso.lab.translation.words import detokenised
from vasso.parts.part import Range

PIECES = 2048
"""Pieces of the source in a batch of beam search, padding counted."""


@dataclass(frozen=True)
class Bleu:
    """Settings of the translations that are scored.

    `sentences` of the test are translated, evenly spaced; 0 for all. A `length_penalty` above 0
    favours long translations.
    """

    beam: int = 5
    length_penalty: float = 1.0
    sentences: int = 0

    def __post_init__(self) -> None:
        Range(least=1).check("beam", self.beam)
        Range().check("length_penalty", self.length_penalty)
        Range(least=0).check("sentences", self.sentences)


def translate_rows(
    model: Transformer,
    source: Sequences,
    rows: Tensor,
    search: Search | None = None,
    device: torch.device | str = "cpu",
) -> list[list[int]]:
    """The pieces of the best translation of each sentence, in the order of the rows."""
    order = torch.argsort(source.lengths[rows], descending=True, stable=True)
    lengths = source.lengths[rows][order]
    best: dict[int, list[int]] = {}
    for some in torch.split(order, batch_sizes(lengths, max(PIECES, *lengths[:1].tolist(), 0))):
        found = translations(model, source.padded(rows[some]).to(device), search)
        best |= {int(i): each[0].pieces for i, each in zip(some, found, strict=True)}
    return [best[i] for i in range(len(rows))]


def bleu_scores(hypotheses: Sequence[str], words: Sequence[str], written: Sequence[str]) -> Any:
    """BLEU in both conventions, and the brevity penalty and ratio of lengths of the first.

    Hypotheses are tokens; references are given as tokens and as written.
    """
    from sacrebleu.metrics.bleu import BLEU

    by_tokens = BLEU(tokenize="none", force=True).corpus_score(list(hypotheses), [list(words)])
    together = detokenised(hypotheses, "en")
    as_written = BLEU(lowercase=True).corpus_score(together, [list(written)])
    return {
        "bleu": float(by_tokens.score),
        "detokenised": float(as_written.score),
        "brevity_penalty": float(by_tokens.bp),
        "length_ratio": float(by_tokens.sys_len / max(by_tokens.ref_len, 1)),
    }


def bleu_of_run(
    settings: Bleu,
    run: Run,
    directory: RunDirectory,
    data_root: Path | None,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """BLEU of a finished run on its test sentences, at its last weights.

    It also counts the sentences, and the translations that were cut because they did not end: a few
    that repeat themselves cost much BLEU.
    """
    texts = _load_corpus(run, directory, data_root)
    model = load_translator(run, directory, texts.vocabulary)
    rows = evenly_spaced(settings.sentences or len(texts.test), len(texts.test))
    search = Search(settings.beam, settings.length_penalty)
    found = translate_rows(model.to(device), texts.test.source, rows, search, device)
    hypotheses = [texts.target.text(pieces) for pieces in found]
    chosen = rows.tolist()
    test = texts.test
    words, written = ([lines[i] for i in chosen] for lines in (test.words, test.written))
    endless = sum(len(pieces) >= LONGEST - 1 for pieces in found)
    scores = bleu_scores(hypotheses, words, written)
    return {**scores, "sentences": len(rows), "endless": endless}


def load_vocabulary(run: Run, directory: RunDirectory) -> Vocabulary:
    """The vocabulary that a translation run keeps next to its weights."""
    _check_translates(run, directory)
    table = directory.table(VOCABULARY_FILE)
    if table is None:
        raise StoreError(
            f"{directory.path} has no {VOCABULARY_FILE}, without which its weights are of no use. "
            f"{directory.remedy}"
        )
    try:
        return Vocabulary.of(table)
    except ValueError as error:
        raise StoreError(
            f"{directory.path / VOCABULARY_FILE} is damaged: {error}. {directory.remedy}"
        ) from None


def _check_translates(run: Run, directory: RunDirectory) -> None:
    if not is_user_function(run.task.data) and run.task.data not in CORPORA:
        raise StoreError(f"{directory.id} is trained on images and cannot translate")


def _load_corpus(run: Run, directory: RunDirectory, data_root: Path | None) -> Texts:
    """The corpus of a run; an error if it is not the one that the run was trained on."""
    _check_translates(run, directory)
    texts = load_data(run.task, run.seed, data_root)
    if not isinstance(texts, Texts):
        raise StoreError(f"{directory.id} is trained on images and cannot translate")
    if load_vocabulary(run, directory).as_table() != texts.vocabulary.as_table():
        raise StoreError(
            f"the corpus {texts.name} is not the one that {directory.id} was trained on (its "
            f"pieces are not those in {VOCABULARY_FILE}): name the data folder of the run "
            "(--data-root)"
        )
    return texts


def load_translator(run: Run, directory: RunDirectory, vocabulary: Vocabulary) -> Transformer:
    """The translator of a finished run, with its averaged weights if there are any."""
    weights, _ = directory.weights()
    model = build_text_model(run.task, vocabulary, run.seed)
    if not isinstance(model, Transformer):
        raise StoreError(
            f"{directory.id}: {run.task.model} is no vasso.lab.translation.Transformer"
        )
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise StoreError(
            f"the weights of {directory.id} are not of dictionaries of {len(vocabulary.source)} "
            f"and {len(vocabulary.target)} pieces: the corpus has changed since it was trained"
        ) from None
    return model
