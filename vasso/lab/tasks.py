"""What is to be learnt? Data, a model, a loss and a budget: one frozen value.

A user's own data, model or loss is named by `module:function`; see `Task`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vasso.lab.data import NAMES as DATA
from vasso.lab.data import (
    Augmentation,
    Folder,
    Images,
    load,
    open_folder,
    side_of,
    validation_split,
    wrong_labels,
)
from vasso.lab.data.split import stratified
from vasso.lab.models import MODELS, build
from vasso.lab.own import given_by, imported, try_out
from vasso.lab.settings import filled, name_of
from vasso.lab.translation import transformer
from vasso.lab.translation.pairs import NAMES as TEXTS
from vasso.lab.translation.pairs import Texts
from vasso.lab.translation.pairs import load as load_texts
from vasso.lab.translation.transformer import SIZES
from vasso.lab.translation.vocabulary import Vocabulary
from vasso.parts import Range

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The output of a model and the labels -> one loss for each sample."""

ON_DISK = ("imagenet",)
"""Too large for memory: decoded as training goes."""
OF_IMAGES = (
    *("size", "validation", "wrong", "wrong_kind", "crop", "flip", "cutout", "cutout_probability"),
    *("resized_crop", "width", "reestimate", "loss"),
)
OF_SENTENCES = ("pieces", "dropout")
"""Settings that mean nothing for the others."""
MODULE = "a torch.nn.Module"


class NotThereYetError(NotImplementedError):
    """A study names something that this version cannot train or measure yet."""


@dataclass(frozen=True)
class Task:
    """Data, model, loss and budget.

    Args:
        data: one of `vasso list data`, or `module:function` of your own: `function(seed=)` gives
            `vasso.lab.data.Images` or `vasso.lab.translation.pairs.Texts`.
        model: one of `vasso list models`, or `module:function` of your own:
            `function(classes=, channels=, size=, seed=)` gives a module; to translate,
            `function(source=, target=, seed=)`.
        loss: "cross-entropy", or `module:function`: `function(output, y)` gives one loss for each
            sample.
        epochs: how often every training sample is seen.
        batch: images in a step; of sentences, pieces, padding counted.
        steps: ends the run earlier, after so many steps.
        drop_last: leaves out the last batch of an epoch if it is smaller.
        size: reduces images to so many pixels a side; None leaves them as they are.
        train_size: training samples, a part of them in which every class keeps its share; None
            for all that validation leaves.
        validation: further images for validation; taken before labels are made wrong.
        wrong: share of training labels that are made wrong.
        wrong_kind: what a wrong label becomes: another class, any of all, or the one it is easily
            taken for (asymmetric); see `vasso.lab.data.wrong_labels`.
        crop: pixels of zero padding of a random crop; fewer than an image has a side.
        flip: mirrors images at random.
        cutout: side of a square that is blanked; at most that of an image.
        cutout_probability: how often cutout happens.
        resized_crop: side of a random resized crop.
        width: of the model; 1 is the published one.
        label_smoothing: of cross-entropy.
        precision: of the passes, as Fabric calls it.
        reestimate: training images on which BatchNorm's statistics are estimated anew before a
            test; 0 takes the running ones.
        test_size: test samples, evenly spaced; None for all.
        test_every: epochs from test to test; the last epoch and the best by validation so far are
            always tested.
        others: batches of the beginning of an epoch on which the adversary of its last step is
            looked at; see `vasso.lab.onlooker`. 0 for none.
        snr: batches on whose gradients the signal-to-noise ratio is measured at the beginning of
            an epoch; see `vasso.lab.listener`. 0 for none.
        pieces: of sentences: merges of byte-pair encoding.
        dropout: of a transformer; None for its own, 0.3.

    Example:
        >>> Task.of({"data": "digits", "epochs": 3}).as_table()
        {'epochs': 3}
    """

    data: str = "digits"
    model: str = "mlp"
    loss: str = "cross-entropy"
    epochs: int = 20
    batch: int = 128
    steps: int | None = None
    drop_last: bool = True
    size: int | None = None
    train_size: int | None = None
    validation: int = 0
    wrong: float = 0.0
    wrong_kind: Literal["other", "all", "asymmetric"] = "other"
    crop: int = 0
    flip: bool = False
    cutout: int = 0
    cutout_probability: float = 1.0
    resized_crop: int = 0
    width: float = 1.0
    label_smoothing: float = 0.0
    precision: Literal["32-true", "bf16-mixed", "bf16-true", "64-true"] = "32-true"
    reestimate: int = 0
    test_size: int | None = None
    test_every: int = 1
    others: int = 0
    snr: int = 0
    pieces: int = 10_000
    dropout: float | None = None

    def __post_init__(self) -> None:
        _known("data", self.data, (*DATA, *TEXTS))
        _known("model", self.model, (*MODELS, *SIZES))
        _known("loss", self.loss, ("cross-entropy",))
        for name in ("epochs", "batch", "test_every", "pieces"):
            Range(least=1).check(name, getattr(self, name))
        for name in ("steps", "size", "train_size", "test_size"):
            Range(least=1).check(name, 1 if getattr(self, name) is None else getattr(self, name))
        for name in ("validation", "reestimate", "others", "snr"):
            Range(least=0).check(name, getattr(self, name))
        if 0 < self.snr < 3:
            raise ValueError(
                f"snr must be 0 or at least 3 batches, to have a spread, got {self.snr}"
            )
        Range(above=0).check("width", self.width)
        for name in ("wrong", "label_smoothing"):
            Range(least=0, most=1).check(name, getattr(self, name))
        if self.label_smoothing and self.loss != "cross-entropy":
            raise ValueError(f"label_smoothing is of cross-entropy, not of {self.loss}")
        if self.dropout is not None:
            Range(least=0, most=1).check("dropout", self.dropout)
        self._check_kind()
        _ = self.augmentation

    def _check_kind(self) -> None:
        """Images have labels, sentences translations: model and settings have to go with them."""
        if ":" in self.data:
            return
        text = self.data in TEXTS
        kind, models = ("sentences", list(SIZES)) if text else ("images", list(MODELS))
        others: tuple[str, ...] = OF_IMAGES if text else OF_SENTENCES
        if ":" not in self.model and self.model not in models:
            raise ValueError(
                f"{self.data} are {kind}, which {self.model} cannot learn: use one of "
                f"{', '.join(models)}"
            )
        for name in sorted(self.as_table().keys() & set(others)):
            raise ValueError(f"{name} means nothing for {kind} such as {self.data}: leave it out")

    @staticmethod
    def of(table: Mapping[str, Any], where: str = "the task") -> Task:
        """A task from a table.

        Args:
            table: setting -> value.
            where: where the table comes from, for messages.

        Returns:
            The task.
        """
        table = dict(table)
        known = (("data", (*DATA, *TEXTS)), ("model", (*MODELS, *SIZES)))
        for name, choices in known:
            given = str(table.get(name, ""))
            if given and ":" not in given:
                table[name] = name_of(f"{name}", given, choices)
        return filled(Task, table, where)

    def as_table(self) -> dict[str, Any]:
        """What is not the default; the inverse of `of`.

        Returns:
            setting -> value.
        """
        pairs = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return {name: value for name, value, default in pairs if value != default}

    @property
    def augmentation(self) -> Augmentation:
        """What is done to training images."""
        names = (field.name for field in fields(Augmentation))
        return Augmentation(**{name: getattr(self, name) for name in names})

    @property
    def criterion(self) -> Criterion:
        """The loss of each sample."""
        if self.loss != "cross-entropy":
            found: Criterion = imported(self.loss)
            return found
        return partial(cross_entropy, reduction="none", label_smoothing=self.label_smoothing)

    def prepare(self, seed: int, root: Path | None = None) -> Prepared:
        """Loads images and splits them.

        Args:
            seed: of the run.
            root: where data are.

        Returns:
            What training needs.

        Raises:
            ValueError: the data are sentences.
        """
        data = self.load(seed, root)
        if isinstance(data, Texts):
            raise ValueError(f"{self.data} are sentences, which come split")
        return self.split(data, seed)

    def split(self, data: Images | Folder, seed: int) -> Prepared:
        """Takes validation images out, then makes labels wrong.

        Args:
            data: the images.
            seed: of the run: sub-sample, split and wrong labels are functions of it.

        Returns:
            What training needs.
        """
        labels = data.train_y if isinstance(data, Images) else data.train.y
        rows = torch.arange(len(labels))
        if self.train_size is not None:
            rows = stratified(labels, self.train_size + self.validation, seed)
        train, held = rows, None
        if self.validation:
            among, apart = validation_split(labels[rows], self.validation, seed)
            train, held = rows[among], rows[apart]
        y, realised = labels[train], 0.0
        if self.wrong:
            kind = self.wrong_kind
            y, realised = wrong_labels(y, self.wrong, data.classes, kind=kind, seed=seed)
        return Prepared(data, train, y, held, realised, (y != labels[train]).nonzero().flatten())

    def load(self, seed: int, root: Path | None = None) -> Images | Folder | Texts:
        """Loads the data.

        Args:
            seed: of the run, for the user's own.
            root: where data are.

        Returns:
            Images or sentences.

        Raises:
            ValueError: the user's own are neither.
        """
        if ":" in self.data:
            wanted = "vasso.lab.data.Images or vasso.lab.translation.pairs.Texts"
            own: Images | Folder | Texts = given_by(
                self.data, Images | Folder | Texts, wanted, seed=seed
            )
            return own
        if self.data in TEXTS:
            return loaded_texts(self.data, root, self.pieces)
        found = loaded(self.data, root, self.size)
        if isinstance(found, Folder) and self.resized_crop:
            return replace(found, size=self.resized_crop)  # tests show what training shows
        return found

    def build_model(self, data: Images | Folder, seed: int) -> nn.Module:
        """Makes the model for some images.

        Args:
            data: what it is for.
            seed: of its initial weights.

        Returns:
            The model.
        """
        channels, size = _shape_of(data)
        size = self.resized_crop or size
        shape: dict[str, int] = {"classes": data.classes, "channels": channels, "size": size}
        if ":" not in self.model:
            model = build(self.model, width=self.width, seed=seed, **shape)
        else:
            model = given_by(self.model, nn.Module, MODULE, **shape, seed=seed)
        if ":" in self.model + self.loss:
            names = self.model, self.loss
            try_out(model, self.criterion, (channels, size, size), names=names)
        return model

    def check_pictures(self, side: int) -> None:
        """Whether what is done to training images leaves something of them to see.

        Args:
            side: height and width of the images.

        Raises:
            ValueError: a crop may show nothing but its padding, or cutout blank whatever there is.
        """
        seen = self.resized_crop or side
        if self.crop >= side:
            raise ValueError(
                f"crop must be below {side}, the side of the images, got {self.crop}: it pads by "
                "so many pixels, and 1/8 of the side is usual"
            )
        if self.cutout > seen:
            raise ValueError(
                f"cutout must be at most {seen}, the side of the images, got {self.cutout}: half "
                "of it is usual"
            )

    def build_translator(self, words: Texts | Vocabulary, seed: int) -> nn.Module:
        """Makes the model for some sentences.

        Args:
            words: whose dictionaries it is for.
            seed: of its initial weights.

        Returns:
            The model.
        """
        shape = {"source": len(words.source), "target": len(words.target)}
        if ":" in self.model:
            own: nn.Module = given_by(self.model, nn.Module, MODULE, **shape, seed=seed)
            return own
        return transformer.build(self.model, **shape, dropout=self.dropout, seed=seed)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A task's data, split.

    Attributes:
        data: all of it.
        train: which of the training images are trained on.
        y: their labels, wrong ones among them.
        validation: which are held out, None if none are.
        realised: the share of labels that is wrong.
        misled: which of `train` have a label that was made wrong.
    """

    data: Images | Folder
    train: Tensor
    y: Tensor
    validation: Tensor | None
    realised: float
    misled: Tensor


def prepare_data(tasks: Iterable[Task], root: Path | None) -> None:
    """Reads all that some tasks need, once: what is missing is missed before anything starts.

    Downloads and reduced images are then there before several processes want them.

    Args:
        tasks: the tasks.
        root: where data are.
    """
    tasks = list(tasks)
    for task in tasks:
        if task.data in DATA:
            task.check_pictures(task.size or side_of(task.data))
    wanted = {(task.data, task.size, task.pieces, task.model, task.loss): task for task in tasks}
    for task in wanted.values():
        for name in (task.data, task.model, task.loss):
            if ":" in name:
                imported(name)
        if ":" not in task.data:
            task.load(0, root)


@lru_cache(maxsize=2)
def loaded(name: str, root: Path | None, size: int | None) -> Images | Folder:
    """A data set; kept, because a process trains many runs on the same data.

    Args:
        name: which.
        root: where data are.
        size: pixels a side, None as they are.

    Returns:
        In memory, unless it is too large.
    """
    if name in ON_DISK and size is None:
        return open_folder(name, root=root)
    return load(name, root=root, size=size)


@lru_cache(maxsize=2)
def loaded_texts(name: str, root: Path | None, pieces: int) -> Texts:
    """Sentences; kept likewise.

    Args:
        name: which.
        root: where data are.
        pieces: merges of byte-pair encoding.

    Returns:
        In memory.
    """
    return load_texts(name, pieces=pieces, root=root)


def _shape_of(data: Images | Folder) -> tuple[int, int]:
    """Channels and side of its images."""
    if isinstance(data, Images):
        return data.train_x.shape[1], data.train_x.shape[2]
    return 3, data.size


def _known(what: str, name: str, choices: Iterable[str]) -> None:
    if ":" not in name:
        name_of(what, name, choices)
