"""Images and labels: where they come from, how they are changed, and in which order they come."""

from vasso.lab.data.augment import Augmentation, normalised
from vasso.lab.data.batches import evaluation_batches, order, training_batches
from vasso.lab.data.folders import Folder
from vasso.lab.data.images import DataError, Images
from vasso.lab.data.loading import NAMES, data_root, load, open_folder, side_of
from vasso.lab.data.noise import wrong_labels
from vasso.lab.data.split import validation_split

__all__ = [
    "NAMES",
    "Augmentation",
    "DataError",
    "Folder",
    "Images",
    "data_root",
    "evaluation_batches",
    "load",
    "normalised",
    "open_folder",
    "order",
    "side_of",
    "training_batches",
    "validation_split",
    "wrong_labels",
]
