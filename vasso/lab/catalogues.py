"""What can be asked for? Methods, data, models, studies: a line for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import vasso
from vasso.lab import data, models
from vasso.lab import study as studies
from vasso.lab.data import loading
from vasso.lab.methods import BASES
from vasso.lab.tables import aligned, rows_of
from vasso.lab.translation import corpora, transformer
from vasso.lab.translation.pairs import NAMES as TEXTS

TRANSLATES = "sentences, for `vasso translate`"
Row = tuple[str, ...]


def _studies() -> list[Row]:
    found = [studies.load(name) for name in studies.names()]
    return [(s.name, s.shows or "ours", s.question) for s in found]


def _methods() -> list[Row]:
    plain = [(name, "1", f"torch.optim.{name}", "The base alone.") for name in BASES]
    entries = vasso.methods().items()
    return [*plain, *((name, e.price, e.call, e.what) for name, e in entries)]


def _data() -> list[Row]:
    images, texts = rows_of(loading.__doc__), rows_of(corpora.__doc__)
    pictures = [(name, *images[name], "images") for name in data.NAMES]
    return [*pictures, *((name, *texts[name], TRANSLATES) for name in TEXTS)]


def _models() -> list[Row]:
    networks = rows_of(models.__doc__)
    pictures = [(name, *networks[name], "images") for name in models.MODELS]
    shapes = transformer.SIZES.items()
    told = ((n, f"{s.layers} + {s.layers} layers of width {s.width}") for n, s in shapes)
    return [*pictures, *((*row, TRANSLATES) for row in told)]


KINDS: Mapping[str, Callable[[], list[Row]]] = {
    "studies": _studies,
    "methods": _methods,
    "data": _data,
    "models": _models,
}


def listed(kind: str) -> str:
    """A list as text.

    Args:
        kind: one of `KINDS`.

    Returns:
        A line for each entry, and where there is more.
    """
    one = {"studies": "label-noise", "methods": "VaSSO", "data": "cifar10", "models": "resnet8"}
    return f"{aligned(KINDS[kind]())}\n\nOne in full: vasso list {kind} {one[kind]}"
