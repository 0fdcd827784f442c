"""Scale `paper` of the translation studies is fairseq's recipe: what is built, not what is written.

The recipe is that of fairseq's example for IWSLT-14 German to English, which the paper follows:
`--arch transformer_iwslt_de_en --share-decoder-input-output-embed --optimizer adam
--adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 5e-4 --lr-scheduler inverse_sqrt
--warmup-updates 4000 --dropout 0.3 --weight-decay 0.0001
--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 4096`, then
`--beam 5 --remove-bpe`.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.lab.calls import in_a_process
from tests.lab.translation.test_corpora import official_iwslt14
from vasso.lab.experiment.run import Run
from vasso.lab.store.store import Store
from vasso.lab.studies import study as studies
from vasso.lab.studies.bleu import Bleu
from vasso.lab.studies.measurement_settings import parse_settings
from vasso.lab.translation import transformer

RECIPE = {
    "task": {
        **{"data": "iwslt14", "model": "transformer-iwslt", "pieces": 10_000, "batch": 4096},
        **{"label_smoothing": 0.1, "train_size": None, "steps": None, "precision": "32-true"},
    },
    "method": {
        **{"base": "AdamW", "lr": 5e-4, "beta1": 0.9, "beta2": 0.98, "weight_decay": 1e-4},
        **{"schedule": "inverse-sqrt", "warm_up": 4000, "per": "step", "clip_norm": None},
        **{"average_from": None},
    },
}
METHODS = ["AdamW", *(f"SAM rho={rho}" for rho in (0.01, 0.05, 0.1, 0.2)), "ASAM rho=0.1"]
METHODS += ["VaSSO rho=0.1 theta=0.9", "VaSSO rho=0.1 theta=0.4"]
SIZES = {"source": 8848, "target": 6632}
"""Of fairseq's dictionaries."""


def runs_of(name: str) -> tuple[Run, ...]:
    return studies.load(name).at("paper").runs


@pytest.mark.parametrize("name", ["translation", "m-sharpness"])
def test_every_run_has_the_settings_of_the_recipe(name: str) -> None:
    for run in runs_of(name):
        full = run.in_full()
        for kind, settings in RECIPE.items():
            found = {key: full[kind][key] for key in settings}
            assert found == settings, run.id


def test_the_methods_are_those_of_table_4_with_three_seeds_each() -> None:
    found = [(run.method.label, run.seed) for run in runs_of("translation")]
    assert sorted(found) == sorted((label, seed) for label in METHODS for seed in range(3))
    assert not any(run.method.same_rng for run in runs_of("translation"))  # as fairseq would


@pytest.fixture(scope="module")
def built() -> transformer.Transformer:
    """The model of the study, without memory for its weights."""
    task = runs_of("translation")[0].task
    with torch.device("meta"):
        return transformer.build(task.model, **SIZES, dropout=task.dropout, seed=None)


def test_the_model_is_transformer_iwslt_de_en(built: transformer.Transformer) -> None:
    assert sum(p.numel() for p in built.parameters()) == 39_469_056  # as fairseq counts
    assert (len(built.encoder), len(built.decoder)) == (6, 6)
    for layer in (*built.encoder, *built.decoder):
        rising, between, falling = layer.feed_forward
        assert (rising.in_features, rising.out_features, falling.out_features) == (512, 1024, 512)
        assert isinstance(between, nn.ReLU)
        assert layer.attention.heads == 4
    assert {m.p for m in built.modules() if isinstance(m, nn.Dropout)} == {0.3}
    names = [name for name, _ in built.named_parameters()]
    assert [n for n in names if "vectors" in n] == [
        "source.vectors.weight",
        "target.vectors.weight",
    ]


@pytest.mark.parametrize("label", METHODS)
def test_the_optimizer_is_adam_with_decoupled_decay_on_all_weights(label: str) -> None:
    """fairseq's `adam` decays as AdamW does, and spares no tensor."""
    (run,) = (r for r in runs_of("translation") if r.method.label == label and r.seed == 0)
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    optimizer: Any = run.method.build(model, total=100)
    base = getattr(optimizer, "base", optimizer)
    assert type(base) is torch.optim.AdamW
    (group,) = base.param_groups
    assert len(group["params"]) == len(list(model.parameters()))
    assert (group["betas"], group["weight_decay"], group["eps"]) == ((0.9, 0.98), 1e-4, 1e-8)
    assert not group["amsgrad"]


def test_the_rate_rises_for_4000_updates_and_falls_as_one_over_the_root() -> None:
    """fairseq's rate before update t is one step of the rise behind ours, and the same after it."""
    rate = runs_of("translation")[0].method.learning_rate(total=55_000, per_epoch=1100)
    for t in (0, 1, 17, 2000, 3999):
        assert rate(t) - 5e-4 * t / 4000 == pytest.approx(5e-4 / 4000, rel=1e-9)
    for t in (4000, 4001, 16_000, 54_999):
        assert rate(t) == pytest.approx(5e-4 * math.sqrt(4000 / t), rel=1e-12)


@pytest.mark.parametrize("name", ["translation", "m-sharpness"])
def test_bleu_is_of_a_beam_of_5_over_the_whole_test(name: str) -> None:
    study = studies.load(name)
    scale = study.at("paper")
    found = parse_settings(study.measure, scale.measurement, scale.runs, name)
    assert found == Bleu(beam=5, length_penalty=1.0, sentences=0)


def vasso(*words: object, cwd: Path) -> str:
    done = in_a_process(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("steps", "changed"), [(3, ["model=transformer-small"]), (1, [])], ids=["small", "the model"]
)
def test_a_few_steps_go_by_the_recipe(steps: int, changed: list[str], tmp_path: Path) -> None:
    """On a corpus in the form of the official one, by a smaller copy and by the model itself."""
    official_iwslt14(tmp_path)
    words = ["study", "translation", "--scale", "paper", "--seeds", 0, "--only", "theta-0.4"]
    words += ["--set", f"steps={steps}", "pieces=300", *changed]
    where = ["--data-root", tmp_path, "--store", tmp_path / "runs", "--accelerator", "cpu"]
    result = vasso(*words, *where, cwd=Path.cwd())
    (folder,) = Store(tmp_path / "runs").folders()
    assert result.count("VaSSO") == 1  # a line of the table of BLEU
    (bleu,) = folder.measurement("bleu", {"beam": 5, "length_penalty": 1.0, "sentences": 0})
    row = {**folder.metrics("epoch")[-1], **bleu}
    assert row["lr"] == pytest.approx(5e-4 * steps / 4000)
    assert (row["step"], row["cost"], row["skipped"]) == (steps, 2.0 * steps, 0)
    assert row["sentences"] == 10
    assert math.isfinite(row["validation_perplexity"])
