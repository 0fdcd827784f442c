"""Language models: a decoder alone, on the English side of a corpus, and LoRA adapters for it.

    layer   x <- norm(x + attention(x, x)),  x <- norm(x + feed_forward(x)),  attention is causal

These are the layers, embeddings and defaults of the translator in `transformer.py`. `add_lora`
fixes all weights and adds trained factors to the linear layers:

    y = W x + b + (alpha / r) B A x,   A of r rows, B of r columns and zero at first
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from vasso import validation
from vasso.lab.translation.pairs import Pairs, Sequences, Texts
from vasso.lab.translation.pieces import END, Vocabulary
from vasso.lab.translation.transformer import DROPOUT, Embedding, EncoderLayer, Size

LANGUAGE_MODELS = {
    "gpt-small": Size(6, 512, 2048, heads=8),
    "gpt-tiny": Size(2, 64, 256, heads=4),
}
"""Weights without the embedding: 18,914,304 and 99,968."""


class LanguageModel(nn.Module):
    """Scores of the next piece from all pieces before it, for a dictionary of `entries` pieces."""

    def __init__(self, size: Size, entries: int, dropout: float = DROPOUT) -> None:
        super().__init__()
        self.text = Embedding(entries, size.width, dropout)
        self.layers = nn.ModuleList(EncoderLayer(size, dropout) for _ in range(size.layers))

    def forward(self, source: Tensor, before: Tensor, where: Tensor | None = None) -> Tensor:
        """Scores at each position, or at those in `where`; called as a translator is.

        `source` has no pieces. `before` is `BEGIN` and the sentence without its last piece. Padding
        comes last, so no piece attends to it.
        """
        x = self.text(before)
        for layer in self.layers:
            x = layer(x, None)
        return functional.linear(x if where is None else x[where], self.text.vectors.weight)


class LoraLinear(nn.Linear):
    """A linear layer with fixed weights and trained factors, which start as peft's do.

    Example:
        >>> layer, x = nn.Linear(4, 3), torch.ones(2, 4)
        >>> bool(torch.equal(LoraLinear(layer, rank=2)(x), layer(x)))
        True
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float = 8.0) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None)
        self.load_state_dict(linear.state_dict())
        self.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(rank, self.in_features))
        self.lora_B = nn.Parameter(torch.zeros(self.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        added = functional.linear(functional.linear(x, self.lora_A), self.lora_B)
        return super().forward(x) + self.scaling * added


def add_lora(model: nn.Module, rank: int, seed: int) -> nn.Module:
    """The model with all weights fixed and adapters at its linear layers; A depends on the seed."""
    model.requires_grad_(False)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        for name in linear:
            parent, _, own = name.rpartition(".")
            layer = model.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            setattr(model.get_submodule(parent), own, LoraLinear(layer, rank))
    return model


def build(
    name: str, *, entries: int, dropout: float | None = None, seed: int | None
) -> LanguageModel:
    """A language model with fresh weights, one of `LANGUAGE_MODELS`; see `transformer.build`."""
    validation.one_of("name", name, *LANGUAGE_MODELS)
    given = (LANGUAGE_MODELS[name], entries, DROPOUT if dropout is None else dropout)
    if seed is None:
        return LanguageModel(*given)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return LanguageModel(*given)


# -- texts -----------------------------------------------------------------------------------------


def english_alone(texts: Texts) -> Texts:
    """The texts with empty sources: a language model reads English alone."""
    return _with_pairs(texts, _without_source)


def in_pieces_of(texts: Texts, vocabulary: Vocabulary) -> Texts:
    """The English side cut into the pieces of another corpus, without sources.

    A model that was trained on that corpus can read it; letters that it has not seen are unknown.
    """

    def cut(pairs: Pairs) -> Pairs:
        return replace(pairs, target=_numbers(pairs.words, vocabulary))

    found = _with_pairs(texts, cut)
    both = replace(found, source=vocabulary.source, target=vocabulary.target, cut=vocabulary.cut)
    return english_alone(both)


def _with_pairs(texts: Texts, change: Callable[[Pairs], Pairs]) -> Texts:
    train, valid, test = map(change, (texts.train, texts.valid, texts.test))
    return replace(texts, train=train, valid=valid, test=test)


def _without_source(pairs: Pairs) -> Pairs:
    return replace(pairs, source=Sequences.of([[]] * len(pairs)))


def _numbers(lines: Sequence[str], vocabulary: Vocabulary) -> Sequences:
    rows = (vocabulary.target.numbers(row) for row in vocabulary.cut(lines))
    return Sequences.of([[*row, END] for row in rows])
