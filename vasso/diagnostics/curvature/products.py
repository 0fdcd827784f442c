"""Products of vectors with the Hessian and the Gauss-Newton matrix, which are never stored.

The matrix is that of the mean loss over a fixed list of batches. BatchNorm and dropout are in
evaluation mode, and attention uses the implementation that can be differentiated twice. The
random generators are set to the same state for every product, so the matrix is always the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vasso.diagnostics.batches import batch_list, samples_in
from vasso.diagnostics.estimates import Array
from vasso.diagnostics.passes import LossFn, OfModel, loss_of, untouched, unwrapped
from vasso.engine.batchnorm import evaluating
from vasso.numerics.rng import get_state, set_state


class Curvature(ABC):
    """A symmetric matrix of second derivatives of the loss, given by its products with vectors.

    Products are computed in the dtype of the weights and summed over batches in float64, weighted
    by their sizes.

    Args:
        model: the network; its weights, buffers and gradients are not changed.
        loss_fn: its loss, the mean over samples.
        batches: read once, used for every product.
        params: the parameters to differentiate by; None for all that require a gradient.
        keep_graphs: keep the parts that do not depend on v between products. This is faster and
            holds the activations of all batches in memory; the weights must not change.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> batches = [(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.zeros(2, 1))]
        >>> H = Hessian(model, nn.MSELoss(), batches)
        >>> H @ torch.tensor([1.0, 1.0])
        tensor([1., 9.], dtype=torch.float64)
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn | OfModel,
        batches: Iterable[Any],
        *,
        params: Iterable[Tensor] | None = None,
        keep_graphs: bool = False,
    ) -> None:
        self.model, self.loss_fn, self.keep_graphs = unwrapped(model), loss_fn, keep_graphs
        chosen = self.model.parameters() if params is None else params
        self.params = [p for p in chosen if p.requires_grad]
        if not self.params:
            raise ValueError("no parameter requires a gradient: unfreeze some, or pass params=")
        self.batches = batch_list(batches, "a curvature")
        reduction = getattr(loss_fn, "reduction", "mean")
        if reduction != "mean":
            raise ValueError(
                f"the loss has reduction={reduction!r}: use reduction='mean', batches are weighted "
                "by their samples"
            )
        self.samples = sum(map(samples_in, self.batches))
        self.size = sum(p.numel() for p in self.params)
        self.products = 0
        self._generators = get_state(self.params)
        self._graphs: list[Any] = []

    @abstractmethod
    def _graph(self, batch: Any) -> Any:
        """The part of a product on one batch that does not depend on the vector."""

    @abstractmethod
    def _apply(self, graph: Any, v: Sequence[Tensor]) -> Sequence[Tensor]:
        """The product on one batch; frees the graph unless graphs are kept."""

    def __matmul__(self, v: Tensor) -> Tensor:
        """H v in float64 on the first parameter's device; v has one number for each weight."""
        if v.shape != (self.size,):
            raise ValueError(f"v must have shape ({self.size},), got {tuple(v.shape)}")
        parts = self._parts(v)
        total = torch.zeros(self.size, dtype=torch.float64, device=self.params[0].device)
        with self._fixed_setting():
            for batch, graph in zip(self.batches, self._all_graphs(), strict=True):
                product = flat(self._apply(graph, parts))
                total.add_(product.to(total), alpha=samples_in(batch) / self.samples)
        self.products += 1
        return total

    def times(self, v: Array) -> Array:
        """H v for numpy and scipy; a ValueError if it is not finite."""
        product = (self @ torch.as_tensor(np.ascontiguousarray(v).reshape(-1))).cpu().numpy()
        if not np.isfinite(product).all():
            raise ValueError(
                "the product is not finite: at these weights the loss of a batch or its "
                "derivatives are NaN or infinite"
            )
        return product

    def _all_graphs(self) -> Iterator[Any]:
        if not self.keep_graphs:
            yield from map(self._graph, self.batches)
            return
        if len(self._graphs) != len(self.batches):
            self._graphs = [self._graph(batch) for batch in self.batches]
        yield from self._graphs

    def _parts(self, v: Tensor) -> list[Tensor]:
        pieces = torch.split(v.detach(), [p.numel() for p in self.params])
        return [
            piece.to(p.device, p.dtype).view(p.shape)
            for piece, p in zip(pieces, self.params, strict=True)
        ]

    @contextmanager
    def _fixed_setting(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(untouched(self.model))
            stack.enter_context(evaluating(self.model))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(torch.backends.cudnn.flags(deterministic=True, allow_tf32=False))
            stack.enter_context(torch.enable_grad())
            set_state(self._generators)
            yield


class Hessian(Curvature):
    """H v = d/dw <df/dw, v>: the derivative of the gradient, by a second backward pass.

    Every operation of the model must be differentiable twice. An operation whose backward is marked
    `once_differentiable` ends autograd's graph without an error, and its curvature is missing.
    """

    def _graph(self, batch: Any) -> list[Tensor]:
        loss = loss_of(self.model, self.loss_fn, batch)
        return list(
            torch.autograd.grad(loss, self.params, create_graph=True, materialize_grads=True)
        )

    def _apply(self, graph: list[Tensor], v: Sequence[Tensor]) -> Sequence[Tensor]:
        curved = [(g, x) for g, x in zip(graph, v, strict=True) if g.requires_grad]
        if not curved:  # a loss that is linear in the weights
            return [torch.zeros_like(p) for p in self.params]
        slopes, weights = zip(*curved, strict=True)
        return torch.autograd.grad(
            slopes, self.params, weights, retain_graph=self.keep_graphs, materialize_grads=True
        )


class GaussNewton(Curvature):
    """G v = J' (d2 loss / d outputs2) J v: the Hessian without the curvature of the network.

    J v is the derivative of J' u with respect to u, so operations need only be differentiable
    twice. For cross-entropy this is the Fisher matrix.
    """

    def _split(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs, a leaf with the same values, and the loss as a function of that leaf."""
        if isinstance(self.loss_fn, OfModel):
            raise TypeError(
                "GaussNewton needs the outputs, and OfModel calls the model itself: pass "
                "loss_fn(outputs, targets) with batches (inputs, targets), or use Hessian"
            )
        outputs: list[Tensor] = []

        def loss_fn(output: Tensor, targets: Any) -> Tensor:
            outputs.extend([output, output.detach().requires_grad_()])
            return self.loss_fn(outputs[1], targets)  # type: ignore[operator]

        loss = loss_of(self.model, loss_fn, batch)
        return outputs[0], outputs[1], loss

    def _graph(self, batch: Any) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        outputs, leaf, loss = self._split(batch)
        (slope,) = torch.autograd.grad(loss, leaf, create_graph=True)
        u = torch.zeros_like(outputs, requires_grad=True)
        back = torch.autograd.grad(
            outputs, self.params, u, create_graph=True, materialize_grads=True
        )
        return outputs, leaf, slope, [u, *back]

    def _apply(
        self, graph: tuple[Tensor, Tensor, Tensor, list[Tensor]], v: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        outputs, leaf, slope, (u, *back) = graph
        curved = [(b, x) for b, x in zip(back, v, strict=True) if b.requires_grad]
        if not curved or not slope.requires_grad:
            return [torch.zeros_like(p) for p in self.params]
        transposed, weights = zip(*curved, strict=True)
        (moved,) = torch.autograd.grad(transposed, u, weights, retain_graph=True)
        (pushed,) = torch.autograd.grad(slope, leaf, moved, retain_graph=self.keep_graphs)
        return torch.autograd.grad(
            outputs, self.params, pushed, retain_graph=self.keep_graphs, materialize_grads=True
        )


def flat(v: Iterable[Tensor]) -> Tensor:
    """Tensors of one dtype and device as one vector."""
    return torch.cat([x.detach().reshape(-1) for x in v])
