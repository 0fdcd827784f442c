"""`vasso probe`: what it measures is what the diagnostics measure, and it leaves no trace."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.diagnostics.nets import CtrlC, batches, interrupted, net, nothing_touched
from tests.lab.calls import called
from vasso.diagnostics.equal_effect import EqualEffect
from vasso.diagnostics.figures.style import save
from vasso.diagnostics.friendliness import friendliness
from vasso.diagnostics.passes import OfModel
from vasso.diagnostics.snr import snr
from vasso.lab import exits
from vasso.lab.certificate import certificate
from vasso.lab.how import How
from vasso.lab.probe_pictures import draw, figures_of
from vasso.lab.probe_reading import results_of
from vasso.lab.probe_report import document, lines_of, sentences
from vasso.lab.probing import MEASURES, Depth, chosen, probe
from vasso.lab.report.reading import read
from vasso.lab.runs import Run
from vasso.lab.store import Store
from vasso.lab.subject import Amount, Subject, of_function, of_run
from vasso.lab.train import train

SHALLOW: dict[str, Any] = {"steps": 2, "draws": 2, "eigenvalues": 1, "products": 6, "grid": 2}


def subject(model: nn.Module, loss: Any = cross_entropy, count: int = 24) -> Subject:
    amount = Amount(count, others=4, samples=32)
    return of_function("mine", lambda: (model, loss, batches(count + 4)), amount)


def depth(**settings: Any) -> Depth:
    return Depth(rho=0.1, **{"thetas": (1.0, 0.4), "adversaries": 2, **SHALLOW, **settings})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished run, and one that has just begun."""
    store = Store(tmp_path_factory.mktemp("store"))
    task = {"train_size": 600, "validation": 100, "batch": 20, "epochs": 2, "wrong": 0.2}
    run = Run.of({"task": task, "method": {"name": "SAM", "rho": 0.2}})
    how = How(accelerator="cpu")
    train(run, store, how)
    begun = store.folder(run.changed({"seed": 1}).id)
    with begun.locked():
        begun.write_settings({"run": run.in_full(), "certificate": certificate()})
        begun.append({"kind": "epoch", "step": 30})
    return store


def finished(store: Store) -> str:
    return next(folder.id for folder in store.folders() if folder.result is not None)


# -- measuring ------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [None, 1, 30, 120, 300])
def test_nothing_is_touched_also_when_it_is_interrupted(after: int | None, tmp_path: Path) -> None:
    model = net()
    loss = interrupted(10**6 if after is None else after)
    looked_at = subject(model, loss)
    with nothing_touched(model):
        findings = probe(looked_at, depth(), tuple(MEASURES))
    assert findings.interrupted == (after is not None)
    assert (len(findings.results) == len(MEASURES)) == (after is None)
    if after is None:
        drawn = {path.stem for path in draw(findings, tmp_path)}
        assert drawn == MEASURES.keys() - {"snr", "trace"}
    if after == 120:
        assert list(findings.results) == ["snr", "slope"]
        told = json.loads(json.dumps(document(looked_at, depth(), findings)["results"]["snr"]))
        assert told[0]["batches"] == 24


def test_a_loader_of_the_users_is_left_as_it_was() -> None:
    data = [(x, y) for xs, ys in batches(10) for x, y in zip(xs, ys, strict=True)]
    own = torch.Generator().manual_seed(3)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, generator=own)
    before = own.get_state()
    model = net()
    with nothing_touched(model):
        of_function("mine", lambda: (model, cross_entropy, loader), Amount(8, others=2))
    assert torch.equal(own.get_state(), before)


def test_it_measures_what_the_diagnostics_measure() -> None:
    model, some = net(), batches(28)
    found = probe(subject(model), depth(), ["snr", "friendliness"]).results
    assert found["snr"] == [snr(model, cross_entropy, some[4:])]
    for theta, result in zip((1.0, 0.4), found["friendliness"], strict=True):
        settings: dict[str, Any] = {"rho": 0.1, "theta": theta, "adversaries": 2}
        assert result == friendliness(model, cross_entropy, some[4:], some[:4], **settings)


def test_friendliness_is_the_same_with_the_curves_and_without() -> None:
    alone = probe(subject(net()), depth(), ["friendliness"])
    both = probe(subject(net()), depth(), ["friendliness", "radius"])
    assert alone.results["friendliness"] == both.results["friendliness"]
    assert both.passes["radius"] == 0  # the rises have been measured already


def test_sentences_name_the_rho_of_equal_effect() -> None:
    findings = probe(subject(net()), depth(), ["radius"])
    own, others = (x for x in findings.results["radius"] if isinstance(x, EqualEffect))
    (sentence,) = sentences(findings, depth())
    assert (own.on, others.on) == ("own", "others")
    assert f"VaSSO with theta 0.4 does so with rho {own.rho.value:.3g} [" in sentence
    assert "SAM with rho 0.1 raises the loss of its own batch by" in sentence


def test_every_quantity_has_an_interval_around_its_value() -> None:
    findings = probe(subject(net()), depth(thetas=(1.0, 0.9)))
    for line in lines_of(findings):
        if not line.quantity.startswith("λ1 / λ"):
            assert line.value.low <= line.value.value <= line.value.high, line
    assert {line.measure for line in lines_of(findings)} == set(chosen([]))


def test_a_theta_with_too_few_batches_is_left_out_and_a_note_says_so() -> None:
    findings = probe(subject(net(), count=12), depth(thetas=(1.0, 0.2)), ["slope", "friendliness"])
    assert [x.theta for x in findings.results["slope"]] == [1.0]
    assert findings.notes == [
        "theta 0.2 is left out: its slope needs more than 16 batches, there are 12: give "
        "--batches 17 or more, and as many in the loader of a function of yours"
    ]


def test_what_cannot_be_measured_does_not_stop_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(work: Any) -> None:
        raise RuntimeError("0 of 1 eigenvalues converged")

    monkeypatch.setitem(MEASURES, "slope", fail)
    findings = probe(subject(net()), depth(), ["slope", "friendliness", "snr"])
    assert list(findings.results) == ["snr", "friendliness"]
    assert findings.notes == ["slope could not be measured: 0 of 1 eigenvalues converged"]


# -- what is probed -------------------------------------------------------------------------------


def test_a_run_is_probed_at_its_last_weights_on_batches_apart_from_others(store: Store) -> None:
    folder = store.folder(finished(store))
    looked_at = of_run(folder, Amount(60, others=3, samples=64))
    weights = folder.load("weights.pt")
    assert weights is not None
    for name, value in looked_at.model.state_dict().items():
        assert torch.equal(value, weights["model"][name])
    assert looked_at.rho == 0.2
    drawn, again = list(looked_at.batches), list(looked_at.batches)
    assert len(drawn) == 60
    assert all(len(y) == 20 for _, y in drawn)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(drawn, again, strict=True))
    seen = {tuple(x.flatten().tolist()) for xs, _ in drawn for x in xs}
    kept = [tuple(x.flatten().tolist()) for xs, _ in looked_at.others for x in xs]
    assert len(looked_at.others) == 3
    assert not seen & set(kept)
    every = {tuple(x.flatten().tolist()) for xs, _ in looked_at.everything for x in xs}
    assert seen | set(kept) == every
    assert len(every) > 590  # 600 images, a few of them twins


def returned(kind: str) -> Any:
    model, loader = net(), batches(9)
    return {
        "three": (model, cross_entropy, loader),
        "four": (model, cross_entropy, loader[:6], loader[6:]),
        "dict": {"model": model, "loss": cross_entropy, "loader": loader, "rho": 0.3},
        "of model": (model, OfModel(lambda m, b: cross_entropy(m(b[0]), b[1])), loader),
    }[kind]


@pytest.mark.parametrize("kind", ["three", "four", "dict", "of model"])
def test_a_function_may_return_its_parts_in_several_forms(kind: str) -> None:
    looked_at = of_function("mine:made", lambda: returned(kind), Amount(20))
    assert (looked_at.count, len(looked_at.others)) == ((6, 3) if kind == "four" else (7, 2))
    assert looked_at.rho == (0.3 if kind == "dict" else None)
    assert probe(looked_at, depth(thetas=(1.0,)), ["snr"]).results["snr"][0].batches


@pytest.mark.parametrize(
    ("asked", "counts"), [(3, (3, 8)), (5, (5, 8)), (20, (20, 8)), (34, (32, 8)), (96, (32, 8))]
)
def test_there_are_never_more_batches_than_asked_for(asked: int, counts: tuple[int, int]) -> None:
    batch = torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)
    made = of_function("m", lambda: (nn.Linear(5, 3), cross_entropy, [batch] * 40), Amount(asked))
    assert (made.count, len(made.others)) == counts


def test_batches_are_cut_to_the_size_asked_for() -> None:
    made = of_function("m", lambda: returned("three"), Amount(20, batch_size=5, others=2))
    assert made.count == 20
    assert all(len(y) == 5 for _, y in made.batches)
    with pytest.raises(ValueError, match="has 16 samples, fewer than the batch size 99"):
        of_function("m", lambda: returned("three"), Amount(20, batch_size=99))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (3, "must return model, loss, loader .* got int"),
        ((1, 2), "got tuple of 2"),
        ((1, cross_entropy, []), "the model must be a torch.nn.Module, got int 1"),
        ((nn.Linear(1, 1), 5, []), "the loss must be loss"),
        ((nn.Linear(1, 1), cross_entropy, 5), "the loader must be something that gives batches"),
        ((nn.Linear(1, 1), nn.MSELoss(reduction="sum"), []), "use reduction='mean'"),
        ((nn.Linear(1, 1), cross_entropy, []), "the loader gave 0 batches; a probe needs"),
        ({"model": nn.Linear(1, 1), "los": 1}, "unknown 'los'. Did you mean 'loss'"),
        ({"model": nn.Linear(1, 1), "loss": cross_entropy}, "there is no loader"),
    ],
)
def test_what_a_function_returns_wrongly_is_named(given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        of_function("mine:made", lambda: given, Amount())


# -- the command ----------------------------------------------------------------------------------

MINE = """
import torch
from torch import nn
LIST = []
def made():
    torch.manual_seed(0)
    x, y = torch.randn(400, 5), torch.randint(3, (400,))
    loader = list(zip(x.split(10), y.split(10)))
    return nn.Linear(5, 3), nn.CrossEntropyLoss(), loader
def again():
    return made()
def swapped():
    model, loss, loader = made()
    return loss, model, loader
def frozen():
    model, loss, loader = made()
    return model.requires_grad_(False), loss, loader
def greedy(what):
    return made()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probed.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("import torch\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "probed", raising=False)


def test_a_run_from_the_command_line(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--quick", "--only", "SNR,radius", "--out", str(tmp_path), "--accelerator", "cpu"]
    assert called("probe", finished(store), "--store", str(store.root), *words) == 0
    printed = capsys.readouterr().out
    assert "signal / noise of a batch" in printed
    assert "SAM with rho 0.2 raises the loss of its own batch by" in printed
    told = json.loads((tmp_path / "probe.json").read_text())
    assert told["certificate"] == json.loads(json.dumps(certificate()))
    assert list(told["results"]) == ["snr", "radius"]
    assert told["about"]["run"]["method"]["name"] == "SAM"
    assert told["depth"]["rho"] == 0.2
    assert (tmp_path / "radius.svg").read_text().startswith("<?xml")
    by_path = ["probe", str(store.root / finished(store)), *words]
    by_path[by_path.index("SNR,radius")] = "snr"
    by_path[by_path.index(str(tmp_path))] = str(tmp_path / "again")
    assert called(*by_path) == 0
    again = json.loads((tmp_path / "again" / "probe.json").read_text())
    assert again["results"]["snr"][0] == told["results"]["snr"][0]


def test_the_probe_of_a_run_lies_beside_it_where_the_report_finds_it(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", "slope,friendliness,eigenvalues,density,landscape", "--quick"]
    place = ["--store", str(store.root), "--accelerator", "cpu"]
    assert called("probe", finished(store), *words, *place) == 0
    path = store.root / finished(store) / "probe" / "probe.json"
    assert str(path) in capsys.readouterr().out
    found = read(store.root).runs[finished(store)].probe
    assert found == json.loads(path.read_text())
    drawn = {x.name for x in path.parent.iterdir()} - {"probe.json"}
    again = figures_of(results_of(found))
    for name, make in again:
        picture = save(make(), path.parent / "again.svg")
        if name not in ("density", "landscape"):  # which the file holds to five digits
            assert picture.read_bytes() == (path.parent / f"{name}.svg").read_bytes()
        drawn.remove(f"{name}.svg")
    assert drawn == set()
    assert len(path.read_bytes()) < 40_000  # goes along with `vasso export`


@pytest.mark.usefixtures("mine")
def test_a_function_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--only", "snr,trace", "--rho", "0.3", "--batches", "20", "--quick"]
    assert called("probe", "probed:made", *words) == 0
    path = Path("probes/probed-made/probe.json")
    assert str(path) in capsys.readouterr().out
    assert sorted(x.name for x in path.parent.iterdir()) == ["probe.json"]  # no curve, no picture
    told = json.loads(path.read_text())
    assert (told["batches"], told["depth"]["rho"], told["interrupted"]) == (20, 0.3, False)


def held(folder: Path) -> tuple[list[str], list[str], int]:
    """Measures, pictures and batches of a probe."""
    told = json.loads((folder / "probe.json").read_text())
    return list(told["results"]), sorted(x.stem for x in folder.glob("*.svg")), told["batches"]


@pytest.mark.usefixtures("mine")
def test_a_probe_that_says_more_stays_with_its_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    whole, few = ["--only", "snr,slope", "--batches", "25"], ["--only", "snr"]
    home, second, third = (Path("probes") / f"probed-made{end}" for end in ("", "-2", "-3"))
    assert called("probe", "probed:made", *whole) == 0
    assert called("probe", "probed:made", *few, "--batches", "20") == 0
    assert held(home) == (["snr", "slope"], ["slope"], 25)
    assert held(second) == (["snr"], [], 20)
    said = capsys.readouterr().err
    assert f"{home} has a probe with slope, which stays: this one is in {second}" in said
    assert called("probe", "probed:made", *few, "--batches", "22") == 0
    assert held(second) == (["snr"], [], 22)  # has all that was there
    assert called("probe", "probed:made", *whole[:2], "--batches", "21") == 0
    assert f"{home} has a probe from 25 batches, which stays" in capsys.readouterr().err
    assert held(third) == (["snr", "slope"], ["slope"], 21)
    assert called("probe", "probed:made", *whole, "--rho", "0.2") == 0
    assert json.loads((home / "probe.json").read_text())["depth"]["rho"] == 0.2
    assert called("probe", "probed:made", "--help") == 0
    assert "goes to a folder of its own" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("mine")
def test_a_probe_of_another_subject_stays() -> None:
    assert called("probe", "probed:made", "--only", "snr", "--out", "here") == 0
    assert called("probe", "probed:again", "--only", "snr", "--out", "here") == 0
    told = [json.loads(Path(name, "probe.json").read_text()) for name in ("here", "here-2")]
    assert [one["subject"] for one in told] == ["probed-made", "probed-again"]


@pytest.mark.usefixtures("mine")
def test_a_picture_that_cannot_be_drawn_leaves_none_of_an_earlier_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*given: Any) -> Any:
        raise ValueError("nothing to draw")

    words = ["probe", "probed:made", "--only", "slope", "--batches", "20"]
    home = Path("probes/probed-made")
    assert called(*words) == 0
    assert held(home) == (["slope"], ["slope"], 20)
    monkeypatch.setattr("vasso.lab.probe_pictures.slope_errors", fails)
    assert called(*words) == 0
    assert held(home) == (["slope"], [], 20)


@pytest.mark.usefixtures("mine")
def test_ctrl_c_keeps_what_has_been_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(work: Any) -> None:
        raise CtrlC

    monkeypatch.setitem(MEASURES, "friendliness", stop)
    assert called("probe", "probed:made", "--only", "snr,friendliness,trace") == 130
    said = capsys.readouterr()
    assert "signal / noise" in said.out
    assert "what had been measured is kept" in said.err
    told = json.loads(Path("probes/probed-made/probe.json").read_text())
    assert (list(told["results"]), told["interrupted"]) == (["snr"], True)


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing:made"], "No module named 'nothing'"),
        (["broken:made"], "broken cannot be imported (ZeroDivisionError: division by zero; "),
        (["probed.py:made"], "No module named 'probed.py'"),
        (["probed.py:made"], "Did you mean 'probed:made'?"),
        (["some/probed.py:made"], "Did you mean 'some.probed:made'?"),
        (["probed:swapped"], "probed:swapped gave CrossEntropyLoss as the model and Linear as the"),
        (["probed:frozen"], "of the model, Linear, requires a gradient: unfreeze those to look at"),
        (["probed:mad"], "the module probed has no 'mad'"),
        (["probed:LIST"], "probed:LIST is no function but list"),
        (["probed:greedy"], "probed:greedy wants what: it is called without arguments"),
        (["probed:made", "--only", "snr,friendlynes"], "Did you mean 'friendliness'?"),
        (["probed:made", "--thetas", "1.5"], "theta must be above 0 and at most 1, got 1.5"),
        (["probed:made", "--rho", "-1"], "rho must be above 0 and finite, got -1"),
        (["probed:made", "--batches", "2"], "batches must be at least 3, got 2"),
        (["some-run"], "there is no store 'runs', nor a run's folder 'some-run'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("probe", *words) == exits.WRONG
    assert told in capsys.readouterr().err
    assert not Path("probes").exists()


def test_a_run_that_is_missing_or_has_not_ended(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = next(folder.id for folder in store.folders() if folder.result is None)
    place = ["--store", str(store.root)]
    assert called("probe", begun, *place) == exits.WRONG
    assert "has not ended yet (step 30)" in capsys.readouterr().err
    assert called("probe", finished(store)[:-4], *place) == exits.WRONG
    assert f"Did you mean '{finished(store)}'?" in capsys.readouterr().err
