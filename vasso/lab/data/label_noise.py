"""Wrong labels: exactly round(rate n) training labels are drawn and replaced.

| kind | new label | share of wrong labels |
|---|---|---|
| other | one of the C - 1 other classes | rate |
| all | one of all C classes, the true one included | about rate (1 - 1/C) |
| asymmetric | a similar class | rate times the share of classes that have one |

At rate 0.75 with ten classes, "all" makes 67.5 % of the labels wrong and "other" 75 %. A comparison
with published figures has to use the convention of their authors.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from vasso import validation
from vasso.lab.data import splitmix

Kind: TypeAlias = Literal["other", "all", "asymmetric"]

CIFAR10 = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
"""Truck to automobile, bird to airplane, deer to horse, cat to dog and dog to cat."""


def wrong_labels(
    y: Tensor,
    rate: float,
    classes: int,
    *,
    kind: Kind = "other",
    seed: int,
    mistaken_for: Mapping[int, int] | None = None,
) -> tuple[Tensor, float]:
    """The labels with some replaced by wrong ones, and the share of them that is wrong.

    Args:
        y: the true labels; left as they are.
        rate: the share of labels to draw, 0 to 1.
        classes: number of classes.
        kind: what a drawn label becomes, see above.
        seed: of the draw.
        mistaken_for: for "asymmetric", what each class becomes; a class it does not name stays.
            None: with ten classes CIFAR-10's customary pairs, otherwise the next class in a circle.

    Example:
        >>> y = torch.zeros(100, dtype=torch.int64)
        >>> labels, share = wrong_labels(y, 0.25, 10, seed=0)
        >>> share, int((labels != 0).sum())
        (0.25, 25)
    """
    validation.one_of("kind", kind, "other", "all", "asymmetric")
    _check(y, rate, classes)
    drawn = splitmix.permutation(len(y), "wrong labels", seed)[: round(rate * len(y))]
    labels = y.clone()
    if kind == "other":
        labels[drawn] = (
            y[drawn] + 1 + splitmix.below(classes - 1, "new label", seed, drawn)
        ) % classes
    elif kind == "all":
        labels[drawn] = splitmix.below(classes, "new label", seed, drawn)
    else:
        labels[drawn] = _replacements(classes, mistaken_for)[y[drawn]]
    return labels, (labels != y).double().mean().item() if len(y) else 0.0


def _check(y: Tensor, rate: float, classes: int) -> None:
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be a share between 0 and 1, got {rate}")
    if classes < 2:
        raise ValueError(f"a label can be wrong among 2 classes or more, got classes={classes}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ValueError(
            f"labels go from {int(y.min())} to {int(y.max())}, outside the {classes} classes: "
            f"they must be 0 to {classes - 1}"
        )


def _replacements(classes: int, mistaken_for: Mapping[int, int] | None) -> Tensor:
    if mistaken_for is None and classes != 10:
        return (torch.arange(classes) + 1) % classes
    table = torch.arange(classes)
    for true, taken in (CIFAR10 if mistaken_for is None else mistaken_for).items():
        if not (0 <= true < classes and 0 <= taken < classes):
            raise ValueError(f"mistaken_for has {true}: {taken}, outside the {classes} classes")
        table[true] = taken
    return table
