"""Vectors: arithmetic on a list of tensors as if it were one long vector.

Everything uses torch's foreach functions, so the number of calls does not grow with the number of
tensors. Every scalar stays on the device, so there is no host synchronisation.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from vasso.numerics.rng import mix_seed
from vasso.numerics.rounding import is_low, rounded

Vector: TypeAlias = list[Tensor]
"""Tensors that together are one vector."""

Gradient: TypeAlias = list[Tensor | None]
"""One gradient for each parameter, None where one got none."""

MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)

PIECE = 2**18  # entries that are rounded at random in one go
MARGIN = 1e7  # factor between a norm and the limits at which its square under- or overflows


def sum_dtype(v: Sequence[Tensor]) -> torch.dtype:
    """The dtype in which sums over v are kept: float64 if any tensor is, else float32."""
    return torch.float64 if any(x.dtype == torch.float64 for x in v) else torch.float32


def norm(v: Sequence[Tensor]) -> Tensor:
    """||v||, a 0-dim tensor on the device of the first tensor; no host synchronisation.

    In float64 if any tensor is, else in float32.
    """
    if not v:
        return torch.zeros(())
    dtype = sum_dtype(v)
    lengths = [_over_tensors(torch._foreach_norm(some, 2, dtype)) for some in by_mesh(v)]
    return lengths[0] if len(lengths) == 1 else _over_tensors(lengths)


def measured(v: Sequence[Tensor]) -> tuple[Tensor, float]:
    """||v|| as a 0-dim tensor and as a number, correct also where squares under- or overflow.

    One host synchronisation; more only if the norm is close to 0, to infinity, or not finite.

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
    """Whether a norm of v is far enough from under- and overflow of its squares."""
    limits = torch.finfo(sum_dtype(v))
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


def copied(gradient: MaybeTensor) -> MaybeTensor:
    """A copy of a gradient that has to live through a pass, which may write to its memory again.

    The caller may own that memory: tensors that it assigns to `p.grad` before each pass, views of
    one flat buffer, DDP's buckets.
    """
    return None if gradient is None else gradient.clone()


def zeros_for_missing(v: Gradient, like: Vector) -> Vector:
    """v with zeros where a tensor is None, in the shapes of `like`."""
    return [torch.zeros_like(p) if x is None else x for p, x in zip(like, v, strict=True)]


def shards(v: Sequence[Tensor]) -> Vector:
    """The local part of each tensor: all of it, or the shard of a DTensor; memory is shared."""
    return [x.to_local() if hasattr(x, "to_local") else x for x in v]


def whole(x: Tensor) -> Tensor:
    """A plain tensor of all shards, the same on all ranks; x itself if it is plain already."""
    full: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return full


def peak(x: Tensor) -> Tensor:
    """The largest absolute value, over all ranks if x is sharded; a plain 0-dim tensor.

    x must not be empty as a whole, a rank's shard may be. For a sharded x, NaN becomes infinity,
    because some reductions lose NaN.
    """
    if not hasattr(x, "device_mesh"):
        return x.abs().max()
    from torch.distributed.tensor import DTensor, Partial

    (shard,) = shards([x])
    highest = shard.abs().max() if shard.numel() else shard.new_zeros(())
    highest = highest.nan_to_num(nan=math.inf, posinf=math.inf)
    parts = [Partial("max")] * x.device_mesh.ndim
    return whole(DTensor.from_local(highest, x.device_mesh, parts, run_check=False))


def by_mesh(v: Sequence[Tensor]) -> list[Vector]:
    """The tensors in groups that foreach functions accept together: plain ones, and each mesh's."""
    groups: dict[object, Vector] = {}
    for x in v:
        groups.setdefault(getattr(x, "device_mesh", None), []).append(x)
    return list(groups.values())


def spread_like(x: Tensor, p: Tensor) -> Tensor:
    """A tensor that every rank has as a whole, sharded like p; x itself if p is plain."""
    if not hasattr(p, "device_mesh"):
        return x
    from torch.distributed.tensor import DTensor, Replicate

    replicated = [Replicate()] * p.device_mesh.ndim
    full = DTensor.from_local(x, p.device_mesh, replicated, run_check=False)
    return full.redistribute(placements=p.placements)  # type: ignore[attr-defined]


def copy_(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """In place, tensor by tensor: to <- source."""
    if to:
        torch._foreach_copy_(shards(to), shards(source))


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """<a, b> over all tensors together, a 0-dim tensor on the device of the first.

    In float64 if any tensor of a is, else in float32.
    """
    device, dtype = a[0].device, sum_dtype(a)
    products = torch._foreach_mul([x.to(dtype) for x in a], [x.to(dtype) for x in b])
    sums = torch.stack([whole(x.sum()).to(device) for x in products])
    return sums.sum()


def share_along(v: Sequence[Tensor], a: Sequence[Tensor]) -> Tensor:
    """<v, a> / ||a||^2, a 0-dim tensor, 0 if a is 0; no host synchronisation.

    Both are divided by their largest entries first, or products would under- or overflow.
    """
    (small_v, peak_v), (small_a, peak_a) = by_peak(v), by_peak(a)
    share = dot(small_v, small_a) / dot(small_a, small_a) * (peak_v / peak_a)
    return torch.where(peak_a > 0, share, 0.0)


def length_over(v: Sequence[Tensor], a: Sequence[Tensor]) -> Tensor:
    """||v|| / ||a||, a 0-dim tensor, 0 if a is 0; correct also where squares under- or overflow.

    Example:
        >>> length_over([torch.tensor([3e30, 4e30])], [torch.tensor([1e30, 0.0])])
        tensor(5.)
    """
    (small_v, peak_v), (small_a, peak_a) = by_peak(v), by_peak(a)
    return torch.where(peak_a > 0, norm(small_v) / norm(small_a) * (peak_v / peak_a), 0.0)


def by_peak(v: Sequence[Tensor]) -> tuple[Vector, Tensor]:
    """v divided by its largest absolute entry, and that entry; v itself if it is 0."""
    device, dtype = v[0].device, sum_dtype(v)
    peaks = [peak(x).to(device, dtype) for x in v if x.numel()]
    highest = torch.stack(peaks).max() if peaks else torch.zeros((), device=device, dtype=dtype)
    divisor = torch.where(highest > 0, highest, 1.0)
    return list(torch._foreach_div([x.to(dtype) for x in v], divisor)), highest


def widened(v: Vector, like: Vector) -> Vector:
    """v; if some of `like` has low precision, by its largest entry and in float32 at least.

    For results that do not depend on the length of v: its products neither under- nor overflow.
    """
    return by_peak(v)[0] if any(is_low(x.dtype) for x in like) else v


def combined(f: Callable[..., Iterable[Tensor]], *vectors: Vector) -> Vector:
    """f of vectors, in the dtypes of the last; f has to be linear in a common factor of them.

    If some have low precision it is computed in float32. A result too large for its dtype is
    scaled down as a whole.
    """
    every = [x for v in vectors for x in v]
    if not any(is_low(x.dtype) for x in every):
        return list(f(*vectors))
    small, scale = by_peak(every)
    rest = iter(small)
    return fitted(list(f(*([next(rest) for _ in v] for v in vectors))), scale, vectors[-1])


def fitted(v: Sequence[Tensor], scale: Tensor | float, like: Vector) -> Vector:
    """scale v in the dtypes of `like`, scaled down as a whole if an entry would be too large."""
    pairs = [(x, torch.finfo(y.dtype).max) for x, y in zip(v, like, strict=True) if x.numel()]
    room = [(1 - 1e-6) * limit / peak(x) for x, limit in pairs]
    factor = torch.stack([x.to(v[0].device) for x in room]).min().clamp(max=scale) if room else 1.0
    return [(x * factor).to(y.dtype) for x, y in zip(v, like, strict=True)]


def lerp_(d: Vector, g: Vector, weights: Sequence[float], seed: int | None = None) -> None:
    """In place, tensor by tensor: d <- (1 - weight) d + weight g.

    `seed` is for stochastic rounding where d has low precision; None rounds to nearest.
    """
    d, g = shards(d), shards(g)
    rows, low = _by_precision(d, seed)
    if rows:
        some = [d[i] for i in rows]
        ends = as_dtypes([g[i] for i in rows], some)
        parts = [weights[i] for i in rows]
        if any(is_low(g[i].dtype) for i in rows):  # g - d may overflow
            torch._foreach_mul_(some, [1 - part for part in parts])
            torch._foreach_add_(some, torch._foreach_mul(ends, parts))
        else:
            torch._foreach_lerp_(some, ends, parts)
    for i, row_seed in low:
        for k, (x, end) in enumerate(zip(pieces(d[i]), pieces(g[i]), strict=True)):
            moved = torch.lerp(x.float(), end.float(), weights[i])
            x.copy_(rounded(moved, x.dtype, mix_seed(row_seed, k) if k else row_seed))


def pieces(x: Tensor) -> Sequence[Tensor]:
    """Views of a tensor of at most `PIECE` entries, or one row: temporaries of each are small."""
    rows = max(1, PIECE // max(1, x[0].numel())) if x.numel() > PIECE else 0
    return torch.split(x, rows) if rows else [x]


def as_dtypes(v: Vector, like: Vector) -> Vector:
    """v with each tensor in the dtype of its partner; the same object where nothing changes."""
    pairs = zip(v, like, strict=True)
    return [x if x.dtype == y.dtype else x.to(y.dtype) for x, y in pairs]


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32 for lower precision, else the dtype: an average in bfloat16 loses its increments."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def full_precision(x: Tensor) -> Tensor:
    """x in float32 if it has less."""
    return x.to(at_least_float32(x.dtype))


def add_scaled_(
    w: Vector, push: Vector, length: Tensor, radii: Sequence[float], seed: int | None = None
) -> None:
    """In place, tensor by tensor: w <- w + radius push / length; the length is a 0-dim tensor.

    `seed` is for stochastic rounding where w has low precision; None rounds to nearest.
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
    for i, row_seed in low:
        length = lengths[w[i].device]  # in float64 where float32 cannot hold it
        epsilon = (push[i].to(length.dtype) / length * radii[i]).float()
        w[i].copy_(rounded((w[i] + epsilon).float(), w[i].dtype, row_seed))


def _by_precision(w: Vector, seed: int | None) -> tuple[list[int], list[tuple[int, int]]]:
    """Indices of tensors to update together, and (index, seed) of those to round at random."""
    if seed is None or not any(is_low(x.dtype) for x in w):
        return list(range(len(w))), []
    rows = [i for i, x in enumerate(w) if not is_low(x.dtype)]
    return rows, [(i, mix_seed(seed, i)) for i, x in enumerate(w) if is_low(x.dtype)]


def _same_range(x: Tensor, length: Tensor) -> bool:
    """Whether x can represent every value of a norm in the dtype of length."""
    return x.dtype == length.dtype or (x.dtype, length.dtype) == (torch.bfloat16, torch.float32)
