"""Task: the data, model, loss and budget of a run, as one frozen value.

A user's own data, model or loss is named by `module:function`; see `Task`. What a task names is
loaded and built in `vasso.lab.training.setup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from vasso.lab.data import DATASETS, Augmentation
from vasso.lab.experiment.user_functions import is_user_function
from vasso.lab.models import MODELS
from vasso.lab.schema import canonical, filled, name_of
from vasso.lab.translation.corpora import CORPORA
from vasso.lab.translation.language_model import LANGUAGE_MODELS
from vasso.lab.translation.transformer import SIZES
from vasso.parts.part import Range

OF_IMAGES = (
    *("size", "validation", "wrong", "wrong_kind", "crop", "flip", "cutout", "cutout_probability"),
    *("resized_crop", "width", "reestimate", "loss"),
)
"""Settings of images alone."""
MOST_PIXELS = 4096
OF_SENTENCES = ("pieces", "dropout", "pretrain", "pretrain_epochs", "rank")
"""Settings of sentences alone."""
OF_TEXTS = (*SIZES, *LANGUAGE_MODELS)
"""Models of sentences."""


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
        epochs: passes over the training samples.
        batch: images in a step; for sentences the number of pieces, padding included.
        steps: number of steps after which the run ends early; None for all epochs.
        drop_last: whether to skip the last batch of an epoch if it is smaller.
        size: side in pixels to which images are reduced; None keeps their size.
        train_size: number of training samples, with the same share of every class; None for all
            that are not used for validation.
        validation: number of images for validation, taken before labels are made wrong.
        wrong: share of training labels that are made wrong.
        wrong_kind: what a wrong label becomes: another class (other), any class (all) or a similar
            class (asymmetric); see `vasso.lab.data.wrong_labels`.
        crop: pixels of zero padding of a random crop; below the side of an image.
        flip: whether to mirror images at random.
        cutout: side of a square that is blanked; at most that of an image.
        cutout_probability: share of images with a cutout.
        resized_crop: side of the result of a random resized crop; 0 for none.
        width: factor on the channels of the model; 1 is the published size.
        label_smoothing: label smoothing of cross-entropy, 0 to 1.
        precision: numeric precision of the passes, by its name in Fabric.
        reestimate: training images on which BatchNorm's statistics are re-estimated before a
            test; 0 uses the running statistics.
        test_size: number of test samples, evenly spaced; None for all.
        test_every: epochs from test to test; the last epoch and the best by validation so far are
            always tested.
        others: number of first batches of an epoch on which the adversary of its last step is
            evaluated; see `vasso.lab.training.hooks`. 0 for none.
        snr: number of batches for the signal-to-noise ratio of the gradient at the beginning of an
            epoch; see `vasso.lab.training.hooks`. 0 for none.
        pieces: number of byte-pair merges, for sentences.
        dropout: dropout rate of a transformer; None for its default, 0.3.
        pretrain: a corpus, named as in `data`, on which a language model is trained before, with
            AdamW, once for all runs; sentences are in the pieces of that corpus. "" for none.
        pretrain_epochs: passes over its sentences.
        rank: rank of LoRA adapters, which are then all that is trained; 0 for none.

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
    pretrain: str = ""
    pretrain_epochs: int = 5
    rank: int = 0

    def __post_init__(self) -> None:
        _check_name("data", self.data, (*DATASETS, *CORPORA))
        _check_name("model", self.model, (*MODELS, *OF_TEXTS))
        _check_name("loss", self.loss, ("cross-entropy",))
        for name in ("epochs", "batch", "test_every", "pieces", "pretrain_epochs"):
            Range(least=1).check(name, getattr(self, name))
        for name in ("steps", "size", "train_size", "test_size"):
            Range(least=1).check(name, 1 if getattr(self, name) is None else getattr(self, name))
        for name in ("validation", "reestimate", "others", "snr", "rank"):
            Range(least=0).check(name, getattr(self, name))
        if self.reestimate == 1:
            raise ValueError("reestimate must be 0 or at least 2 images, which have a variance")
        Range(least=0, most=MOST_PIXELS).check("resized_crop", self.resized_crop)
        if 0 < self.snr < 3:
            raise ValueError(
                f"snr must be 0 or at least 3 batches, to have a spread, got {self.snr}"
            )
        Range(above=0, most=1000).check("width", self.width)
        for name in ("wrong", "label_smoothing"):
            Range(least=0, most=1).check(name, getattr(self, name))
        if self.label_smoothing and self.loss != "cross-entropy":
            raise ValueError(f"label_smoothing works with cross-entropy, not with {self.loss}")
        if self.dropout is not None:
            Range(least=0, most=1).check("dropout", self.dropout)
        self._check_fits_data()
        self._check_adapts()
        _ = self.augmentation  # checks its settings

    def _check_fits_data(self) -> None:
        if is_user_function(self.data):
            return
        text = self.data in CORPORA
        kind, models = ("sentences", list(OF_TEXTS)) if text else ("images", list(MODELS))
        others: tuple[str, ...] = OF_IMAGES if text else OF_SENTENCES
        if not is_user_function(self.model) and self.model not in models:
            raise ValueError(
                f"{self.data} are {kind}, which {self.model} cannot learn: use one of "
                f"{', '.join(models)}"
            )
        for name in sorted(self.as_table().keys() & set(others)):
            raise ValueError(f"{name} has no effect on {kind} such as {self.data}: leave it out")

    def _check_adapts(self) -> None:
        for name in ("pretrain", "rank"):
            if getattr(self, name) and not self.is_language_model:
                raise ValueError(
                    f"{name} is for language models, not for {self.model}: use one of "
                    f"{', '.join(LANGUAGE_MODELS)}"
                )
        if self.pretrain:
            _check_name("corpus", self.pretrain, CORPORA)

    @property
    def is_language_model(self) -> bool:
        """Whether English alone is read, one piece after the other."""
        return self.model in LANGUAGE_MODELS

    @staticmethod
    def of(table: Mapping[str, Any], where: str = "the task") -> Task:
        """A task from a table of settings; messages name `where` the table comes from."""
        table = dict(table)
        known = (("data", (*DATASETS, *CORPORA)), ("model", (*MODELS, *OF_TEXTS)))
        for name, choices in known:
            given = str(table.get(name, ""))
            if given and not is_user_function(given):
                table[name] = name_of(name, given, choices)
        return filled(Task, table, where)

    def as_table(self) -> dict[str, Any]:
        """The settings that are not the default; the inverse of `of`."""
        pairs = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return {name: value for name, value, default in pairs if value != default}

    @cached_property
    def canonical(self) -> str:
        """These settings as text, for the id of a run."""
        return canonical(self.as_table())

    @property
    def augmentation(self) -> Augmentation:
        """The augmentation of training images."""
        names = (field.name for field in fields(Augmentation))
        return Augmentation(**{name: getattr(self, name) for name in names})

    def check_image_size(self, side: int, *, in_files: bool = False) -> None:
        """Raise ValueError if crops and cutout do not fit images of this side, in memory or not."""
        shown = self.resized_crop or side
        if shown < side and not in_files:
            raise ValueError(
                f"resized_crop must be at least {side}, the side of the images, got {shown}: "
                f"load them smaller by size={shown}, which averages over areas"
            )
        if self.crop >= side:
            raise ValueError(
                f"crop must be below {side}, the side of the images, got {self.crop}: it pads by "
                "so many pixels, and 1/8 of the side is usual"
            )
        if self.cutout > shown:
            raise ValueError(
                f"cutout must be at most {shown}, the side of the images, got {self.cutout}: half "
                "of it is usual"
            )


def _check_name(what: str, name: str, choices: Iterable[str]) -> None:
    if not is_user_function(name):
        name_of(what, name, choices)
