"""The transformer of Vaswani et al. (2017), post-norm, as in fairseq's `transformer_iwslt_de_en`.

    encoder layer   x <- norm(x + attention(x, x)),  x <- norm(x + feed_forward(x))
    decoder layer   the same with causal attention, and in between
                    x <- norm(x + attention(x, memory)); memory: the output of the encoder

Positions are sines. The decoder's embedding is also the output matrix. Dropout is on embeddings and
on what each sub-layer adds, not within attention or feed-forward layers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vasso import validation
from vasso.lab.translation.pieces import PAD

POSITIONS = 1024
"""The largest number of pieces in a sentence."""
KeysAndValues = tuple[Tensor, Tensor]
"""Keys and values of attention, each N x heads x T x width / heads."""


@dataclass(frozen=True)
class Size:
    """The size of a transformer: layers of encoder and decoder each, widths and heads."""

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

    def keys_and_values(self, x: Tensor) -> KeysAndValues:
        n, length, _ = x.shape
        keys, values = self.memory(x).view(n, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        return keys, values

    def forward(
        self, x: Tensor, memory: KeysAndValues, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        n, length, width = x.shape
        query = self.query(x).view(n, length, self.heads, -1).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            query, *memory, attn_mask=mask, is_causal=causal
        )
        y: Tensor = self.output(mixed.transpose(1, 2).reshape(n, length, width))
        return y


class AddAndNorm(nn.Module):
    """norm(x + dropout(y)), around each sub-layer."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
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
    """Self-attention, causal where there is no mask, then a feed-forward layer."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(size.width, size.heads)
        self.attended = AddAndNorm(size.width, dropout)
        self.feed_forward = FeedForward(size.width, size.inner)
        self.fed = AddAndNorm(size.width, dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        own = self.attention.keys_and_values(x)
        x = self.attended(x, self.attention(x, own, mask, causal=mask is None))
        y: Tensor = self.fed(x, self.feed_forward(x))
        return y


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, then a feed-forward layer."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(size.width, size.heads)
        self.attended = AddAndNorm(size.width, dropout)
        self.to_source = Attention(size.width, size.heads)
        self.read = AddAndNorm(size.width, dropout)
        self.feed_forward = FeedForward(size.width, size.inner)
        self.fed = AddAndNorm(size.width, dropout)

    def forward(
        self, x: Tensor, source: KeysAndValues, mask: Tensor, past: KeysAndValues | None = None
    ) -> tuple[Tensor, KeysAndValues]:
        """The output N x T x width, and keys and values of all positions so far.

        With a past, x is the newest position alone; translations of a sentence are adjacent rows.
        """
        own = self.attention.keys_and_values(x)
        if past is not None:
            own = torch.cat((past[0], own[0]), 2), torch.cat((past[1], own[1]), 2)
        x = self.attended(x, self.attention(x, own, causal=past is None))
        queries = x.reshape(len(source[0]), -1, x.shape[-1])  # all translations of a sentence
        x = self.read(x, self.to_source(queries, source, mask).view(x.shape))
        return self.fed(x, self.feed_forward(x)), own


class Embedding(nn.Module):
    """sqrt(width) times the vector of a piece, plus the sines of its position."""

    sines: Tensor

    def __init__(self, entries: int, width: int, dropout: float) -> None:
        super().__init__()
        self.vectors = nn.Embedding(entries, width, padding_idx=PAD)
        nn.init.normal_(self.vectors.weight, std=width**-0.5)
        nn.init.zeros_(self.vectors.weight[PAD].detach())
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("sines", sines(POSITIONS, width), persistent=False)

    def forward(self, numbers: Tensor, first: int = 0) -> Tensor:
        """Vectors of pieces, of which the first is at position `first`."""
        last = first + numbers.shape[1]
        if last > POSITIONS:
            raise ValueError(f"a sentence has {last} pieces: at most {POSITIONS} can be read")
        scale = math.sqrt(self.vectors.embedding_dim)
        x: Tensor = self.dropout(self.vectors(numbers) * scale + self.sines[first:last])
        return x


class Transformer(nn.Module):
    """An encoder-decoder transformer for dictionaries of `source` and `target` pieces."""

    def __init__(self, size: Size, source: int, target: int, dropout: float = DROPOUT) -> None:
        super().__init__()
        if size.width % (2 * size.heads):
            raise ValueError(f"a width of {size.width} is not a multiple of 2 x {size.heads} heads")
        self.source = Embedding(source, size.width, dropout)
        self.target = Embedding(target, size.width, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(size, dropout) for _ in range(size.layers))
        self.decoder = nn.ModuleList(DecoderLayer(size, dropout) for _ in range(size.layers))

    def forward(self, source: Tensor, before: Tensor, where: Tensor | None = None) -> Tensor:
        """Scores of the next piece at each position of known translations, or at those in `where`.

        `before` is `BEGIN` and the translation without its last piece.
        """
        memory, mask = self.encode(source), piece_mask(source)
        x = self.target(before)
        for layer, pairs in zip(self.decoder, self.keys_and_values(memory), strict=True):
            x, _ = layer(x, pairs, mask)
        return self.scores(x if where is None else x[where])

    def encode(self, source: Tensor) -> Tensor:
        mask = piece_mask(source)
        x: Tensor = self.source(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def keys_and_values(self, memory: Tensor) -> list[KeysAndValues]:
        """Keys and values of the source for each layer of the decoder."""
        return [layer.to_source.keys_and_values(memory) for layer in self.decoder]  # type: ignore[union-attr, operator]

    def decode_step(
        self,
        newest: Tensor,
        position: int,
        memory: Sequence[KeysAndValues],
        mask: Tensor,
        past: Sequence[KeysAndValues | None],
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """Scores of the next piece from the newest one and the cache, and the new cache.

        `memory` is of `keys_and_values` and `past` of the step before, None for each layer at
        position 0. Translations of a sentence are adjacent rows of `newest`.
        """
        x, cache = self.target(newest[:, None], position), []
        for layer, source, before in zip(self.decoder, memory, past, strict=True):
            x, pairs = layer(x, source, mask, before)
            cache.append(pairs)
        return self.scores(x[:, 0]), cache

    def scores(self, x: Tensor) -> Tensor:
        """Logits of all target pieces from the output of the decoder."""
        return functional.linear(x, self.target.vectors.weight)


def piece_mask(source: Tensor) -> Tensor:
    """Where sentences N x S hold pieces rather than padding, N x 1 x 1 x S."""
    return (source != PAD)[:, None, None]


def sines(positions: int, width: int) -> Tensor:
    """sin(p / 10000^(i / (width/2 - 1))) for i below half the width, then the cosines."""
    half = width // 2
    step = math.log(10_000) / max(half - 1, 1)
    angles = torch.arange(positions)[:, None] * torch.exp(torch.arange(half) * -step)
    return torch.cat((angles.sin(), angles.cos()), 1)


def build(
    name: str, *, source: int, target: int, dropout: float | None = None, seed: int | None
) -> Transformer:
    """A transformer with fresh weights, in training mode; see `SIZES` for names.

    The weights depend on the seed alone; without one they come from torch's generator. Dropout is
    fairseq's 0.3 unless given.
    """
    validation.one_of("name", name, *SIZES)
    given = (SIZES[name], source, target, DROPOUT if dropout is None else dropout)
    if seed is None:
        return Transformer(*given)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too
        return Transformer(*given)
