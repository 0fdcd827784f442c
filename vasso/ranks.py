"""What do several processes have to agree on? On one adversary, or at least on the slope.

| `sync`   | adversary                            | how                                         |
|----------|--------------------------------------|---------------------------------------------|
| "global" | one for all ranks, of the whole batch | DDP and FSDP2 reduce each pass by themselves |
| "local"  | one for each rank, of its own share  | DDP's `no_sync` around the passes that climb |

Local adversaries are m-sharpness with a rank's share of the batch as m. What is remembered is
averaged over ranks, so that all have the same slope: at theta = 1 nothing is, and there is one
reduction less than with "global"; below, the slope's reduction costs what was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vasso.vectors import measured

Sync: TypeAlias = Literal["global", "local"]


class Ranks:
    """The processes that train one model.

    Args:
        model: what trains; wrapped by DDP for local adversaries.
        sync: whose adversary it is.
    """

    def __init__(self, model: nn.Module | None, sync: Sync) -> None:
        self.local = sync == "local"
        if self.local:
            refuse_unless_ddp(model)
        self._model: Any = model
        modules = model.modules() if model is not None else ()
        self._sharded: list[Any] = [m for m in modules if hasattr(m, "reshard")]

    def forget_weights(self) -> None:
        """Makes the next pass see weights that have moved: no cached copies of what they were.

        Autocast keeps low-precision copies inside its block, FSDP2 gathered ones after a forward
        pass that no backward followed.
        """
        torch.clear_autocast_cache()
        for module in self._sharded:
            module.reshard()

    def quietly(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure whose gradient stays on this rank.

        Args:
            closure: runs forward and backward.

        Returns:
            Another.
        """

        def quiet() -> Any:
            with self._model.no_sync():
                loss = closure()
            self.share_trouble(list(self._model.parameters()))
            return loss

        return quiet

    @torch.no_grad()
    def share_trouble(self, params: Sequence[Tensor]) -> None:
        """Spoils the gradients of all ranks where those of one are not finite: all skip together.

        Args:
            params: all parameters, each rank with gradients of its own.
        """
        found = [p.grad for p in params if p.grad is not None]
        finite = bool(measured(found)[0].isfinite())
        trouble = torch.tensor(float(not finite), device=params[0].device)  # NCCL's own kind
        self._add_up([trouble])
        if trouble.item() > 0:
            for gradient in found:
                gradient.fill_(torch.nan)

    def average(
        self,
        vectors: Sequence[Tensor | None],
        like: Sequence[Tensor],
        dtype_of: Callable[[Tensor], torch.dtype],
    ) -> list[Tensor | None]:
        """The mean over the ranks that have a vector; the same reductions on all of them.

        Args:
            vectors: of this rank, changed in place; None where it has none.
            like: parameters of the same shapes.
            dtype_of: the dtype that a vector of a parameter has.

        Returns:
            The means; None where no rank has one.
        """
        if not like:
            return []
        counts = torch.tensor([float(x is not None) for x in vectors], device=like[0].device)
        self._add_up([counts])
        means = list(vectors)
        for i, n in enumerate(counts.tolist()):
            if n and means[i] is None:
                means[i] = torch.zeros_like(like[i], dtype=dtype_of(like[i]))
        there = [(x, n) for x, n in zip(means, counts.tolist(), strict=True) if x is not None]
        self._add_up([x for x, _ in there])
        for x, n in there:
            x.div_(n)
        return means

    def _add_up(self, tensors: Sequence[Tensor]) -> None:
        group = self._model.process_group
        waiting = [dist.all_reduce(x, group=group, async_op=True) for x in tensors]
        for work in waiting:
            work.wait()


def refuse_unless_ddp(model: nn.Module | None) -> None:
    """Raises if ranks cannot have adversaries of their own.

    Args:
        model: what trains.

    Raises:
        TypeError: it is not wrapped by DDP.
        ValueError: its graph is declared as static.
    """
    if not isinstance(model, DistributedDataParallel):
        found = "no model" if model is None else type(model).__name__
        raise TypeError(
            f'sync="local" needs model=DistributedDataParallel(...), whose gradients can stay on '
            f'their rank for a pass; got {found}. Use sync="global".'
        )
    if getattr(model, "static_graph", False):
        raise ValueError(
            'sync="local" cannot be used with DDP\'s static_graph=True: the two passes differ in '
            'what they reduce. Use sync="global" or static_graph=False.'
        )
