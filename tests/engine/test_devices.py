"""A step stays on the device of the parameters, shown where there is no GPU; a GPU can show more.

On the meta device every operation runs and no value exists. A dispatch mode notes each tensor that
a step makes on another device: on a GPU it would be a copy, and the host would wait for it.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vasso
from vasso import Outputs, Samples, VaSSO, methods

PRESETS = [
    name
    for name, method in methods().items()
    if method.kind == "preset"
    and "preconditioned" not in name  # AdamW counts its steps on the host
]
READ_VALUES = {
    **dict.fromkeys(("AE-SAM", "VaSSO+AE-SAM", "AE-LookSAM", "reuse, adaptive", "LE-SAM"), 1),
    "Lookbehind-SAM (adaptive)": 6,
    "LightSAM-I": 2,
}
"""Methods that decide by norms or losses: how many the host reads in a step of six tensors."""
DRAWN = {"aten.randperm.generator", "aten.sort.default", "aten.slice.Tensor"}
ON_THE_HOST = {
    "Half-SAM": DRAWN,
    "Half-VaSSO": DRAWN,
    "m-SAM (subsample)": DRAWN,
    "Sparse SAM (Fisher)": {"aten.lift_fresh.default"},
}
"""They take samples of the batch by indices that are on the host, the same for every device."""


class MadeElsewhere(TorchDispatchMode):
    """Notes operations whose result is on another device than meta."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if any(x.device.type != "meta" for x in made):
            self.found.add(str(func))
        return result


class Source:
    """The whole data, and other batches, for methods that want them."""

    def __init__(self, batch: Samples) -> None:
        self.full = self.fresh = lambda: batch


def made(name: str, device: str, **options: Any) -> tuple[Any, Callable[[], Tensor]]:
    """An optimizer of the catalogue with parameters on a device, and a function that steps it."""
    method = methods()[name]
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))
    model = model.to(device)
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(16, 4, device=device)
    batch: Any = Samples(lambda: opt.zero_grad(), lambda x: model(x).square().sum(1), x)
    if not {"outputs", "head"}.isdisjoint(method.needs):
        body = 3 if "head" in method.needs else 4
        batch = Outputs(
            lambda: opt.zero_grad(),
            lambda: model[:body](x),
            lambda z: model[body:](z).square().mean(),
            head=model[-1],
        )
    settings = {**method.example, **options}
    if "source" in method.needs:
        settings["data"] = Source(batch)
    opt = method.build(base, model=model, **settings)
    other = {"ascent_closure": batch} if "other batch" in method.needs else {}
    return opt, lambda: opt.step(batch, **other)


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_makes_no_tensor_on_another_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generators = []

    class Generator:
        """Notes its device; the meta device has none, and needs none to draw."""

        def __init__(self, device: torch.device | str = "cpu") -> None:
            generators.append(torch.device(device).type)

        def manual_seed(self, seed: int) -> None:
            pass

    monkeypatch.setattr(torch, "Generator", Generator)
    opt, step = made(name, "meta", nonfinite="ignore")
    with MadeElsewhere() as seen:
        if name in READ_VALUES:
            with pytest.raises(RuntimeError, match=r"Tensor\.item\(\) cannot be called on meta"):
                [step() for _ in range(3)]
            return
        for _ in range(3):
            step()
    allowed = ON_THE_HOST.get(name, set())
    assert seen.found == allowed
    assert set(generators) <= ({"cpu"} if allowed else {"meta"})
    assert opt.cost > 0


def test_the_mode_sees_a_tensor_on_the_host() -> None:
    with MadeElsewhere() as seen:
        torch.ones((), device="meta") + torch.ones(())
    assert seen.found == {"aten.ones.default"}


def test_collectives_are_those_that_nccl_has() -> None:
    """Tensors on the device of the parameters; objects travel through those of the device."""
    found = set()
    for path in Path(vasso.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                found |= {node.func.attr} if owner in {"dist", "torch.distributed"} else set()
    asked = {"is_available", "is_initialized", "get_world_size", "get_rank"}
    assert found - asked == {"all_reduce", "all_gather_object"}


@pytest.fixture
def gpu() -> str:
    """A CUDA device; without one these tests are skipped, and `make test-gpu` says so."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return "cuda"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["SAM", "VaSSO", "ASAM", "FisherSAM", "GSAM", "LookSAM"])
def test_on_a_gpu_the_weights_are_those_of_the_cpu(name: str, gpu: str) -> None:
    ends = []
    for device in ("cpu", gpu):
        torch.manual_seed(0)
        opt, step = made(name, device)
        for _ in range(5):
            step()
        ends.append([p.detach().cpu() for group in opt.param_groups for p in group["params"]])
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRESETS)
def test_on_a_gpu_a_step_without_checks_never_waits(name: str, gpu: str) -> None:
    _, step = made(name, gpu, nonfinite="ignore")
    for _ in range(2):
        step()
    torch.cuda.set_sync_debug_mode("default" if name in {*READ_VALUES, *ON_THE_HOST} else "error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"capturable": True}])
def test_on_a_gpu_with_amp_and_each_form_of_adamw(options: dict[str, bool], gpu: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(gpu)
    opt = VaSSO(torch.optim.AdamW(model.parameters(), lr=0.01, **options), model=model)
    x, scaler, losses = torch.randn(16, 4, device=gpu), torch.amp.GradScaler(gpu), []

    def closure() -> Tensor:
        opt.zero_grad()
        with torch.autocast(gpu, dtype=torch.float16):
            loss = (model(x) - 1).square().mean()
        scaler.scale(loss).backward()
        return loss

    for _ in range(20):
        losses.append(opt.step(closure, scaler=scaler))
    assert losses[-1] < losses[0]
    assert opt.skipped == 0
    assert {x.device.type for x in tree_leaves(opt.state_dict()) if isinstance(x, Tensor)} >= {gpu}
