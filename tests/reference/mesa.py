"""MESA as on paper: an average of the weights says what the model is held to.

average <- decay average + (1 - decay) x,  p_i = softmax(output of the average / tau)
loss = CE + lam tau^2 mean_i sum_c p_ic log(p_ic / q_ic)

Du et al., 2022.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.reference.saf import kl, softmax


def train(
    x: Tensor,
    output: Callable[[Tensor, Tensor], Tensor],
    batches: list[tuple[int, Tensor, Tensor]],
    *,
    lr: float,
    lam: float,
    tau: float,
    start: int,
    decay: float,
) -> tuple[Tensor, Tensor]:
    """Weights and average after gradient descent over (epoch, inputs, labels)."""
    average = x.clone()
    for epoch, inputs, labels in batches:
        x = x.detach().requires_grad_()
        total = torch.zeros((), dtype=x.dtype)
        past = output(average, inputs)
        for z, before, y in zip(output(x, inputs), past, labels.tolist(), strict=True):
            total = total - softmax(z)[y].log()
            if epoch > start:
                total = total + lam * tau**2 * kl(softmax(before / tau), softmax(z / tau))
        (g,) = torch.autograd.grad(total / len(labels), x)
        x = (x - lr * g).detach()
        average = decay * average + (1 - decay) * x
    return x, average
