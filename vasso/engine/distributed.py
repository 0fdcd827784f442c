"""Training on several processes: one perturbation for all ranks, or one for each.

| `sync`   | perturbation                          | how                                         |
|----------|---------------------------------------|---------------------------------------------|
| "global" | one for all ranks, of the whole batch | DDP and FSDP2 reduce each pass by themselves |
| "local"  | one for each rank, of its own share   | DDP's `no_sync` around all but the last pass |

Local perturbations are m-sharpness with a rank's share of the batch as m. What parts remember is
averaged over ranks, so that all have the same slope. At theta = 1 nothing is remembered, and there
is one reduction less than with "global"; below, the slope's reduction costs what was saved.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vasso.numerics.vectors import at_least_float32, measured
from vasso.parts.memory import KeptVectors

Sync: TypeAlias = Literal["global", "local"]


class Distributed:
    """The processes that train one model; `local`: each rank has a perturbation of its own."""

    def __init__(self, model: nn.Module | None, sync: Sync = "global") -> None:
        self.local = sync == "local"
        if self.local:
            _check_ddp(model)
        self._model: Any = model
        modules = model.modules() if model is not None else ()
        self._sharded: list[Any] = [m for m in modules if hasattr(m, "reshard")]

    def clear_weight_caches(self) -> None:
        """Clears cached copies of weights that have moved.

        Autocast keeps low-precision copies inside its block, FSDP2 gathered ones after a forward
        pass that no backward followed.
        """
        torch.clear_autocast_cache()
        for module in self._sharded:
            module.reshard()

    def without_sync(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure with a gradient that stays on this rank, if perturbations are local."""
        if not self.local:
            return closure

        def local() -> Any:
            with self._model.no_sync():
                loss = closure()
            self.sync_nonfinite(list(self._model.parameters()))
            return loss

        return local

    def reduces_every(self, params: Sequence[Tensor]) -> bool:
        """Whether the ranks reduce every gradient of a pass at w, and so wait for each of them.

        DDP does. FSDP2 reduces the gradients that there are.
        """
        if self.local or not (dist.is_available() and dist.is_initialized()):
            return False
        return any(not hasattr(p, "device_mesh") for p in params)

    @torch.no_grad()
    def sync_nonfinite(self, params: Sequence[Tensor]) -> None:
        """With local perturbations: gradients not finite on one rank become NaN on all."""
        if not self.local:
            return
        found = [p.grad for p in params if p.grad is not None]
        finite = bool(measured(found)[0].isfinite())
        nonfinite = torch.tensor(float(not finite), device=params[0].device)  # NCCL's own kind
        self._add_up([nonfinite])
        if nonfinite.item() > 0:
            for gradient in found:
                gradient.fill_(torch.nan)

    def mean(self, numbers: list[float], device: torch.device) -> list[float]:
        """The means of some numbers over the ranks, the same on all; NCCL wants its own device."""
        group = getattr(self._model, "process_group", None)
        if not (dist.is_available() and dist.is_initialized()):
            return numbers
        sums = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(sums, group=group)
        means: list[float] = (sums / dist.get_world_size(group)).tolist()
        return means

    def average_gradients(self, params: Sequence[Tensor]) -> None:
        """With local perturbations: gradients taken without reduction become their mean."""
        if self.local:
            params = [p for p in params if p.requires_grad]
            means = self._average([p.grad for p in params], params, lambda p: p.dtype)
            for p, mean in zip(params, means, strict=True):
                p.grad = mean

    def average_vectors(
        self, kept: KeptVectors, dtypes: dict[Tensor, dict[str, torch.dtype]]
    ) -> None:
        """With local perturbations: what is remembered becomes the mean over ranks.

        The reductions are the same on all ranks: `dtypes` says what a rank may have.
        """
        if not self.local:
            return
        rows = [(p, name) for p, of_p in dtypes.items() for name in of_p]
        vectors = [kept.get(p, {}).get(name) for p, name in rows]
        means = self._average(
            vectors,
            [p for p, _ in rows],
            lambda p: at_least_float32(p.dtype),
        )
        for (p, name), mean in zip(rows, means, strict=True):
            if mean is not None:
                kept.setdefault(p, {})[name] = mean

    def _average(
        self,
        vectors: Sequence[Tensor | None],
        like: Sequence[Tensor],
        dtype_of: Callable[[Tensor], torch.dtype],
    ) -> list[Tensor | None]:
        """The mean over the ranks that have a vector, in place; None where no rank has one."""
        if not like:
            return []
        counts = torch.tensor([float(x is not None) for x in vectors], device=like[0].device)
        self._add_up([counts])
        means = list(vectors)
        for i, n in enumerate(counts.tolist()):
            if n and means[i] is None:
                means[i] = torch.zeros_like(like[i], dtype=dtype_of(like[i]))
        found = [(x, n) for x, n in zip(means, counts.tolist(), strict=True) if x is not None]
        self._add_up([x for x, _ in found])
        for x, n in found:
            x.div_(n)
        return means

    def _add_up(self, tensors: Sequence[Tensor]) -> None:
        group = self._model.process_group
        waiting = [dist.all_reduce(x, group=group, async_op=True) for x in tensors]
        for work in waiting:
            work.wait()


def _check_ddp(model: nn.Module | None) -> None:
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
