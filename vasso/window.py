"""How do several micro-batches, each with an adversary of its own, become one step?

    u = sum_i g_i(x_t + epsilon_i),   d_t = mean_i d_t^(i),   every d_t^(i) starting from d_{t-1}

After each micro-batch the sum so far is in `p.grad`, where clipping and a GradScaler look for it.
But the next `backward()` must not be added to it, since the next climb needs the gradient of its
own micro-batch alone. So a hook on every parameter puts the sum aside when a new gradient arrives.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from vasso.here import MeanOfShares, Memory
from vasso.vectors import owned


class Window:
    """The micro-batches of one step.

    Attributes:
        failed: whether a gradient of one of them was not finite, so that the step is skipped.
        passes: how many gradients have been taken, each of one micro-batch.
        size: how many micro-batches there were.
        mean: what they remember.

    Example:
        >>> import torch
        >>> w = torch.tensor([1.0], requires_grad=True)
        >>> window = Window()
        >>> (2 * w).sum().backward()
        >>> window.close([w])
        >>> (3 * w).sum().backward()
        >>> window.goes_on([w]), w.grad
        (True, tensor([3.]))
        >>> window.close([w])
        >>> w.grad
        tensor([5.])
    """

    def __init__(self) -> None:
        self.failed = False
        self.passes = self.size = 0
        self.mean = MeanOfShares()
        self._earlier: dict[Tensor, Tensor | None] = {}
        self._hooks: list[RemovableHandle] = []

    @property
    def cost(self) -> float:
        """Gradients taken, in units of the whole window."""
        return self.passes / max(1, self.size)

    def goes_on(self, params: list[Tensor]) -> bool:
        """Leaves the gradients of the next micro-batch alone in `p.grad`.

        Args:
            params: all parameters.

        Returns:
            Whether there is a sum to add them to; it may have been thrown away (`zero_grad`).
        """
        self._remove_hooks()
        for p in params:
            self._set_aside(p)
        return not self._thrown_away()

    def _thrown_away(self) -> bool:
        sums = [x for x in self._earlier.values() if x is not None]
        return not sums or (self.failed and not any(bool(x.any()) for x in sums))

    def _set_aside(self, p: Tensor, incoming: Tensor | None = None) -> None:
        if p not in self._earlier:
            self._earlier[p] = owned(p.grad)
            p.grad = None

    def close(self, params: list[Tensor]) -> None:
        """Adds the gradients of this micro-batch to those of the earlier ones.

        Args:
            params: all parameters.
        """
        self._add_up(params)
        self.size += 1
        self._hooks = [
            p.register_hook(partial(self._set_aside, p))  # type: ignore[no-untyped-call]
            for p in params
            if p.requires_grad
        ]

    def finish(self, params: list[Tensor], memory: Memory) -> None:
        """Ends the window: the sum is in `p.grad`, and what the micro-batches remember is averaged.

        Args:
            params: all parameters.
            memory: what is remembered from now on.
        """
        self._remove_hooks()
        self._add_up(params)
        if not self.failed:
            self.mean.write_to(memory)

    def _add_up(self, params: list[Tensor]) -> None:
        for p in params:
            earlier = self._earlier.get(p)
            if earlier is not None:
                p.grad = earlier if p.grad is None else earlier.add_(p.grad)
        self._earlier = {}

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def discard(self) -> None:
        """Forgets it all."""
        self._remove_hooks()
        self._earlier = {}
