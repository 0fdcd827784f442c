"""Sentences as the matter of a run: batches, losses, and a loop that no crash changes."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax

from tests.lab.calls import in_a_process
from tests.lab.conftest import needing
from tests.lab.runs import CPU, TINY_TEXTS, assert_same, check_kills, train_to, training_of, weights
from tests.lab.translation import tiny_texts
from vasso.lab.experiment.run import Run
from vasso.lab.store.store import Store
from vasso.lab.training.closures import BatchClosure, share_of_rank
from vasso.lab.training.loop import train
from vasso.lab.training.options import RunOptions
from vasso.lab.training.sentences import SentenceBatches, SentenceWorkload, sentence_losses
from vasso.lab.translation.corpora import MULTI30K, Corpus, Split
from vasso.lab.translation.pairs import Pairs, Sequences, texts_of
from vasso.lab.translation.pieces import BEGIN, PAD, VOCABULARY_FILE
from vasso.lab.translation.transformer import Size, Transformer

ADAM = {"base": "AdamW", "lr": 5e-3, "beta2": 0.98, "schedule": "inverse-sqrt", "warm_up": 4}
VASSO = {"name": "VaSSO", "rho": 0.05, "theta": 0.4}
TEXTS = tiny_texts.texts()


def a_run(method: dict[str, Any] | None = None, seed: int = 0, **task: Any) -> Run:
    given = {**TINY_TEXTS, "batch": 200, "epochs": 2, "label_smoothing": 0.1, **task}
    return Run.of({"task": given, "method": {**ADAM, **(method or VASSO)}, "seed": seed})


def a_model() -> Transformer:
    torch.manual_seed(0)
    size = Size(1, 16, 24, heads=2)
    return Transformer(size, len(TEXTS.source), len(TEXTS.target), 0.0).double()


def batches_of(size: int, **given: Any) -> SentenceBatches:
    return SentenceBatches(TEXTS.train, size, seed=0, dtype=torch.float64, **given)


def test_an_epoch_has_every_sentence_once_and_no_batch_too_many_pieces() -> None:
    batches = SentenceBatches(TEXTS.train, size=64, seed=3)
    for epoch in range(2):
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        seen = [batches.at(step) for step in steps]
        assert all(max(x.numel(), y.numel()) <= 64 for x, y, _ in seen)
        found = sorted(r for x, _, _ in seen for r in unpadded(x))
        side = TEXTS.train.source
        assert found == sorted(unpadded(side.padded(torch.arange(len(side)))))


def unpadded(rows: torch.Tensor) -> list[list[int]]:
    return [[n for n in row if n != PAD] for row in rows.tolist()]


def test_batches_depend_on_seed_and_step_alone_and_change_with_the_epoch() -> None:
    one, two = (SentenceBatches(TEXTS.train, size=64, seed=3) for _ in range(2))
    n = one.per_epoch
    later = [two.at(step) for step in reversed(range(2 * n))][::-1]
    for step in range(2 * n):
        assert all(map(torch.equal, one.at(step), later[step]))
    members = [{tuple(r) for r in unpadded(x)} for x, _, _ in later]
    assert {frozenset(m) for m in members[:n]} != {frozenset(m) for m in members[n:]}
    assert not all(map(torch.equal, later[0], SentenceBatches(TEXTS.train, 64, seed=4).at(0)))


def test_another_batch_has_none_of_the_sentences() -> None:
    side = Sequences.of([[i + 4] * (1 + i % 3) for i in range(40)])  # each with a number of its own
    batches = SentenceBatches(Pairs(side, side, [], []), size=8, seed=3)
    for step in range(2 * batches.per_epoch):
        mine = {row[0] for row in unpadded(batches.at(step)[0])}
        other = {row[0] for row in unpadded(batches.other(step, 1.0)[0])}
        assert mine
        assert other
        assert not mine & other


def test_processes_share_a_batch_and_its_pieces() -> None:
    """The mean over processes of their means is the loss of the whole batch."""
    model = a_model()
    parts = [batches_of(96, rank=rank, world=2) for rank in range(2)]
    for step in range(4):
        losses = [sentence_losses(model, *part.at(step)).mean() for part in parts]
        rows = torch.cat([share_of_rank(part, part._rows_at(step)) for part in parts])
        whole = mean_over_pieces(model, rows)
        assert (losses[0] + losses[1]).item() / 2 == pytest.approx(whole.item(), rel=1e-12)


def mean_over_pieces(model: Transformer, rows: torch.Tensor) -> torch.Tensor:
    """Written out: sentence by sentence, without padding."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        source = TEXTS.train.source.padded(row[None])
        target = TEXTS.train.target.padded(row[None])
        before = torch.cat((torch.tensor([[BEGIN]]), target[:, :-1]), 1)
        scores = log_softmax(model(source, before)[0], 1)
        total = total - scores[torch.arange(target.shape[1]), target[0]].sum()
        count += target.shape[1]
    return total / count


def test_the_loss_of_a_batch_is_the_mean_over_its_pieces() -> None:
    model, batches = a_model(), batches_of(200)
    found = sentence_losses(model, *batches.at(0)).mean()
    assert found.item() == pytest.approx(
        mean_over_pieces(model, batches._rows_at(0)).item(), rel=1e-12
    )


def test_smoothing_is_that_of_torch_over_all_pieces() -> None:
    model, (source, target, weights) = a_model(), batches_of(200).at(0)
    before = torch.cat((torch.full_like(target[:, :1], BEGIN), target[:, :-1]), 1)
    logits = model(source, before).flatten(0, 1)
    right = cross_entropy(logits, target.flatten(), ignore_index=PAD, label_smoothing=0.1)
    found = sentence_losses(model, source, target, weights, smoothing=0.1).mean()
    assert found.item() == pytest.approx(right.item(), rel=1e-12)


def test_chunks_weighted_by_their_sentences_give_the_loss_of_the_batch() -> None:
    """What m-SAM relies on: a chunk has no scale of its own."""
    model, batches = a_model(), batches_of(200)

    def losses(*tensors: torch.Tensor) -> torch.Tensor:
        return sentence_losses(model, *tensors)

    whole = BatchClosure(losses, model.zero_grad, torch.Tensor.backward, batches.at(0))
    chunks = whole.split(7)
    shares = sum(chunk.loss().item() * len(chunk) for chunk in chunks) / len(whole)
    assert len({len(chunk) for chunk in chunks}) == 2  # the last is smaller
    assert shares == pytest.approx(whole.loss().item(), rel=1e-12)


def test_padding_says_nothing() -> None:
    model, (source, target, weights) = a_model(), batches_of(200).at(0)
    wider = [torch.cat((x, torch.full((len(x), 3), PAD)), 1) for x in (source, target)]
    once = sentence_losses(model, source, target, weights)
    torch.testing.assert_close(sentence_losses(model, *wider, weights), once, rtol=1e-12, atol=0)


@pytest.mark.parametrize("stop", [1, 5])
def test_a_stopped_run_ends_as_if_it_had_not_been(stop: int, tmp_path: Path) -> None:
    run = a_run()
    whole, torn = Store(tmp_path / "whole"), Store(tmp_path / "torn")
    result = train(run, whole, CPU)
    train_to(run, torn, stop)
    again = train(run, torn, CPU)
    assert_same(weights(whole, run), weights(torn, run))
    assert again["last"] == result["last"]
    assert result["last"]["test_perplexity"] == pytest.approx(math.exp(result["last"]["test_loss"]))
    assert again["cost"] == result["cost"] == 2 * result["steps"]


@pytest.mark.parametrize(
    "method",
    [
        {"name": "m-SAM (chunks)", "rho": 0.05, "m": 16},
        {"name": "m-SAM (subsample)", "rho": 0.05, "m": 4},
        {"name": "SAM-db", "rho": 0.05},
        {"name": "SAM", "rho": 0.05, "same_rng": True},
    ],
    ids=lambda method: method["name"],
)
def test_methods_that_split_train_on_sentences(method: dict[str, Any], tmp_path: Path) -> None:
    result = train(a_run(method, steps=2), Store(tmp_path), CPU)
    assert result["skipped"] == 0
    if method["name"] == "m-SAM (subsample)":
        assert 2 < result["cost"] < 4
    elif method["name"] != "SAM-db":  # whose other batch has more sentences, or fewer
        assert result["cost"] == pytest.approx(4)


def test_perplexity_is_of_pieces_without_smoothing(tmp_path: Path) -> None:
    training = training_of(a_run())
    workload, model = training.workload, training.bare.eval()
    found = workload.scores("test", workload.loss_sums(model, workload.test))
    total, count = 0.0, 0
    with torch.no_grad():
        for source, target in workload.test.chunks():
            before = torch.cat((torch.full_like(target[:, :1], BEGIN), target[:, :-1]), 1)
            logits = model(source, before).flatten(0, 1)
            total += float(cross_entropy(logits, target.flatten(), ignore_index=0, reduction="sum"))
            count += int((target != PAD).sum())
    assert found["test_loss"] == pytest.approx(total / count, rel=1e-5)


def test_a_loss_for_images_is_refused() -> None:
    with pytest.raises(ValueError, match="SAF is a loss for images"):
        training_of(a_run({"name": "SAF"}))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (tiny_texts.split(0, 0), "no sentences in 'valid'"),
        (Split(["haus " * 1024], ["house"], ["house"]), "in 'valid' has 1025 pieces"),
    ],
)
def test_what_cannot_be_read_is_refused_before_training(part: Split, message: str) -> None:
    whole = tiny_texts.split(40, 0)
    texts = texts_of(Corpus("tiny", whole, part, whole), pieces=40)
    with pytest.raises(ValueError, match=message):
        SentenceWorkload(a_run().task, texts, 0)


SELDOM = RunOptions(accelerator="cpu", checkpoint_seconds=1e9, checkpoint_steps=3)
"""A kill mostly comes between two checkpoints: some steps are taken again."""
SLOWLY = pytest.mark.timeout(900)


def killed_run(same_rng: bool) -> Run:
    """Dropout, label smoothing, an averaged slope, Adam's moments, a rate that rises and falls."""
    task = {**TINY_TEXTS, "batch": 100, "epochs": 3, "label_smoothing": 0.1}
    method = {
        **{"name": "VaSSO", "rho": 0.05, "theta": 0.4, "same_rng": same_rng},
        **{"base": "AdamW", "lr": 5e-3, "beta2": 0.98, "weight_decay": 1e-4},
        **{"schedule": "inverse-sqrt", "warm_up": 10},
    }
    return Run.of({"task": task, "method": method})


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=[pytest.mark.slow, SLOWLY])])
@pytest.mark.parametrize("same_rng", [False, True], ids=["other dropout", "same dropout"])
def test_a_killed_translator_ends_the_same(same_rng: bool, kills: int, tmp_path: Path) -> None:
    run = killed_run(same_rng)
    check_kills(run, tmp_path, kills, seed=kills + same_rng, options=SELDOM)
    for name in ("whole", "killed-0"):
        folder = Store(tmp_path / name).folder(run.id)
        assert folder.result["cost"] == 2 * folder.result["steps"]
    numbers = [
        Store(tmp_path / name).folder(run.id).table(VOCABULARY_FILE)
        for name in ("whole", "killed-0")
    ]
    assert numbers[0] == numbers[1]


CHANGED = ("steps=100", "train_size=8000", "warm_up=40", "test_size=200")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_trains_and_scores_a_translator_and_a_command_uses_it(tmp_path: Path) -> None:
    """A minute: 100 steps of VaSSO on 8,000 captions, then all 1,000 of the test."""
    where = ["--data-root", needing(MULTI30K), "--accelerator", "cpu"]
    study = ["study", "translation", "--seeds", 0, "--only", "theta-0.9", "--set", *CHANGED]
    done = in_a_process(*study, *where, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("BLEU", "perplexity", "VaSSO rho=0.1 theta=0.9"))
    (folder,) = Store(tmp_path / "runs").folders()
    assert folder.result is not None
    (row,) = folder.measurement("bleu", {"beam": 5, "length_penalty": 1.0, "sentences": 0})
    assert row["sentences"] == 1000
    assert 0 < row["bleu"] < 100
    assert row["perplexity"] == folder.result["last"]["validation_perplexity"]
    assert row["perplexity"] < 250  # a tenth of the 2,504 of a model that knows nothing
    assert folder.result["cost"] == 200

    said = in_a_process("translate", folder.id, "ein mann", "Zwei Hunde.", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("a man")
    assert in_a_process("translate", folder.id, cwd=tmp_path).returncode == 2
