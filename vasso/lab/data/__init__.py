"""Image data sets: download, decoding, augmentation, label noise, splits and batches."""

from vasso.lab.data.augment import Augmentation, normalised
from vasso.lab.data.batches import evaluation_batches, order, training_batches
from vasso.lab.data.datasets import DATASETS, data_root, load, open_folder, side_of
from vasso.lab.data.image_folder import ImageFolder
from vasso.lab.data.images import DataError, Images, validation_split
from vasso.lab.data.label_noise import wrong_labels

__all__ = [
    "DATASETS",
    "Augmentation",
    "DataError",
    "ImageFolder",
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
