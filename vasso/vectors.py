"""How do we compute with a list of tensors as if it were one long vector?

Everything goes through torch's foreach functions, so the number of calls does not grow with the
number of tensors, and every scalar stays on the device, so nothing waits for the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from vasso.randomness import mixed
from vasso.rounding import is_low, rounded

Vector: TypeAlias = list[Tensor]
"""Tensors that together are one vector."""

MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)

MARGIN = 1e7  # how far a norm stays from where its squares would under- or overflow


def wide(v: Sequence[Tensor]) -> torch.dtype:
    """The dtype in which sums over v are kept: float64 if any tensor is, else float32."""
    return torch.float64 if any(x.dtype == torch.float64 for x in v) else torch.float32


def norm(v: Sequence[Tensor]) -> Tensor:
    """||v||, a 0-dim tensor on the device of the first tensor; nothing is read by the host.

    Args:
        v: tensors of any dtypes and devices.

    Returns:
        The norm, in float64 if any tensor is, else in float32.

    Example:
        >>> norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
        tensor(5.)
    """
    if not v:
        return torch.zeros(())
    dtype = wide(v)
    lengths = [_over_tensors(torch._foreach_norm(some, 2, dtype)) for some in by_mesh(v)]
    return lengths[0] if len(lengths) == 1 else _over_tensors(lengths)


def measured(v: Sequence[Tensor]) -> tuple[Tensor, float]:
    """||v|| and its value on the host, right also where the squares under- or overflow.

    One host synchronisation; more only if the norm is zero, not finite or near either.

    Args:
        v: tensors of any dtypes and devices.

    Returns:
        The norm as a 0-dim tensor and as a number.

    Example:
        >>> round(measured([torch.tensor([3e30, 4e30])])[1] / 1e30, 6)
        5.0
        >>> measured([torch.tensor([1.0, math.nan])])[1]
        nan
    """
    length = norm(v)
    value = length.item()
    return (length, value) if is_safe(value, v) else _rescaled(v, length)


def is_safe(value: float, v: Sequence[Tensor]) -> bool:
    """Whether a norm of v is so far from under- and overflow of its squares as to be trusted."""
    limits = torch.finfo(wide(v))
    return math.sqrt(limits.tiny) * MARGIN < value < math.sqrt(limits.max) / MARGIN


def _rescaled(v: Sequence[Tensor], length: Tensor) -> tuple[Tensor, float]:
    """||v|| = m ||v / m|| with m the largest entry, in float64."""
    peaks = [peak(x).to(length.device, torch.float64) for x in v if x.numel()]
    if not peaks:
        return length, 0.0
    highest = torch.stack(peaks).max()
    value = highest.item()
    if value == 0 or not math.isfinite(value):
        return highest, value
    length = norm([x.double() / value for x in v]) * value
    return length, length.item()


def _over_tensors(lengths: Sequence[Tensor]) -> Tensor:
    """The length of the whole from the lengths of its tensors, on the device of the first."""
    device = lengths[0].device
    column = torch.stack([x if x.device == device else x.to(device) for x in lengths])
    return whole(torch.linalg.vector_norm(column))


def owned(gradient: MaybeTensor) -> MaybeTensor:
    """The gradient, or a copy of one that its owner will write to again: DDP's bucket views.

    Args:
        gradient: what is in `p.grad`.

    Returns:
        A tensor that nobody else changes.
    """
    return gradient.clone() if gradient is not None and gradient._is_view() else gradient


# -- tensors of which each rank has a shard -------------------------------------------------------


def shards(v: Sequence[Tensor]) -> Vector:
    """What this rank has of each tensor: all of it, or the shard of a DTensor.

    Args:
        v: tensors of any kind.

    Returns:
        Plain tensors that share memory with v.
    """
    return [x.to_local() if hasattr(x, "to_local") else x for x in v]


def whole(x: Tensor) -> Tensor:
    """A plain tensor of all shards; the same object if it is plain already.

    Args:
        x: a tensor that is the same on all ranks, or a DTensor.

    Returns:
        The same on all ranks.
    """
    full: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return full


def peak(x: Tensor) -> Tensor:
    """The largest absolute value, over all ranks if x is sharded.

    Args:
        x: not empty as a whole; a rank's shard may be.

    Returns:
        A plain 0-dim tensor; of a sharded x infinity in place of NaN, which some reductions lose.
    """
    if not hasattr(x, "device_mesh"):
        return x.abs().max()
    from torch.distributed.tensor import DTensor, Partial

    (own,) = shards([x])
    highest = own.abs().max() if own.numel() else own.new_zeros(())
    highest = highest.nan_to_num(nan=math.inf, posinf=math.inf)
    parts = [Partial("max")] * x.device_mesh.ndim
    return whole(DTensor.from_local(highest, x.device_mesh, parts, run_check=False))


def by_mesh(v: Sequence[Tensor]) -> list[Vector]:
    """The tensors in groups that may be computed with together.

    Args:
        v: plain tensors, DTensors, or both.

    Returns:
        Plain tensors, and DTensors by the mesh of ranks that they are spread over.
    """
    found: dict[object, Vector] = {}
    for x in v:
        found.setdefault(getattr(x, "device_mesh", None), []).append(x)
    return list(found.values())


def spread_like(x: Tensor, p: Tensor) -> Tensor:
    """A tensor that every rank has as a whole, sharded like another.

    Args:
        x: the same on all ranks.
        p: a tensor of the same shape.

    Returns:
        x itself if p is plain.
    """
    if not hasattr(p, "device_mesh"):
        return x
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * p.device_mesh.ndim
    spread = DTensor.from_local(x, p.device_mesh, everywhere, run_check=False)
    return spread.redistribute(placements=p.placements)  # type: ignore[attr-defined]


def copy_(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """In place, tensor by tensor: to <- source.

    Args:
        to: what is changed.
        source: tensors of the same shapes.
    """
    if to:
        torch._foreach_copy_(shards(to), shards(source))


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """<a, b> over all tensors together, a 0-dim tensor on the device of the first.

    Args:
        a: a vector.
        b: another of the same shapes.

    Returns:
        The inner product, in float64 if any tensor of a is, else in float32.

    Example:
        >>> dot([torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 4.0])])
        tensor(11.)
    """
    device, dtype = a[0].device, wide(a)
    products = torch._foreach_mul([x.to(dtype) for x in a], [x.to(dtype) for x in b])
    sums = torch.stack([whole(x.sum()).to(device) for x in products])
    return sums.sum()


def share_along(v: Sequence[Tensor], a: Sequence[Tensor]) -> Tensor:
    """<v, a> / ||a||^2, a 0-dim tensor; nothing is read by the host.

    Both are divided by their largest entries first, or products would under- or overflow.

    Args:
        v: a vector.
        a: another of the same shapes.

    Returns:
        How much of a there is in v; 0 if a is 0.

    Example:
        >>> share_along([torch.tensor([2e30, 5.0])], [torch.tensor([1e30, 0.0])])
        tensor(2.)
    """
    (small_v, peak_v), (small_a, peak_a) = _by_peak(v), _by_peak(a)
    share = dot(small_v, small_a) / dot(small_a, small_a) * (peak_v / peak_a)
    return torch.where(peak_a > 0, share, 0.0)


def length_over(v: Sequence[Tensor], a: Sequence[Tensor]) -> Tensor:
    """||v|| / ||a||, a 0-dim tensor, right also where squares under- or overflow.

    Args:
        v: a vector.
        a: another of the same shapes.

    Returns:
        The ratio; 0 if a is 0.

    Example:
        >>> length_over([torch.tensor([3e30, 4e30])], [torch.tensor([1e30, 0.0])])
        tensor(5.)
    """
    (small_v, peak_v), (small_a, peak_a) = _by_peak(v), _by_peak(a)
    return torch.where(peak_a > 0, norm(small_v) / norm(small_a) * (peak_v / peak_a), 0.0)


def _by_peak(v: Sequence[Tensor]) -> tuple[Vector, Tensor]:
    """v over its largest entry, and the entry: 1 in place of 0, so that 0 stays 0."""
    device, dtype = v[0].device, wide(v)
    peaks = [peak(x).to(device, dtype) for x in v if x.numel()]
    highest = torch.stack(peaks).max() if peaks else torch.zeros((), device=device, dtype=dtype)
    divisor = torch.where(highest > 0, highest, 1.0)
    return list(torch._foreach_div([x.to(dtype) for x in v], divisor)), highest


def lerp_(d: Vector, g: Vector, weights: Sequence[float], seed: int | None = None) -> None:
    """In place, tensor by tensor: d <- (1 - weight) d + weight g.

    Args:
        d: what is changed.
        g: where it moves to.
        weights: how far, for each tensor.
        seed: of the rounding where d has low precision; None rounds to nearest.

    Example:
        >>> d = [torch.tensor([1.0])]
        >>> lerp_(d, [torch.tensor([2.0])], [0.25])
        >>> d
        [tensor([1.2500])]
    """
    d, g = shards(d), shards(g)
    rows, low = _by_precision(d, seed)
    if rows:
        some = [d[i] for i in rows]
        ends = as_dtypes([g[i] for i in rows], some)
        torch._foreach_lerp_(some, ends, [weights[i] for i in rows])
    for i, luck in low:
        moved = torch.lerp(d[i].float(), g[i].float(), weights[i])
        d[i].copy_(rounded(moved, d[i].dtype, luck))


def as_dtypes(v: Vector, like: Vector) -> Vector:
    """v with each tensor in the dtype of its partner: the same objects where nothing changes."""
    pairs = zip(v, like, strict=True)
    return [x if x.dtype == y.dtype else x.to(y.dtype) for x, y in pairs]


def full_precision(x: Tensor) -> Tensor:
    """x in float32 if it has less: an average over steps would round its increments away."""
    return x.float() if x.dtype.itemsize < 4 else x


def add_scaled_(
    w: Vector, push: Vector, length: Tensor, radii: Sequence[float], seed: int | None = None
) -> None:
    """In place, tensor by tensor: w <- w + radius push / length, with the length on the device.

    Args:
        w: what is changed.
        push: the way.
        length: what it is divided by, a 0-dim tensor.
        radii: what it is multiplied by, for each tensor.
        seed: of the rounding where w has low precision; None rounds to nearest.

    Example:
        >>> w = [torch.tensor([1.0, 1.0])]
        >>> add_scaled_(w, [torch.tensor([3.0, 4.0])], torch.tensor(5.0), [10.0])
        >>> w
        [tensor([7., 9.])]
    """
    w, push = shards(w), shards(push)
    rows, low = _by_precision(w, seed)
    lengths = {device: length.to(device) for device in {x.device for x in w}}
    if rows and all(_same_range(w[i], length) for i in rows):
        some = [w[i] for i in rows]
        ends = [lengths[x.device] for x in some]
        torch._foreach_addcdiv_(some, [push[i] for i in rows], ends, [radii[i] for i in rows])
        rows = []
    for i in rows:  # the length would not fit into w
        w[i].add_((push[i].double() / lengths[w[i].device].double() * radii[i]).to(w[i].dtype))
    for i, luck in low:
        way = push[i].float() / lengths[w[i].device] * radii[i]
        w[i].copy_(rounded((w[i] + way).float(), w[i].dtype, luck))


def _by_precision(w: Vector, seed: int | None) -> tuple[list[int], list[tuple[int, int]]]:
    """The places of tensors to be changed together, and of those to be rounded at random."""
    if seed is None or not any(is_low(x.dtype) for x in w):
        return list(range(len(w))), []
    rows = [i for i, x in enumerate(w) if not is_low(x.dtype)]
    return rows, [(i, mixed(seed, i)) for i, x in enumerate(w) if is_low(x.dtype)]


def _same_range(x: Tensor, length: Tensor) -> bool:
    """Whether a length as small or large as a norm can be is a number in the dtype of x too."""
    return x.dtype == length.dtype or (x.dtype, length.dtype) == (torch.bfloat16, torch.float32)
