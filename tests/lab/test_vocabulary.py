"""A finished translator keeps what its numbers stand for: it needs no corpus to translate."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import tiny_texts
from vasso.lab import tasks
from vasso.lab.cli import main
from vasso.lab.folder import Folder, StoreError
from vasso.lab.how import How
from vasso.lab.measurements import measure
from vasso.lab.runs import Run
from vasso.lab.store import Store
from vasso.lab.train import train
from vasso.lab.translation.bleu import Bleu
from vasso.lab.translation.vocabulary import FILE, Vocabulary, kept

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
    task = {"data": "iwslt14-part", "model": "tests.lab.tiny_texts:model", "pieces": 12}
    method = {"name": "AdamW", "lr": 1e-2, "schedule": "constant"}
    run = Run.of({"task": {**task, "batch": 200, "epochs": 6}, "method": method})
    how = How(data=place / "data", accelerator="cpu", checkpoint_seconds=1e9)
    train(run, Store(place / "runs"), how)
    return place


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(finished, tmp_path / "copy")
    tasks.loaded_texts.cache_clear()
    return tmp_path / "copy"


def folder_in(place: Path) -> Folder:
    (folder,) = Store(place / "runs").folders()
    return folder


def translate(place: Path, capsys: Any) -> tuple[object, str]:
    """Exit code and what is said."""
    tasks.loaded_texts.cache_clear()
    words = ["--store", str(place / "runs"), "--data-root", str(place / "data")]
    with pytest.raises(SystemExit) as ended:
        main(["translate", folder_in(place).id, *SENTENCES, *words])
    said = capsys.readouterr()
    return ended.value.code, said.out or said.err


def test_a_run_translates_where_its_corpus_is_gone(place: Path, capsys: Any) -> None:
    with_corpus = translate(place, capsys)
    shutil.rmtree(place / "data")
    assert translate(place, capsys) == with_corpus
    assert with_corpus[0] == 0
    lines = with_corpus[1].splitlines()
    assert len(lines) == len(SENTENCES)
    assert set(" ".join(lines).split()) <= set(tiny_texts.WORDS.values())


def test_a_run_that_kept_none_is_translated_by_its_corpus(place: Path, capsys: Any) -> None:
    with_vocabulary = translate(place, capsys)
    folder_in(place).drop(FILE)
    assert translate(place, capsys) == with_vocabulary
    shutil.rmtree(place / "data")
    code, said = translate(place, capsys)
    assert code == 1
    for told in (FILE, "older versions", "iwslt14-part", "train.de is missing: put"):
        assert told in said


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without(name: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        table = json.loads(path.read_text())
        del table[name]
        path.write_text(json.dumps(table))

    return spoil


def shifted(path: Path) -> None:
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "target": table["target"][1:]}))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (halved, "not JSON"),
        (without("merges"), "merges must be a list of texts"),
        (without("letters"), "letters must be a text"),
        (shifted, "target does not begin with <pad>, <s>"),
    ],
    ids=["halved", "merges", "letters", "shifted"],
)
def test_a_damaged_file_is_told_and_can_be_removed(
    spoil: Callable[[Path], None], told: str, place: Path, capsys: Any
) -> None:
    spoil(folder_in(place).path / FILE)
    code, said = translate(place, capsys)
    assert (code, told in said, "remove it" in said) == (1, True, True)
    folder_in(place).drop(FILE)
    assert translate(place, capsys)[0] == 0


def change_corpus(place: Path) -> None:
    """One word is spelt otherwise: as many sentences, other pieces."""
    path = place / "data" / "iwslt14-part" / "train.en"
    path.write_text(path.read_text().replace("house", "home"))
    tasks.loaded_texts.cache_clear()


def test_a_corpus_that_has_changed_is_not_scored_but_old_weights_still_translate(
    place: Path, capsys: Any
) -> None:
    before = translate(place, capsys)
    change_corpus(place)
    assert translate(place, capsys) == before
    run, store = Run.of(folder_in(place).settings["run"]), Store(place / "runs")
    with pytest.raises(StoreError, match=r"is not the one that .* was trained on"):
        measure(Bleu(beam=1, sentences=2), [run], store, data=place / "data")


def test_a_run_that_kept_none_and_whose_corpus_has_grown_says_so(place: Path, capsys: Any) -> None:
    folder_in(place).drop(FILE)
    for language in ("de", "en"):
        path = place / "data" / "iwslt14-part" / f"train.{language}"
        path.write_text(path.read_text() + "zwölf boxkämpfer jagen viktor quer\n" * 9)
    code, said = translate(place, capsys)
    assert code == 1
    assert "the corpus has changed since it was trained" in said


def test_what_is_kept_cuts_and_numbers_as_the_corpus_does(place: Path) -> None:
    texts = tasks.load_texts("iwslt14-part", pieces=12, root=place / "data")
    found = kept(folder_in(place))
    assert found is not None
    assert found.as_table() == Vocabulary.of_texts(texts).as_table()
    for words in texts.test.words:
        pieces = texts.cut([words])[0]
        assert found.cut([words]) == [pieces]
        assert found.target.numbers(pieces) == texts.target.numbers(pieces)
