"""Language models and LoRA in the lab: model, texts, what is trained, resumed and reported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.lab.runs import CPU, assert_same, check_kills, train_to, training_of, weights
from tests.lab.translation import tiny_texts
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.task import Task
from vasso.lab.report.cells import NUMBERS
from vasso.lab.report.findings import findings
from vasso.lab.store.store import Store
from vasso.lab.studies import study as studies
from vasso.lab.training import sentences, setup
from vasso.lab.training.loop import train
from vasso.lab.training.options import RunOptions
from vasso.lab.training.sentences import trained_weights
from vasso.lab.translation.language_model import LoraLinear, add_lora, build, english_alone
from vasso.lab.translation.pieces import BEGIN, PAD, UNKNOWN

TEXTS = "tests.lab.translation.tiny_texts:texts"
TINY = {"data": TEXTS, "model": "gpt-tiny", "batch": 200, "epochs": 2, "dropout": 0.1}
LORA = {**TINY, "pretrain": TEXTS, "pretrain_epochs": 1, "rank": 2}
ADAM = {"base": "AdamW", "lr": 5e-3, "warm_up": 2}
PRECONDITIONED = {"name": "Functional-SAM, preconditioned", "rho": 0.05}
METHODS = [
    pytest.param(TINY, {"name": "Functional-SAM", "rho": 0.05}, 2, id="Functional-SAM"),
    pytest.param(TINY, PRECONDITIONED, 2, id="Functional-SAM, preconditioned"),
    pytest.param(TINY, {"name": "preconditioned SAM", "rho": 0.05}, 2, id="preconditioned SAM"),
    pytest.param(LORA, {"name": "VaSSO", "rho": 0.05}, 2, id="VaSSO"),
    pytest.param(LORA, {"name": "nBAR", "alpha": "linear(2.0, 0.0, 10)"}, 1, id="nBAR"),
    pytest.param(LORA, {"name": "Bi-LoRA", "rho": 0.05}, 1, id="Bi-LoRA"),
    pytest.param(LORA, {"name": "Flat-LoRA", "rho": 0.05}, 1, id="Flat-LoRA"),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are trained before are kept with the data."""
    monkeypatch.setenv("VASSO_DATA", str(tmp_path / "data"))


def a_run(task: dict[str, Any], method: dict[str, Any], seed: int = 0) -> Run:
    return Run.of({"task": task, "method": {**ADAM, **method}, "seed": seed})


def a_model() -> nn.Module:
    return build("gpt-tiny", entries=16, dropout=0.0, seed=0).double()


# -- the model -------------------------------------------------------------------------------------


def test_no_piece_reads_a_later_one() -> None:
    """The scores of a piece are those of the sentence cut before it: no masks, no padding."""
    model, before = a_model(), torch.randint(4, 16, (3, 9), generator=torch.Generator())
    whole = model(before[:, :0], before)
    for length in (1, 4, 8):
        cut = model(before[:, :0], before[:, :length])
        torch.testing.assert_close(whole[:, :length], cut, rtol=1e-10, atol=1e-12)


def test_the_loss_is_that_of_english_alone_sentence_by_sentence() -> None:
    training = training_of(
        a_run({**TINY, "dropout": 0.0, "precision": "64-true"}, {"name": "AdamW"})
    )
    source, target, share = training.batches.at(0)
    assert source.shape == (len(target), 0)
    total = torch.zeros((), dtype=torch.float64)
    for row in target:
        pieces = row[row != PAD]
        before = torch.cat((torch.tensor([BEGIN]), pieces[:-1]))[None]
        total += cross_entropy(training.bare(before[:, :0], before)[0], pieces, reduction="sum")
    found = training._losses_at(training.bare, source, target, share).mean()
    assert found.item() == pytest.approx(total.item() / int((target != PAD).sum()), rel=1e-10)


def test_an_epoch_has_every_english_sentence_once() -> None:
    training = training_of(a_run(TINY, {"name": "AdamW"}))
    seen = [training.batches.at(step)[1] for step in range(training.per_epoch)]
    found = sorted([n for n in row if n != PAD] for rows in seen for row in rows.tolist())
    side = tiny_texts.texts().train.target
    asked = side.padded(torch.arange(len(side))).tolist()
    assert found == sorted([n for n in row if n != PAD] for row in asked)


# -- adapters --------------------------------------------------------------------------------------


def test_adapters_begin_as_nothing_and_are_all_that_is_trained(tmp_path: Path) -> None:
    run, store = a_run(LORA, {"name": "AdamW"}), Store(tmp_path / "store")
    base = trained_weights(run.task)
    model = training_of(run).bare
    x = torch.randint(4, 16, (2, 5))
    plain = build("gpt-tiny", entries=len(tiny_texts.texts().target), dropout=0.1, seed=1)
    plain.load_state_dict(base)
    assert torch.equal(model.eval()(x[:, :0], x), plain.eval()(x[:, :0], x))
    train(run, store, CPU)
    after = weights(store, run)
    factors = {name for name in after if "lora" in name}
    assert len(factors) == 2 * sum(isinstance(m, nn.Linear) for m in plain.modules())
    assert {name for name in after if name not in factors} == set(base)
    assert_same({name: after[name] for name in base}, base)
    assert all(after[name].any() for name in factors)


def test_an_adapter_adds_its_product() -> None:
    layer = LoraLinear(nn.Linear(5, 3), rank=2, alpha=4.0).double()
    nn.init.normal_(layer.lora_B)
    x = torch.randn(7, 5, dtype=torch.float64)
    merged = layer.weight + 2.0 * layer.lora_B @ layer.lora_A
    torch.testing.assert_close(layer(x), x @ merged.mT + layer.bias, rtol=1e-12, atol=1e-12)
    assert [p.requires_grad for p in layer.parameters()] == [False, False, True, True]


def test_factors_depend_on_the_seed_and_take_no_random_numbers() -> None:
    state = torch.get_rng_state()
    one, same, other = (add_lora(a_model(), rank=2, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(one, same)
    differ = {name for name in one if not torch.equal(one[name], other[name])}
    assert differ == {name for name in one if name.endswith("lora_A")}


def test_a_model_is_trained_before_once_and_is_part_of_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = a_run(LORA, {"name": "AdamW"})
    first = trained_weights(run.task)
    digest = training_of(run).workload.data_digest
    with monkeypatch.context() as patch:
        patch.setattr(sentences, "_trained", None)
        assert_same(trained_weights(run.task), first)  # read, not made
    other = a_run({**LORA, "pretrain_epochs": 2}, {"name": "AdamW"})
    assert training_of(other).workload.data_digest != digest
    fresh = build("gpt-tiny", entries=len(tiny_texts.texts().target), dropout=0.1, seed=0)
    assert not torch.equal(first["text.vectors.weight"], fresh.text.vectors.weight)


def other_words(seed: int) -> object:
    from vasso.lab.translation.corpora import Corpus, Split
    from vasso.lab.translation.pairs import texts_of

    lines = Split(["rot", "hund haus"], ["red", "dog zebra"], ["red", "dog zebra"])
    return texts_of(Corpus("other", lines, lines, lines), pieces=4)


def test_sentences_are_in_the_pieces_of_the_corpus_before() -> None:
    """Letters that it has not seen are unknown."""
    before: Any = tiny_texts.texts()
    task = Task.of({**LORA, "data": f"{__name__}:other_words"})
    found: Any = setup.load_data(task, 0)
    assert found.vocabulary.as_table() == before.vocabulary.as_table()
    numbers = found.train.target.padded(torch.arange(2)).tolist()
    assert before.target.text(numbers[0]) == "red"
    assert before.target.text(numbers[1]).split()[0] == "dog"
    assert UNKNOWN in numbers[1]
    assert not found.train.source.lengths.any()


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "method", "price"), METHODS)
def test_a_stopped_run_ends_as_if_it_had_not_been(
    task: dict[str, Any], method: dict[str, Any], price: int, tmp_path: Path
) -> None:
    run = a_run(task, method)
    whole, torn = Store(tmp_path / "whole"), Store(tmp_path / "torn")
    result = train(run, whole, CPU)
    train_to(run, torn, 1, result["steps"] // 2 + 1)
    again = train(run, torn, CPU)
    assert_same(weights(whole, run), weights(torn, run))
    assert again["last"] == result["last"]
    assert again["cost"] == result["cost"] == price * result["steps"]


@pytest.mark.slow
def test_a_killed_language_model_ends_the_same(tmp_path: Path) -> None:
    seldom = RunOptions(accelerator="cpu", checkpoint_seconds=1e9, checkpoint_steps=3)
    check_kills(a_run({**TINY, "batch": 100}, PRECONDITIONED), tmp_path, 3, 0, seldom)


@pytest.mark.parametrize("data", [TEXTS, "digits"])
def test_functional_sam_of_radius_0_is_the_base(data: str, tmp_path: Path) -> None:
    task = TINY if data == TEXTS else {"train_size": 100, "batch": 25, "epochs": 1}
    runs = [a_run(task, {"name": "AdamW"}), a_run(task, {"name": "Functional-SAM", "rho": 0.0})]
    for run in runs:
        train(run, Store(tmp_path), CPU)
    assert_same(*(weights(Store(tmp_path), run) for run in runs))


def test_the_logits_keep_their_gradient_in_functional_sam() -> None:
    """The gradient at w + epsilon is J^T v with the v of w, for a batch of sentences, by hand."""
    run = a_run({**TINY, "dropout": 0.0}, {"name": "Functional-SAM", "rho": 0.3, "lr": 0.0})
    training = training_of(run)
    model, batch = training.bare, training.batches.at(0)
    z = training.workload.outputs(model, *batch)
    v = torch.autograd.grad(training.workload.losses_of(z, *batch).mean(), z)[0]
    params = [p for p in model.parameters() if p.requires_grad]
    z = training.workload.outputs(model, *batch)
    g = torch.autograd.grad(z, params, v)
    length = torch.stack([x.norm() for x in g]).norm()
    with torch.no_grad():
        kept = [p.clone() for p in params]
        for p, x in zip(params, g, strict=True):
            p.add_(x, alpha=0.3 / float(length))
    u = torch.autograd.grad(training.workload.outputs(model, *batch), params, v)
    with torch.no_grad():
        for p, x in zip(params, kept, strict=True):
            p.copy_(x)
    training.learning_rate = lambda step: 0.0  # type: ignore[assignment]
    training.take_step()
    for p, x in zip(params, u, strict=True):
        torch.testing.assert_close(p.grad, x, rtol=1e-3, atol=1e-6)


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nBAR is for LoRA adapters: give the task .* rank=4"):
        a_run(TINY, {"name": "nBAR"})
    with pytest.raises(ValueError, match="rank is for language models, not for transformer-small"):
        Task.of({"data": "multi30k", "model": "transformer-small", "rank": 4})
    with pytest.raises(ValueError, match=r"no corpus is called 'multi40k'. Did you mean"):
        Task.of({**LORA, "pretrain": "multi40k"})
    with pytest.raises(ValueError, match="rank has no effect on images such as digits"):
        Task.of({"data": "digits", "rank": 4})
    whole = RunOptions(accelerator="cpu", micro_batch=4)
    with pytest.raises(ValueError, match="keeps the gradient of the outputs of a whole batch"):
        train(a_run(TINY, PRECONDITIONED), Store(tmp_path), whole)


def test_texts_without_sources_have_the_same_english() -> None:
    texts = tiny_texts.texts()
    alone = english_alone(texts)
    for name in ("train", "valid", "test"):
        one, two = getattr(texts, name), getattr(alone, name)
        assert torch.equal(one.target.numbers, two.target.numbers)
        assert len(two) == len(one)


# -- studies ---------------------------------------------------------------------------------------

STUDY = f"""
question = "Does it help?"
measure = "loss"
[cpu]
seeds = 3
task = {{ data = "{TEXTS}", model = "gpt-tiny", batch = 400, epochs = 1 }}
method = {{ base = "AdamW", lr = 5e-3 }}
[[cpu.grid]]
methods = [{{ name = "AdamW" }}, {{ name = ["SAM", "Functional-SAM"], rho = [0.01, 10.0] }}]
"""


def test_a_study_of_language_models_is_compared_by_loss_where_less_is_better(
    tmp_path: Path,
) -> None:
    file, store = tmp_path / "mine.toml", Store(tmp_path / "store")
    file.write_text(STUDY)
    for run in studies.load(str(file)).at("cpu").runs:
        train(run, store, CPU)
    (one,) = findings(store.root, [str(file)]).results
    assert {name: pick.cell.rho for name, pick in one.picks[0].items()} == {
        "AdamW": None, "SAM": 0.01, "Functional-SAM": 0.01
    }  # fmt: skip
    assert {c.metric.name for c in one.comparisons} == {"test_loss"}
    names = [column.name for column in one.section.tables[0].columns(one.section.criteria)]
    assert names == ["test_loss", "test_perplexity", "validation_loss"]
    trained = one.section.cells[0].finished[0]
    result = store.folder(trained.run.id).result
    assert NUMBERS["test_loss"](trained) == pytest.approx(result["last"]["test_loss"], rel=1e-12)


IDS = {
    "language-model": [
        "multi30k-gpt-tiny-adamw-s0-347b905495",
        "multi30k-gpt-tiny-sam-rho-0.003-s0-d3d44c1134",
    ],
    "lora": ["multi30k-gpt-tiny-adamw-s0-0272922990"],
}


@pytest.mark.parametrize("study", IDS)
def test_runs_of_the_studies_keep_their_ids(study: str) -> None:
    found = {run.id for run in studies.load(study).at("cpu").runs}
    assert set(IDS[study]) <= found
