"""Beam search for the likeliest translation, over all sentences of a batch at once.

At each position the search keeps the best continuations of a sentence, as many as the beam is wide.
Those that end among them are finished translations. A sentence is done when as many translations
have ended as the beam is wide; none is empty. The best translation has the largest

    log p(translation | source) / (its pieces, the end counted) ^ length_penalty

`CachedDecoder` keeps the keys and values of earlier positions, so that a step costs one piece.
`UncachedDecoder` computes them again, and serves to check the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from vasso.engine.batchnorm import evaluating
from vasso.lab.translation.pieces import BEGIN, END, PAD
from vasso.lab.translation.transformer import (
    POSITIONS,
    KeysAndValues,
    Transformer,
    piece_mask,
)
from vasso.parts.part import Range

LONGEST = 200
"""Pieces of a translation, the end counted, as in fairseq."""


@dataclass(frozen=True)
class Search:
    """Settings of beam search; a beam of 1 is greedy.

    A `length_penalty` above 0 favours long translations. `cached` caches keys and values, which
    changes the time and not the result.
    """

    beam: int = 5
    length_penalty: float = 1.0
    cached: bool = True

    def __post_init__(self) -> None:
        Range(least=1).check("beam", self.beam)
        Range().check("length_penalty", self.length_penalty)


@dataclass(frozen=True)
class Translation:
    """A finished translation: its pieces without the end, log probability and score."""

    pieces: list[int]
    log_probability: float
    score: float


class Decoder(Protocol):
    """Scores the continuations of translations."""

    def next(self, prefix: Tensor) -> Tensor:
        """Scores of the next piece, a row for each row of pieces so far."""

    def keep(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Continues with these rows, and with these sentences, None for all."""


class CachedDecoder:
    """Caches the keys and values of earlier positions."""

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self.model, self.mask = model, piece_mask(source)
        self.memory = model.keys_and_values(model.encode(source))
        self.past: Sequence[KeysAndValues | None] = [None] * len(self.memory)

    def next(self, prefix: Tensor) -> Tensor:
        position = prefix.shape[1] - 1
        scores, self.past = self.model.decode_step(
            prefix[:, -1], position, self.memory, self.mask, self.past
        )
        return scores

    def keep(self, rows: Tensor, sentences: Tensor | None) -> None:
        self.past = [p if p is None else (p[0][rows], p[1][rows]) for p in self.past]
        if sentences is not None:
            self.memory = [(keys[sentences], values[sentences]) for keys, values in self.memory]
            self.mask = self.mask[sentences]


class UncachedDecoder:
    """Decodes all earlier pieces again at each step."""

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self.model, self.source = model, source

    def next(self, prefix: Tensor) -> Tensor:
        times = len(prefix) // len(self.source)
        scores: Tensor = self.model(self.source.repeat_interleave(times, 0), prefix)[:, -1]
        return scores

    def keep(self, rows: Tensor, sentences: Tensor | None) -> None:
        if sentences is not None:
            self.source = self.source[sentences]


@torch.no_grad()
def translations(
    model: Transformer, source: Tensor, search: Search | None = None, longest: int = LONGEST
) -> list[list[Translation]]:
    """Translations of the sentences N x S (filled with `PAD`), the best first.

    The model is set to evaluation mode and back. `longest` counts pieces, the end included.
    """
    search = search or Search()
    longest = min(longest, POSITIONS)
    with evaluating(model):
        decoder: Decoder = (CachedDecoder if search.cached else UncachedDecoder)(model, source)
        beam = Beam(search, source)
        while len(beam.left) and beam.length < longest:
            scores = decoder.next(beam.prefix)
            decoder.keep(*beam.advance(scores, last=beam.length == longest - 1))
    return [sorted(some, key=lambda t: -t.score) for some in beam.ended]


@dataclass(eq=False)
class Beam:
    """The translations in progress.

    `ended` holds the finished ones of each sentence, `left` the sentences that are not done.
    `prefix` has a row of pieces for each translation, those of a sentence adjacent. `sums` are log
    probabilities, sentences x translations.
    """

    search: Search
    source: Tensor
    ended: list[list[Translation]] = field(init=False)

    def __post_init__(self) -> None:
        n, device = len(self.source), self.source.device
        self.ended = [[] for _ in range(n)]
        self.left = torch.arange(n)
        self.prefix = torch.full((n, 1), BEGIN, device=device)
        self.sums = torch.zeros(n, 1, device=device, dtype=torch.float64)

    @property
    def length(self) -> int:
        return self.prefix.shape[1] - 1

    def advance(self, scores: Tensor, last: bool) -> tuple[Tensor, Tensor | None]:
        """Appends the next pieces; returns the rows and the sentences, None for all, that continue.

        `scores` has a row for each row of `prefix`; with `last` all translations have to end.
        """
        n, wide = self.sums.shape
        totals = self.sums[:, :, None] + self._log_probabilities(scores, last).view(n, wide, -1).to(
            self.sums
        )
        pieces = totals.shape[2]
        best, at = totals.flatten(1).topk(min(2 * self.search.beam, wide * pieces))
        piece, row = at % pieces, at // pieces + wide * torch.arange(n, device=at.device)[:, None]
        ends = (piece == END) & best.isfinite()
        self._finish(best, row, ends)
        best = best.masked_fill(piece == END, -torch.inf)
        order = torch.argsort(best, dim=1, descending=True, stable=True)[:, : self.search.beam]
        best, piece, row = (x.gather(1, order) for x in (best, piece, row))
        continuing = self._continuing(best)
        if continuing is not None:
            best, piece, row = best[continuing], piece[continuing], row[continuing]
            self.left = self.left[continuing.cpu()]
        self.sums = best
        self.prefix = torch.cat((self.prefix[row.flatten()], piece.reshape(-1, 1)), 1)
        return row.flatten(), continuing

    def _finish(self, best: Tensor, row: Tensor, ends: Tensor) -> None:
        length = self.length + 1
        for i, j in ends[:, : self.search.beam].nonzero().tolist():
            sentence = self.ended[int(self.left[i])]
            if len(sentence) < self.search.beam:
                log_p = float(best[i, j])
                score = log_p / length**self.search.length_penalty
                sentence.append(Translation(self.prefix[row[i, j], 1:].tolist(), log_p, score))

    def _continuing(self, best: Tensor) -> Tensor | None:
        enough = self.search.beam
        full = torch.tensor([len(self.ended[int(s)]) >= enough for s in self.left])
        done = full | ~best.isfinite().any(1).cpu()
        return (~done).nonzero().flatten().to(best.device) if done.any() else None

    def _log_probabilities(self, scores: Tensor, last: bool) -> Tensor:
        """Log probabilities; forbidden pieces are masked after normalisation."""
        found = scores.float() if scores.dtype != torch.float64 else scores
        found = found.log_softmax(1)
        found[:, [PAD, BEGIN]] = -torch.inf
        if last:
            found[:, :END] = -torch.inf
            found[:, END + 1 :] = -torch.inf
        elif self.length == 0:
            found[:, END] = -torch.inf
        return found
