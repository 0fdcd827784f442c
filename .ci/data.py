"""Unpacks packs of data sets into their official layouts: python .ci/data.py SHARED OUT.

SHARED holds cifar10.lsp.npz, cifar100.lsp.npz, cifar_codec.py, cifar10n-labels.npz,
tiny-imagenet-20c.jpeg.npz and text/*.tsv.gz; what is missing there, or in OUT already, is skipped.
OUT is then a folder for VASSO_DATA.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

TINY = "tiny-imagenet-200"


def unpack_cifar(shared: Path, beside: Path, pack: str) -> None:
    """Runs the packs' own program, which checks every md5."""
    command = [sys.executable, str(shared / "cifar_codec.py"), str(shared / pack), str(beside)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def unpack_human_labels(shared: Path, beside: Path) -> None:
    """A dict of int64 arrays saved by torch, as CIFAR-10N is published."""
    with np.load(shared / "cifar10n-labels.npz", allow_pickle=False) as labels:
        content = {name: labels[name].astype(np.int64) for name in labels.files}
    torch.save(content, beside / "CIFAR-10_human.pt")


def unpack_tiny(shared: Path, beside: Path) -> None:
    """Folders of JPEG files; `wnids.txt` names the classes that are there."""
    with np.load(shared / "tiny-imagenet-20c.jpeg.npz", allow_pickle=False) as opened:
        pack = dict(opened)
    top, names = beside / TINY, [str(name) for name in pack["wnids"]]
    (top / "val" / "images").mkdir(parents=True)
    (top / "wnids.txt").write_text("".join(f"{name}\n" for name in names))
    words = (f"{n}\t{w}\n" for n, w in zip(names, pack["words"], strict=True))
    (top / "words.txt").write_text("".join(words))
    counts = dict.fromkeys(names, 0)
    for name, content in _jpegs(pack, "train", names):
        folder = top / "train" / name / "images"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}_{counts[name]:03d}.JPEG").write_bytes(content)
        counts[name] += 1
    lines = []
    for i, (name, content) in enumerate(_jpegs(pack, "val", names)):
        (top / "val" / "images" / f"val_{i}.JPEG").write_bytes(content)
        lines.append(f"val_{i}.JPEG\t{name}\t0\t0\t63\t63\n")
    (top / "val" / "val_annotations.txt").write_text("".join(lines))


def _jpegs(pack: dict, part: str, names: list[str]) -> list[tuple[str, bytes]]:
    content, ends = pack[f"{part}_jpeg"].tobytes(), pack[f"{part}_end"].tolist()
    starts = [0, *ends[:-1]]
    labels = pack[f"{part}_label"].tolist()
    triples = zip(labels, starts, ends, strict=True)
    return [(names[label], content[start:end]) for label, start, end in triples]


MULTI30K = "text/multi30k.raw.de-en.tsv.gz"
IWSLT14 = "text/iwslt14-part.lc-tok.de-en.tsv.gz"
CODES = "text/iwslt14.bpe10k.codes.gz"


def unpack_multi30k(shared: Path, beside: Path) -> None:
    """Raw text, a packed file for each split and language, as published."""
    for (split, language), lines in _texts(shared / MULTI30K).items():
        _write(beside / "multi30k" / f"{split}.{language}.gz", gzip.compress(lines, mtime=0))


def unpack_iwslt14_part(shared: Path, beside: Path) -> None:
    """Tokenised text; of the training pairs only a sample. With the merges of the whole."""
    names = {"train_sample": "train", "valid": "valid", "test": "test"}
    for (split, language), lines in _texts(shared / IWSLT14).items():
        if split in names:
            _write(beside / "iwslt14-part" / f"{names[split]}.{language}", lines)
    if (shared / CODES).exists():
        codes = gzip.decompress((shared / CODES).read_bytes())
        _write(beside / "iwslt14-part" / "code", codes)


def _texts(pack: Path) -> dict[tuple[str, str], bytes]:
    """Lines of split, German, English -> the text of each split and language."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in gzip.decompress(pack.read_bytes()).decode().removesuffix("\n").split("\n"):
        split, german, english = line.split("\t")
        found.setdefault((split, "de"), []).append(f"{german}\n")
        found.setdefault((split, "en"), []).append(f"{english}\n")
    return {key: "".join(lines).encode() for key, lines in found.items()}


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


STEPS = {  # what comes out: which pack it needs, what unpacks it
    "cifar-10-batches-py": ("cifar10.lsp.npz", lambda s, b: unpack_cifar(s, b, "cifar10.lsp.npz")),
    "cifar-100-python": ("cifar100.lsp.npz", lambda s, b: unpack_cifar(s, b, "cifar100.lsp.npz")),
    "CIFAR-10_human.pt": ("cifar10n-labels.npz", unpack_human_labels),
    TINY: ("tiny-imagenet-20c.jpeg.npz", unpack_tiny),
    "multi30k": (MULTI30K, unpack_multi30k),
    "iwslt14-part": (IWSLT14, unpack_iwslt14_part),
}


def main(shared: Path, out: Path) -> None:
    """Makes what is not there; each thing appears whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    for result, (pack, unpack) in STEPS.items():
        if (out / result).exists() or not (shared / pack).exists():
            print(f"{result}: {'there' if (out / result).exists() else 'no pack'}")
            continue
        beside = Path(tempfile.mkdtemp(dir=out, prefix=".unpacking-"))
        try:
            unpack(shared, beside)
            os.replace(beside / result, out / result)
        finally:
            shutil.rmtree(beside)
        print(f"{result}: unpacked")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
