"""Compatibility with versions of torch, optimizers and kinds of parameters, by trying each.

    python benchmarks/compatibility.py         # here: into results/, named by the version of torch
    python benchmarks/compatibility.py --show  # docs/compatibility.md from all stored results

A case "works" if three things hold. Five steps with rho = 0 equal the base alone bit for bit. Five
steps of VaSSO end in finite weights. A checkpoint after three of them, loaded into new objects,
changes no bit of the rest. Otherwise the error is shown: of the base or of torch alone
("refused by torch"), of ours ("refused"), or of neither, which is a gap.
"""

import copy
import importlib
import inspect
import io
import json
import platform
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
import vasso  # noqa: E402
from vasso import VaSSO  # noqa: E402

RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "compatibility.md"
PACKAGES = (
    "pytorch_optimizer",
    "schedulefree",
    "lion_pytorch",
    "prodigyopt",
    "dadaptation",
    "optimi",
)
STEPS, SAVED_AT = 5, 3


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))


def loss_of(model: Callable[[Tensor], Tensor], step: int) -> Tensor:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    return model(x).abs().square().mean()


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=1e-2, momentum=0.9)


@dataclass(frozen=True)
class Case:
    """A model, its loss and its base; `after` acts on the wrapper before the first step."""

    model: Callable[[], nn.Module] = network
    base: Callable[[nn.Module], Optimizer] = sgd
    loss: Callable[[nn.Module, int], Tensor] = loss_of
    after: Callable[[nn.Module, Any], None] = lambda model, opt: None

    def start(self, rho: float | None) -> tuple[nn.Module, Any]:
        """A model and its optimizer: the base alone for None."""
        torch.manual_seed(0)
        model = self.model()
        base = self.base(model)
        if hasattr(base, "train"):
            base.train()
        opt = base if rho is None else VaSSO(base, rho=rho, model=model)
        self.after(model, opt)
        return model, opt

    def train(self, model: nn.Module, opt: Any, steps: range) -> list[Tensor]:
        def closure(step: int) -> Tensor:
            opt.zero_grad()
            loss = self.loss(model, step)
            loss.backward()
            return loss

        for step in steps:  # some draw random numbers
            torch.manual_seed(step), random.seed(step)
            if isinstance(opt, VaSSO):
                opt.step(lambda step=step: closure(step))
            else:
                closure(step)
                opt.step()
        return [p.detach().clone() for p in model.parameters()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def outcome(case: Case) -> str:
    """What became of a case, in one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            alone = case.train(*case.start(None), range(STEPS))
        except Exception as error:
            return _sentence(case) or f"refused by torch or the package: {first_line(error)}"
        try:
            return _tried(case, alone)
        except Exception as error:
            return f"{'refused' if is_ours(error) else 'gap'}: {first_line(error)}"


def is_ours(error: Exception) -> bool:
    """Whether the package has raised it, and meant to."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = Path(frames[-1].filename).is_relative_to(Path(vasso.__file__).parent)
    return ours and isinstance(error, (TypeError, ValueError, RuntimeError))


def _sentence(case: Case) -> str:
    """What we say where the base or torch alone raises; "" if nothing."""
    try:
        case.train(*case.start(0.05), range(1))
    except Exception as error:
        return f"refused: {first_line(error)}" if is_ours(error) else ""
    return ""


def _tried(case: Case, alone: list[Tensor]) -> str:
    if not equal(case.train(*case.start(0.0), range(STEPS)), alone):
        return "gap: with rho = 0 not the base, bit for bit"
    model, opt = case.start(0.05)
    case.train(model, opt, range(SAVED_AT))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    whole = case.train(model, opt, range(SAVED_AT, STEPS))
    if not all(bool(x.isfinite().all()) for x in whole):
        return "gap: weights that are not finite"
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    model, opt = case.start(0.05)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    if not equal(case.train(model, opt, range(SAVED_AT, STEPS)), whole):
        return "gap: resumes, not bit for bit"
    return "works"


def first_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:240]


# -- optimizers ------------------------------------------------------------------------------------
def bases(cls: Any, **options: Any) -> Iterator[Case]:
    """The ways in which a constructor may take parameters."""

    def split(model: nn.Module) -> list[dict[str, Any]]:
        matrices = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        return [{"params": matrices, "use_muon": True}, {"params": others, "use_muon": False}]

    for make in (
        lambda model: cls(model.parameters(), lr=1e-2, **options),
        lambda model: cls(model.parameters(), **options),
        lambda model: cls(sgd(model)),
        lambda model: cls(model.parameters(), lr=1e-2, num_iterations=100),
        lambda model: cls(split(model), lr=1e-2),
        lambda model: cls([p for p in model.parameters() if p.dim() == 2], lr=1e-2),
    ):
        yield Case(base=make)


def of_optimizer(cls: Any, **options: Any) -> str:
    """The outcome for the first way that the optimizer itself takes."""
    every = [outcome(case) for case in bases(cls, **options)]
    return next((o for o in every if not o.startswith("refused by")), every[0])


def torch_optimizers() -> dict[str, str]:
    classes = {
        name: value
        for name, value in inspect.getmembers(torch.optim, inspect.isclass)
        if issubclass(value, Optimizer) and value is not Optimizer
    }
    found = {name: of_optimizer(cls) for name, cls in classes.items()}
    for cls in (SGD, Adam, AdamW):
        for option in ("foreach", "fused", "maximize", "differentiable", "capturable"):
            if option in inspect.signature(cls).parameters:
                found[f"{cls.__name__}({option}=True)"] = of_optimizer(cls, **{option: True})
    return found


def other_optimizers() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            module = importlib.import_module(package)
        except ImportError:
            continue
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Optimizer) and cls.__module__.split(".")[0] != "torch":
                found[f"{package}.{name}"] = of_optimizer(cls)
    return found


# -- parameters, modules, hooks --------------------------------------------------------------------
class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.w.dtype) @ self.w


class Scaled(nn.Module):
    """A parameter of no dimension and one of no element."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = network(), nn.Parameter(torch.tensor(2.0))
        self.none = nn.Parameter(torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.scale + self.none.sum()


def tied() -> nn.Module:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def with_(change: Callable[[nn.Linear], Any]) -> Callable[[], nn.Module]:
    def model() -> nn.Module:
        net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        change(net[0])  # type: ignore[arg-type]
        return net

    return model


def lazy(ready: bool) -> nn.Module:
    net = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(4))
    if ready:
        net(torch.ones(1, 8))
    return net


def checkpointed(reentrant: bool) -> Callable[[nn.Module, int], Tensor]:
    def loss(model: nn.Module, step: int) -> Tensor:
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step)).requires_grad_()
        return checkpoint(model, x, use_reentrant=reentrant).square().mean()

    return loss


def words(model: nn.Module, step: int) -> Tensor:
    drawn = torch.randint(0, 9, (16,), generator=torch.Generator().manual_seed(step))
    return model(drawn).square().mean()


def hook_the_optimizer(model: nn.Module, opt: Any) -> None:
    counts = [0, 0]

    def before(*_: Any) -> None:
        counts[0] += 1

    def later(*_: Any) -> None:
        counts[1] += 1
        if counts[0] != counts[1]:
            raise RuntimeError("hooks of a step did not fire once each")

    opt.register_step_pre_hook(before)
    opt.register_step_post_hook(later)


def hook_gradients(model: nn.Module, opt: Any) -> None:
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-1, 1))


def step_in_backward(model: nn.Module, opt: Any) -> None:
    for p in model.parameters():
        own = SGD([p], lr=1e-2)

        def step(p: Tensor, own: Optimizer = own) -> None:
            own.step()
            own.zero_grad()

        p.register_post_accumulate_grad_hook(step)


def inference() -> nn.Module:
    with torch.inference_mode():
        return network()


def of_dtype(dtype: torch.dtype) -> Case:
    def loss(model: nn.Module, step: int) -> Tensor:
        return loss_of(lambda x: model(x.to(dtype)), step)

    return Case(lambda: network().to(dtype), loss=loss)


CASES: dict[str, Case] = {
    "float64": of_dtype(torch.float64),
    "bfloat16": of_dtype(torch.bfloat16),
    "float16": of_dtype(torch.float16),
    "complex": Case(Complex),
    "no dimension; no element": Case(Scaled),
    "frozen": Case(with_(lambda layer: layer.requires_grad_(requires_grad=False))),
    "tied weights": Case(tied),
    "parametrizations: weight_norm": Case(with_(nn.utils.parametrizations.weight_norm)),
    "parametrizations: orthogonal": Case(with_(nn.utils.parametrizations.orthogonal)),
    "parametrizations: spectral_norm": Case(with_(nn.utils.parametrizations.spectral_norm)),
    "gradient checkpointing, reentrant": Case(loss=checkpointed(reentrant=True)),
    "gradient checkpointing, not reentrant": Case(loss=checkpointed(reentrant=False)),
    "LazyModules after a first forward": Case(lambda: lazy(ready=True)),
    "LazyModules before it": Case(lambda: lazy(ready=False)),
    "sparse gradients": Case(
        lambda: nn.Embedding(9, 4, sparse=True), lambda m: SGD(m.parameters(), lr=1e-2), words
    ),
    "hooks of the optimizer": Case(after=hook_the_optimizer),
    "hooks of tensors": Case(after=hook_gradients),
    "an optimizer step within backward": Case(after=step_in_backward),
    "parameters made in inference mode": Case(inference),
    "deepcopy of the model": Case(lambda: copy.deepcopy(network())),
    "dropout and BatchNorm": Case(
        lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4))
    ),
    "lr as a tensor": Case(base=lambda m: AdamW(m.parameters(), lr=torch.tensor(1e-2))),
}


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    return {
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
        "optimizers of torch": torch_optimizers(),
        "parameters, modules and hooks": {name: outcome(case) for name, case in CASES.items()},
        "optimizers of other packages": other_optimizers(),
    }


def as_markdown(results: list[dict[str, Any]]) -> str:
    """The page: a column for each version of torch."""
    versions = " and ".join(f"{r['torch']} (Python {r['python']})" for r in results)
    lines = [HEAD.format(versions=versions)]
    for title in list(results[0])[2:]:
        there = [r for r in results if r[title]]
        names = list(dict.fromkeys(name for r in there for name in r[title]))
        lines += [f"## {title[0].upper()}{title[1:]}\n"]
        if title.endswith("packages"):
            every = [r[title][name] for r in there for name in r[title]]
            lines += [f"{every.count('works')} of {len(every)} work. The others:\n"]
            names = [n for n in names if any(r[title].get(n) != "works" for r in there)]
        lines += ["| | " + " | ".join(f"torch {r['torch']}" for r in there) + " |"]
        lines += ["|---" * (len(there) + 1) + "|"]
        for name in names:
            cells = [r[title].get(name, "not there").replace("|", "\\|") for r in there]
            lines += [f"| {name} | " + " | ".join(cells) + " |"]
        lines += [""]
    return "\n".join(lines)


HEAD = """# Compatibility

Tried with torch {versions}, on CPUs. Declared: torch 2.6 or newer, Python 3.11 or newer. Python
3.12 and 3.13 have not been run; the workflow in `.github` is there for them. Nothing has run on
[a GPU](how-to/gpu.md).

A case works if five steps with rho = 0 are those of the base alone, bit for bit; if `VaSSO` ends in
finite weights; and if it resumes from a file bit for bit. "refused" is our own sentence. "refused
by torch or the package" happens without us as well, such as arguments that an optimizer must have.
"gap" is a fault of ours that we know.

With torch 2.6.0 the tests of identities, closed forms, twins, parts and engine pass too, with two
exceptions. Some call what it does not have: `no_dist` when a distributed checkpoint is saved.
`SequentialLR` warns there, and a warning is an error in our tests.

Made by `python benchmarks/compatibility.py` and `--show`.
"""


def main() -> None:
    if "--show" in sys.argv:
        stored = [json.loads(p.read_text()) for p in RESULTS.glob("compatibility_torch-*.json")]
        stored.sort(key=lambda r: [int(part) for part in r["torch"].split(".")])
        PAGE.write_text(as_markdown(stored))
        return
    found = measure()
    path = RESULTS / f"compatibility_torch-{found['torch']}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
