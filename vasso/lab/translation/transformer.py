"""The transformer of Vaswani et al. (2017), post-norm, as in fairseq's `transformer_iwslt_de_en`.

    encoder layer   x <- norm(x + attention(x, x)),  x <- norm(x + feed_forward(x))
    decoder layer   the same, its attention blind to what comes later, with
                    x <- norm(x + attention(x, memory)) in between; memory: what the encoder says

Positions are sines. The decoder's embedding is also the matrix of the output. Dropout is on
embeddings and on what each sub-layer adds; there is none within attention or feed-forward layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vasso import checks
from vasso.lab.translation.pieces import PAD

POSITIONS = 1024
"""No sentence has more pieces."""
KeysAndValues = tuple[Tensor, Tensor]
"""What can be looked at and what is seen there: N x heads x T x width / heads."""


@dataclass(frozen=True)
class Size:
    """How large a transformer is.

    Attributes:
        layers: of the encoder, and of the decoder.
        width: of a vector.
        inner: width within a feed-forward layer.
        heads: of attention.
    """

    layers: int
    width: int
    inner: int
    heads: int = 4


SIZES = {
    "transformer-iwslt": Size(6, 512, 1024),
    "transformer-small": Size(2, 128, 256),
}
"""39,469,056 weights for dictionaries of 8,848 and 6,632 pieces; 1,392,640 for 3,200 and 2,504."""
DROPOUT = 0.3
"""fairseq's for this task."""


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V in each head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.memory = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        for block in (self.query.weight, *self.memory.weight.chunk(2)):
            nn.init.xavier_uniform_(block.detach(), gain=2**-0.5)
        nn.init.xavier_uniform_(self.output.weight)
        for linear in (self.query, self.memory, self.output):
            nn.init.zeros_(linear.bias)

    def of(self, x: Tensor) -> KeysAndValues:
        """What there is to attend to.

        Args:
            x: N x T x width.

        Returns:
            Keys and values.
        """
        n, length, _ = x.shape
        keys, values = self.memory(x).view(n, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        return keys, values

    def forward(
        self, x: Tensor, there: KeysAndValues, seen: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """What each place learns.

        Args:
            x: N x T x width.
            there: what it attends to.
            seen: which of that may be looked at, N x 1 x 1 x S; None for all.
            causal: each place looks at itself and at what comes before.

        Returns:
            N x T x width.
        """
        n, length, width = x.shape
        query = self.query(x).view(n, length, self.heads, -1).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            query, *there, attn_mask=seen, is_causal=causal
        )
        y: Tensor = self.output(mixed.transpose(1, 2).reshape(n, length, width))
        return y


class Added(nn.Module):
    """norm(x + dropout(y)): how a sub-layer's word is taken in."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum, normalised.

        Args:
            x: what there was.
            y: what is added.

        Returns:
            As many vectors.
        """
        added: Tensor = self.norm(x + self.dropout(y))
        return added


class FeedForward(nn.Sequential):
    """W_2 relu(W_1 x + b_1) + b_2."""

    def __init__(self, width: int, inner: int) -> None:
        rising, falling = nn.Linear(width, inner), nn.Linear(inner, width)
        super().__init__(rising, nn.ReLU(), falling)
        for linear in (rising, falling):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)


class EncoderLayer(nn.Module):
    """Attention to the own sentence, then a feed-forward layer."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(size.width, size.heads)
        self.attended = Added(size.width, dropout)
        self.feed_forward = FeedForward(size.width, size.inner)
        self.fed = Added(size.width, dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """The layer's output.

        Args:
            x: N x S x width.
            seen: which places hold pieces.

        Returns:
            N x S x width.
        """
        x = self.attended(x, self.attention(x, self.attention.of(x), seen))
        y: Tensor = self.fed(x, self.feed_forward(x))
        return y


class DecoderLayer(nn.Module):
    """Attention to what has been said, to the source, then a feed-forward layer."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(size.width, size.heads)
        self.attended = Added(size.width, dropout)
        self.to_source = Attention(size.width, size.heads)
        self.read = Added(size.width, dropout)
        self.feed_forward = FeedForward(size.width, size.inner)
        self.fed = Added(size.width, dropout)

    def forward(
        self, x: Tensor, source: KeysAndValues, seen: Tensor, past: KeysAndValues | None = None
    ) -> tuple[Tensor, KeysAndValues]:
        """The layer's output.

        Args:
            x: N x T x width; with a past, the newest place alone, of several translations of each
                sentence, one after the other.
            source: `to_source.of` what the encoder says.
            seen: which of its places hold pieces.
            past: keys and values of earlier places.

        Returns:
            N x T x width, and keys and values of all places so far.
        """
        own = self.attention.of(x)
        if past is not None:
            own = torch.cat((past[0], own[0]), 2), torch.cat((past[1], own[1]), 2)
        x = self.attended(x, self.attention(x, own, causal=past is None))
        asked = x.reshape(len(source[0]), -1, x.shape[-1])  # translations of a sentence ask at once
        x = self.read(x, self.to_source(asked, source, seen).view(x.shape))
        return self.fed(x, self.feed_forward(x)), own


class Embedding(nn.Module):
    """sqrt(width) times the vector of a piece, plus the sines of its place."""

    sines: Tensor

    def __init__(self, entries: int, width: int, dropout: float) -> None:
        super().__init__()
        self.vectors = nn.Embedding(entries, width, padding_idx=PAD)
        nn.init.normal_(self.vectors.weight, std=width**-0.5)
        nn.init.zeros_(self.vectors.weight[PAD].detach())
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("sines", sines(POSITIONS, width), persistent=False)

    def forward(self, numbers: Tensor, first: int = 0) -> Tensor:
        """Vectors of pieces.

        Args:
            numbers: N x T.
            first: the place of the first of them.

        Returns:
            N x T x width.

        Raises:
            ValueError: a sentence is too long.
        """
        last = first + numbers.shape[1]
        if last > POSITIONS:
            raise ValueError(f"a sentence has {last} pieces: at most {POSITIONS} can be read")
        scale = math.sqrt(self.vectors.embedding_dim)
        x: Tensor = self.dropout(self.vectors(numbers) * scale + self.sines[first:last])
        return x


class Transformer(nn.Module):
    """Reads a sentence and says, place by place, how its translation goes on.

    Args:
        size: how large it is.
        source: pieces in the dictionary of the source.
        target: pieces in the dictionary of the target.
        dropout: share of numbers left out in training.

    Example:
        >>> model = Transformer(Size(1, 8, 16), source=16, target=24)
        >>> model(torch.tensor([[5, 6, 2]]), torch.tensor([[1, 7]])).shape
        torch.Size([1, 2, 24])
    """

    def __init__(self, size: Size, source: int, target: int, dropout: float = DROPOUT) -> None:
        super().__init__()
        if size.width % (2 * size.heads):
            raise ValueError(f"a width of {size.width} is not a multiple of 2 x {size.heads} heads")
        self.source = Embedding(source, size.width, dropout)
        self.target = Embedding(target, size.width, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(size, dropout) for _ in range(size.layers))
        self.decoder = nn.ModuleList(DecoderLayer(size, dropout) for _ in range(size.layers))

    def forward(self, source: Tensor, before: Tensor, where: Tensor | None = None) -> Tensor:
        """Scores of what comes next, at each place of known translations.

        Args:
            source: sentences, N x S, filled with `PAD`.
            before: `BEGIN` and the translation but its last piece, N x T, filled likewise.
            where: the places that are asked for, N x T; None for all.

        Returns:
            N x T x target, or with `where` a row for each of its places.
        """
        memory, seen = self.encode(source), attended(source)
        x = self.target(before)
        for layer, there in zip(self.decoder, self.there(memory), strict=True):
            x, _ = layer(x, there, seen)
        return self.scores(x if where is None else x[where])

    def encode(self, source: Tensor) -> Tensor:
        """What the encoder says.

        Args:
            source: sentences, N x S.

        Returns:
            N x S x width.
        """
        seen = attended(source)
        x: Tensor = self.source(source)
        for layer in self.encoder:
            x = layer(x, seen)
        return x

    def there(self, memory: Tensor) -> list[KeysAndValues]:
        """What the decoder's layers see of the source.

        Args:
            memory: what the encoder says.

        Returns:
            Keys and values for each layer.
        """
        return [layer.to_source.of(memory) for layer in self.decoder]  # type: ignore[union-attr, operator]

    def next(
        self,
        newest: Tensor,
        place: int,
        there: Sequence[KeysAndValues],
        seen: Tensor,
        past: Sequence[KeysAndValues | None],
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """Scores of what comes next, from the newest piece and what is remembered.

        Args:
            newest: one piece for each translation; of several translations of a sentence one after
                the other.
            place: its place, from 0.
            there: what `there` gave.
            seen: what `attended` gave.
            past: what the step before gave; None in each layer at place 0.

        Returns:
            A row for each translation; and what is to be remembered.
        """
        x, now = self.target(newest[:, None], place), []
        for layer, source, before in zip(self.decoder, there, past, strict=True):
            x, own = layer(x, source, seen, before)
            now.append(own)
        return self.scores(x[:, 0]), now

    def scores(self, x: Tensor) -> Tensor:
        """One for each piece of the target.

        Args:
            x: what the decoder says.

        Returns:
            Logits.
        """
        return functional.linear(x, self.target.vectors.weight)


def attended(source: Tensor) -> Tensor:
    """Which places of sentences hold pieces.

    Args:
        source: N x S.

    Returns:
        N x 1 x 1 x S.
    """
    return (source != PAD)[:, None, None]


def sines(positions: int, width: int) -> Tensor:
    """sin(p / 10000^(i / (width/2 - 1))) for i below half the width, then the cosines.

    Args:
        positions: how many.
        width: of a vector.

    Returns:
        positions x width.

    Example:
        >>> sines(2, 4)[0]
        tensor([0., 0., 1., 1.])
    """
    half = width // 2
    step = math.log(10_000) / max(half - 1, 1)
    angles = torch.arange(positions)[:, None] * torch.exp(torch.arange(half) * -step)
    return torch.cat((angles.sin(), angles.cos()), 1)


def build(
    name: str, *, source: int, target: int, dropout: float | None = None, seed: int | None
) -> Transformer:
    """A transformer with fresh weights.

    Args:
        name: one of `SIZES`.
        source: pieces in the dictionary of the source.
        target: pieces in the dictionary of the target.
        dropout: None for fairseq's 0.3.
        seed: the weights depend on it alone; None: they come from torch's generator.

    Returns:
        The model, in training mode.

    Example:
        >>> model = build("transformer-iwslt", source=8848, target=6632, seed=None)
        >>> sum(p.numel() for p in model.parameters())
        39469056
    """
    checks.one_of("name", name, *SIZES)
    given = (SIZES[name], source, target, DROPOUT if dropout is None else dropout)
    if seed is None:
        return Transformer(*given)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too
        return Transformer(*given)
