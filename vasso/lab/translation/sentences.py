"""Sentences to train on: batches of pieces, a loss for each sentence, perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vasso.batchnorm import evaluating
from vasso.lab.data import chance
from vasso.lab.methods import Method
from vasso.lab.pixels import spaced
from vasso.lab.tasks import Task
from vasso.lab.translation import vocabulary
from vasso.lab.translation.batches import SentenceBatches, packed
from vasso.lab.translation.losses import piece_sums, sentence_losses
from vasso.lab.translation.pairs import Pairs, Sequences, Texts
from vasso.lab.translation.transformer import POSITIONS

PASS = 4096
"""Pieces in a pass of a test, which holds no activations."""
ENOUGH = 1000
"""How many training sentences are looked at after the last step, unless the task tests on fewer."""


@dataclass(frozen=True, eq=False)
class SomePairs:
    """Sentences to test on.

    Args:
        pairs: where they are.
        rows: which.
    """

    pairs: Pairs
    rows: Tensor

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """All of them, short ones first.

        Args:
            rank: of this process.
            world: how many share the work.

        Yields:
            Source and target.
        """
        mine = self.rows[rank::world]
        mine = mine[torch.argsort(self.pairs.lengths[mine], stable=True)]
        lengths = self.pairs.lengths[mine]
        for rows in torch.split(mine, packed(lengths, max(PASS, *lengths[-1:].tolist(), 0))):
            yield self.pairs.source.padded(rows), self.pairs.target.padded(rows)


class Sentences:
    """The sentences of a task.

    Args:
        task: what is learnt.
        texts: the corpus.
        seed: of the run.

    Attributes:
        realised: the share of labels that is wrong: none.
        batches: to train on.
        test: to test on.
        validation: to choose an epoch by.
        taught: sentences that were trained on.
    """

    unit: ClassVar[str] = "pieces"
    realised = 0.0
    batches: SentenceBatches

    def __init__(self, task: Task, texts: Texts, seed: int) -> None:
        self.task, self.texts, self.seed = task, texts, seed
        for name in ("train", "valid", "test"):
            _check_fits(name, getattr(texts, name))
        self.train = part(texts.train, task.train_size, seed)
        enough = task.test_size or ENOUGH
        self.taught: dict[str, Any] = {
            "training": SomePairs(self.train, spaced(enough, len(self.train)))
        }
        test = len(texts.test) if task.test_size is None else task.test_size
        self.test = SomePairs(texts.test, spaced(test, len(texts.test)))
        self.validation = SomePairs(texts.valid, torch.arange(len(texts.valid)))

    def build_model(self, device: torch.device) -> nn.Module:
        """The model with fresh weights.

        Args:
            device: where it is going to be.

        Returns:
            The model.
        """
        return self.task.build_translator(self.texts, self.seed)

    def own_loss(self, method: Method, model: nn.Module) -> None:
        """A transformer's loss is its own.

        Args:
            method: the method.
            model: the model.

        Raises:
            ValueError: the method is a loss.
        """
        if method.kind == "loss":
            raise ValueError(f"{method.name} is a loss for images and cannot train a translator")

    def settle(self, device: torch.device, dtype: torch.dtype, rank: int, world: int) -> None:
        """Makes the batches of a process.

        Args:
            device: where they go.
            dtype: of the model; pieces are whole numbers.
            rank: of the process.
            world: how many processes there are.
        """
        self.device = device
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        size, seed = self.task.batch, self.seed
        self.batches = SentenceBatches(self.train, size, seed, rank, world, device, exact)

    def losses(self, model: nn.Module, *tensors: Tensor) -> Tensor:
        """One loss for each sentence; their mean is the mean over pieces.

        Args:
            model: the model.
            *tensors: source, target and weights.

        Returns:
            Losses.
        """
        source, target, weights = tensors
        return sentence_losses(model, source, target, weights, self.task.label_smoothing)

    def statistics(self, model: nn.Module, anew: bool) -> AbstractContextManager[None]:
        """A transformer has no BatchNorm.

        Args:
            model: the model.
            anew: whether statistics would be estimated anew.

        Returns:
            A context that does nothing.
        """
        return nullcontext()

    @torch.no_grad()
    def sums(self, model: nn.Module, examples: SomePairs, rank: int = 0, world: int = 1) -> Tensor:
        """- log p without smoothing, right guesses and count, over pieces.

        Args:
            model: the model.
            examples: what it is tested on.
            rank: of this process.
            world: how many share the work.

        Returns:
            The sums of this process.
        """
        total = torch.zeros(3, dtype=torch.float64)
        with evaluating(model):
            for source, target in examples.chunks(rank, world):
                total += piece_sums(model, source.to(self.device), target.to(self.device))
        return total

    def told(self, name: str, sums: Tensor) -> dict[str, float]:
        """Mean loss over pieces, accuracy of the next piece in %, and perplexity, exp(loss).

        Args:
            name: of the examples.
            sums: over all of them.

        Returns:
            All three.
        """
        loss, right, count = map(float, sums)
        mean = loss / count
        return {
            f"{name}_loss": mean,
            f"{name}_accuracy": 100 * right / count,
            f"{name}_perplexity": math.exp(min(mean, 700.0)),
        }

    def worth(self, found: Mapping[str, Any]) -> float:
        """The lower the loss on validation sentences, the better.

        Args:
            found: what was told.

        Returns:
            Minus the loss.
        """
        return -float(found["validation_loss"])

    def tables(self) -> dict[str, dict[str, Any]]:
        """What the numbers of the pieces stand for.

        Returns:
            The vocabulary.
        """
        return {vocabulary.FILE: vocabulary.Vocabulary.of_texts(self.texts).as_table()}


def _check_fits(name: str, pairs: Pairs) -> None:
    """Before training, rather than when the batch comes up."""
    if not len(pairs):
        raise ValueError(f"the corpus has no sentences in {name!r}")
    if (longest := int(pairs.lengths.max())) > POSITIONS:
        raise ValueError(
            f"a sentence in {name!r} has {longest} pieces, of which {POSITIONS} can be read: cut "
            "it or leave it out"
        )


def part(pairs: Pairs, count: int | None, seed: int) -> Pairs:
    """Some of the pairs, drawn at random, in their own order.

    Args:
        pairs: all.
        count: how many; None for all.
        seed: which draw.

    Returns:
        The pairs.

    Raises:
        ValueError: there are not so many.
    """
    if count is None:
        return pairs
    if count > len(pairs):
        raise ValueError(f"train_size is {count}, but there are only {len(pairs)} training pairs")
    rows = chance.permutation(len(pairs), "part", seed)[:count].sort().values
    chosen = rows.tolist()

    def some(side: Sequences) -> Sequences:
        lengths = side.lengths[rows]
        places = torch.arange(int(lengths.max())) < lengths[:, None]
        return Sequences(side.padded(rows)[places], lengths.cumsum(0))

    words, written = ([lines[i] for i in chosen] for lines in (pairs.words, pairs.written))
    return Pairs(some(pairs.source), some(pairs.target), words, written)
