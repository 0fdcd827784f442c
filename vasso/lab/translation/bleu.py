"""How good are translations? BLEU by sacrebleu, in two conventions, from the weights of a run.

| name | hypothesis | reference |
|---|---|---|
| `bleu` | Moses's tokens in lower case, as the model says them | likewise: the paper's convention |
| `detokenised` | put together again, in lower case | as written, in lower case; sacrebleu cuts it |

The first is what fairseq tells and what Table 4 holds; figures of the two cannot be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vasso.lab.folder import Folder, StoreError
from vasso.lab.runs import Run
from vasso.lab.translation.batches import packed
from vasso.lab.translation.beam import LONGEST, Search, translations
from vasso.lab.translation.pairs import NAMES, Sequences, Texts
from vasso.lab.translation.transformer import Transformer
from vasso.lab.translation.vocabulary import Vocabulary, check_is_of
from vasso.lab.translation.words import detokenised
from vasso.parts import Range

PIECES = 2048
"""Of the source in a batch of beam search, padding counted."""


@dataclass(frozen=True)
class Bleu:
    """How translations are made and scored.

    Args:
        beam: width of the search.
        length_penalty: above 0 favours long translations.
        sentences: of the test, evenly spaced; 0 for all.
    """

    beam: int = 5
    length_penalty: float = 1.0
    sentences: int = 0

    def __post_init__(self) -> None:
        Range(least=1).check("beam", self.beam)
        Range().check("length_penalty", self.length_penalty)
        Range(least=0).check("sentences", self.sentences)


def translated(
    model: Transformer,
    source: Sequences,
    rows: Tensor,
    search: Search | None = None,
    device: torch.device | str = "cpu",
) -> list[list[int]]:
    """The best translation of each sentence.

    Args:
        model: the model.
        source: sentences.
        rows: which.
        search: how.
        device: where the model is.

    Returns:
        Pieces, in the order of the rows.
    """
    order = torch.argsort(source.lengths[rows], descending=True, stable=True)
    lengths = source.lengths[rows][order]
    found: dict[int, list[int]] = {}
    for some in torch.split(order, packed(lengths, max(PIECES, *lengths[:1].tolist(), 0))):
        best = translations(model, source.padded(rows[some]).to(device), search)
        found |= {int(i): each[0].pieces for i, each in zip(some, best, strict=True)}
    return [found[i] for i in range(len(rows))]


def scores(hypotheses: Sequence[str], words: Sequence[str], written: Sequence[str]) -> Any:
    """BLEU in both conventions.

    Args:
        hypotheses: translations as tokens.
        words: references as tokens.
        written: references as written.

    Returns:
        `bleu`, `detokenised`, and the brevity penalty and lengths' ratio of the first.

    Example:
        >>> said = ["the small cat sat on the mat ."]
        >>> round(scores(said, said, ["The small cat sat on the mat."])["bleu"], 6)
        100.0
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


def of_run(
    settings: Bleu, run: Run, folder: Folder, data: Path | None, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """BLEU of a finished run on its test sentences, at its last weights.

    Args:
        settings: how.
        run: the run.
        folder: its place.
        data: where data are.
        device: where to translate.

    Returns:
        What `scores` gives, how many sentences were translated, and how many translations had to
        be cut because they did not end: a few that repeat themselves cost much BLEU.
    """
    from vasso.lab.pixels import spaced

    texts = corpus_of(run, folder, data)
    check_is_of(texts, folder)
    model = model_of(run, folder, Vocabulary.of_texts(texts))
    rows = spaced(settings.sentences or len(texts.test), len(texts.test))
    search = Search(settings.beam, settings.length_penalty)
    said = translated(model.to(device), texts.test.source, rows, search, device)
    hypotheses = [texts.target.text(pieces) for pieces in said]
    chosen = rows.tolist()
    test = texts.test
    words, written = ([lines[i] for i in chosen] for lines in (test.words, test.written))
    endless = sum(len(pieces) >= LONGEST - 1 for pieces in said)
    return {**scores(hypotheses, words, written), "sentences": len(rows), "endless": endless}


def corpus_of(run: Run, folder: Folder, data: Path | None) -> Texts:
    """The sentences of a run.

    Args:
        run: the run.
        folder: its place.
        data: where data are.

    Returns:
        The corpus.

    Raises:
        StoreError: it has none.
    """
    own = ":" in run.task.data
    texts = run.task.load(run.seed, data) if own or run.task.data in NAMES else None
    if not isinstance(texts, Texts):
        raise StoreError(f"{folder.id} is trained on images and cannot translate")
    return texts


def model_of(run: Run, folder: Folder, words: Vocabulary) -> Transformer:
    """The translator of a finished run.

    Args:
        run: the run.
        folder: its place.
        words: its vocabulary.

    Returns:
        The model, with its averaged weights if there are any.

    Raises:
        StoreError: it is no translator, or of another vocabulary.
    """
    weights, _ = folder.weights()
    model = run.task.build_translator(words, run.seed)
    if not isinstance(model, Transformer):
        raise StoreError(f"{folder.id}: {run.task.model} is no vasso.lab.translation.Transformer")
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise StoreError(
            f"the weights of {folder.id} are not of dictionaries of {len(words.source)} and "
            f"{len(words.target)} pieces: the corpus has changed since it was trained"
        ) from None
    return model
