"""Setup of a run: load and split the data of a task, build its model and its criterion.

Loaded data are cached, because a worker trains many runs on the same data.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vasso.lab.data import (
    DATASETS,
    ImageFolder,
    Images,
    load,
    open_folder,
    side_of,
    validation_split,
    wrong_labels,
)
from vasso.lab.data.images import stratified
from vasso.lab.experiment.task import Task
from vasso.lab.experiment.user_functions import (
    call_function,
    check_model_and_loss,
    import_function,
    is_user_function,
)
from vasso.lab.models import build
from vasso.lab.translation import language_model, transformer
from vasso.lab.translation.corpora import CORPORA
from vasso.lab.translation.language_model import english_alone, in_pieces_of
from vasso.lab.translation.pairs import Texts
from vasso.lab.translation.pairs import load as load_texts
from vasso.lab.translation.pieces import Vocabulary

PerSampleLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The output of a model and the labels -> one loss for each sample."""

ON_DISK = ("imagenet",)
"""Too large for memory: decoded during training."""
MODULE = "a torch.nn.Module"


@dataclass(frozen=True, eq=False)
class SplitImages:
    """The images of a task, split; `train` and `validation` are indices into the data.

    `y` are the labels of the training images with the wrong ones, and `wrong` their positions in
    `train`.
    """

    data: Images | ImageFolder
    train: Tensor
    y: Tensor
    validation: Tensor | None
    wrong_share: float
    wrong: Tensor


def prepare_data(tasks: Iterable[Task], root: Path | None) -> None:
    """Load all data of some tasks once, so that what is missing is reported before training starts.

    Downloads and reduced images are then on disk before several processes need them.
    """
    tasks = list(tasks)
    for task in tasks:
        if task.data in DATASETS:
            side, in_files = task.size or side_of(task.data), _in_files(task.data, task.size)
            task.check_image_size(side, in_files=in_files)
    names = ("data", "size", "pieces", "model", "loss", "pretrain")
    distinct = {tuple(getattr(task, name) for name in names): task for task in tasks}
    for task in distinct.values():
        for name in (task.data, task.model, task.loss):
            if is_user_function(name):
                import_function(name)
        if not is_user_function(task.data):
            load_data(task, 0, root)


def load_data(task: Task, seed: int, root: Path | None = None) -> Images | ImageFolder | Texts:
    """The images or sentences of a task; the seed is passed to a user's function.

    Sentences of a language model are English alone, in the pieces that the model was trained on.
    """
    if is_user_function(task.data):
        wanted = "vasso.lab.data.Images or vasso.lab.translation.pairs.Texts"
        given: Images | ImageFolder | Texts = call_function(
            task.data, Images | ImageFolder | Texts, wanted, seed=seed
        )
        return _read_by(task, given, root) if isinstance(given, Texts) else given
    if task.data in CORPORA:
        return _read_by(task, cached_texts(task.data, root, task.pieces), root)
    images = cached_images(task.data, root, task.size)
    if isinstance(images, ImageFolder) and task.resized_crop:
        return replace(images, size=task.resized_crop)  # tests show what training shows
    return images


@lru_cache(maxsize=2)
def cached_images(name: str, root: Path | None, size: int | None) -> Images | ImageFolder:
    """A data set of images, in memory unless it is too large."""
    if _in_files(name, size):
        return open_folder(name, root=root)
    return load(name, root=root, size=size)


def _in_files(name: str, size: int | None) -> bool:
    return name in ON_DISK and size is None


def _read_by(task: Task, texts: Texts, root: Path | None) -> Texts:
    if task.pretrain:
        return in_pieces_of(texts, load_pretraining(task, root).vocabulary)
    return english_alone(texts) if task.is_language_model else texts


def load_pretraining(task: Task, root: Path | None) -> Texts:
    """The texts on which the model of a task was trained before."""
    before = load_data(replace(task, data=task.pretrain, pretrain="", rank=0), 0, root)
    if not isinstance(before, Texts):
        raise ValueError(f"pretrain={task.pretrain} gives images: name a corpus")
    return before


@lru_cache(maxsize=3)
def cached_texts(name: str, root: Path | None, pieces: int) -> Texts:
    return load_texts(name, pieces=pieces, root=root)


def load_split(task: Task, seed: int, root: Path | None = None) -> SplitImages:
    data = load_data(task, seed, root)
    if isinstance(data, Texts):
        raise ValueError(f"{task.data} are sentences, which come split")
    return split_images(task, data, seed)


def split_images(task: Task, data: Images | ImageFolder, seed: int) -> SplitImages:
    """Take validation images out, then make labels wrong; all of it depends on the seed."""
    labels = data.train_y if isinstance(data, Images) else data.train.y
    rows = torch.arange(len(labels))
    if task.train_size is not None:
        rows = stratified(labels, task.train_size + task.validation, seed)
    train, validation = rows, None
    if task.validation:
        kept, held_out = validation_split(labels[rows], task.validation, seed)
        train, validation = rows[kept], rows[held_out]
    y, wrong_share = labels[train], 0.0
    if task.wrong:
        kind = task.wrong_kind
        y, wrong_share = wrong_labels(y, task.wrong, data.classes, kind=kind, seed=seed)
    wrong = (y != labels[train]).nonzero().flatten()
    return SplitImages(data, train, y, validation, wrong_share, wrong)


def build_criterion(task: Task) -> PerSampleLoss:
    if task.loss == "cross-entropy":
        return partial(cross_entropy, reduction="none", label_smoothing=task.label_smoothing)
    criterion: PerSampleLoss = import_function(task.loss)
    return criterion


def build_image_model(task: Task, data: Images | ImageFolder, seed: int) -> nn.Module:
    """The model of a task for some images, with fresh weights."""
    channels, size = (3, data.size) if isinstance(data, ImageFolder) else data.train_x.shape[1:3]
    size = task.resized_crop or size
    shape: dict[str, int] = {"classes": data.classes, "channels": channels, "size": size}
    if is_user_function(task.model):
        model: nn.Module = call_function(task.model, nn.Module, MODULE, **shape, seed=seed)
    else:
        if task.width > 1:
            _check_memory(task, shape)
        model = build(task.model, width=task.width, seed=seed, **shape)
    if is_user_function(task.model) or is_user_function(task.loss):
        names = task.model, task.loss
        check_model_and_loss(model, build_criterion(task), (channels, size, size), names=names)
    return model


def _check_memory(task: Task, shape: Mapping[str, int]) -> None:
    """Raise ValueError if weights and gradients alone need more memory than the machine has."""
    with torch.device("meta"):
        model = build(task.model, width=task.width, seed=None, **shape)
    needed = 2 * sum(p.numel() * p.element_size() for p in model.parameters()) / 1e9
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if needed > there:
        raise ValueError(
            f"width {task.width:g} of {task.model} needs {needed:,.0f} GB for weights and "
            f"gradients, this machine has {there:.0f} GB: choose a smaller width"
        )


def build_text_model(task: Task, vocabulary: Vocabulary, seed: int) -> nn.Module:
    """The translator or language model of a task for a vocabulary, with fresh weights."""
    if task.is_language_model:
        entries = len(vocabulary.target)
        return language_model.build(task.model, entries=entries, dropout=task.dropout, seed=seed)
    shape = {"source": len(vocabulary.source), "target": len(vocabulary.target)}
    if is_user_function(task.model):
        model: nn.Module = call_function(task.model, nn.Module, MODULE, **shape, seed=seed)
        return model
    return transformer.build(task.model, **shape, dropout=task.dropout, seed=seed)
