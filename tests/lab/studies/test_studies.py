"""Studies: every file is read and expanded; settings and figures are those of the paper."""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vasso
from tests.lab.conftest import needing
from vasso.lab.data import cifar
from vasso.lab.experiment.method import MethodConfig, trainable
from vasso.lab.experiment.run import Run
from vasso.lab.schema import UnsupportedError
from vasso.lab.store.store import Store
from vasso.lab.studies import study as studies
from vasso.lab.training.loop import train
from vasso.lab.training.options import RunOptions

NAMES = [
    "cifar10",
    "cifar100",
    "friendly-adversary",
    "hessian",
    "imagenet",
    "label-noise",
    "label-noise-human",
    "language-model",
    "lora",
    "m-sharpness",
    "noisy-adversary",
    "normalisation",
    "radius",
    "radius-mlp",
    "snr",
    "sphere",
    "translation",
]
AT_CPU_ALONE = [
    "frontier",
    "hessian-equal-loss",
    "noisy-digits",
    "noisy-digits-radius",
    "slope-bfloat16",
]
"""Of ours, at a single scale; for those of the demo see test_demo."""
CPU = RunOptions(accelerator="cpu", workers=0)


def test_there_is_a_study_for_every_table_and_figure() -> None:
    assert studies.names() == sorted([*NAMES, *AT_CPU_ALONE])
    shown = {studies.load(name).shows for name in NAMES}
    tables = {f"Table {i}" for i in range(1, 7)}
    figures = {"Figure 1a", "Figure 1b", "Figure 1c", "Figure 2a to 2d", "Figure 2e"}
    assert shown == tables | figures | {""}


SCALES_OF = [(name, scale) for name in NAMES for scale in studies.load(name).scales]


@pytest.mark.parametrize(("name", "scale"), SCALES_OF)
def test_every_study_expands_at_its_scales(name: str, scale: str) -> None:
    study = studies.load(name)
    assert {"paper", "cpu"} <= study.scales.keys()
    runs = study.at(scale).runs
    assert study.question.endswith("?")
    study.check_supported(scale)
    assert len({run.id for run in runs}) == len(runs)
    assert bool(runs) == (name != "sphere")
    if scale != "cpu":
        assert study.at(scale).open
    for run in runs:
        assert Run.of(run.in_full()) == run


def test_what_cannot_be_measured_says_so() -> None:
    text = 'question = "Which?"\nmeasure = "colour"\n[cpu]\nseeds = 1\ngrid = []\n'
    with pytest.raises(UnsupportedError, match="not supported yet"):
        studies.read(text, "mine", "here").check_supported("cpu")


def settings(name: str, **wanted: Any) -> list[Run]:
    runs = studies.load(name).at("paper").runs
    return [r for r in runs if all(vars(r.task).get(k, None) == v for k, v in wanted.items())]


def test_table_1_is_run_as_the_paper_says() -> None:
    runs = settings("cifar10", model="resnet18", epochs=200)
    methods = {run.method.label: run.method for run in runs}
    assert set(methods) == {
        "SGD", *(f"SAM rho={rho}" for rho in (0.01, 0.05, 0.1, 0.2, 0.5)), "ASAM rho=0.1",
        "FisherSAM rho=0.1", "VaSSO rho=0.1 theta=0.4", "VaSSO rho=0.1 theta=0.9"
    }  # fmt: skip
    twice = settings("cifar10", model="resnet18", epochs=400)
    assert {run.method.label for run in twice} == {"SGD"}
    assert methods["SGD"].weight_decay == 5e-4
    assert methods["VaSSO rho=0.1 theta=0.4"].weight_decay == 1e-3
    assert {m.lr for m in methods.values()} == {0.05}
    assert {(r.task.epochs, r.task.batch, r.task.cutout) for r in runs} == {(200, 128, 16)}
    pyramid = settings("cifar10", model="pyramidnet110")
    assert {(r.task.epochs, r.task.batch, r.method.lr) for r in pyramid} == {(300, 256, 0.1)}
    labels = {r.method.label for r in pyramid}
    assert "VaSSO rho=0.2 theta=0.9" in labels
    vgg = {r.method.label for r in settings("cifar10", model="vgg11_bn")}
    assert "VaSSO rho=0.05 theta=0.9" in vgg


def test_table_6_is_run_as_the_paper_says() -> None:
    runs = studies.load("label-noise").at("paper").runs
    found = Counter((run.task.wrong, run.method.label) for run in runs)
    methods = ["SAM rho=0.1", *(f"VaSSO rho=0.1 theta={theta}" for theta in (0.9, 0.4, 0.2))]
    expected = dict.fromkeys(methods, 3) | {"SGD": 6}  # once for as many steps, once as gradients
    assert found == {(w, m): n for w in (0.25, 0.5, 0.75) for m, n in expected.items()}
    assert {run.task.model for run in runs} == {"resnet18"}


@pytest.mark.parametrize("name", NAMES)
def test_published_figures_have_a_source_and_name_runs_of_the_study(name: str) -> None:
    study = studies.load(name)
    methods = {r.method.name if r.method.name != "plain" else r.method.base
               for r in study.at("paper").runs}  # fmt: skip
    models = {run.task.model for run in study.at("paper").runs}
    for known in study.known:
        assert known["source"]
        assert known["measure"]
        for figure in known["figures"]:
            assert isinstance(figure["mean"], float)
            assert figure.get("model") in {None, *models}
            frontier = "gradients" in figure
            assert frontier or figure.get("method") in {None, *methods}


def test_published_figures_are_those_of_the_paper() -> None:
    def mean(study: str, source: int = 0, **wanted: Any) -> float:
        rows = studies.load(study).known[source]["figures"]
        (row,) = (r for r in rows if all(r.get(k) == v for k, v in wanted.items()))
        return float(row["mean"])

    assert mean("cifar10", model="resnet18", method="VaSSO") == 96.77
    assert mean("cifar10", 1, method="SAM") == 96.72
    assert mean("cifar100", model="wrn28_10", method="VaSSO") == 85.06
    assert mean("cifar100", 1, method="VaSSO", theta=0.4) == 84.67
    assert mean("imagenet", model="vit_s32", method="VaSSO+GSAM") == 69.61
    assert mean("label-noise", wrong=0.75, method="SAM") == 75.36
    assert mean("label-noise", wrong=0.75, theta=0.2) == 85.02
    assert mean("translation", theta=0.4) == 34.88
    assert mean("hessian", method="VaSSO") == 23.32


def read(text: str) -> studies.Study:
    return studies.read(text, "mine", "mine.toml")


ONE = 'question = "?"\n[cpu]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question = ", "mine.toml is not TOML"),
        ("[cpu]\n", "mine.toml has no question"),
        ('question = "?"\n', "mine.toml has no scale"),
        ('question = "?"\n[cpi]\n', "mine.toml has no 'cpi'. Did you mean 'cpu'?"),
        (ONE + "seed = 3\n", "mine.toml, cpu has no 'seed'. Did you mean 'seeds'?"),
        (ONE + "seeds = 0\n[[cpu.grid]]\n",
         "seeds must be a number above 0 or a list of seeds, got 0"),
        (ONE + "task = { epoch = 3 }\n[[cpu.grid]]\n",
         "has no setting 'epoch'. Did you mean 'epochs'?"),
        (ONE + "task = { epochs = [1, 0] }\n[[cpu.grid]]\n", "epochs must be at least 1, got 0"),
        (ONE + "seeds = 10\n", "mine.toml, cpu has no grid, which says what is trained: add [["),
        (ONE + "task = { epochs = 3 }\nmethod = { lr = 0.1 }\n", "cpu has no grid"),
        (ONE + "[[cpu.grid]]\nmethods = [{ name = 'SAMM' }]\n", "Did you mean 'SAM'?"),
        (ONE + "[[cpu.grid]]\nmethods = [{ name = 'SAMM' }]\n",
         "mine.toml, cpu, grid 1, method: no method is called 'SAMM'"),
        (ONE + "[[cpu.grid]]\n[[cpu.grid]]\nmethods = [{ name = 'SAM', rhoo = 1 }]\n",
         "mine.toml, cpu, grid 2, method: "),
        (ONE + "task = { data = 'digts' }\n[[cpu.grid]]\n",
         "mine.toml, cpu, grid 1, task: no data is called 'digts'. Did you mean 'digits'?"),
        (ONE + "[[cpu.grid]]\nmethods = [{ name = 'SAM', rho = -1 }]\n", "rho must be at least 0"),
        (ONE + "[[cpu.grid]]\nmethods = 'SAM'\n", "grid 1, methods must be a list of tables"),
        (ONE + "grid = 3\n",
         "mine.toml, cpu, grid must be a list of tables, such as [{...}], got 3"),
        (ONE + "task = 3\n", "mine.toml, cpu, task must be a table of settings, got 3"),
        ('question = "?"\ncpu = 5\n', "mine.toml, cpu must be a table of settings, got 5"),
        (ONE + "[[cpu.grid]]\nmethod = [{ name = 'SAM' }]\n", "Did you mean 'methods'?"),
        (ONE + "[[cpu.grid]]\nmethods = []\n", "mine.toml, cpu, grid 1 has an empty list"),
        (ONE + "[[cpu.grid]]\ntask = { batch = [] }\n", "mine.toml, cpu, grid 1 has an empty list"),
        (ONE + "seeds = 100001\n[[cpu.grid]]\n", "grid 1 has 100,001 runs, at most 100,000"),
        (ONE + "seeds = 1001\n[[cpu.grid]]\ntask = { batch = [5, 6], epochs = [1, 2, 3, 4, 5],"
         " wrong = [0.1, 0.2, 0.3, 0.4, 0.5] }\nmethods = [{ name = 'SGD' }, { name = 'SAM' }]\n",
         "grid 1 has 100,100 runs, at most 100,000"),
        ('question = "?"\nmeasure = [1]\n', "mine.toml, measure must be text, got [1]"),
        ('question = "?"\nknown = 1\n', "mine.toml, known must be a list of tables"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read(text)


def test_a_file_that_is_nested_too_deeply_is_no_toml() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # the usual one; other tests may have raised it
    try:
        with pytest.raises(ValueError, match=r"mine.toml is not TOML: it is nested too deeply"):
            read("question = " + 3000 * "[" + 3000 * "]")
    finally:
        sys.setrecursionlimit(limit)


def test_a_scale_without_a_grid_may_name_its_method() -> None:
    (run,) = read(ONE + "method = { name = 'SAM' }\n").at("cpu").runs
    assert run.method.name == "SAM"


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=f"{path} is not TOML, which is text in UTF-8"):
        studies.load(str(path))


@pytest.mark.parametrize("name", ["t/ok", "t/noisy.txt", "ok", "noisy.txt", "t/none"])
def test_a_file_ends_in_toml(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").mkdir()
    for path in ("ok.toml", "t/ok.toml", "noisy.txt", "t/noisy.txt"):
        (tmp_path / path).write_text(ONE)
    monkeypatch.chdir(tmp_path)
    toml = Path(name).with_suffix(".toml")
    message = f"no study is called {name!r}.* has to end in .toml, as {str(toml)!r} does"
    with pytest.raises(ValueError, match=message):
        studies.load(name)


def test_a_grid_is_every_combination_once() -> None:
    study = read(
        ONE + "seeds = [1, 5]\nmethod = { lr = 0.1 }\n"
        "[[cpu.grid]]\ntask = { wrong = [0.0, 0.5] }\n"
        "methods = [{ name = 'SGD', lr = 0.2 }, { name = 'SAM', rho = [0.1, 0.2] }]\n"
        "[[cpu.grid]]\nmethods = [{ name = 'SAM', rho = 0.1 }]\n"
    )
    runs = study.at("cpu").runs
    assert len(runs) == 2 * 3 * 2
    assert {(run.method.label, run.method.lr) for run in runs} == {
        ("SGD", 0.2),
        ("SAM rho=0.1", 0.1),
        ("SAM rho=0.2", 0.1),
    }
    assert {run.seed for run in runs} == {1, 5}


def test_a_setting_changes_every_run_that_has_it() -> None:
    runs = studies.load("label-noise").at("cpu").runs
    changed = studies.changed(runs, {"epochs": 3, "theta": 0.5})
    assert {run.task.epochs for run in changed} == {3}
    assert {dict(r.method.settings).get("theta") for r in changed} == {None, 0.5}
    with pytest.raises(ValueError, match="there is no setting 'tehta'"):
        studies.changed(runs, {"tehta": 0.5})


PARAMETERS = {
    ("cifar10", "vgg11_bn"): 28_149_514,
    ("cifar10", "resnet18"): 11_173_962,
    ("cifar10", "wrn28_10"): 36_479_194,
    ("cifar10", "pyramidnet110"): 28_485_477,
    ("cifar100", "resnet18"): 11_220_132,
    ("cifar100", "resnet34"): 21_328_292,
    ("cifar100", "wrn28_10"): 36_536_884,
    ("cifar100", "pyramidnet110"): 28_511_307,
    ("imagenet", "resnet50"): 25_557_032,
    ("imagenet", "vit_s32"): 22_878_952,
}


REAL = {"cifar10": cifar.FOLDER10, "cifar100": cifar.FOLDER100}


def paper_runs() -> list[Run]:
    found: dict[tuple[str, str], Run] = {}
    for name in NAMES:
        for run in studies.load(name).at("paper").runs:
            key = run.task.data, run.task.model
            if key in PARAMETERS and (run.method.name == "VaSSO" or key not in found):
                found[key] = run
    assert found.keys() == PARAMETERS.keys()
    return list(found.values())


def with_vasso(run: Run) -> Run:
    if run.method.name == "VaSSO":
        return run
    table = {**run.method.as_table(), "name": "VaSSO", "rho": 0.1, "theta": 0.4}
    return Run(run.task, MethodConfig.of(table), run.seed)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like ImageNet's: a thousand classes, an image or two of each."""
    root = tmp_path_factory.mktemp("pictures")
    colours = torch.Generator().manual_seed(0)
    for part, count in (("train", 2), ("val", 1)):
        for number in range(1000):
            folder = root / "imagenet" / part / f"n{number:08d}"
            folder.mkdir(parents=True)
            for image in range(count):
                rgb = tuple(torch.randint(256, (3,), generator=colours).tolist())
                Image.new("RGB", (40, 30), rgb).save(folder / f"{image}.jpeg")
    return root


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", paper_runs(), ids=lambda r: f"{r.task.data}-{r.task.model}")
def test_every_network_of_the_paper_starts(run: Run, tmp_path: Path, pictures: Path) -> None:
    """Two steps at full size; the batch and the test are cut to what takes seconds."""
    short = with_vasso(run).changed({"batch": 4, "steps": 2, "test_size": 4, "validation": 0})
    data = run.task.data
    root = pictures if data == "imagenet" else needing(REAL[data])
    result = train(
        short, Store(tmp_path), RunOptions(accelerator="cpu", data_root=root, workers=0), None
    )
    assert result["steps"] == 2
    assert result["cost"] == 4.0
    assert result["parameters"] == PARAMETERS[data, run.task.model]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", *trainable()])
def test_every_method_starts_on_the_smallest_network(name: str, tmp_path: Path) -> None:
    example = {} if name == "plain" else dict(vasso.methods()[name].example)
    example.pop("total", None)
    method = {"name": name, **example, "lr": 0.05, **({"L": 3} if name == "Entropy-SGD" else {})}
    task = {"data": "cifar10", "model": "resnet8", "crop": 4, "flip": True, "cutout": 16}
    short = {"train_size": 200, "batch": 16, "steps": 2, "test_size": 50}
    run = Run.of({"task": {**task, **short}, "method": method})
    result = train(
        run, Store(tmp_path), RunOptions(accelerator="cpu", data_root=needing(cifar.FOLDER10))
    )
    assert result["steps"] == 2
    assert result["skipped"] == 0
