"""Which translation is the likeliest? Beam search over all sentences of a batch at once.

At each place the best continuations of all translations of a sentence are kept, as many as the beam
is wide; one that ends among them is set aside. A sentence is done when as many have ended; none is
empty. The best has the largest

    log p(translation | source) / (its pieces, the end counted) ^ length_penalty

`Cached` remembers keys and values of what has been said, so that a step costs one piece;
`Replayed` reads it all again, and is there to tell whether that is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from vasso.batchnorm import evaluating
from vasso.lab.translation.pieces import BEGIN, END, PAD
from vasso.lab.translation.transformer import (
    POSITIONS,
    KeysAndValues,
    Transformer,
    attended,
)
from vasso.parts import Range

LONGEST = 200
"""Pieces of a translation, the end counted, as in fairseq."""


@dataclass(frozen=True)
class Search:
    """How translations are sought.

    Args:
        beam: translations that are followed at a time; 1 is greedy.
        length_penalty: above 0 favours long translations.
        cached: remembers keys and values; without, the answer is the same and comes later.
    """

    beam: int = 5
    length_penalty: float = 1.0
    cached: bool = True

    def __post_init__(self) -> None:
        Range(least=1).check("beam", self.beam)
        Range().check("length_penalty", self.length_penalty)


@dataclass(frozen=True)
class Translation:
    """A translation that has ended.

    Attributes:
        pieces: without the end.
        log_probability: of them and the end.
        score: by which it was chosen.
    """

    pieces: list[int]
    log_probability: float
    score: float


class Reader(Protocol):
    """Says how translations go on."""

    def next(self, said: Tensor) -> Tensor:
        """Scores of the next piece, for rows of what has been said."""

    def keep(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Goes on with these rows; and with these sentences alone, if not with all."""


class Cached:
    """Remembers keys and values.

    Args:
        model: the model.
        source: sentences.
    """

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self.model, self.seen = model, attended(source)
        self.there = model.there(model.encode(source))
        self.past: Sequence[KeysAndValues | None] = [None] * len(self.there)

    def next(self, said: Tensor) -> Tensor:
        """Scores of the next piece.

        Args:
            said: rows of pieces.

        Returns:
            A row of scores for each.
        """
        place = said.shape[1] - 1
        scores, self.past = self.model.next(said[:, -1], place, self.there, self.seen, self.past)
        return scores

    def keep(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Goes on with some rows.

        Args:
            rows: which, in the order to be.
            sentences: which; None for all.
        """
        self.past = [p if p is None else (p[0][rows], p[1][rows]) for p in self.past]
        if sentences is not None:
            self.there = [(keys[sentences], values[sentences]) for keys, values in self.there]
            self.seen = self.seen[sentences]


class Replayed:
    """Reads all that has been said again at each step.

    Args:
        model: the model.
        source: sentences.
    """

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self.model, self.source = model, source

    def next(self, said: Tensor) -> Tensor:
        """Scores of the next piece.

        Args:
            said: rows of pieces.

        Returns:
            A row of scores for each.
        """
        times = len(said) // len(self.source)
        found: Tensor = self.model(self.source.repeat_interleave(times, 0), said)[:, -1]
        return found

    def keep(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Goes on with some rows.

        Args:
            rows: which, in the order to be.
            sentences: which; None for all.
        """
        if sentences is not None:
            self.source = self.source[sentences]


@torch.no_grad()
def translations(
    model: Transformer, source: Tensor, search: Search | None = None, longest: int = LONGEST
) -> list[list[Translation]]:
    """Translates sentences.

    Args:
        model: the model; it is used as in a test, and left as it was.
        source: sentences, N x S, filled with `PAD`.
        search: how.
        longest: pieces of a translation at most, the end counted.

    Returns:
        Translations of each sentence, the best first.
    """
    search = search or Search()
    longest = min(longest, POSITIONS)
    with evaluating(model):
        reader: Reader = (Cached if search.cached else Replayed)(model, source)
        under_way = UnderWay(search, source)
        while len(under_way.left) and under_way.length < longest:
            scores = reader.next(under_way.said)
            reader.keep(*under_way.advance(scores, last=under_way.length == longest - 1))
    return [sorted(some, key=lambda t: -t.score) for some in under_way.ended]


@dataclass(eq=False)
class UnderWay:
    """Translations that have not ended.

    Args:
        search: how they are sought.
        source: sentences.

    Attributes:
        ended: of each sentence, translations that have.
        left: sentences that are not done.
        said: pieces, a row for each translation; those of a sentence one after the other.
        sums: log probabilities, sentences x translations.
    """

    search: Search
    source: Tensor
    ended: list[list[Translation]] = field(init=False)

    def __post_init__(self) -> None:
        n, device = len(self.source), self.source.device
        self.ended = [[] for _ in range(n)]
        self.left = torch.arange(n)
        self.said = torch.full((n, 1), BEGIN, device=device)
        self.sums = torch.zeros(n, 1, device=device, dtype=torch.float64)

    @property
    def length(self) -> int:
        """Pieces said so far."""
        return self.said.shape[1] - 1

    def advance(self, scores: Tensor, last: bool) -> tuple[Tensor, Tensor | None]:
        """Takes the next piece of each translation.

        Args:
            scores: of all pieces, for each row of `said`.
            last: whether all have to end.

        Returns:
            Which rows go on, in order; and which sentences, None if all do.
        """
        n, wide = self.sums.shape
        totals = self.sums[:, :, None] + self._allowed(scores, last).view(n, wide, -1).to(self.sums)
        pieces = totals.shape[2]
        best, at = totals.flatten(1).topk(min(2 * self.search.beam, wide * pieces))
        piece, row = at % pieces, at // pieces + wide * torch.arange(n, device=at.device)[:, None]
        ends = (piece == END) & best.isfinite()
        self._set_aside(best, row, ends)
        best = best.masked_fill(piece == END, -torch.inf)
        order = torch.argsort(best, dim=1, descending=True, stable=True)[:, : self.search.beam]
        best, piece, row = (x.gather(1, order) for x in (best, piece, row))
        going = self._not_done(best)
        if going is not None:
            best, piece, row = best[going], piece[going], row[going]
            self.left = self.left[going.cpu()]
        self.sums = best
        self.said = torch.cat((self.said[row.flatten()], piece.reshape(-1, 1)), 1)
        return row.flatten(), going

    def _set_aside(self, best: Tensor, row: Tensor, ends: Tensor) -> None:
        """Keeps what has ended among the first, as many as the beam is wide."""
        length = self.length + 1
        for i, j in ends[:, : self.search.beam].nonzero().tolist():
            sentence = self.ended[int(self.left[i])]
            if len(sentence) < self.search.beam:
                log_p = float(best[i, j])
                score = log_p / length**self.search.length_penalty
                sentence.append(Translation(self.said[row[i, j], 1:].tolist(), log_p, score))

    def _not_done(self, best: Tensor) -> Tensor | None:
        """Places of the sentences that go on; None for all."""
        enough = self.search.beam
        full = torch.tensor([len(self.ended[int(s)]) >= enough for s in self.left])
        done = full | ~best.isfinite().any(1).cpu()
        return (~done).nonzero().flatten().to(best.device) if done.any() else None

    def _allowed(self, scores: Tensor, last: bool) -> Tensor:
        """Log probabilities; what is forbidden still counts in their sum."""
        found = scores.float() if scores.dtype != torch.float64 else scores
        found = found.log_softmax(1)
        found[:, [PAD, BEGIN]] = -torch.inf
        if last:
            found[:, :END] = -torch.inf
            found[:, END + 1 :] = -torch.inf
        elif self.length == 0:
            found[:, END] = -torch.inf
        return found
