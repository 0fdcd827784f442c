"""What is probed? A model at its weights, its loss, and batches to look at it with.

It comes from a finished run, or from `module:function` of the user's own. The function takes no
arguments and returns

    model, loss, loader                                     or
    model, loss, loader, others                             or
    {"model": ..., "loss": ..., "loader": ..., "others": ..., "rho": ...}

`loss(model(inputs), targets)` is the mean over the samples, or an `OfModel`; `loader` gives
batches as in training, in random order; `others` gives batches that are not among them (without
it the first batches of the loader are kept for that); `rho` is the radius of SAM, if there is one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vasso.diagnostics.batches import rows_of, samples_in
from vasso.diagnostics.passes import LossFn, OfModel, untouched
from vasso.lab.batches import Batches
from vasso.lab.folder import Folder
from vasso.lab.own import imported, told
from vasso.lab.runs import Run
from vasso.lab.settings import nearest
from vasso.lab.store import Store
from vasso.randomness import mixed

PARTS = ("model", "loss", "loader", "others", "rho")
LUCK = 0x70726F6265
"""Keeps the order of a probe's batches apart from that of training."""


@dataclass(frozen=True)
class Amount:
    """How much data a probe looks at.

    Args:
        batches: batches whose gradients make slopes.
        batch_size: samples in each; None for that of training, or of the loader.
        others: batches that no slope has seen.
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
    """A model and what it is looked at with.

    Attributes:
        name: of the run or the function.
        model: at the weights that are probed.
        loss_fn: the mean over samples.
        batches: as in training; can be gone through again and again, the same each time.
        count: how many they are.
        others: batches that are not among them.
        everything: batches whose mean gradient counts as the true one.
        still: samples that do not change from pass to pass, for sharpness and curvature.
        rho: the radius it was trained with; None if there is none.
        about: what else there is to know, as JSON may hold it.
        home: folder of the run in its store; None for a model of the user's own.
    """

    name: str
    model: nn.Module
    loss_fn: LossFn | OfModel
    batches: Iterable[Any]
    count: int
    others: list[Any]
    everything: Iterable[Any]
    still: list[Any]
    rho: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    home: Path | None = None


def subject_of(
    name: str,
    amount: Amount,
    *,
    store: Path,
    data: Path | None = None,
    accelerator: str = "auto",
) -> Subject:
    """What a name stands for.

    Args:
        name: id of a run, its folder, or `module:function`.
        amount: how much data to look at.
        store: where runs are.
        data: where data sets are.
        accelerator: as Fabric calls it; for runs.

    Returns:
        The subject.
    """
    path = Path(name).expanduser()
    if ":" in name and not path.exists():
        return of_function(name, imported_function(name), amount)
    return of_run(
        finished(name, path, store, ", or give module:function"), amount, data, accelerator
    )


# -- a run ----------------------------------------------------------------------------------------


def finished(name: str, path: Path, store: Path, instead: str = "") -> Folder:
    """The folder of a run that has ended.

    Args:
        name: its id, or its folder.
        path: the same as a path.
        store: where runs are.
        instead: what else could have been given, for the message.

    Returns:
        The folder.

    Raises:
        ValueError: there is no such run, or it has not ended.
    """
    if (path / "run.json").is_file():
        root, name = path.resolve().parent, path.resolve().name
    elif store.is_dir():
        root = store
    else:
        raise ValueError(
            f"there is no store {str(store)!r}, nor a run's folder {name!r}: name the store by "
            f"--store{instead}"
        )
    found = {folder.id: folder for folder in Store(root).folders()}
    if name not in found:
        elsewhere = _within(root, name) or _near(name, found)
        raise ValueError(f"no run of {str(root)!r} is called {name!r}.{elsewhere}")
    if found[name].result is None:
        raise ValueError(
            f"{name} has not ended yet (step {_last_step(found[name])}): give its `vasso train` or "
            "`vasso study` again, it goes on where it was"
        )
    return found[name]


def _within(root: Path, name: str) -> str:
    """A store within the store that has the run, as that of `vasso demo`."""
    there = sorted(path.parent for path in root.glob("*/store.json"))
    found = [path for path in there if (path / name / "run.json").is_file()]
    return f" One of {str(found[0])!r} is: name it by --store" if found else ""


def _near(name: str, found: Mapping[str, Folder]) -> str:
    begin = [key for key in found if key.startswith(name)][:3]
    return f" Did you mean {' or '.join(map(repr, begin))}?" if begin else nearest(name, found)


def _last_step(folder: Folder) -> int:
    return max((int(line.get("step", 0)) for line in folder.metrics()), default=0)


def of_run(
    folder: Folder, amount: Amount, data: Path | None = None, accelerator: str = "auto"
) -> Subject:
    """A finished run at its last weights, in full precision, with the batches it was trained on.

    Where its tests estimate BatchNorm's statistics anew, so does the probe. Of methods that bring
    a loss of their own (SAF, MESA) the plain loss is looked at, of those that average weights
    (SWA) the weights that were averaged last.

    Args:
        folder: of the run.
        amount: how much data to look at.
        data: where data sets are.
        accelerator: as Fabric calls it.

    Returns:
        The subject.

    Raises:
        ValueError: its weights are gone, or it is no run on images.
    """
    from vasso.lab.how import How
    from vasso.lab.pictures import Pictures
    from vasso.lab.shards import load_model
    from vasso.lab.training import Training

    weights = folder.load("weights.pt")
    if weights is None:
        raise ValueError(
            f"{folder.path} has no weights.pt. Remove the folder and train the run again"
        )
    run = Run.of(folder.settings["run"], folder.id)
    how = How(data=data, accelerator=accelerator)
    training = Training(run, how, how.fabric(run.task.precision))
    if not isinstance(training.material, Pictures):
        raise ValueError(f"{folder.id} is trained on sentences: only runs on images can be probed")
    pictures = training.material
    load_model(training.bare, weights["model"])
    if run.task.reestimate:
        _estimate_anew(training)
    size = min(amount.batch_size or run.task.batch, len(pictures.batches.y) // 4)
    kept, pool = _parted(pictures.batches, size, amount.others)
    drawn = Drawn(pictures.batches, pool, size, amount.batches)
    others = list(Drawn(pictures.batches, kept, size, len(kept) // size))
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
        everything=Drawn(pictures.batches, every, size, most),
        still=_still(training, amount.samples, size),
        rho=_radius(training.optimizer),
        about=about,
        home=folder.path,
    )


def _estimate_anew(training: Any) -> None:
    """BatchNorm's statistics as the run's tests have them; the copy is ours."""
    from torch.optim.swa_utils import update_bn

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        update_bn(
            (training.batches.place(x) for x, _ in training.material.seen.chunks()), training.bare
        )


def _parted(batches: Batches, size: int, others: int) -> tuple[Tensor, Tensor]:
    """Places of images for other batches, and of the rest."""
    luck = torch.Generator().manual_seed(mixed(batches.seed, LUCK))
    order = torch.randperm(len(batches.y), generator=luck)
    kept = size * max(2, min(others, len(order) // size // 4))
    return order[:kept], order[kept:]


def _still(training: Any, samples: int, size: int) -> list[Any]:
    """Some training images as tests show them, with the labels of training."""
    chunks = list(training.material.taught["training"].some(samples).chunks())
    x, y = (torch.cat(column) for column in zip(*chunks, strict=True))
    x = training.batches.place(x)
    return list(_cut([(x, y.to(x.device))], min(size, len(y) // 2)))


def _radius(optimizer: Any) -> float | None:
    """The radius that an optimizer begins with."""
    keys = [s.key for s in getattr(optimizer, "settings", ()) if s.name == "rho"]
    value = optimizer.param_groups[0][keys[0]] if keys else None
    return float(value) if isinstance(value, int | float) and value > 0 else None


@dataclass(frozen=True, eq=False)
class Drawn:
    """Batches of training images in random order, round after round, the same each time.

    Args:
        batches: the training images.
        places: those that may come.
        size: images in a batch.
        number: how many batches.
    """

    batches: Batches
    places: Tensor
    size: int
    number: int

    def __iter__(self) -> Iterator[Any]:
        return islice(self._rounds(), self.number)

    def _rounds(self) -> Iterator[Any]:
        seed = mixed(self.batches.seed, LUCK) >> 33
        for number in count():
            luck = torch.Generator().manual_seed(mixed(seed, number))
            order = self.places[torch.randperm(len(self.places), generator=luck)]
            chunks = [c for c in torch.split(order, self.size) if len(c) == self.size]
            for places, x in zip(
                chunks, self.batches.pixels.stream(chunks, seed, number), strict=True
            ):
                x = self.batches.place(x)
                yield x, self.batches.y[places.to(self.batches.y.device)].to(x.device)


# -- a function of the user's ---------------------------------------------------------------------


def imported_function(name: str) -> Callable[[], Any]:
    """A function that can be called without arguments.

    Args:
        name: as `module:function`.

    Returns:
        The function.

    Raises:
        ValueError: it is no function, or wants arguments.
    """
    found = imported(name)
    if not callable(found):
        raise ValueError(f"{name} is no function but {type(found).__name__}")
    required = [
        p.name
        for p in inspect.signature(found).parameters.values()
        if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    ]
    if required:
        raise ValueError(
            f"{name} wants {', '.join(required)}: it is called without arguments, give defaults"
        )
    return found  # type: ignore[no-any-return]


def of_function(name: str, function: Callable[[], Any], amount: Amount) -> Subject:
    """What a user's function returns.

    Args:
        name: of the function.
        function: returns model, loss and loader; see the head of this module.
        amount: how much data to look at.

    Returns:
        The subject; its batches are kept in memory.
    """
    given = _parts(name, _called(name, function))
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
        everything=[*taken, *others] if apart is None else taken,
        still=taken[: max(2, -(-amount.samples // size))],
        rho=given.get("rho"),
        about={"kind": "function", "function": name, "batch_size": size},
    )


def _check_enough(name: str, batches: int, others: int | None) -> None:
    """Three batches for slopes, two that no slope has seen: of the loader too, without `others`."""
    more = "give more data or smaller batches"
    if others is None and batches < 5:
        raise ValueError(
            f"{name}: the loader gave {batches} batches; a probe needs at least 5, better 104, "
            f"because it keeps some apart to test the others with: {more}"
        )
    if batches < 3 or (others is not None and others < 2):
        raise ValueError(
            f"{name}: the loader gave {batches} batches and `others` gave {others}; a probe needs "
            f"at least 3 and 2, better 96 and 8: {more}"
        )


def _called(name: str, function: Callable[[], Any]) -> Any:
    """What a function returns; what it raises is told with its place."""
    try:
        return function()
    except Exception as trouble:
        raise ValueError(f"{name} failed ({told(trouble)})") from trouble


def _parts(name: str, given: Any) -> dict[str, Any]:
    """The parts by name, each of the right kind."""
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
    """Whether the model has weights to look at, or the loss has them instead."""
    if any(p.requires_grad for p in model.parameters()):
        return
    kind = type(model).__name__
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise ValueError(
            f"{name} gave {kind} as the model and {type(loss).__name__} as the loss, and only the "
            "loss has weights: return model, loss, loader, in this order"
        )
    raise ValueError(
        f"{name}: no parameter of the model, {kind}, requires a gradient: unfreeze those to look "
        "at, by model.requires_grad_(True)"
    )


def _cut(batches: Iterable[Any], size: int | None) -> Iterator[Any]:
    """Batches in pieces of so many samples; what is left over of each is left out."""
    if size is None:
        return iter(batches)
    return _pieces(batches, size)


def _pieces(batches: Iterable[Any], size: int) -> Iterator[Any]:
    for batch in batches:
        n = samples_in(batch)
        if n < size:
            raise ValueError(
                f"a batch of the loader has {n} samples, fewer than the batch size {size}: let the "
                "loader give larger ones"
            )
        for start in range(0, n - size + 1, size):
            yield rows_of(batch, slice(start, start + size))
