"""The subject of a probe: a model at its weights, its loss, and batches to measure it with.

It comes from a finished run, or from a function of the user's, `module:function`. The function
takes no arguments and returns

    model, loss, loader                                     or
    model, loss, loader, others                             or
    {"model": ..., "loss": ..., "loader": ..., "others": ..., "rho": ...}

`loss(model(inputs), targets)` is the mean over the samples, or `loss` is an `OfModel`. `loader`
gives batches as in training, in random order. `others` gives batches that are not among them;
without it the first batches of the loader are kept for that. `rho` is the radius of SAM.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vasso.diagnostics.batches import rows_of, samples_in
from vasso.diagnostics.passes import LossFn, Objective, OfModel, objective, untouched
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.user_functions import describe_error, import_function
from vasso.lab.schema import nearest
from vasso.lab.store.run_directory import RunDirectory
from vasso.lab.store.store import Store
from vasso.lab.training.image_batches import ImageBatches
from vasso.numerics.rng import mix_seed

PARTS = ("model", "loss", "loader", "others", "rho")
SEED = 0x70726F6265
"""Part of the seed: the order of a probe's batches differs from that of training."""


@dataclass(frozen=True)
class Amount:
    """How much data a probe uses.

    Args:
        batches: batches whose gradients make slopes.
        batch_size: samples in each; None for the batch size of training or of the loader.
        others: batches that are in no slope.
        samples: samples for sharpness, curvature and landscape.
    """

    batches: int = 96
    batch_size: int | None = None
    others: int = 8
    samples: int = 1024

    def __post_init__(self) -> None:
        least = {"batches": 3, "batch_size": 1, "others": 2, "samples": 2}
        for name, number in least.items():
            value = getattr(self, name)
            if value is not None and value < number:
                raise ValueError(f"{name} must be at least {number}, got {value}")


@dataclass(frozen=True, eq=False)
class Subject:
    """A model at the weights that are probed, and the data to measure it with.

    `batches` are as in training: they can be iterated repeatedly, the same each time. `others` are
    not among them. `all_batches` are those whose mean gradient counts as the true one.
    `fixed_batches` are without augmentation, for sharpness and curvature. `rho` is the radius it
    was trained with, if any; `about` tells where it comes from. `directory` is None for a function
    of the user's.
    """

    name: str
    model: nn.Module
    loss_fn: LossFn | OfModel
    batches: Iterable[Any]
    count: int
    others: list[Any]
    all_batches: Iterable[Any]
    fixed_batches: list[Any]
    rho: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None


def subject_of(
    name: str,
    amount: Amount,
    *,
    store: Path,
    data: Path | None = None,
    accelerator: str = "auto",
) -> Subject:
    """The subject of a name: the id of a run, its directory, or `module:function`.

    `store` is the directory of runs, `data` that of data sets. `accelerator` is for runs, by its
    name in Fabric.
    """
    path = Path(name).expanduser()
    if ":" in name and not path.exists():
        return of_function(name, imported_function(name), amount)
    return of_run(
        finished(name, path, store, ", or give module:function"), amount, data, accelerator
    )


def check_loss(subject: Subject) -> None:
    """Raises ValueError unless one batch has a finite loss and gradient, and the loss is a mean.

    One pass before hundreds. Nothing of the subject is changed.
    """
    batch = subject.fixed_batches[0]
    try:
        with objective(subject.model, subject.loss_fn) as f:
            loss, g = f.loss_and_gradient(batch)
            adds_up = _is_sum(f, batch, loss)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{subject.name}: a batch has no loss and gradient ({why})") from error
    if not math.isfinite(loss) or not all(bool(x.isfinite().all()) for x in g):
        raise ValueError(
            f"{subject.name}: the loss of a batch is {loss:g} and its gradient is not finite "
            "everywhere: there is nothing to measure at these weights"
        )
    if adds_up:
        raise ValueError(
            f"{subject.name}: the loss of {samples_in(batch)} samples is the sum of those of its "
            "halves: return the mean over samples (reduction='mean')"
        )


def _is_sum(f: Objective, batch: Any, loss: float) -> bool:
    """Whether the loss of two halves together is the sum of their losses, to a thousandth."""
    n = samples_in(batch)
    if n < 2 or not loss:
        return False
    halves = f.loss(rows_of(batch, slice(0, n // 2))), f.loss(rows_of(batch, slice(n // 2, n)))
    mean = (halves[0] * (n // 2) + halves[1] * (n - n // 2)) / n
    return abs(sum(halves) - loss) < 1e-3 * abs(loss) and abs(mean - loss) > 0.1 * abs(loss)


def finished(name: str, path: Path, store: Path, instead: str = "") -> RunDirectory:
    """The directory of a finished run, by its id or path; a ValueError if there is none.

    `instead` names what else could have been given, for the message.
    """
    if (path / "run.json").is_file():
        root, name = path.resolve().parent, path.resolve().name
    elif store.is_dir():
        root = store
    else:
        raise ValueError(
            f"there is no store {str(store)!r} and no directory of a run {name!r}: name the store "
            f"with --store{instead}"
        )
    found = {folder.id: folder for folder in Store(root, writes=False).folders()}
    if name not in found:
        elsewhere = _within(root, name) or _near(name, found)
        raise ValueError(f"no run of {str(root)!r} is called {name!r}.{elsewhere}")
    if found[name].result is None:
        step = max((int(line.get("step", 0)) for line in found[name].metrics()), default=0)
        raise ValueError(
            f"{name} has not ended yet (step {step}): run its `vasso train` or `vasso study` again "
            "to continue it"
        )
    return found[name]


def _within(root: Path, name: str) -> str:
    """A hint at a store inside this one that has the run, such as that of `vasso demo`."""
    there = sorted(path.parent for path in root.glob("*/store.json"))
    found = [path for path in there if (path / name / "run.json").is_file()]
    return f" One of {str(found[0])!r} is: name it with --store" if found else ""


def _near(name: str, found: Mapping[str, RunDirectory]) -> str:
    begin = [key for key in found if key.startswith(name)][:3]
    return f" Did you mean {' or '.join(map(repr, begin))}?" if begin else nearest(name, found)


def of_run(
    folder: RunDirectory, amount: Amount, data: Path | None = None, accelerator: str = "auto"
) -> Subject:
    """A finished run at its last weights, in full precision, with the batches it was trained on.

    BatchNorm's statistics are re-estimated if the run's tests did so. Methods with a loss of their
    own (SAF, MESA) are measured with the plain loss, methods that average weights (SWA) at the last
    average. Raises ValueError if the weights are missing or the run is not on images.
    """
    from vasso.lab.training.host import start_fabric
    from vasso.lab.training.images import ImageWorkload, estimate_statistics
    from vasso.lab.training.options import RunOptions
    from vasso.lab.training.sharding import load_model
    from vasso.lab.training.state import Training

    weights = folder.load("weights.pt")
    if weights is None:
        raise ValueError(
            f"{folder.path} has no weights.pt: remove the directory and train the run again"
        )
    run = Run.of(folder.settings["run"], folder.id)
    options = RunOptions(data_root=data, accelerator=accelerator)
    training = Training(run, options, start_fabric(options, run.task.precision))
    if not isinstance(training.workload, ImageWorkload):
        raise ValueError(f"{folder.id} is trained on sentences: only runs on images can be probed")
    pictures = training.workload
    load_model(training.bare, weights["model"])
    if run.task.reestimate:
        estimate_statistics(training.bare, pictures.statistics_examples, pictures.batches.to_device)
    size = min(amount.batch_size or run.task.batch, len(pictures.batches.y) // 4)
    kept, pool = _split_off(pictures.batches, size, amount.others)
    drawn = RandomBatches(pictures.batches, pool, size, amount.batches)
    others = list(RandomBatches(pictures.batches, kept, size, len(kept) // size))
    every = torch.cat([kept, pool])
    most = min(len(every) // size, 4 * amount.batches)
    about = {"kind": "run", "run": run.in_full(), "certificate": folder.settings["certificate"]}
    return Subject(
        name=folder.id,
        model=training.bare,
        loss_fn=lambda output, y: pictures.criterion(output, y).mean(),
        batches=drawn,
        count=amount.batches,
        others=others,
        all_batches=RandomBatches(pictures.batches, every, size, most),
        fixed_batches=_fixed_batches(training, amount.samples, size),
        rho=_radius(training.optimizer),
        about=about,
        directory=folder.path,
    )


def _split_off(batches: ImageBatches, size: int, others: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(mix_seed(batches.seed, SEED))
    order = torch.randperm(len(batches.y), generator=generator)
    kept = size * max(2, min(others, len(order) // size // 4))
    return order[:kept], order[kept:]


def _fixed_batches(training: Any, samples: int, size: int) -> list[Any]:
    """Some training images without augmentation, with the labels of training."""
    chunks = list(training.workload.training_examples["training"].some(samples).chunks())
    x, y = (torch.cat(column) for column in zip(*chunks, strict=True))
    x = training.batches.to_device(x)
    return list(_cut([(x, y.to(x.device))], min(size, len(y) // 2)))


def _radius(optimizer: Any) -> float | None:
    keys = [s.key for s in getattr(optimizer, "settings", ()) if s.name == "rho"]
    value = optimizer.param_groups[0][keys[0]] if keys else None
    return float(value) if isinstance(value, int | float) and value > 0 else None


@dataclass(frozen=True, eq=False)
class RandomBatches:
    """Batches of training images in random order, epoch after epoch, the same each time.

    `places` are the indices to draw from.
    """

    batches: ImageBatches
    places: Tensor
    size: int
    number: int

    def __iter__(self) -> Iterator[Any]:
        return islice(self._epochs(), self.number)

    def _epochs(self) -> Iterator[Any]:
        seed = mix_seed(self.batches.seed, SEED) >> 33
        for number in count():
            generator = torch.Generator().manual_seed(mix_seed(seed, number))
            order = self.places[torch.randperm(len(self.places), generator=generator)]
            chunks = [c for c in torch.split(order, self.size) if len(c) == self.size]
            for places, x in zip(
                chunks, self.batches.pixels.stream(chunks, seed, number), strict=True
            ):
                x = self.batches.to_device(x)
                yield x, self.batches.y[places.to(self.batches.y.device)].to(x.device)


def imported_function(name: str) -> Callable[[], Any]:
    """The function named `module:function`, if it can be called without arguments."""
    found = import_function(name)
    if not callable(found):
        raise ValueError(f"{name} is not a function but {type(found).__name__}")
    required = [
        p.name
        for p in inspect.signature(found).parameters.values()
        if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    ]
    if required:
        raise ValueError(
            f"{name} requires {', '.join(required)}: it is called without arguments, give defaults"
        )
    return found  # type: ignore[no-any-return]


def of_function(name: str, function: Callable[[], Any], amount: Amount) -> Subject:
    """The subject that a user's function returns, with its batches in memory.

    The docstring of this module says what the function returns.
    """
    try:
        returned = function()
    except Exception as error:
        raise ValueError(f"{name} failed ({describe_error(error)})") from error
    given = _parts(name, returned)
    model, loader, apart = given["model"], given["loader"], given.get("others")
    wanted = amount.batches + (amount.others if apart is None else 0)
    with untouched(model, loader, apart):
        taken = list(islice(_cut(loader, amount.batch_size), wanted))
        others = list(islice(_cut(apart or (), amount.batch_size), amount.others))
    _check_enough(name, len(taken), None if apart is None else len(others))
    if apart is None:
        kept = max(2, min(amount.others, max(len(taken) // 4, len(taken) - amount.batches)))
        others, taken = taken[:kept], taken[kept:]
    size = samples_in(taken[0])
    return Subject(
        name=name.replace(":", "-"),
        model=model,
        loss_fn=given["loss"],
        batches=taken,
        count=len(taken),
        others=others,
        all_batches=[*taken, *others] if apart is None else taken,
        fixed_batches=taken[: max(2, -(-amount.samples // size))],
        rho=given.get("rho"),
        about={"kind": "function", "function": name, "batch_size": size},
    )


def _check_enough(name: str, batches: int, others: int | None) -> None:
    more = "give more data or smaller batches"
    if others is None and batches < 5:
        raise ValueError(
            f"{name}: the loader gave {batches} batches; a probe needs at least 5, better 104, "
            f"because it keeps some apart as other batches: {more}"
        )
    if batches < 3 or (others is not None and others < 2):
        raise ValueError(
            f"{name}: the loader gave {batches} batches and `others` gave {others}; a probe needs "
            f"at least 3 and 2, better 96 and 8: {more}"
        )


def _parts(name: str, given: Any) -> dict[str, Any]:
    shape = "model, loss, loader (and others), or a dict of these"
    if isinstance(given, Mapping):
        parts = dict(given)
    elif isinstance(given, tuple | list) and len(given) in {3, 4}:
        parts = dict(zip(PARTS, given, strict=False))
    else:
        count = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise ValueError(f"{name} must return {shape}, got {type(given).__name__}{count}")
    for key in parts:
        if key not in PARTS:
            raise ValueError(f"{name} returns an unknown {key!r}.{nearest(str(key), PARTS)}")
    missing = [key for key in PARTS[:3] if key not in parts]
    if missing:
        raise ValueError(f"{name} must return {shape}: there is no {missing[0]}")
    _check_kinds(name, parts)
    return parts


def _check_kinds(name: str, parts: Mapping[str, Any]) -> None:
    loss, reduction = parts["loss"], getattr(parts["loss"], "reduction", "mean")
    rho = parts.get("rho")
    kinds = {
        "model": (isinstance(parts["model"], nn.Module), "a torch.nn.Module"),
        "loss": (callable(loss) or isinstance(loss, OfModel), "loss(outputs, targets) or OfModel"),
        "loader": (isinstance(parts["loader"], Iterable), "something that gives batches"),
        "others": (isinstance(parts.get("others") or (), Iterable), "something that gives batches"),
        "rho": (rho is None or (isinstance(rho, int | float) and rho > 0), "a number above 0"),
    }
    for key, (right, wanted) in kinds.items():
        if not right:
            got = type(parts[key]).__name__
            raise ValueError(f"{name}: the {key} must be {wanted}, got {got} {parts[key]!r:.60}")
    if reduction != "mean":
        raise ValueError(f"{name}: the loss has reduction={reduction!r}: use reduction='mean'")
    _check_trainable(name, parts["model"], loss)


def _check_trainable(name: str, model: nn.Module, loss: Any) -> None:
    if any(p.requires_grad for p in model.parameters()):
        return
    kind = type(model).__name__
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise ValueError(
            f"{name} gave {kind} as the model and {type(loss).__name__} as the loss, and only the "
            "loss has weights: return model, loss, loader, in this order"
        )
    raise ValueError(
        f"{name}: no parameter of the model, {kind}, requires a gradient: unfreeze those to "
        "measure with model.requires_grad_(True)"
    )


def _cut(batches: Iterable[Any], size: int | None) -> Iterator[Any]:
    """Batches cut into pieces of `size` samples; the rest of each batch is dropped."""
    if size is None:
        yield from batches
        return
    for batch in batches:
        n = samples_in(batch)
        if n < size:
            raise ValueError(
                f"a batch of the loader has {n} samples, fewer than the batch size {size}: let the "
                "loader give larger ones"
            )
        for start in range(0, n - size + 1, size):
            yield rows_of(batch, slice(start, start + size))
