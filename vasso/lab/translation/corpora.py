"""Which sentences are there, and where? German and English, tokenised and split as is usual.

| name | pairs for training, validation, test | from |
|---|---|---|
| multi30k | 29,000 (28,332 kept), 1,014, 1,000 (test_2016_flickr) | download |
| iwslt14 | 160,239, 7,283 (every 23rd pair), 6,750 (dev and tst 2010 to 2012) | download |
| iwslt14-part | what there is of it in a folder of tokenised text | by hand |

Under the data folder: `multi30k/train.de.gz`, ... as published, or without `.gz`; `de-en`, the
folder in the official `de-en.tgz`; `iwslt14-part/train.de`, ... in lower case, tokenised, and
where there is one the file `code` of merges that go with it. A result from a part of the training
pairs is not a result on IWSLT-14.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from vasso.lab.data.download import Remote
from vasso.lab.data.images import DataError
from vasso.lab.data.sources import Item
from vasso.lab.translation.words import detokenised, is_kept, tokenised

MULTI30K, IWSLT14, PART = "multi30k", "de-en", "iwslt14-part"
LANGUAGES = ("de", "en")
EVERY = 23
"""Each so-many-th pair of IWSLT-14's training text is for validation."""
TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
_LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
_TAGS = re.compile(r"</?(?:title|description)>")
_SEGMENT = re.compile(r'<seg id="\d+">\s*(.*?)\s*</seg>')


@dataclass(frozen=True)
class Split:
    """Pairs of sentences, tokenised and in lower case.

    Attributes:
        source: German.
        target: English.
        written: the English as it was written; where only tokens are to be had, put together again.
    """

    source: list[str]
    target: list[str]
    written: list[str]

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class Corpus:
    """A corpus.

    Attributes:
        name: which.
        train: for training.
        valid: for validation.
        test: for the test.
        codes: merges of byte-pair encoding that go with it, the first first; None to learn them.
    """

    name: str
    train: Split
    valid: Split
    test: Split
    codes: list[str] | None = None


@dataclass(frozen=True)
class Source:
    """Where a corpus comes from.

    Attributes:
        items: what it needs.
        files: the files that are read.
        read: the data folder -> the corpus.
    """

    items: tuple[Item, ...]
    files: Callable[[Path], list[Path]]
    read: Callable[[Path], Corpus]

    def fingerprint(self, root: Path) -> str:
        """What changes when a file does.

        Args:
            root: the data folder.

        Returns:
            A digest of the contents.
        """
        digest = hashlib.sha256()
        for path in self.files(root):
            digest.update(hashlib.sha256(content(path)).digest())
        return digest.hexdigest()[:16]


def content(path: Path) -> bytes:
    """What is in a file, or in the same file with or without `.gz`.

    Args:
        path: the file.

    Returns:
        Its bytes, unpacked.

    Raises:
        DataError: there is none, or it is damaged.
    """
    plain = path.with_name(path.name.removesuffix(".gz"))
    packed = plain.with_name(f"{plain.name}.gz")
    if plain.exists():
        return plain.read_bytes()
    if not packed.exists():
        raise DataError(f"{plain} is missing: put the official file there, packed (.gz) or not")
    try:
        return gzip.decompress(packed.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{packed} is damaged: {error}. Delete it and load again") from error


def lines_of(path: Path) -> list[str]:
    """The lines of a text.

    Args:
        path: the file.

    Returns:
        Without their ends.

    Raises:
        DataError: it is empty, or not text.
    """
    found = content(path)
    if not found:
        raise DataError(f"{path} is empty. Delete it, load again")
    try:
        return [line.rstrip("\r") for line in found.decode().removesuffix("\n").split("\n")]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged: not UTF-8 ({error}). Delete it, load again") from error


def pair_of(path: Callable[[str], Path], lines: Callable[[Path], list[str]]) -> list[list[str]]:
    """Both sides of a text.

    Args:
        path: language -> file.
        lines: file -> lines.

    Returns:
        German and English, line by line.

    Raises:
        DataError: one has more lines.
    """
    both = [lines(path(language)) for language in LANGUAGES]
    counts = [len(side) for side in both]
    if counts[0] != counts[1] or not counts[0]:
        told = " and ".join(f"{path(x)} {n}" for x, n in zip(LANGUAGES, counts, strict=True))
        raise DataError(f"sentences do not come in pairs: {told} lines. Delete them and load again")
    return both


def split_of(both: list[list[str]], *, clean: bool = False) -> Split:
    """Sentences as they are written, tokenised.

    Args:
        both: German and English.
        clean: keeps only pairs that are fit for training.

    Returns:
        The pairs.
    """
    sides = [tokenised(side, x) for side, x in zip(both, LANGUAGES, strict=True)]
    rows = zip(*sides, both[1], strict=True)
    kept = [row for row in rows if not clean or is_kept(row[0], row[1])]
    return Split(*([row[i] for row in kept] for i in range(3)))


# -- Multi30k -------------------------------------------------------------------------------------

_MULTI30K = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def _multi30k_file(root: Path, split: str, language: str) -> Path:
    return root / MULTI30K / f"{_MULTI30K[split]}.{language}.gz"


def _read_multi30k(root: Path) -> Corpus:
    def split(name: str, clean: bool) -> Split:
        both = pair_of(lambda language: _multi30k_file(root, name, language), lines_of)
        return split_of(both, clean=clean)

    return Corpus("multi30k", split("train", True), split("valid", False), split("test", False))


# -- IWSLT-14 -------------------------------------------------------------------------------------


def _talks(path: Path) -> list[str]:
    """The sentences of the training text, its tags left out."""
    kept = (x for x in lines_of(path) if not any(tag in x for tag in _LEFT_OUT))
    return [_TAGS.sub("", line).strip() for line in kept]


def _segments(path: Path) -> list[str]:
    """The sentences of a development or test set; its apostrophes are made plain."""
    found = (_SEGMENT.search(line) for line in lines_of(path))
    return [match[1].replace("’", "'") for match in found if match]


def _iwslt14_files(root: Path) -> list[Path]:
    top = root / IWSLT14
    train = [top / f"train.tags.de-en.{language}" for language in LANGUAGES]
    tests = [top / f"IWSLT14.{name}.de-en.{x}.xml" for name in TESTS for x in LANGUAGES]
    return [*train, *tests]


def _read_iwslt14(root: Path) -> Corpus:
    top = root / IWSLT14
    all_pairs = split_of(pair_of(lambda x: top / f"train.tags.de-en.{x}", _talks), clean=True)
    tests = [
        pair_of(lambda x, name=name: top / f"IWSLT14.{name}.de-en.{x}.xml", _segments)  # type: ignore[misc]
        for name in TESTS
    ]
    joined = [[line for both in tests for line in both[side]] for side in (0, 1)]
    train, valid = every_other(all_pairs)
    return Corpus("iwslt14", train, valid, split_of(joined))


def every_other(pairs: Split) -> tuple[Split, Split]:
    """Takes each 23rd pair out.

    Args:
        pairs: all.

    Returns:
        The others, and those.

    Example:
        >>> train, valid = every_other(Split(list("abcdefghijklmnopqrstuvwxyz"), [], []))
        >>> len(train), valid.source
        (25, ['w'])
    """

    def some(side: list[str], among: bool) -> list[str]:
        return [line for i, line in enumerate(side, 1) if (i % EVERY == 0) is among]

    sides = (pairs.source, pairs.target, pairs.written)
    train, valid = (Split(*(some(side, among) for side in sides)) for among in (False, True))
    return train, valid


# -- text that is tokenised already ---------------------------------------------------------------


def _part_files(root: Path) -> list[Path]:
    top = root / PART
    files = [top / f"{split}.{x}" for split in ("train", "valid", "test") for x in LANGUAGES]
    return [*files, *(path for path in (top / "code",) if path.exists())]


def _read_part(root: Path) -> Corpus:
    top = root / PART

    def split(name: str) -> Split:
        source, target = pair_of(lambda language: top / f"{name}.{language}", lines_of)
        return Split(source, target, detokenised(target, LANGUAGES[1]))

    code = top / "code"
    codes = [x for x in lines_of(code) if not x.startswith("#")] if code.exists() else None
    return Corpus("iwslt14-part", split("train"), split("valid"), split("test"), codes)


def _official(names: Iterable[str]) -> tuple[Item, ...]:
    address = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    return tuple(Item(f"{MULTI30K}/{n}", Remote(f"{address}/{n}", n)) for n in names)


SOURCES = {
    "multi30k": Source(
        _official(f"{name}.{x}.gz" for name in _MULTI30K.values() for x in LANGUAGES),
        lambda root: [_multi30k_file(root, s, x) for s in _MULTI30K for x in LANGUAGES],
        _read_multi30k,
    ),
    "iwslt14": Source(
        (
            Item(
                IWSLT14,
                Remote("http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", "de-en.tgz"),
            ),
        ),
        _iwslt14_files,
        _read_iwslt14,
    ),
    "iwslt14-part": Source((), _part_files, _read_part),
}
"""Name -> where it comes from."""
