"""SAF as on paper, sample by sample, with everything the model ever said in a dictionary.

loss = CE + lam tau^2 mean_i sum_c p_ic log(p_ic / q_ic),  p_i = softmax(past_i / tau), q_i = now

past_i: what was said of sample i `window` epochs ago. Du et al., 2022.
"""

import torch
from torch import Tensor

Said = dict[tuple[int, int], Tensor]
"""(sample, epoch) -> logits."""


def softmax(z: Tensor) -> Tensor:
    """exp z / sum exp z."""
    return z.exp() / z.exp().sum()


def kl(p: Tensor, q: Tensor) -> Tensor:
    """sum p log(p / q)."""
    return (p * (p / q).log()).sum()


def loss(
    said: Said,
    logits: Tensor,
    labels: Tensor,
    samples: Tensor,
    epoch: int,
    *,
    lam: float,
    tau: float,
    start: int,
    window: int,
) -> Tensor:
    """The loss of a batch; notes what was said."""
    total = torch.zeros((), dtype=logits.dtype)
    for z, y, i in zip(logits, labels.tolist(), samples.tolist(), strict=True):
        total = total - softmax(z)[y].log()
        past = said.get((i, epoch - window))
        if epoch > start and past is not None:
            total = total + lam * tau**2 * kl(softmax(past / tau), softmax(z / tau))
        said.setdefault((i, epoch), z.detach())
    return total / len(logits)
