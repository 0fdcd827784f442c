"""Outputs: a closure cut in two, the model's outputs and the loss of them, and two plans for it.

| plan         | perturbation from                   | gradient from                             |
|--------------|-------------------------------------|-------------------------------------------|
| `Functional` | the batch                           | J_z(w + epsilon)^T v, v = dL/dz at w      |
| `HeadOnly`   | the head alone, its input held fast | the batch, by the body's one forward pass |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from vasso.parts.plans import FORWARD, PassData, Plan

WithRest: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""The outputs; or they and a term of the loss that does not go through them."""


class Outputs:
    """A closure cut in two: what the model puts out, and the loss of that.

    For Functional-SAM the outputs are the logits z. For logits-SAM they are what the head reads,
    and `loss_of` applies the head. `torch.autocast`, label smoothing and masks belong into the two
    functions. The body of a model has one forward and one backward pass in each call.

    Args:
        zero_grad: clears the gradients: `opt.zero_grad`.
        outputs: computes the outputs, with gradients. A loss that does not go through them (the
            auxiliary loss of a mixture of experts, a penalty) is the second entry of a pair.
        loss_of: outputs -> the loss, a mean over the batch.
        head: the output layer in `loss_of`, for logits-SAM; only its `weight` is perturbed.
        scaler: the `torch.amp.GradScaler`, also given to `step()`, if losses are to be scaled.

    Raises:
        TypeError: one of the functions is missing.

    Example:
        >>> from vasso import FunctionalSAM
        >>> model, x, y = nn.Linear(2, 3), torch.ones(4, 2), torch.tensor([0, 1, 2, 0])
        >>> opt = FunctionalSAM(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> loss_of = lambda z: nn.functional.cross_entropy(z, y)
        >>> loss = opt.step(Outputs(opt.zero_grad, lambda: model(x), loss_of))
        >>> opt.cost
        2.0
    """

    def __init__(
        self,
        zero_grad: Callable[[], None],
        outputs: Callable[[], WithRest],
        loss_of: Callable[[Tensor], Tensor],
        head: nn.Module | None = None,
        scaler: Any = None,
    ) -> None:
        if not (callable(zero_grad) and callable(outputs) and callable(loss_of)):
            given = ", ".join(type(x).__name__ for x in (zero_grad, outputs, loss_of))
            raise TypeError(
                "Outputs takes three functions, Outputs(opt.zero_grad, lambda: model(x), lambda z: "
                f"loss(z, y)), got ({given})"
            )
        self.zero_grad, self.outputs, self.loss_of = zero_grad, outputs, loss_of
        self.head, self.scaler = head, scaler
        self._v: Tensor | None = None
        self._kept: tuple[Tensor, Tensor | None] | None = None

    def __call__(self) -> Tensor:
        """The pass at w; keeps v, the gradient of the loss for the outputs."""
        self.zero_grad()
        z, rest = self._forward()
        cut = z.detach().requires_grad_()
        loss = self.loss_of(cut)
        torch.autograd.backward(self._scaled(loss))
        self._v = cut.grad
        self._pull_back(z, rest, cut.grad)
        return loss if rest is None else loss + rest

    def vjp(self) -> Tensor:
        """The pass at w + epsilon: J_z^T v with the v of the pass at w.

        Returns:
            The loss of z. The scalar sum(z v) is no loss, and is not logged.

        Raises:
            RuntimeError: there was no pass at w.
        """
        v, self._v = self._v, None
        if v is None:
            raise RuntimeError("vjp() comes after a call at w, which keeps v = dL/dz")
        self.zero_grad()
        z, rest = self._forward()
        self._pull_back(z, rest, v)
        with torch.no_grad():
            loss = self.loss_of(z.detach())
            return loss if rest is None else loss + rest.detach()

    def of_head(self) -> Tensor:
        """The gradient of the head's weight alone, with the body's outputs held fast and kept."""
        weight = getattr(self.head, "weight", None)
        if not isinstance(weight, Tensor) or not weight.requires_grad:
            raise TypeError(
                "logits-SAM perturbs the weight of the output layer: pass Outputs(..., head=), a "
                f"module whose weight is trained, got {self.head!r}"
            )
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise RuntimeError(
                "logits-SAM runs in one process: DDP and FSDP2 expect a backward pass through the "
                "whole model after each forward pass"
            )
        self.zero_grad()
        a, rest = self._kept = self._forward()
        loss = self.loss_of(a.detach())
        (weight.grad,) = torch.autograd.grad(self._scaled(loss), [weight])
        return (loss if rest is None else loss + rest).detach()

    def of_all(self) -> Tensor:
        """The gradient of everything, from the outputs that `of_head` has kept."""
        assert self._kept is not None
        (a, rest), self._kept = self._kept, None
        self.zero_grad()
        loss = self.loss_of(a)
        loss = loss if rest is None else loss + rest
        torch.autograd.backward(self._scaled(loss))
        return loss

    def _forward(self) -> tuple[Tensor, Tensor | None]:
        found = self.outputs()
        return found if isinstance(found, tuple) else (found, None)

    def _scaled(self, loss: Tensor) -> Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)

    def _pull_back(self, z: Tensor, rest: Tensor | None, v: Tensor | None) -> None:
        """One backward pass for the outputs, with v, and for the rest."""
        more = [] if rest is None or not rest.requires_grad else [self._scaled(rest)]
        torch.autograd.backward([z, *more], [v, *(None for _ in more)])


@dataclass(frozen=True)
class Functional(Plan):
    """Pulls the gradient of the logits at w back through the network at w + epsilon.

    u = J_z(w + epsilon)^T v, v = dL/dz at w. Functional-SAM, Singh et al., ICML 2025, second-hand:
    from its abstract and from others who quote its listing. v has as many numbers as the logits.
    """

    needs_batch: ClassVar[bool] = True
    compares: ClassVar[bool] = False  # the second pass has no loss
    needs_clean: ClassVar[bool] = True  # for v
    takes: ClassVar[type] = Outputs
    one_batch: ClassVar[bool] = True

    def __call__(self, batch: Any, step: int) -> list[PassData]:
        return [PassData(batch, batch.vjp, alike=True)]


@dataclass(frozen=True)
class HeadOnly(Plan):
    """Perturbs the weight of the output layer alone, with one pass through the body.

    The body runs forward once. Its outputs, held fast, give the gradient of the head's weight; the
    loss of the same outputs at the perturbed head is what goes back through head and body. A head
    that shares its weight with the embedding is perturbed on the output side only: the embedding
    has been read by then. logits-SAM, ICLR 2026. A bias of the head is not perturbed. G has the
    size of that weight, vocabulary times width; the authors' form in chunks, which never builds it,
    is not here, nor is their adaptive form abs(W) G.
    """

    needs_batch: ClassVar[bool] = True
    needs_clean: ClassVar[bool] = True
    takes: ClassVar[type] = Outputs
    one_batch: ClassVar[bool] = True

    def __call__(self, batch: Any, step: int) -> list[PassData]:
        return [PassData(_OfHead(batch), _OfAll(batch), partial=True)]


@dataclass(frozen=True)
class _OfHead:
    batch: Outputs
    cost: ClassVar[float] = FORWARD

    def covers(self, p: Tensor) -> bool:
        """Whether the pass gives the gradient of a parameter; others may hold zeros of old ones."""
        return p is getattr(self.batch.head, "weight", None)

    def __call__(self) -> Tensor:
        return self.batch.of_head()


@dataclass(frozen=True)
class _OfAll:
    batch: Outputs
    cost: ClassVar[float] = 1 - FORWARD

    def __call__(self) -> Tensor:
        return self.batch.of_all()
