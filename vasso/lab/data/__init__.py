"""Images and labels: where they come from, how they are changed, and in which order they come."""

from vasso.lab.data.augment import Augmentation, normalised
from vasso.lab.data.batches import order
from vasso.lab.data.images import DataError, Images
from vasso.lab.data.loading import NAMES, data_root, load
from vasso.lab.data.noise import wrong_labels
from vasso.lab.data.split import validation_split

__all__ = [
    "NAMES",
    "Augmentation",
    "DataError",
    "Images",
    "data_root",
    "load",
    "normalised",
    "order",
    "validation_split",
    "wrong_labels",
]
