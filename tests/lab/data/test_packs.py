"""Packs of data sets become the official layouts, once."""

import gzip
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vasso.lab.data import load

SCRIPT = Path(__file__).parents[3] / ".ci" / "data.py"
CODEC = """
import sys
from pathlib import Path
top = Path(sys.argv[2]) / "cifar-10-batches-py"
top.mkdir()
(top / "data_batch_1").write_text(Path(sys.argv[1]).name)
"""


@pytest.fixture
def packs(tmp_path: Path) -> Path:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "cifar_codec.py").write_text(CODEC)
    (shared / "cifar10.lsp.npz").touch()
    names = ("clean_label", "aggre_label", "worse_label", *(f"random_label{i}" for i in (1, 2, 3)))
    np.savez(shared / "cifar10n-labels.npz", **{n: np.arange(5, dtype=np.uint8) for n in names})
    jpegs = {part: [jpeg(part, i) for i in range(4)] for part in ("train", "val")}
    np.savez(
        shared / "tiny-imagenet-20c.jpeg.npz",
        **{f"{p}_jpeg": np.frombuffer(b"".join(j), np.uint8) for p, j in jpegs.items()},
        **{f"{p}_end": np.cumsum([len(b) for b in j]) for p, j in jpegs.items()},
        **{f"{p}_label": np.array([0, 0, 1, 1], np.uint8) for p in jpegs},
        wnids=np.array(["n02", "n01"]),
        words=np.array(["goldfish", "koala"]),
    )
    (shared / "text").mkdir()
    pairs = {"multi30k.raw": ("train", "val"), "iwslt14-part.lc-tok": ("train_sample", "test")}
    for name, splits in pairs.items():
        lines = "".join(f"{split}\tein Haus\ta house\n" for split in splits)
        path = shared / "text" / f"{name}.de-en.tsv.gz"
        path.write_bytes(gzip.compress(lines.encode()))
    return shared


def jpeg(part: str, i: int) -> bytes:
    grey = 40 * i + (20 if part == "val" else 0)
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (grey, grey, grey)).save(buffer, "JPEG")
    return buffer.getvalue()


def unpack(shared: Path, out: Path) -> str:
    command = [sys.executable, str(SCRIPT), str(shared), str(out)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_packs_become_official_layouts_once(packs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = unpack(packs, out).splitlines()
    assert [line.partition(": ")[2] for line in result] == [
        "unpacked",
        "no pack",
        "unpacked",
        "unpacked",
        "unpacked",
        "unpacked",
    ]
    assert gzip.decompress((out / "multi30k" / "val.en.gz").read_bytes()) == b"a house\n"
    assert (out / "iwslt14-part" / "train.de").read_text() == "ein Haus\n"
    assert not (out / "iwslt14-part" / "code").exists()
    assert (out / "cifar-10-batches-py" / "data_batch_1").read_text() == "cifar10.lsp.npz"
    tiny = load("tiny-imagenet", root=out, download=False)
    assert tiny.train_y.tolist() == tiny.test_y.tolist() == [0, 0, 1, 1]
    assert tiny.train_x[:, 0, 0, 0].tolist() == [0, 40, 80, 120]
    assert tiny.test_x[:, 0, 0, 0].tolist() == [20, 60, 100, 140]
    human = torch.load(out / "CIFAR-10_human.pt", weights_only=False)
    assert human["random_label3"].dtype == np.int64
    assert human["random_label3"].tolist() == [0, 1, 2, 3, 4]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert "unpacked" not in unpack(packs, out)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_a_pack_that_fails_leaves_nothing(packs: Path, tmp_path: Path) -> None:
    (packs / "cifar_codec.py").write_text(CODEC + "raise SystemExit('md5 differs')")
    with pytest.raises(subprocess.CalledProcessError):
        unpack(packs, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
