"""Vision transformers (Dosovitskiy et al., 2021): S = width 384, depth 12, 6 heads, MLP 1536.

The head reads a class token, as in the original. Some code bases average the patches instead.
Position embeddings are learnt, LayerNorm comes first (epsilon 1e-6), there is no dropout.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from vasso.lab.models.layers import scaled

HEADS, DEPTH = 6, 12


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V in each head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.inputs(x).view(n, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        y: Tensor = self.output(mixed.transpose(1, 2).reshape(n, tokens, width))
        return y


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width)
        self.second_norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first_norm(x))
        y: Tensor = x + self.mlp(self.second_norm(x))
        return y


class VisionTransformer(nn.Module):
    """Patches and a class token through the blocks; the class token is classified."""

    def __init__(self, patch: int, classes: int, width: int, channels: int, size: int) -> None:
        super().__init__()
        if size % patch:
            raise ValueError(
                f"images of {size}x{size} pixels cannot be cut into patches of {patch}x{patch}: "
                f"use a size that {patch} divides, or a model with smaller patches (vit_s8, vit_s4)"
            )
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        self._initialise()

    def _initialise(self) -> None:
        """Xavier for linear layers, 0 for biases and the head, N(0, 0.02) for positions."""
        nn.init.normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(len(x), -1, -1), patches), 1) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return scores


def _small(patch: int, classes: int, width: float, channels: int, size: int) -> nn.Module:
    """ViT-S; a smaller width makes the six heads narrower."""
    return VisionTransformer(patch, classes, HEADS * scaled(64, width), channels, size)


vit_s32 = partial(_small, 32)
"""ViT-S/32: 22,878,952 weights for a thousand classes at 224x224 pixels."""
vit_s8 = partial(_small, 8)
"""ViT-S with patches of 8x8, for images of 64 pixels."""
vit_s4 = partial(_small, 4)
"""ViT-S with patches of 4x4, for images of 32 pixels."""
