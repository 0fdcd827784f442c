"""The transformer against torch's own, layer by layer the same weights."""

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from vasso.lab.translation.pieces import PAD
from vasso.lab.translation.transformer import Attention, Size, Transformer

SIZE = Size(layers=2, width=16, inner=24, heads=4)
SOURCE = torch.tensor([[5, 6, 4, 7, 2], [7, 4, 2, 0, 0], [6, 2, 0, 0, 0]])
BEFORE = torch.tensor([[1, 9, 8, 5], [1, 4, 0, 0], [1, 7, 6, 0]])


def copied(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    """torch keeps queries, keys and values in one matrix."""
    weights = {
        "in_proj_weight": torch.cat((ours.query.weight, ours.memory.weight)),
        "in_proj_bias": torch.cat((ours.query.bias, ours.memory.bias)),
        "out_proj.weight": ours.output.weight,
        "out_proj.bias": ours.output.bias,
    }
    theirs.load_state_dict(weights)


def torch_s(model: Transformer) -> nn.Transformer:
    twin = nn.Transformer(
        SIZE.width, SIZE.heads, SIZE.layers, SIZE.layers, SIZE.inner, dropout=0.0, batch_first=True
    ).double()
    twin.encoder.norm = twin.decoder.norm = None  # post-norm: none is left for the end
    for theirs, ours in zip(twin.encoder.layers, model.encoder, strict=True):
        copied(theirs.self_attn, ours.attention)
        norms = (ours.attended.norm, ours.fed.norm)
        parts = zip((theirs.norm1, theirs.norm2), norms, strict=True)
        feed(theirs, ours.feed_forward, parts)
    for theirs, ours in zip(twin.decoder.layers, model.decoder, strict=True):
        copied(theirs.self_attn, ours.attention)
        copied(theirs.multihead_attn, ours.to_source)
        norms = (ours.attended.norm, ours.read.norm, ours.fed.norm)
        parts = zip((theirs.norm1, theirs.norm2, theirs.norm3), norms, strict=True)
        feed(theirs, ours.feed_forward, parts)
    return twin


def feed(theirs: nn.Module, feed_forward: nn.Sequential, norms: Iterable[Any]) -> None:
    for part, ours in ((theirs.linear1, feed_forward[0]), (theirs.linear2, feed_forward[2])):
        part.load_state_dict(ours.state_dict())
    for part, ours in norms:
        part.load_state_dict(ours.state_dict())


def embedded(table: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """sqrt(width) e + sin and cos of p / 10000^(i / (width/2 - 1)), number by number."""
    half = SIZE.width // 2
    places = torch.zeros(numbers.shape[1], SIZE.width, dtype=torch.float64)
    for p in range(numbers.shape[1]):
        for i in range(half):
            angle = p / 10_000 ** (i / (half - 1))
            places[p, i], places[p, half + i] = math.sin(angle), math.cos(angle)
    return table[numbers] * SIZE.width**0.5 + places


@pytest.mark.parametrize("seed", [0, 1])
def test_it_says_what_torch_s_says_with_the_same_weights(seed: int) -> None:
    torch.manual_seed(seed)
    model = Transformer(SIZE, 8, 10, dropout=0.3).double().eval()
    with torch.no_grad():
        for p in model.parameters():  # norms and biases too, which begin as ones and zeros
            p.add_(0.3 * torch.randn_like(p))
        later = torch.ones(4, 4).triu(1).bool()
        hidden = SOURCE == PAD
        x = torch_s(model)(
            embedded(model.source.vectors.weight, SOURCE),
            embedded(model.target.vectors.weight, BEFORE),
            tgt_mask=later,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        right = x @ model.target.vectors.weight.T
    # our sines are kept in single precision
    torch.testing.assert_close(model(SOURCE, BEFORE), right, rtol=0, atol=1e-5)
