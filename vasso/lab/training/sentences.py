"""Workload of sentences: batches of pieces, a loss for each sentence, perplexity.

    loss of a batch = - (sum over its pieces of log p(piece | source, earlier pieces)) / pieces

with torch's label smoothing where asked. The gradient is divided by the number of pieces, so a
slope averaged over batches of different sizes has one scale.

Sentences are sorted by length, with ties in random order in each epoch, and packed: a batch holds
as many sentences as have, padded, at most a given number of pieces on either side. Batches are a
function of the seed and the step, so nothing has to be saved; every epoch has equally many.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from vasso.engine.batchnorm import evaluating
from vasso.lab.data import splitmix
from vasso.lab.data.cache import Arrays, cached
from vasso.lab.data.datasets import data_root
from vasso.lab.data.images import digest_of
from vasso.lab.experiment.method import MethodConfig
from vasso.lab.experiment.rates import LearningRate
from vasso.lab.experiment.task import Task
from vasso.lab.training.closures import Tensors, share_of_rank
from vasso.lab.training.image_batches import evenly_spaced
from vasso.lab.training.setup import build_text_model, load_pretraining
from vasso.lab.translation.language_model import add_lora
from vasso.lab.translation.pairs import Pairs, Sequences, Texts
from vasso.lab.translation.pieces import BEGIN, PAD, VOCABULARY_FILE
from vasso.lab.translation.transformer import POSITIONS
from vasso.numerics.rng import mix_seed

PIECES_IN_A_PASS = 4096
"""Pieces in a pass of a test, which stores no activations."""
PRETRAINING: Mapping[str, Any] = {"lr": 2e-3, "betas": (0.9, 0.98), "weight_decay": 1e-2}
"""AdamW's settings for a model that is adapted later; see `trained_weights`."""
MAX_TRAINING_EXAMPLES = 1000
"""Training sentences that are tested after the last step, unless the task tests on fewer."""


def sorted_rows(pairs: Pairs, seed: int, epoch: int) -> Tensor:
    """All rows by the length of the source, then of the target; ties in random order."""
    rows = splitmix.permutation(len(pairs), "sentences", seed, epoch)
    for lengths in (pairs.target.lengths, pairs.source.lengths):
        rows = rows[torch.argsort(lengths[rows], stable=True)]
    return rows


def batch_sizes(lengths: Tensor, size: int) -> list[int]:
    """Sizes of the batches of a sequence of sentences: each has at most `size` pieces, padded.

    Example:
        >>> batch_sizes(torch.tensor([2, 2, 3, 3, 5]), 6)
        [2, 2, 1]
        >>> batch_sizes(torch.tensor([2, 2, 2, 3, 3]), 6)
        [3, 2]
    """
    sizes, count, longest = [], 0, 0
    for length in lengths.tolist():
        if length > size:
            raise ValueError(
                f"a batch of {size} pieces does not hold a sentence of {length}: raise batch"
            )
        if max(longest, length) * (count + 1) > size:
            sizes.append(count)
            count, longest = 0, 0
        count, longest = count + 1, max(longest, length)
    return [*sizes, count] if count else sizes


@dataclass(eq=False)
class SentenceBatches:
    """The training batches of the process `rank` of `world`.

    `size` counts pieces over all processes, padding included. `dtype` is that of the weights.
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
        self.sizes = batch_sizes(lengths, self.size)
        if min(self.sizes) < self.world:
            raise ValueError(
                f"a batch of {self.size} pieces has only {min(self.sizes)} sentences for "
                f"{self.world} processes: raise batch"
            )
        self.target_lengths = self.pairs.target.lengths

    @property
    def per_epoch(self) -> int:
        return len(self.sizes)

    @property
    def samples(self) -> int:
        return len(self.pairs)

    @property
    def in_batches(self) -> float:
        return float(self.per_epoch)

    def amount(self, step: int) -> int:
        """Pieces of the target of this process in a step, without padding."""
        return int(self.target_lengths[share_of_rank(self, self._rows_at(step))].sum())

    def at(self, step: int) -> Tensors:
        """The batch of a step: source, target and weights, the share of this process."""
        return self._tensors(self._rows_at(step))

    def other(self, step: int, share: float) -> Tensors:
        epoch, place = divmod(step, self.per_epoch)
        if self.per_epoch < 2:
            raise ValueError("there is no other batch: all sentences are in one. Lower batch")
        further = 1 + int(splitmix.below(self.per_epoch - 1, "another", self.seed, step))
        rows = self._rows(self.seed, epoch)[(place + further) % self.per_epoch]
        return self._tensors(rows[: max(round(share * len(rows)), self.world)])

    def drawn(self, step: int, number: int) -> Tensors:
        place = int(splitmix.below(self.per_epoch, "drawn", self.seed, step, number))
        return self._tensors(self._rows(self.seed, step // self.per_epoch)[place])

    def everything(self, epoch: int) -> Iterator[Tensors]:
        """All sentences in batches, weighted so that their mean is the mean over all pieces."""
        weight = self.samples / float(self.target_lengths.sum())
        for rows in self._rows(self.seed, epoch):
            yield self._tensors(rows, weight)

    def _epoch(self, seed: int, epoch: int) -> list[Tensor]:
        batches = torch.split(sorted_rows(self.pairs, seed, epoch), self.sizes)
        return [batches[i] for i in splitmix.permutation(len(batches), "batches", seed, epoch)]

    def _rows_at(self, step: int) -> Tensor:
        epoch, place = divmod(step, self.per_epoch)
        return self._rows(self.seed, epoch)[place]

    def _tensors(self, rows: Tensor, weight: float | None = None) -> Tensors:
        """A sentence's loss is a sum over pieces; weights make the mean one over pieces."""
        kept = rows[: len(rows) - len(rows) % self.world]
        if weight is None:
            weight = len(kept) / float(self.target_lengths[kept].sum())
        mine = share_of_rank(self, rows)
        source, target = self.pairs.source.padded(mine), self.pairs.target.padded(mine)
        weights = torch.full((len(mine),), weight, dtype=self.dtype)
        placed = (x.to(self.device, non_blocking=True) for x in (source, target, weights))
        return tuple(placed)  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class SentenceExamples:
    """Sentences to test on: some rows of the pairs."""

    pairs: Pairs
    rows: Tensor

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Source and target, short sentences first; those of one of `world` processes."""
        mine = self.rows[rank::world]
        mine = mine[torch.argsort(self.pairs.lengths[mine], stable=True)]
        lengths = self.pairs.lengths[mine]
        size = max(PIECES_IN_A_PASS, *lengths[-1:].tolist(), 0)
        for rows in torch.split(mine, batch_sizes(lengths, size)):
            yield self.pairs.source.padded(rows), self.pairs.target.padded(rows)


class SentenceWorkload:
    """The sentences of a task; see `Workload`."""

    unit: ClassVar[str] = "pieces"
    wrong_share = 0.0
    batches: SentenceBatches

    def __init__(
        self, task: Task, texts: Texts, seed: int, trained: Mapping[str, Tensor] | None = None
    ) -> None:
        """`trained` are the weights that a model begins with; None for fresh ones."""
        self.task, self.texts, self.seed, self.trained = task, texts, seed, trained
        self.data_digest = texts.digest
        if trained is not None:
            self.data_digest += f"-{digest_of(trained.values())}"
        for name in ("train", "valid", "test"):
            _check_lengths(name, getattr(texts, name))
        self.train = subsample(texts.train, task.train_size, seed)
        most = task.test_size or MAX_TRAINING_EXAMPLES
        rows = evenly_spaced(most, len(self.train))
        self.training_examples: dict[str, Any] = {"training": SentenceExamples(self.train, rows)}
        test = len(texts.test) if task.test_size is None else task.test_size
        self.test = SentenceExamples(texts.test, evenly_spaced(test, len(texts.test)))
        self.validation = SentenceExamples(texts.valid, torch.arange(len(texts.valid)))
        self.held_out = None

    def build_model(self, device: torch.device) -> nn.Module:
        model = build_text_model(self.task, self.texts.vocabulary, self.seed)
        if self.trained is not None:
            model.load_state_dict(self.trained)
        return add_lora(model, self.task.rank, self.seed) if self.task.rank else model

    def build_method_loss(self, method: MethodConfig, model: nn.Module) -> None:
        """None: a method that is a loss cannot train on sentences."""
        if method.kind == "loss":
            raise ValueError(f"{method.name} is a loss for images and cannot train a translator")

    def prepare_batches(
        self, device: torch.device, dtype: torch.dtype, rank: int, world: int
    ) -> None:
        """Prepare the batches of a process; pieces are integers, weights of sentences are not."""
        self.device = device
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        size, seed = self.task.batch, self.seed
        self.batches = SentenceBatches(self.train, size, seed, rank, world, device, exact)

    def hold_out(self, count: int) -> None:
        """Sentences are not held out."""
        if count:
            raise ValueError(f"{self.task.data} are sentences, which a rho of auto cannot hold out")

    def outputs(self, model: nn.Module, *tensors: Tensor) -> Tensor:
        """The scores of all pieces of a batch, one row for each."""
        before, mask = decoder_inputs(tensors[1])
        scores: Tensor = model(tensors[0], before, mask)
        return scores

    def losses_of(self, outputs: Tensor, *tensors: Tensor) -> Tensor:
        """One loss for each sentence of a batch; their mean is the mean over pieces."""
        return losses_of_scores(outputs, tensors[1], tensors[2], self.task.label_smoothing)

    def test_statistics(self, model: nn.Module, reestimate: bool) -> AbstractContextManager[None]:
        """A context that does nothing: a transformer has no BatchNorm."""
        return nullcontext()

    @torch.no_grad()
    def loss_sums(
        self, model: nn.Module, examples: SentenceExamples, rank: int = 0, world: int = 1
    ) -> Tensor:
        """Sums of - log p (not smoothed), correct guesses and pieces, over a process's examples."""
        total = torch.zeros(3, dtype=torch.float64)
        with evaluating(model):
            for source, target in examples.chunks(rank, world):
                total += piece_sums(model, source.to(self.device), target.to(self.device))
        return total

    def scores(self, name: str, sums: Tensor) -> dict[str, float]:
        """Mean loss over pieces, accuracy of the next piece in %, and perplexity, exp(loss)."""
        loss, correct, count = map(float, sums)
        mean = loss / count
        return {
            f"{name}_loss": mean,
            f"{name}_accuracy": 100 * correct / count,
            f"{name}_perplexity": math.exp(min(mean, 700.0)),
        }

    def validation_score(self, scores: Mapping[str, Any]) -> float:
        return -float(scores["validation_loss"])

    def tables(self) -> dict[str, dict[str, Any]]:
        """The vocabulary, without which the weights are of no use."""
        return {VOCABULARY_FILE: self.texts.vocabulary.as_table()}


def trained_weights(task: Task, root: Path | None = None) -> dict[str, Tensor]:
    """The weights of a language model after training on `task.pretrain`, cached with the data.

    AdamW with a cosine after a warm-up of a tenth; weights and order are those of seed 0.
    """
    texts = load_pretraining(task, root)
    settings = (task.model, task.batch, task.dropout, task.pretrain_epochs, PRETRAINING)
    text = repr((settings, texts.digest, torch.__version__))
    key = f"{task.model}-{texts.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    arrays = cached(data_root(root) / "prepared" / key, lambda: _trained(task, texts))
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _trained(task: Task, texts: Texts) -> Arrays:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_text_model(task, texts.vocabulary, seed=0).to(device)
    batches = SentenceBatches(texts.train, task.batch, seed=0, device=device)
    total = task.pretrain_epochs * batches.per_epoch
    rate = LearningRate("cosine", PRETRAINING["lr"], total, warm_up=total // 10)
    base = AdamW(model.parameters(), **PRETRAINING)
    with torch.random.fork_rng():
        for step in range(total):
            torch.manual_seed(mix_seed(0, step))
            base.param_groups[0]["lr"] = rate(step)
            base.zero_grad()
            torch.autograd.backward(sentence_losses(model, *batches.at(step)).mean())
            base.step()
    return {name: value.cpu().numpy() for name, value in model.state_dict().items()}


def _check_lengths(name: str, pairs: Pairs) -> None:
    """Check before training, rather than when the batch is needed."""
    if not len(pairs):
        raise ValueError(f"the corpus has no sentences in {name!r}")
    if (longest := int(pairs.lengths.max())) > POSITIONS:
        raise ValueError(
            f"a sentence in {name!r} has {longest} pieces, of which {POSITIONS} can be read: cut "
            "it or leave it out"
        )


def subsample(pairs: Pairs, count: int | None, seed: int) -> Pairs:
    """So many of the pairs (None: all), drawn at random, in their original order."""
    if count is None:
        return pairs
    if count > len(pairs):
        raise ValueError(f"train_size is {count}, but there are only {len(pairs)} training pairs")
    rows = splitmix.permutation(len(pairs), "part", seed)[:count].sort().values
    chosen = rows.tolist()

    def some(side: Sequences) -> Sequences:
        lengths = side.lengths[rows]
        places = torch.arange(int(lengths.max())) < lengths[:, None]
        return Sequences(side.padded(rows)[places], lengths.cumsum(0))

    words, written = ([lines[i] for i in chosen] for lines in (pairs.words, pairs.written))
    return Pairs(some(pairs.source), some(pairs.target), words, written)


def decoder_inputs(target: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs of the decoder, `BEGIN` and all but the last piece; and a mask of the pieces."""
    before = torch.cat((torch.full_like(target[:, :1], BEGIN), target[:, :-1]), 1)
    return before, target != PAD


def sentence_losses(
    model: nn.Module, source: Tensor, target: Tensor, weights: Tensor, smoothing: float = 0.0
) -> Tensor:
    """The loss of each sentence, the weighted sum over its pieces; their mean is the batch's loss.

    Source is N x S, target N x T. The weight, the same for each sentence, is sentences over pieces
    of the batch.
    """
    before, mask = decoder_inputs(target)
    return losses_of_scores(model(source, before, mask), target, weights, smoothing)


def losses_of_scores(
    scores: Tensor, target: Tensor, weights: Tensor, smoothing: float = 0.0
) -> Tensor:
    """The same from the scores of all pieces, pieces x entries."""
    mask = target != PAD
    losses = cross_entropy(scores, target[mask], reduction="none", label_smoothing=smoothing)
    by_sentence = torch.zeros(mask.shape, dtype=losses.dtype, device=losses.device)
    return by_sentence.masked_scatter(mask, losses).sum(1) * weights


def piece_sums(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Sums of - log p (not smoothed), correct guesses and pieces of some sentences; float64."""
    before, mask = decoder_inputs(target)
    scores, pieces = model(source, before, mask).float(), target[mask]
    nll = cross_entropy(scores, pieces, reduction="none").double().sum()
    correct = (scores.argmax(1) == pieces).double().sum()
    return torch.stack([nll, correct, nll.new_tensor(float(len(pieces)))]).cpu()
