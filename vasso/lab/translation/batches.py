"""Which sentences come at a step? A function of the seed and the step, so there is nothing to save.

Sentences are sorted by length (ties are shuffled in each epoch) and packed: a batch holds as many
as, padded, have no more than so many pieces on either side. Lengths in their order are the same in
every epoch, so an epoch has always as many batches; they come in a new order each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from vasso.lab.batches import Tensors
from vasso.lab.data import chance
from vasso.lab.translation.pairs import Pairs


def sorted_rows(pairs: Pairs, seed: int, epoch: int) -> Tensor:
    """Rows by the length of the source, then of the target; ties at random.

    Args:
        pairs: the sentences.
        seed: the run's.
        epoch: from 0.

    Returns:
        All rows.
    """
    rows = chance.permutation(len(pairs), "sentences", seed, epoch)
    for lengths in (pairs.target.lengths, pairs.source.lengths):
        rows = rows[torch.argsort(lengths[rows], stable=True)]
    return rows


def packed(lengths: Tensor, size: int) -> list[int]:
    """Cuts a sequence of sentences into batches.

    Args:
        lengths: of the sentences, in order.
        size: number of sentences times the longest of a batch is at most this.

    Returns:
        How many sentences each batch has.

    Raises:
        ValueError: a sentence alone is too long.

    Example:
        >>> packed(torch.tensor([2, 2, 3, 3, 5]), 6)
        [2, 2, 1]
        >>> packed(torch.tensor([2, 2, 2, 3, 3]), 6)
        [3, 2]
    """
    counts, count, longest = [], 0, 0
    for length in lengths.tolist():
        if length > size:
            raise ValueError(
                f"a batch of {size} pieces does not hold a sentence of {length}: raise batch"
            )
        if max(longest, length) * (count + 1) > size:
            counts.append(count)
            count, longest = 0, 0
        count, longest = count + 1, max(longest, length)
    return [*counts, count] if count else counts


@dataclass(eq=False)
class SentenceBatches:
    """The training sentences of one process.

    Args:
        pairs: the sentences.
        size: pieces in a step, padding counted, over all processes.
        seed: of the run.
        rank: of this process.
        world: how many processes there are.
        device: where batches go.
        dtype: of the weights.

    Raises:
        ValueError: a batch has fewer sentences than there are processes.
    """

    pairs: Pairs
    size: int
    seed: int
    rank: int = 0
    world: int = 1
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        self._rows = lru_cache(maxsize=2)(self._epoch)
        lengths = self.pairs.lengths[sorted_rows(self.pairs, self.seed, 0)]
        self.counts = packed(lengths, self.size)
        if min(self.counts) < self.world:
            raise ValueError(
                f"a batch of {self.size} pieces has only {min(self.counts)} sentences for "
                f"{self.world} processes: raise batch"
            )
        self.target_lengths = self.pairs.target.lengths

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return len(self.counts)

    @property
    def samples(self) -> int:
        """How many sentences there are."""
        return len(self.pairs)

    @property
    def in_batches(self) -> float:
        """The same in batches."""
        return float(self.per_epoch)

    def amount(self, step: int) -> int:
        """Pieces of the target in a step, padding not counted.

        Args:
            step: completed steps.

        Returns:
            Of this process.
        """
        return int(self.target_lengths[self._share(self._at(step))].sum())

    def at(self, step: int) -> Tensors:
        """The batch of a step.

        Args:
            step: completed steps.

        Returns:
            Source, target, weights: the share of this process.
        """
        return self._tensors(self._at(step))

    def other(self, step: int, share: float) -> Tensors:
        """A batch for an adversary of its own: none of the step's sentences are in it.

        Args:
            step: completed steps.
            share: how large it is, of a batch.

        Returns:
            The share of this process.

        Raises:
            ValueError: there is no other.
        """
        epoch, place = divmod(step, self.per_epoch)
        if self.per_epoch < 2:
            raise ValueError("there is no other batch: all sentences are in one. Lower batch")
        further = 1 + int(chance.below(self.per_epoch - 1, "another", self.seed, step))
        rows = self._rows(self.seed, epoch)[(place + further) % self.per_epoch]
        return self._tensors(rows[: max(round(share * len(rows)), self.world)])

    def drawn(self, step: int, number: int) -> Tensors:
        """A batch at random.

        Args:
            step: completed steps.
            number: which of the step's.

        Returns:
            The share of this process.
        """
        place = int(chance.below(self.per_epoch, "drawn", self.seed, step, number))
        return self._tensors(self._rows(self.seed, step // self.per_epoch)[place])

    def everything(self, epoch: int) -> Iterator[Tensors]:
        """All sentences, batch by batch.

        Args:
            epoch: of the order.

        Yields:
            The share of this process; weighted so that all together give the mean over pieces.
        """
        weight = self.samples / float(self.target_lengths.sum())
        for rows in self._rows(self.seed, epoch):
            yield self._tensors(rows, weight)

    def _epoch(self, seed: int, epoch: int) -> list[Tensor]:
        """The batches of an epoch in their order."""
        batches = torch.split(sorted_rows(self.pairs, seed, epoch), self.counts)
        return [batches[i] for i in chance.permutation(len(batches), "batches", seed, epoch)]

    def _at(self, step: int) -> Tensor:
        epoch, place = divmod(step, self.per_epoch)
        return self._rows(self.seed, epoch)[place]

    def _share(self, rows: Tensor) -> Tensor:
        """Equal shares: a mean over processes is then the mean over the batch."""
        return rows[: len(rows) - len(rows) % self.world][self.rank :: self.world]

    def _tensors(self, rows: Tensor, weight: float | None = None) -> Tensors:
        """A sentence's loss is a sum over pieces; weights make the mean one over pieces."""
        kept = rows[: len(rows) - len(rows) % self.world]
        if weight is None:
            weight = len(kept) / float(self.target_lengths[kept].sum())
        mine = self._share(rows)
        source, target = self.pairs.source.padded(mine), self.pairs.target.padded(mine)
        weights = torch.full((len(mine),), weight, dtype=self.dtype)
        placed = (x.to(self.device, non_blocking=True) for x in (source, target, weights))
        return tuple(placed)  # type: ignore[return-value]
