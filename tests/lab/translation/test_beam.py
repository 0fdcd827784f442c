"""Beam search: against every sentence there is, without its memory, and by its definition."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.calls import called
from tests.lab.runs import CPU, TINY_TEXTS
from tests.lab.translation import tiny_texts
from vasso.lab.experiment.run import Run
from vasso.lab.store.run_directory import StoreError
from vasso.lab.store.store import Store
from vasso.lab.studies import bleu
from vasso.lab.studies.bleu import Bleu, bleu_scores, load_vocabulary, translate_rows
from vasso.lab.studies.measurements import run_measurements
from vasso.lab.training.loop import train
from vasso.lab.translation.beam import LONGEST, Search, translations
from vasso.lab.translation.pieces import BEGIN, END, PAD, UNKNOWN
from vasso.lab.translation.transformer import Size, Transformer

SOURCE = torch.tensor([[5, 6, 4, 2], [7, 4, 2, 0], [6, 2, 0, 0]])


def a_model(target: int = 6, seed: int = 0, layers: int = 2) -> Transformer:
    """Sharp enough that the answer depends on the source."""
    torch.manual_seed(seed)
    model = Transformer(Size(layers, 16, 24, heads=2), 8, target, dropout=0.3).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    return model


def log_probability(model: Transformer, source: torch.Tensor, pieces: list[int]) -> float:
    """By one pass over the whole translation."""
    model.eval()
    said = torch.tensor([[BEGIN, *pieces]])
    with torch.no_grad():
        found = model(source[None][:, source != PAD], said)[0].log_softmax(1)
    wanted = torch.tensor([*pieces, END])
    return float(found[torch.arange(len(wanted)), wanted].sum())


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_wide_beam_finds_what_exhaustive_search_finds(penalty: float, seed: int) -> None:
    """All 3 + 9 + 27 translations of one to three pieces: all of them, in the right order."""
    model = a_model(seed=seed)
    choices = [UNKNOWN, 4, 5]
    every = [list(p) for n in range(1, 4) for p in itertools.product(choices, repeat=n)]
    found = translations(model, SOURCE, Search(beam=40, length_penalty=penalty), longest=4)
    for source, some in zip(SOURCE, found, strict=True):
        right = {tuple(p): log_probability(model, source, p) for p in every}
        scored = {p: total / (len(p) + 1) ** penalty for p, total in right.items()}
        assert [tuple(t.pieces) for t in some] == sorted(scored, key=lambda p: -scored[p])
        for t in some:
            assert t.log_probability == pytest.approx(right[tuple(t.pieces)], abs=1e-12)
            assert t.score == pytest.approx(scored[tuple(t.pieces)], abs=1e-12)


@pytest.mark.parametrize("beam", [1, 3, 5])
def test_memory_changes_nothing(beam: int) -> None:
    model = a_model(target=24)
    cached = translations(model, SOURCE, Search(beam))
    replayed = translations(model, SOURCE, Search(beam, cached=False))
    assert [[t.pieces for t in some] for some in cached] == [
        [t.pieces for t in some] for some in replayed
    ]
    pairs = zip(itertools.chain(*cached), itertools.chain(*replayed), strict=True)
    assert all(a.log_probability == pytest.approx(b.log_probability, abs=1e-11) for a, b in pairs)


def test_a_beam_of_one_is_greedy() -> None:
    model = a_model(target=24).eval()
    found = translations(model, SOURCE, Search(1), longest=18)
    for source, some in zip(SOURCE, found, strict=True):
        said = [BEGIN]
        with torch.no_grad():
            while said[-1] != END and len(said) < 18:
                following = model(source[None], torch.tensor([said]))[0, -1].log_softmax(0)
                following[[PAD, BEGIN] if len(said) > 1 else [PAD, BEGIN, END]] = -torch.inf
                said.append(int(following.argmax()))
        last = said[1:-1] if said[-1] == END else said[1:18]
        assert some[0].pieces == last


class Endless(Transformer):
    def bleu_scores(self, x: torch.Tensor) -> torch.Tensor:
        found = super().bleu_scores(x)
        found[..., END] -= 1e3
        return found


def an_endless_model() -> Transformer:
    torch.manual_seed(0)
    return Endless(Size(1, 16, 24, heads=2), 8, 24).double()


@pytest.mark.parametrize("endless", [False, True])
def test_a_sentence_is_translated_alike_in_any_company(endless: bool) -> None:
    model = an_endless_model() if endless else a_model(target=24)
    search, longest = (Search(2), LONGEST) if endless else (Search(4), 12)
    together = translations(model, SOURCE, search, longest=longest)
    for source, some in zip(SOURCE, together, strict=True):
        alone = translations(model, source[None][:, source != PAD], search, longest=longest)[0]
        assert [t.pieces for t in some] == [t.pieces for t in alone]
        assert not endless or {len(t.pieces) for t in some} == {LONGEST - 1}


def test_dropout_is_off_and_the_model_left_as_it_was() -> None:
    model = a_model(target=24).train()
    once, again = (translations(model, SOURCE, Search(2)) for _ in range(2))
    assert once == again
    assert model.training


def test_translations_come_in_the_order_of_the_sentences() -> None:
    texts = tiny_texts.texts()
    model = tiny_texts.model(len(texts.source), len(texts.target), seed=0)
    rows = torch.tensor([3, 1, 4, 15, 9])
    found = translate_rows(model, texts.test.source, rows, Search(2))
    for row, pieces in zip(rows, found, strict=True):
        assert translate_rows(model, texts.test.source, row[None], Search(2)) == [pieces]
    assert len({tuple(pieces) for pieces in found}) > 1


def test_bleu_is_of_tokens_and_of_text_put_together() -> None:
    """By hand: 5 of 6 words, 3 of 5 pairs, 2 of 4 triples, 1 of 3 fours, no brevity penalty."""
    said, right = "the black cat sat on mats", "the black cat sat by mats"
    by_hand = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert bleu_scores([said], [right], [right.upper()])["bleu"] == pytest.approx(by_hand)
    both = bleu_scores(["it &apos;s a red dog ."], ["it &apos;s a red dog ."], ["It's a red dog."])
    assert both["bleu"] == both["detokenised"] == pytest.approx(100)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Store]:
    method: dict[str, Any] = {"name": "AdamW", "lr": 5e-3, "schedule": "constant"}
    run = Run.of({"task": {**TINY_TEXTS, "batch": 400, "epochs": 2}, "method": method})
    store = Store(tmp_path_factory.mktemp("store"))
    train(run, store, CPU)
    return run, store


def test_bleu_is_measured_of_stored_weights_and_kept(trained: tuple[Run, Store]) -> None:
    run, store = trained
    (row,) = run_measurements(Bleu(beam=2, sentences=10), [run], store)
    assert row["sentences"] == 10
    assert 0 <= row["endless"] <= 10
    assert 0 <= row["bleu"] <= 100
    asked = {"beam": 2, "length_penalty": 1.0, "sentences": 10}
    assert store.folder(run.id).measurement("bleu", asked) == [row]


def test_the_command_translates(trained: tuple[Run, Store], capsys: Any) -> None:
    run, store = trained
    sentences = ("Rot und blau", "Ein Hund")
    assert called("translate", run.id, *sentences, "--store", str(store.root)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_command_says_what_is_missing(trained: tuple[Run, Store], capsys: Any) -> None:
    run, store = trained
    for words in ([run.id, " "], ["nothing", "Hund"], [run.id]):
        assert called("translate", *words, "--store", str(store.root)) == 2
    assert "empty sentence" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [Search, Bleu])
@pytest.mark.parametrize(("name", "value"), [("beam", 0), ("length_penalty", float("nan"))])
def test_a_search_that_makes_no_sense_is_refused(kind: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        kind(**{name: value})


def test_a_run_that_has_diverged_is_left_out_and_the_others_are_measured(
    trained: tuple[Run, Store], tmp_path: Path, capsys: Any
) -> None:
    run, store = trained
    lost = replace(run, task=replace(run.task, label_smoothing=0.2))
    copy = Store(tmp_path)
    for one in (lost, run):
        shutil.copytree(store.folder(run.id).path, copy.folder(one.id).path)
    folder = copy.folder(lost.id)
    state = folder.load("weights.pt")
    assert state is not None
    next(iter(state["model"].values())).fill_(torch.nan)
    folder.save("weights.pt", state)
    said: list[str] = []
    rows = run_measurements(Bleu(beam=1, sentences=3), [lost, run], copy, log=said.append)
    assert [row["run"] for row in rows] == [run.id]
    assert any(f"the weights of {lost.id} are not finite" in text for text in said)
    assert called("translate", str(folder.path), "Ein Hund") == 1
    assert "it has diverged" in capsys.readouterr().err


def test_a_run_on_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.of({"task": {"data": "digits"}, "method": {"name": "SGD"}})
    monkeypatch.setattr(bleu, "load_data", lambda *given: pytest.fail("read"))
    with pytest.raises(StoreError, match="trained on images"):
        load_vocabulary(run, Store(tmp_path).folder(run.id))
