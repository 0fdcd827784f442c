"""What does a translator need besides its weights? Its merges and its dictionaries.

They are made from the training text. A finished run keeps them in `vocabulary.json` beside its
weights, so that it translates where the text is gone, or has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vasso.lab.folder import Folder, StoreError
from vasso.lab.translation.pairs import Texts
from vasso.lab.translation.pieces import SPECIAL, Dictionary, Pieces

FILE = "vocabulary.json"
_LISTS = ("merges", "source", "target")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """How sentences become numbers, and numbers sentences.

    Attributes:
        source: the dictionary of German.
        target: the dictionary of English.
        cut: cuts words.

    Example:
        >>> both = Dictionary.of([["b</w>", "a</w>"]])
        >>> again = Vocabulary.of(Vocabulary(both, both, Pieces(["a b</w>"], "ab")).as_table())
        >>> again.source.entries == both.entries, again.cut(["ab"])
        (True, [['ab</w>']])
    """

    source: Dictionary
    target: Dictionary
    cut: Pieces

    @staticmethod
    def of_texts(texts: Texts) -> Vocabulary:
        """That of a corpus.

        Args:
            texts: the corpus.

        Returns:
            Its vocabulary.
        """
        return Vocabulary(texts.source, texts.target, texts.cut)

    def as_table(self) -> dict[str, Any]:
        """As JSON may hold it; the inverse of `of`.

        Returns:
            Merges, letters and the entries of both dictionaries.
        """
        return {
            "merges": list(self.cut.merges),
            "letters": self.cut.letters,
            "source": list(self.source.entries),
            "target": list(self.target.entries),
        }

    @staticmethod
    def of(table: Mapping[str, Any]) -> Vocabulary:
        """From such a table.

        Args:
            table: what `as_table` gave.

        Returns:
            The vocabulary.

        Raises:
            ValueError: it is none.
        """
        for name in _LISTS:
            given = table.get(name)
            if not isinstance(given, list) or not all(isinstance(x, str) for x in given):
                raise ValueError(f"{name} must be a list of texts")
        for name in ("source", "target"):
            if tuple(table[name][: len(SPECIAL)]) != SPECIAL:
                raise ValueError(f"{name} does not begin with {', '.join(SPECIAL)}")
        if not isinstance(table.get("letters"), str):
            raise ValueError("letters must be a text")
        source, target = (Dictionary(tuple(table[name])) for name in ("source", "target"))
        return Vocabulary(source, target, Pieces(table["merges"], table["letters"]))


def kept(folder: Folder) -> Vocabulary | None:
    """The vocabulary that a run has kept.

    Args:
        folder: of the run.

    Returns:
        The vocabulary; None of a run of an older version, which kept none.

    Raises:
        StoreError: the file is damaged.
    """
    try:
        table = folder.table(FILE)
        return None if table is None else Vocabulary.of(table)
    except (StoreError, ValueError) as trouble:
        raise StoreError(
            f"{FILE} of {folder.id} cannot be used ({trouble}): remove it, then it is made from "
            "the corpus again"
        ) from None


def check_is_of(texts: Texts, folder: Folder) -> None:
    """Raises if a corpus gives other numbers than a run was trained on.

    Args:
        texts: the corpus as it is now.
        folder: of the run.

    Raises:
        StoreError: a piece, or its number, is another.
    """
    known = kept(folder)
    if known is not None and known.as_table() != Vocabulary.of_texts(texts).as_table():
        raise StoreError(
            f"the corpus {texts.name} is not the one that {folder.id} was trained on (its pieces "
            f"are others than those in {FILE}): name the data folder of the run (--data-root)"
        )
