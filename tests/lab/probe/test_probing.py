"""`vasso probe`: what it measures is what the diagnostics measure, and it leaves no trace."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.diagnostics.nets import CtrlC, batches, interrupted, net, nothing_touched
from tests.lab.calls import Command
from vasso.diagnostics.adversary.equal_effect import EqualEffect
from vasso.diagnostics.adversary.friendliness import friendliness
from vasso.diagnostics.adversary.snr import snr
from vasso.diagnostics.figures.style import save
from vasso.diagnostics.passes import OfModel
from vasso.lab.cli import errors
from vasso.lab.experiment.run import Run
from vasso.lab.probe.pictures import draw, figures_of
from vasso.lab.probe.results import document, lines_of, results_of, sentences
from vasso.lab.probe.run import MEASURES, Depth, chosen, probe
from vasso.lab.probe.target import Amount, Subject, check_loss, of_function, of_run
from vasso.lab.report.read import read_store
from vasso.lab.store.json import table_in
from vasso.lab.store.provenance import certificate
from vasso.lab.store.store import Store
from vasso.lab.training.loop import train
from vasso.lab.training.options import RunOptions

SHALLOW: dict[str, Any] = {"steps": 2, "draws": 2, "eigenvalues": 1, "products": 6, "grid": 2}


def subject(model: nn.Module, loss: Any = cross_entropy, count: int = 24) -> Subject:
    amount = Amount(count, others=4, samples=32)
    return of_function("mine", lambda: (model, loss, batches(count + 4)), amount)


def depth(**settings: Any) -> Depth:
    return Depth(rho=0.1, **{"thetas": (1.0, 0.4), "adversaries": 2, **SHALLOW, **settings})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("store"))
    task = {"train_size": 600, "validation": 100, "batch": 20, "epochs": 2, "wrong": 0.2}
    run = Run.of({"task": task, "method": {"name": "SAM", "rho": 0.2}})
    options = RunOptions(accelerator="cpu")
    train(run, store, options)
    begun = store.folder(run.changed({"seed": 1}).id)
    with begun.locked():
        begun.write_settings({"run": run.in_full(), "certificate": certificate()})
        begun.append({"kind": "epoch", "step": 30})
    return store


def finished(store: Store) -> str:
    return next(folder.id for folder in store.folders() if folder.result is not None)


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
        stored = json.loads(json.dumps(document(looked_at, depth(), findings)["results"]["snr"]))
        assert stored[0]["batches"] == 24


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
    every = {tuple(x.flatten().tolist()) for xs, _ in looked_at.all_batches for x in xs}
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
    ("given", "message"),
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
def test_what_a_function_returns_wrongly_is_named(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_function("mine:made", lambda: given, Amount())


TINY = ["--train-size", "100", "--batch", "50", "--epochs", "1", "--accelerator", "cpu"]

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
def fails():
    return {}["nothing"]
def greedy(what):
    return made()
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probed.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("import torch\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "probed", raising=False)


def test_probing_a_run(store: Store, tmp_path: Path, command: Command) -> None:
    words = ["--quick", "--only", "SNR,radius", "--out", str(tmp_path), "--accelerator", "cpu"]
    said = command("probe", finished(store), "--store", str(store.root), *words)
    assert "signal / noise of a batch" in said.out
    assert "SAM with rho 0.2 raises the loss of its own batch by" in said.out
    output = json.loads((tmp_path / "probe.json").read_text())
    assert output["certificate"] == json.loads(json.dumps(certificate()))
    assert list(output["results"]) == ["snr", "radius"]
    assert output["about"]["run"]["method"]["name"] == "SAM"
    assert output["depth"]["rho"] == 0.2
    assert (tmp_path / "radius.svg").read_text().startswith("<?xml")
    by_path = ["probe", str(store.root / finished(store)), *words]
    by_path[by_path.index("SNR,radius")] = "snr"
    by_path[by_path.index(str(tmp_path))] = str(tmp_path / "again")
    command(*by_path)
    again = json.loads((tmp_path / "again" / "probe.json").read_text())
    assert again["results"]["snr"][0] == output["results"]["snr"][0]


def test_the_probe_of_a_run_lies_where_the_report_finds_it(store: Store, command: Command) -> None:
    words = ["--only", "slope,friendliness,eigenvalues", "--quick"]
    place = ["--store", str(store.root), "--accelerator", "cpu"]
    said = command("probe", finished(store), *words, *place)
    path = store.root / finished(store) / "probe" / "probe.json"
    assert str(path) in said.out
    found = read_store(store.root).runs[finished(store)].probe
    assert found == table_in(path)
    drawn = {x.name for x in path.parent.iterdir()} - {"probe.json"}
    again = figures_of(results_of(found))
    for name, make in again:
        picture = save(make(), path.parent / "again.svg")
        assert picture.read_bytes() == (path.parent / f"{name}.svg").read_bytes()
        drawn.remove(f"{name}.svg")
    assert drawn == set()
    assert len(path.read_bytes()) < 40_000  # goes along with `vasso export`


@pytest.mark.usefixtures("modules")
def test_a_function_from_the_command_line(command: Command) -> None:
    words = ["--only", "snr,trace", "--rho", "0.3", "--batches", "20", "--quick"]
    said = command("probe", "probed:made", *words)
    path = Path("probes/probed-made/probe.json")
    assert str(path) in said.out
    assert sorted(x.name for x in path.parent.iterdir()) == ["probe.json"]  # no curve, no picture
    output = json.loads(path.read_text())
    assert (output["batches"], output["depth"]["rho"], output["interrupted"]) == (20, 0.3, False)


def held(folder: Path) -> tuple[list[str], list[str], int]:
    document = json.loads((folder / "probe.json").read_text())
    return (
        list(document["results"]),
        sorted(x.stem for x in folder.glob("*.svg")),
        document["batches"],
    )


@pytest.mark.usefixtures("modules")
def test_a_probe_that_says_more_stays_with_its_pictures(command: Command) -> None:
    whole, few = ["--only", "snr,slope", "--batches", "25"], ["--only", "snr"]
    home, second, third = (Path("probes") / f"probed-made{end}" for end in ("", "-2", "-3"))
    command("probe", "probed:made", *whole)
    said = command("probe", "probed:made", *few, "--batches", "20")
    assert held(home) == (["snr", "slope"], ["slope"], 25)
    assert held(second) == (["snr"], [], 20)
    assert f"{home} has a probe with slope, which is kept: the new probe is in {second}" in said.err
    command("probe", "probed:made", *few, "--batches", "22")
    assert held(second) == (["snr"], [], 22)  # has all that was there
    said = command("probe", "probed:made", *whole[:2], "--batches", "21")
    assert f"{home} has a probe from 25 batches, which is kept" in said.err
    assert held(third) == (["snr", "slope"], ["slope"], 21)
    command("probe", "probed:made", *whole, "--rho", "0.2")
    assert json.loads((home / "probe.json").read_text())["depth"]["rho"] == 0.2
    said = command("probe", "probed:made", "--help")
    assert "goes to a folder of its own" in " ".join(said.out.split())


@pytest.mark.usefixtures("modules")
def test_a_probe_of_another_subject_stays(command: Command) -> None:
    command("probe", "probed:made", "--only", "snr", "--out", "here")
    command("probe", "probed:again", "--only", "snr", "--out", "here")
    document = [json.loads(Path(name, "probe.json").read_text()) for name in ("here", "here-2")]
    assert [one["subject"] for one in document] == ["probed-made", "probed-again"]


@pytest.mark.usefixtures("modules")
def test_a_failed_picture_leaves_none(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    def fails(*given: Any) -> Any:
        raise ValueError("nothing to draw")

    words = ["probe", "probed:made", "--only", "slope", "--batches", "20"]
    home = Path("probes/probed-made")
    command(*words)
    assert held(home) == (["slope"], ["slope"], 20)
    monkeypatch.setattr("vasso.lab.probe.pictures.slope_errors", fails)
    command(*words)
    assert held(home) == (["slope"], [], 20)


@pytest.mark.usefixtures("modules")
def test_ctrl_c_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    def stop(work: Any) -> None:
        raise CtrlC

    monkeypatch.setitem(MEASURES, "friendliness", stop)
    said = command("probe", "probed:made", "--only", "snr,friendliness,trace", code=130)
    assert "signal / noise" in said.out
    assert "what had been measured is kept" in said.err
    output = json.loads(Path("probes/probed-made/probe.json").read_text())
    assert (list(output["results"]), output["interrupted"]) == (["snr"], True)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing:made"], "No module named 'nothing'"),
        (["broken:made"], "broken cannot be imported (ZeroDivisionError: division by zero; "),
        (["probed.py:made"], "No module named 'probed.py'"),
        (["probed.py:made"], "Did you mean 'probed:made'?"),
        (["some/probed.py:made"], "Did you mean 'some.probed:made'?"),
        (["probed:swapped"], "probed:swapped gave CrossEntropyLoss as the model and Linear as the"),
        (["probed:frozen"], "of the model, Linear, requires a gradient: unfreeze those to measure"),
        (["probed:mad"], "the module probed has no 'mad'"),
        (["probed:LIST"], "probed:LIST is not a function but list"),
        (["probed:fails"], "probed:fails failed (KeyError: 'nothing'; probed.py, line 19)"),
        (["probed:greedy"], "probed:greedy requires what: it is called without arguments"),
        (["probed:made", "--only", "snr,friendlynes"], "Did you mean 'friendliness'?"),
        (["probed:made", "--thetas", "1.5"], "theta must be above 0 and at most 1, got 1.5"),
        (["probed:made", "--rho", "-1"], "rho must be above 0 and finite, got -1"),
        (["probed:made", "--rho", "0"], "rho must be above 0 and finite, got 0.0"),
        (["probed:made", "--batches", "2"], "batches must be at least 3, got 2"),
        (["some-run"], "there is no store 'runs' and no directory of a run 'some-run'"),
    ],
)
def test_what_is_wrong_is_said_at_once(words: list[str], message: str, command: Command) -> None:
    said = command("probe", *words, code=errors.USAGE_ERROR)
    assert message in said.err
    assert not Path("probes").exists()


def test_a_run_missing_or_not_ended(store: Store, command: Command) -> None:
    begun = next(folder.id for folder in store.folders() if folder.result is None)
    place = ["--store", str(store.root)]
    said = command("probe", begun, *place, code=errors.USAGE_ERROR)
    assert "has not ended yet (step 30)" in said.err
    said = command("probe", finished(store)[:-4], *place, code=errors.USAGE_ERROR)
    assert f"Did you mean '{finished(store)}'?" in said.err


@pytest.mark.usefixtures("modules")
def test_a_radius_of_equal_effect_needs_two_slopes(command: Command) -> None:
    said = command("probe", "probed:made", "--thetas", "0.4", "--only", "radius", "--quick")
    assert "as in --thetas 1 0.4" in said.out
    assert "quantity" not in said.out


@pytest.mark.usefixtures("modules")
def test_a_run_of_a_store_within_the_store_is_found(tmp_path: Path, command: Command) -> None:
    command("train", *TINY, "--store", "runs/demo")
    (path,) = tmp_path.glob("runs/demo/*/run.json")
    command("train", *TINY, "--seed", "1")
    said = command("probe", path.parent.name, "--quick", code=errors.USAGE_ERROR)
    assert "One of 'runs/demo' is: name it with --store" in said.err


def mine(loss: Any = cross_entropy, some: list[Any] | None = None) -> Subject:
    return of_function("mine:made", lambda: (net(), loss, some or batches(9)), Amount(9))


def summed(output: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(output, y, reduction="sum")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (summed, "the loss of 16 samples is the sum of those of its halves: return the mean"),
        (lambda out, y: cross_entropy(out, y) * math.nan, "the loss of a batch is nan"),
        (lambda out, y: cross_entropy(out.detach(), y), "RuntimeError: element 0 of tensors does"),
        (lambda out, y: 1.5, "TypeError: loss_fn returned float 1.5, not a tensor"),
        (lambda out: out.mean(), "TypeError: .* takes 1 positional argument but 2 were given"),
    ],
)
def test_a_loss_of_no_use_is_refused(loss: Callable[..., Any], message: str) -> None:
    odd = mine(loss)
    with nothing_touched(odd.model), pytest.raises(ValueError, match=f"mine-made: .*{message}"):
        check_loss(odd)


def test_batches_of_no_use_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a batch must be .inputs, targets., got dict"):
        check_loss(mine(some=[{"x": x, "y": y} for x, y in batches(9)]))


def test_a_mean_passes_whatever_its_size() -> None:
    """Also one that is nearly 0, one of odd size, and one that is the same for every sample."""
    odd_size = [(x[:5], y[:5]) for x, y in batches(9)]
    for loss in (
        cross_entropy,
        lambda out, y: 1e-9 * cross_entropy(out, y),
        lambda out, y: 0 * out.sum(),
    ):
        for some in (batches(9), odd_size, [(x[:1], y[:1]) for x, y in batches(9)]):
            looked_at = mine(loss, some)
            check_loss(looked_at)


def test_weights_that_are_nan_are_refused() -> None:
    model = nn.Linear(64, 10)
    with torch.no_grad():
        model.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="the loss of a batch is nan"):
        check_loss(of_function("m", lambda: (model, cross_entropy, batches(9)), Amount(9)))
