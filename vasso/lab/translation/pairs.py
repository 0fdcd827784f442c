"""What does a model get? Sentences as numbers, of different lengths, padded when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vasso.extras import brought_by

with brought_by("lab"):
    import numpy as np

from vasso import checks
from vasso.lab.data.cache import Arrays, remembered
from vasso.lab.data.loading import data_root
from vasso.lab.data.progress import shown
from vasso.lab.data.sources import ensure_all
from vasso.lab.translation.corpora import SOURCES, Corpus
from vasso.lab.translation.pieces import END, PAD, Dictionary, Pieces, learnt

NAMES = tuple(SOURCES)
VERSION = 1
"""Of the preparation: what was kept of an older one is made anew."""
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Sequences:
    """Rows of numbers, laid end to end.

    Args:
        numbers: all of them, int64.
        ends: where each row ends.

    Example:
        >>> rows = Sequences.of([[5, 6, 7], [8]])
        >>> rows.padded(torch.tensor([1, 0]))
        tensor([[8, 0, 0],
                [5, 6, 7]])
    """

    numbers: Tensor
    ends: Tensor

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> Sequences:
        """From lists.

        Args:
            rows: numbers.

        Returns:
            The same.
        """
        ends = torch.tensor([len(row) for row in rows], dtype=torch.int64).cumsum(0)
        return Sequences(torch.tensor([n for row in rows for n in row], dtype=torch.int64), ends)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> Tensor:
        """How long each row is."""
        return torch.diff(self.ends, prepend=self.ends.new_zeros(1))

    def padded(self, rows: Tensor) -> Tensor:
        """Some rows as a matrix.

        Args:
            rows: which.

        Returns:
            As wide as the longest; shorter ones are filled with `PAD`.
        """
        lengths = self.lengths[rows]
        places = torch.arange(int(lengths.max()) if len(rows) else 0)
        inside = places < lengths[:, None]
        at = (self.ends[rows] - lengths)[:, None] + places
        return torch.where(inside, self.numbers[at.clamp(max=len(self.numbers) - 1)], PAD)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of sentences.

    Attributes:
        source: German, each with `END`.
        target: English, each with `END`.
        words: the English as tokens.
        written: the English as it was written.
    """

    source: Sequences
    target: Sequences
    words: list[str]
    written: list[str]

    def __len__(self) -> int:
        return len(self.source)

    @property
    def lengths(self) -> Tensor:
        """The longer of the two sides of each pair."""
        return torch.maximum(self.source.lengths, self.target.lengths)


@dataclass(frozen=True, eq=False)
class Texts:
    """A corpus that a model can be trained on.

    Attributes:
        name: of the corpus.
        train: for training.
        valid: for validation.
        test: for the test.
        source: the dictionary of German.
        target: the dictionary of English.
        cut: cuts words.
    """

    name: str
    train: Pairs
    valid: Pairs
    test: Pairs
    source: Dictionary
    target: Dictionary
    cut: Pieces


def load(
    name: str, *, pieces: int = 10_000, root: Path | None = None, download: bool = True
) -> Texts:
    """Reads, tokenises, splits and cuts a corpus; the first time takes a minute, then it is kept.

    Args:
        name: see `vasso.lab.translation.corpora`.
        pieces: merges of byte-pair encoding.
        root: where files are; None: VASSO_DATA, or `~/.cache/vasso`.
        download: fetches what is missing; otherwise an error says what is.

    Returns:
        The corpus.

    Raises:
        ValueError: the name is unknown, or pieces below 1.
    """
    checks.one_of("name", name, *NAMES)
    if pieces < 1:
        raise ValueError(f"pieces must be 1 or more, got {pieces}")
    source, place = SOURCES[name], data_root(root)
    with shown(None) as tell:
        ensure_all(source.items, place, tell if download else None)
    key = f"{name}-{pieces}-{source.fingerprint(place)}-{VERSION}"
    found = remembered(place / "prepared" / key, lambda: _arrays(source.read(place), pieces))
    return _texts(name, found)


def texts_of(corpus: Corpus, *, pieces: int) -> Texts:
    """A corpus of one's own, cut into pieces.

    Args:
        corpus: tokenised sentences.
        pieces: merges of byte-pair encoding, at most.

    Returns:
        What a model can be trained on.
    """
    return _texts(corpus.name, _arrays(corpus, pieces))


def _arrays(corpus: Corpus, pieces: int) -> Arrays:
    """All that is kept of a corpus."""
    train = corpus.train
    both = [*train.source, *train.target]
    merges = (corpus.codes or learnt(both, pieces))[:pieces]
    letters = "".join(sorted({x for line in both for x in line if not x.isspace()}))
    cut = Pieces(merges, letters)
    kept: Arrays = {"merges": _bytes(merges), "letters": _bytes([letters])}
    for side in ("source", "target"):
        dictionary = Dictionary.of(cut(getattr(train, side)))
        kept[side] = _bytes(dictionary.entries)
        for split in SPLITS:
            rows = cut(getattr(getattr(corpus, split), side))
            numbers = Sequences.of([[*dictionary.numbers(row), END] for row in rows])
            kept[f"{split}_{side}"] = numbers.numbers.to(torch.int32).numpy()
            kept[f"{split}_{side}_ends"] = numbers.ends.numpy()
    for split in SPLITS:
        kept[f"{split}_words"] = _bytes(getattr(corpus, split).target)
        kept[f"{split}_written"] = _bytes(getattr(corpus, split).written)
    return kept


def _texts(name: str, kept: Arrays) -> Texts:
    def sequences(key: str) -> Sequences:
        ends = torch.from_numpy(kept[f"{key}_ends"])
        return Sequences(torch.from_numpy(kept[key]).to(torch.int64), ends)

    def pairs(split: str) -> Pairs:
        source, target = (sequences(f"{split}_{side}") for side in ("source", "target"))
        words, written = (_lines(kept[f"{split}_{what}"]) for what in ("words", "written"))
        return Pairs(source, target, words, written)

    source, target = (Dictionary(tuple(_lines(kept[side]))) for side in ("source", "target"))
    cut = Pieces(_lines(kept["merges"]), _lines(kept["letters"])[0])
    return Texts(name, pairs("train"), pairs("valid"), pairs("test"), source, target, cut)


def _bytes(lines: Sequence[str]) -> Any:
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


def _lines(array: Any) -> list[str]:
    return bytes(array).decode().split("\n")
