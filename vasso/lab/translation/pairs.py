"""Prepared corpora: sentences as numbers of pieces, cached on disk and padded in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vasso.optional import needs_extra

with needs_extra("lab"):
    import numpy as np

from vasso import validation
from vasso.lab.data.cache import Arrays, cached
from vasso.lab.data.datasets import data_root
from vasso.lab.data.download import ensure_all, progress_bars
from vasso.lab.data.images import digest_of
from vasso.lab.translation.corpora import CORPORA, Corpus
from vasso.lab.translation.pieces import END, PAD, Dictionary, Pieces, Vocabulary, learn_merges

VERSION = 1
"""Version of the preparation; the cache of an older one is not used."""
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Sequences:
    """Rows of numbers of different lengths, concatenated; `ends` are the ends of the rows.

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
        ends = torch.tensor([len(row) for row in rows], dtype=torch.int64).cumsum(0)
        return Sequences(torch.tensor([n for row in rows for n in row], dtype=torch.int64), ends)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> Tensor:
        """The length of each row."""
        return torch.diff(self.ends, prepend=self.ends.new_zeros(1))

    def padded(self, rows: Tensor) -> Tensor:
        """Some rows as a matrix, as wide as the longest, filled with `PAD`."""
        lengths = self.lengths[rows]
        positions = torch.arange(int(lengths.max()) if len(rows) else 0)
        inside = positions < lengths[:, None]
        at = (self.ends[rows] - lengths)[:, None] + positions
        return torch.where(inside, self.numbers[at.clamp(max=len(self.numbers) - 1)], PAD)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of sentences: German and English numbers, each with `END`; English tokens and text."""

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
    """A prepared corpus: pairs for training, validation and test, dictionaries and merges."""

    name: str
    train: Pairs
    valid: Pairs
    test: Pairs
    source: Dictionary
    target: Dictionary
    cut: Pieces

    @cached_property
    def digest(self) -> str:
        """A short hash of all pairs, as numbers of pieces."""
        splits = (self.train, self.valid, self.test)
        sides = (side for pairs in splits for side in (pairs.source, pairs.target))
        return digest_of(tensor for side in sides for tensor in (side.numbers, side.ends))

    @property
    def vocabulary(self) -> Vocabulary:
        """The merges and dictionaries that a finished run keeps."""
        return Vocabulary(self.source, self.target, self.cut)


def load(
    name: str, *, pieces: int = 10_000, root: Path | None = None, download: bool = True
) -> Texts:
    """Loads a prepared corpus, one of `CORPORA`; the first time takes a minute, then it is cached.

    `pieces` is the number of byte-pair merges, at least 1; `root` and `download` are as in
    `vasso.lab.data.load`.
    """
    validation.one_of("name", name, *CORPORA)
    if pieces < 1:
        raise ValueError(f"pieces must be 1 or more, got {pieces}")
    corpus, folder = CORPORA[name], data_root(root)
    with progress_bars(None) as progress:
        ensure_all(corpus.files, folder, progress if download else None)
    key = f"{name}-{pieces}-{corpus.fingerprint(folder)}-{VERSION}"
    arrays = cached(folder / "prepared" / key, lambda: _arrays(corpus.read(folder), pieces))
    return _texts(name, arrays)


def texts_of(corpus: Corpus, *, pieces: int) -> Texts:
    """A corpus of the user, cut into at most so many pieces."""
    return _texts(corpus.name, _arrays(corpus, pieces))


def _arrays(corpus: Corpus, pieces: int) -> Arrays:
    train = corpus.train
    both = [*train.source, *train.target]
    merges = (corpus.codes or learn_merges(both, pieces))[:pieces]
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
