"""A finished translator keeps what its numbers stand for: it needs no corpus to translate."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.calls import called
from tests.lab.stores import rewritten
from tests.lab.translation import tiny_texts
from vasso.lab.experiment.run import Run
from vasso.lab.store.json import as_json, table_in
from vasso.lab.store.run_directory import RunDirectory, StoreError
from vasso.lab.store.store import Store
from vasso.lab.studies.bleu import Bleu, load_vocabulary
from vasso.lab.studies.measurements import run_measurements
from vasso.lab.training import setup
from vasso.lab.training.loop import train
from vasso.lab.training.options import RunOptions
from vasso.lab.translation.pieces import VOCABULARY_FILE

SENTENCES = ["Rot und blau", "Ein Hund und ein Haus", "Ein Schloss"]


def write_corpus(root: Path) -> None:
    top = root / "iwslt14-part"
    top.mkdir(parents=True)
    for name, count, seed in (("train", 120, 0), ("valid", 20, 1000), ("test", 24, 2000)):
        pairs = tiny_texts.split(count, seed)
        (top / f"{name}.de").write_text("\n".join(pairs.source) + "\n")
        (top / f"{name}.en").write_text("\n".join(pairs.target) + "\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `data`, a corpus, and `runs` with one translator that has learnt it."""
    place = tmp_path_factory.mktemp("finished")
    write_corpus(place / "data")
    task = {"data": "iwslt14-part", "model": "tests.lab.translation.tiny_texts:model", "pieces": 12}
    method = {"name": "AdamW", "lr": 1e-2, "schedule": "constant"}
    run = Run.of({"task": {**task, "batch": 200, "epochs": 6}, "method": method})
    options = RunOptions(data_root=place / "data", accelerator="cpu", checkpoint_seconds=1e9)
    train(run, Store(place / "runs"), options)
    return place


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "copy")
    setup.cached_texts.cache_clear()
    return tmp_path / "copy"


def folder_in(place: Path) -> RunDirectory:
    (folder,) = Store(place / "runs").folders()
    return folder


def translate(place: Path, capsys: Any) -> tuple[int, str]:
    setup.cached_texts.cache_clear()
    code = called("translate", folder_in(place).id, *SENTENCES, "--store", str(place / "runs"))
    said = capsys.readouterr()
    return code, said.out or said.err


def test_a_run_translates_where_its_corpus_is_gone(place: Path, capsys: Any) -> None:
    with_corpus = translate(place, capsys)
    shutil.rmtree(place / "data")
    assert translate(place, capsys) == with_corpus
    assert with_corpus[0] == 0
    lines = with_corpus[1].splitlines()
    assert len(lines) == len(SENTENCES)
    assert set(" ".join(lines).split()) <= set(tiny_texts.WORDS.values())


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without(name: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        table = table_in(path)
        del table[name]
        path.write_bytes(as_json(table))

    return spoil


def shifted(path: Path) -> None:
    rewritten(path, target=table_in(path)["target"][1:])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (Path.unlink, "has no vocabulary.json"),
        (halved, "not JSON"),
        (without("merges"), "merges must be a list of texts"),
        (without("letters"), "letters must be a text"),
        (shifted, "target does not begin with <pad>, <s>"),
    ],
    ids=["missing", "halved", "merges", "letters", "shifted"],
)
def test_a_missing_or_damaged_file_is_an_error_with_its_remedy(
    spoil: Callable[[Path], None], message: str, place: Path, capsys: Any
) -> None:
    spoil(folder_in(place).path / VOCABULARY_FILE)
    code, said = translate(place, capsys)
    assert (code, message in said, "begin the run anew" in said) == (1, True, True)


def change_corpus(place: Path) -> None:
    """One word is spelt otherwise: as many sentences, other pieces."""
    path = place / "data" / "iwslt14-part" / "train.en"
    path.write_text(path.read_text().replace("house", "home"))
    setup.cached_texts.cache_clear()


def test_a_changed_corpus_is_not_scored_but_old_weights_translate(place: Path, capsys: Any) -> None:
    before = translate(place, capsys)
    change_corpus(place)
    assert translate(place, capsys) == before
    run, store = Run.of(folder_in(place).settings["run"]), Store(place / "runs")
    with pytest.raises(StoreError, match=r"is not the one that .* was trained on"):
        run_measurements(Bleu(beam=1, sentences=2), [run], store, data_root=place / "data")


def test_what_is_kept_cuts_and_numbers_as_the_corpus_does(place: Path) -> None:
    texts = setup.load_texts("iwslt14-part", pieces=12, root=place / "data")
    folder = folder_in(place)
    found = load_vocabulary(Run.of(folder.settings["run"]), folder)
    assert found.as_table() == texts.vocabulary.as_table()
    for words in texts.test.words:
        pieces = texts.cut([words])[0]
        assert found.cut([words]) == [pieces]
        assert found.target.numbers(pieces) == texts.target.numbers(pieces)
