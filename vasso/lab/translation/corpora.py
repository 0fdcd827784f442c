"""Translation corpora, German to English: what there is (`CORPORA`), and reading their files.

Files in the data folder:

* `multi30k/train.de.gz`, ... as published, or without `.gz`;
* `de-en`, the folder in the official `de-en.tgz`;
* `iwslt14-part/train.de`, ... tokenised and in lower case, with an optional file `code` of merges.

A result from a part of the training pairs is not a result on IWSLT-14.
"""

import gzip
import hashlib
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vasso.lab.data.download import DataFile, Remote
from vasso.lab.data.images import DataError
from vasso.lab.translation.words import detokenised, is_kept, tokenised

MULTI30K, IWSLT14, PART = "multi30k", "de-en", "iwslt14-part"
LANGUAGES = ("de", "en")
EVERY = 23
"""Every 23rd pair of IWSLT-14's training text is for validation."""
TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
_LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
_TAGS = re.compile(r"</?(?:title|description)>")
_SEGMENT = re.compile(r'<seg id="\d+">\s*(.*?)\s*</seg>')


@dataclass(frozen=True)
class Split:
    """Pairs of sentences, German and English, tokenised and in lower case.

    `written` is the English as published; where only tokens are available, these joined again.
    """

    source: list[str]
    target: list[str]
    written: list[str]

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class Corpus:
    """A corpus; `codes` are byte-pair merges in order, None to learn them."""

    name: str
    train: Split
    valid: Split
    test: Split
    codes: list[str] | None = None


@dataclass(frozen=True)
class CorpusInfo:
    """A corpus: its line in `vasso list data`, the files it needs, those it reads, and how.

    `pairs` counts pairs of sentences for training, validation and test.
    """

    pairs: str
    origin: str
    files: tuple[DataFile, ...]
    paths: Callable[[Path], list[Path]]
    read: Callable[[Path], Corpus]

    def fingerprint(self, root: Path) -> str:
        digest = hashlib.sha256()
        for path in self.paths(root):
            digest.update(hashlib.sha256(read_unpacked(path)).digest())
        return digest.hexdigest()[:16]


def read_unpacked(path: Path) -> bytes:
    """The content of a file, which may be there with or without `.gz`."""
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
    found = read_unpacked(path)
    if not found:
        raise DataError(f"{path} is empty. Delete it, load again")
    try:
        return [line.rstrip("\r") for line in found.decode().removesuffix("\n").split("\n")]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged: not UTF-8 ({error}). Delete it, load again") from error


def _both_sides(path: Callable[[str], Path], lines: Callable[[Path], list[str]]) -> list[list[str]]:
    """German and English lines of a text; an error if their numbers differ."""
    both = [lines(path(language)) for language in LANGUAGES]
    counts = [len(side) for side in both]
    if counts[0] != counts[1] or not counts[0]:
        sizes = " and ".join(f"{path(x)} {n}" for x, n in zip(LANGUAGES, counts, strict=True))
        raise DataError(
            f"sentences do not come in pairs: {sizes} lines. Delete them and load again"
        )
    return both


def _split_of(both: list[list[str]], *, clean: bool = False) -> Split:
    """Tokenised pairs; with `clean` only those that are fit for training."""
    sides = [tokenised(side, x) for side, x in zip(both, LANGUAGES, strict=True)]
    rows = zip(*sides, both[1], strict=True)
    kept = [row for row in rows if not clean or is_kept(row[0], row[1])]
    return Split(*([row[i] for row in kept] for i in range(3)))


_MULTI30K = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def _multi30k_file(root: Path, split: str, language: str) -> Path:
    return root / MULTI30K / f"{_MULTI30K[split]}.{language}.gz"


def _read_multi30k(root: Path) -> Corpus:
    def split(name: str, clean: bool) -> Split:
        both = _both_sides(lambda language: _multi30k_file(root, name, language), lines_of)
        return _split_of(both, clean=clean)

    return Corpus("multi30k", split("train", True), split("valid", False), split("test", False))


def _talks(path: Path) -> list[str]:
    kept = (x for x in lines_of(path) if not any(tag in x for tag in _LEFT_OUT))
    return [_TAGS.sub("", line).strip() for line in kept]


def _segments(path: Path) -> list[str]:
    found = (_SEGMENT.search(line) for line in lines_of(path))
    return [match[1].replace("’", "'") for match in found if match]


def _iwslt14_files(root: Path) -> list[Path]:
    top = root / IWSLT14
    train = [top / f"train.tags.de-en.{language}" for language in LANGUAGES]
    tests = [top / f"IWSLT14.{name}.de-en.{x}.xml" for name in TESTS for x in LANGUAGES]
    return [*train, *tests]


def _read_iwslt14(root: Path) -> Corpus:
    top = root / IWSLT14
    all_pairs = _split_of(_both_sides(lambda x: top / f"train.tags.de-en.{x}", _talks), clean=True)
    tests = [
        _both_sides(lambda x, name=name: top / f"IWSLT14.{name}.de-en.{x}.xml", _segments)  # type: ignore[misc]
        for name in TESTS
    ]
    joined = [[line for both in tests for line in both[side]] for side in (0, 1)]
    train, valid = _every_23rd(all_pairs)
    return Corpus("iwslt14", train, valid, _split_of(joined))


def _every_23rd(pairs: Split) -> tuple[Split, Split]:
    def some(side: list[str], among: bool) -> list[str]:
        return [line for i, line in enumerate(side, 1) if (i % EVERY == 0) is among]

    sides = (pairs.source, pairs.target, pairs.written)
    train, valid = (Split(*(some(side, among) for side in sides)) for among in (False, True))
    return train, valid


def _part_files(root: Path) -> list[Path]:
    top = root / PART
    files = [top / f"{split}.{x}" for split in ("train", "valid", "test") for x in LANGUAGES]
    return [*files, *(path for path in (top / "code",) if path.exists())]


def _read_part(root: Path) -> Corpus:
    top = root / PART

    def split(name: str) -> Split:
        source, target = _both_sides(lambda language: top / f"{name}.{language}", lines_of)
        return Split(source, target, detokenised(target, LANGUAGES[1]))

    code = top / "code"
    codes = [x for x in lines_of(code) if not x.startswith("#")] if code.exists() else None
    return Corpus("iwslt14-part", split("train"), split("valid"), split("test"), codes)


_COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
_ADDRESS = f"https://raw.githubusercontent.com/multi30k/dataset/{_COMMIT}/data/task1/raw"
_FAIRSEQ = "http://dl.fbaipublicfiles.com/fairseq/data"
_SHA256 = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}
"""Of the files in that commit."""
CORPORA: dict[str, CorpusInfo] = {
    "multi30k": CorpusInfo(
        "29,000 (28,332 kept), 1,014, 1,000 (test_2016_flickr)",
        "download",
        tuple(
            DataFile(f"{MULTI30K}/{name}", Remote(f"{_ADDRESS}/{name}", name, f"sha256:{digest}"))
            for name, digest in _SHA256.items()
        ),
        lambda root: [_multi30k_file(root, s, x) for s in _MULTI30K for x in LANGUAGES],
        _read_multi30k,
    ),
    "iwslt14": CorpusInfo(
        "160,239, 7,283 (every 23rd pair), 6,750 (dev and tst 2010 to 2012)",
        "download",
        # nobody has published a checksum: that of the first download is kept and compared
        (DataFile(IWSLT14, Remote(f"{_FAIRSEQ}/iwslt14/de-en.tgz", "de-en.tgz")),),
        _iwslt14_files,
        _read_iwslt14,
    ),
    "iwslt14-part": CorpusInfo(
        "what there is of it in a folder of tokenised text", "by hand", (), _part_files, _read_part
    ),
}
