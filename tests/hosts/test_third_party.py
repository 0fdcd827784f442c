"""Optimizers of other packages resume inside ours, bit for bit: every one that they export.

The list is discovered. `python -m tests.hosts.test_third_party FOLDER` goes on with the checkpoints
in a folder.
"""

import contextlib
import importlib
import inspect
import io
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from tests.support.problems import closure_of
from vasso import VaSSO, validation

PACKAGES = [
    "pytorch_optimizer",
    "schedulefree",
    "lion_pytorch",
    "prodigyopt",
    "dadaptation",
    "optimi",
]
STEPS = 20
HOLD_MORE = {
    "pytorch_optimizer.FlashAdamW": "a state that it quantizes and saves as floats",
    "pytorch_optimizer.Lookahead": "slow weights and an optimizer of its own, no key of torch's",
    "pytorch_optimizer.MADGRAD": "a number in its state, under a string",
    "pytorch_optimizer.Magma": "an optimizer of its own, and a state under other names",
    "pytorch_optimizer.Ranger21": "three keys beside torch's two",
    "pytorch_optimizer.SPAM": "a number in its state and a schedule",
    "pytorch_optimizer.ScheduleFreeWrapper": "an optimizer of its own and its mode",
    "pytorch_optimizer.StableSPAM": "a count beside its state",
    "pytorch_optimizer.TRAC": "a table in its state, under a string",
}
"""Optimizers that save more than torch's own, or otherwise, and what."""
OWN_PASSES, IN_BACKWARD = "calls a closure for passes of its own", "steps inside of backward()"
REFUSED = {
    "pytorch_optimizer.LBFGS": "calls the closure itself",
    "pytorch_optimizer.SafeFP16Optimizer": "has no param_groups",
    "schedulefree.AdamWScheduleFreeClosure": "calls the closure itself",
    "schedulefree.RAdamScheduleFreeClosure": "calls the closure itself",
    "schedulefree.SGDScheduleFreeClosure": "calls the closure itself",
}
"""Optimizers that ours refuses to wrap, and what the sentence says."""
NOT_ALONE = {
    "pytorch_optimizer.AdaHessian": "needs a graph of the gradients",
    "pytorch_optimizer.AdaLOMO": IN_BACKWARD,
    "pytorch_optimizer.AliG": "needs the loss, from a closure",
    "pytorch_optimizer.BSAM": OWN_PASSES,
    "pytorch_optimizer.DeMo": "needs a process group",
    "pytorch_optimizer.DistributedMuon": "needs a process group",
    "pytorch_optimizer.FriendlySAM": OWN_PASSES,
    "pytorch_optimizer.GSAM": OWN_PASSES,
    "pytorch_optimizer.LOMO": IN_BACKWARD,
    "pytorch_optimizer.LookSAM": OWN_PASSES,
    "pytorch_optimizer.SAM": OWN_PASSES,
    "pytorch_optimizer.SophiaH": "needs a graph of the gradients",
    "pytorch_optimizer.WSAM": OWN_PASSES,
}
"""Optimizers that take no step in a plain loop either, and why."""


def found() -> dict[str, type[Optimizer]]:
    modules = {package: importlib.import_module(package) for package in PACKAGES}
    return {
        f"{package}.{name}": value
        for package, module in modules.items()
        for name, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, Optimizer)
    }


Maker = Callable[[nn.Module], Any]


def makers(cls: Any) -> list[Maker]:
    """The ways in which a constructor may take the parameters of a model."""

    def split(model: nn.Module, key: str) -> list[dict[str, Any]]:
        matrices = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        return [{"params": matrices, key: True}, {"params": others, key: False}]

    return [
        lambda model: cls(model.parameters(), lr=1e-2),
        lambda model: cls(model.parameters()),
        lambda model: cls(SGD(model.parameters(), lr=1e-2, momentum=0.9)),
        lambda model: cls(model.parameters(), lr=1e-2, num_iterations=100),
        lambda model: cls(split(model, "use_muon"), lr=1e-2),
        lambda model: cls([p for p in model.parameters() if p.dim() == 2], lr=1e-2),
        lambda model: cls(model, lr=1e-2),
        lambda model: cls(model.parameters(), lr=1e-2, threshold=0.1),
    ]


def model_and_base(make: Maker) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    base = make(model)
    if hasattr(base, "train"):
        base.train()
    return model, base


def loss_of(model: nn.Module, step: int) -> Tensor:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    return (model(x) - x[:, :4].abs()).square().mean()


def train_alone(model: nn.Module, base: Any, steps: int) -> None:
    for step in range(steps):
        base.zero_grad()
        loss_of(model, step).backward()
        base.step()


def is_usable(make: Maker) -> bool:
    """Whether a base is made so, steps without a closure, and moves the weights."""
    with contextlib.suppress(Exception):  # whatever the code of others raises
        model, base = model_and_base(make)
        validation.base(base)
        before = flat(model)
        train_alone(model, base, 12)
        after = flat(model)
        return bool(after.isfinite().all()) and not torch.equal(before, after)
    return False


def maker_of(name: str) -> Maker | None:
    return next(filter(is_usable, makers(found()[name])), None)


def train(model: nn.Module, opt: Any, steps: Iterable[int]) -> None:
    for step in steps:  # some draw random numbers
        torch.manual_seed(step), random.seed(step), np.random.seed(step)
        opt.step(closure_of(opt, partial(loss_of, model, step)))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def wrapped(make: Maker) -> tuple[nn.Module, Any]:
    model, base = model_and_base(make)
    return model, VaSSO(base, rho=0.05, model=model)


def loads_safely(make: Maker) -> bool:
    """Whether the base alone keeps nothing but tensors and numbers."""
    model, base = model_and_base(make)
    train_alone(model, base, 2)
    file = io.BytesIO()
    torch.save(base.state_dict(), file)
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except pickle.UnpicklingError:
        return False
    return True


def go_on(folder: Path) -> None:
    """Goes on with every checkpoint of a folder and leaves the weights beside it."""
    for path in sorted(folder.glob("*.ckpt")):
        make = maker_of(path.stem)
        assert make is not None
        saved = torch.load(path, weights_only=loads_safely(make))
        model, opt = wrapped(make)
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
        train(model, opt, range(STEPS, 2 * STEPS))
        torch.save(flat(model), path.with_suffix(".end"))


def check(names: Iterable[str], folder: Path) -> list[str]:
    """40 steps are 20, a file, a new process, and 20; and writing the file changes nothing."""
    ends = {}
    for name in names:
        make = maker_of(name)
        if make is None:
            continue
        whole, opt = wrapped(make)
        train(whole, opt, range(2 * STEPS))
        assert opt.skipped == 0, name
        model, opt = wrapped(make)
        train(model, opt, range(STEPS))
        saved = {"model": model.state_dict(), "opt": opt.state_dict()}
        torch.save(saved, folder / f"{name}.ckpt")
        train(model, opt, range(STEPS, 2 * STEPS))
        assert torch.equal(flat(model), flat(whole)), f"saving changes {name}"
        ends[name] = flat(whole)
    subprocess.run([sys.executable, "-m", "tests.hosts.test_third_party", str(folder)], check=True)
    for name, end in ends.items():
        assert torch.equal(torch.load(folder / f"{name}.end"), end), name
    return list(ends)


pytestmark = pytest.mark.filterwarnings("ignore")  # those of the packages


def test_what_a_base_saves_beside_its_state_comes_back(tmp_path: Path) -> None:
    assert check(HOLD_MORE, tmp_path) == list(HOLD_MORE)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_wrapped_is_refused_with_a_sentence(name: str) -> None:
    cls = found()[name]
    for make in makers(cls):
        with contextlib.suppress(Exception):  # of constructors with other arguments
            _, base = model_and_base(make)
            break
    with pytest.raises(TypeError, match=REFUSED[name]):
        VaSSO(base)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_optimizer_that_steps_by_itself_resumes_bit_for_bit(tmp_path: Path) -> None:
    ended = check(found(), tmp_path)
    assert {*ended} == found().keys() - REFUSED.keys() - NOT_ALONE.keys()


if __name__ == "__main__":
    go_on(Path(sys.argv[1]))
