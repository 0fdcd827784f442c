"""The step is device-agnostic and waits for the host at most twice.

There is no GPU here, so synchronisations are counted where they would happen: every way from a
tensor to a Python value is patched, and a dispatch mode sees those that torch takes by itself. On
the meta device there are no values at all: whatever asks for one raises.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine.test_devices import PRESETS, READ_VALUES, made
from tests.support.problems import Way, closure_of
from vasso import SAM, VaSSO

GRADIENTS = {
    **dict.fromkeys(("STORM", "SVRG", "SARAH", "Frank-Wolfe"), 3),
    **dict.fromkeys(("Lookbehind-SAM", "Lookbehind-SAM (adaptive)"), 3),
    **dict.fromkeys(("multi-step (last)", "multi-step (mean)", "VaSSO+multi-step"), 3),
    **dict.fromkeys(("m-SAM (chunks)", "VaSSO+m-SAM", "Frank-Wolfe with momentum"), 4),
}
"""Methods that take more than two gradients in a step; each is checked."""
READS = ("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__")


class ScalarReads(TorchDispatchMode):
    """Counts the reads of a scalar that torch does inside an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@contextmanager
def host_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collects the names of the reads inside the block; one that calls another counts once."""
    reads: list[str] = []
    depth = 0
    mode = ScalarReads()

    def counted(name: str, original: Callable) -> Callable:
        def read(self: Tensor, *args: object, **kwargs: object) -> object:
            nonlocal depth
            depth += 1
            seen = mode.count
            try:
                if depth == 1:
                    reads.append(name)
                return original(self, *args, **kwargs)
            finally:
                depth -= 1
                mode.count = seen

        return read

    with monkeypatch.context() as patch, mode:
        for name in READS:
            patch.setattr(Tensor, name, counted(name, getattr(Tensor, name)))
        yield reads
    reads.extend("inside torch" for _ in range(mode.count))


def reads_of_a_step(monkeypatch: pytest.MonkeyPatch, preset: type, **options: object) -> list[str]:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    opt = preset(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model=model, **options)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    closure = closure_of(opt, lambda: model(x).square().mean())
    for _ in range(3):
        opt.step(closure)
    with host_reads(monkeypatch) as reads:
        opt.step(closure)
    return reads


def test_the_counter_sees_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with host_reads(monkeypatch) as reads:
        bool(torch.ones(()) > 0)
        torch.ones(2).tolist()
        torch.ones(3).add(torch.ones(3), alpha=torch.tensor(2.0))  # torch reads alpha by itself
    assert len(reads) == 3


@pytest.mark.parametrize("preset", [SAM, VaSSO])
@pytest.mark.parametrize("restore", ["copy", "recompute"])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize(("nonfinite", "waits"), [("skip", ["item", "item"]), ("ignore", [])])
def test_a_step_waits_for_the_host_twice_and_without_checks_never(
    monkeypatch: pytest.MonkeyPatch,
    preset: type,
    restore: str,
    clip_norm: float | None,
    nonfinite: str,
    waits: list[str],
) -> None:
    options = {"restore": restore, "clip_norm": clip_norm, "nonfinite": nonfinite}
    assert reads_of_a_step(monkeypatch, preset, **options) == waits


def norms_of_a_step(monkeypatch: pytest.MonkeyPatch, preset: type, **options: object) -> int:
    norm, count = torch._foreach_norm, 0

    def counted(*args: object) -> object:
        nonlocal count
        count += 1
        return norm(*args)

    w = torch.ones(3, requires_grad=True)
    opt = preset(torch.optim.SGD([w], lr=0.1), **options)
    closure = closure_of(opt, lambda: w.square().sum())
    opt.step(closure)
    monkeypatch.setattr(torch, "_foreach_norm", counted)
    opt.step(closure)
    return count


@pytest.mark.parametrize(("preset", "checks"), [(SAM, 1), (VaSSO, 2)])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_checks_read_the_gradient_that_goes_down_and_one_that_goes_into_the_slope(
    monkeypatch: pytest.MonkeyPatch, preset: type, checks: int, clip_norm: float | None
) -> None:
    options = {"clip_norm": clip_norm, "restore": "copy"}
    without = 1 if clip_norm is None else 2  # the slope's, and that of the gradient to clip
    assert norms_of_a_step(monkeypatch, preset, nonfinite="ignore", **options) == without
    monkeypatch.undo()
    assert norms_of_a_step(monkeypatch, preset, nonfinite="skip", **options) == 1 + checks


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_a_gradient_that_changes_after_its_check_is_clipped_by_its_new_norm(way: Way) -> None:
    w = torch.tensor([3.0, 4.0], requires_grad=True)
    opt = SAM(torch.optim.SGD([w], lr=1.0), rho=0.0, clip_norm=1.0)
    if way == "closure":
        opt.step(closure_of(opt, lambda: 50 * w.square().sum()))
    else:
        w.grad = w.detach().clone()
        with opt.ascended():
            w.grad = w.detach().clone()
        w.grad.data.mul_(100)  # a write that its version does not count
        opt.step()
    assert torch.allclose(w.detach(), torch.tensor([2.4, 3.2]))


@pytest.mark.parametrize("nonfinite", ["skip", "ignore"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_step_of_any_method_waits_only_to_check_its_gradients(
    monkeypatch: pytest.MonkeyPatch, name: str, nonfinite: str
) -> None:
    _, step = made(name, "cpu", nonfinite=nonfinite)
    for _ in range(3):
        step()
    with host_reads(monkeypatch) as reads:
        step()
    checks = GRADIENTS.get(name, 2) if nonfinite == "skip" else 0
    assert len(reads) == checks + READ_VALUES.get(name, 0)


def test_a_mask_is_exchanged_after_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    _, step = made("Sparse SAM (dynamic)", "cpu", nonfinite="ignore", every=2)
    step(), step()
    with host_reads(monkeypatch) as reads:
        step()
    assert reads == ["__int__"]


@pytest.mark.parametrize("preset", [SAM, VaSSO])
@pytest.mark.parametrize("restore", ["copy", "recompute"])
@pytest.mark.parametrize("nonfinite", ["skip", "ignore"])
def test_operations_do_not_grow(preset: type, restore: str, nonfinite: str) -> None:
    def operations(tensors: int) -> int:
        w = [torch.ones(3, requires_grad=True) for _ in range(tensors)]
        base = torch.optim.SGD(w, lr=0.1, momentum=0.9, foreach=True)
        opt = preset(base, restore=restore, nonfinite=nonfinite)
        gradients = [torch.ones(3) for _ in w]

        def closure() -> float:
            for p, gradient in zip(w, gradients, strict=True):
                p.grad = gradient
            return 0.0

        opt.step(closure)
        seen = []

        class Count(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        with Count():
            opt.step(closure)
        return len(seen)

    assert operations(3) == operations(300) > 0
