"""How wrong is a translation, piece by piece?

    loss of a batch = - (sum over its pieces of log p(piece | source, pieces before)) / (its pieces)

with label smoothing where asked, as torch has it. The gradient that reaches the optimizer is
divided by the number of pieces already: a slope averaged over batches of different sizes has one
scale.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vasso.lab.translation.pieces import BEGIN, PAD


def places_of(target: Tensor) -> tuple[Tensor, Tensor]:
    """What the decoder is given, and where it is asked.

    Args:
        target: translations, N x T.

    Returns:
        `BEGIN` and all but the last piece; and which places hold a piece.
    """
    before = torch.cat((torch.full_like(target[:, :1], BEGIN), target[:, :-1]), 1)
    return before, target != PAD


def sentence_losses(
    model: nn.Module, source: Tensor, target: Tensor, weights: Tensor, smoothing: float = 0.0
) -> Tensor:
    """The loss of each sentence; their mean is the loss of the batch.

    Args:
        model: a transformer.
        source: sentences, N x S.
        target: translations, N x T.
        weights: sentences over pieces of the batch, the same for each.
        smoothing: share of the label that is spread over all pieces.

    Returns:
        N losses, each the weighted sum over its pieces.
    """
    before, where = places_of(target)
    found = cross_entropy(
        model(source, before, where), target[where], reduction="none", label_smoothing=smoothing
    )
    laid_out = torch.zeros(where.shape, dtype=found.dtype, device=found.device)
    return laid_out.masked_scatter(where, found).sum(1) * weights


def piece_sums(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Sums over the pieces of some sentences, without smoothing.

    Args:
        model: a transformer.
        source: sentences.
        target: translations.

    Returns:
        - log p, how often the likeliest piece was right, how many pieces there are; float64.
    """
    before, where = places_of(target)
    scores, pieces = model(source, before, where).float(), target[where]
    nll = cross_entropy(scores, pieces, reduction="none").double().sum()
    right = (scores.argmax(1) == pieces).double().sum()
    return torch.stack([nll, right, nll.new_tensor(float(len(pieces)))]).cpu()
