"""The method page of the docs is the catalogue, and what it shows can be typed."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import vasso
from vasso import losses
from vasso.catalogue import NOT_HERE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text()
BLOCK = r"^### (.*?)(?: \((?:stepper|loss|averager)\))?\n.*?^    (\w+\(.*?\))$"
SHOWN = dict(re.findall(BLOCK, PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def writer() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "_ext" / "methods_page.py"))


def test_the_method_page_is_up_to_date(writer: dict[str, Any]) -> None:
    assert writer["page"]() + "\n" == PAGE, "run: make methods"


@pytest.mark.parametrize(
    ("equation", "tex"),
    [
        ("rho g / ||g||", r"\rho g / \|g\|"),
        ("u = h with probability p, else g", r"u = h\text{ with probability }p,\text{ else }g"),
        ("h_perp(g), v = w_swa", r"h_\perp (g),\quad v = w_{\text{swa}}"),
        ("sqrt(d.(q d)) >= w~", r"\sqrt{d\cdot (q d)} \ge \tilde{w}"),
        ("KL(past || now)", r"\text{KL}(\text{past }\|\text{ now})"),
    ],
)
def test_equations_become_tex(writer: dict[str, Any], equation: str, tex: str) -> None:
    assert writer["as_tex"](equation) == tex


class Source:
    """Stands for data beyond the batch at hand."""

    def full(self) -> Any: ...
    def fresh(self) -> Any: ...


GIVEN: dict[str, Any] = {"samples": 8, "classes": 2, "data": Source(), "source": Source()}
ADAPTER = torch.ones(1, 4), torch.ones(2, 1)
ELSEWHERE = {"SAF": losses.SAF, "MESA": losses.MESA, "AveragedModel": AveragedModel}


def typed(call: str) -> Any:
    """What comes of a call on the page, typed by someone who has a model and a base."""
    layers = [torch.nn.Linear(4, 2), torch.nn.Linear(2, 3), torch.nn.LayerNorm(3)]
    model = torch.nn.Sequential(*layers)
    base: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if "precondition" in call.casefold():
        base = torch.optim.AdamW(model.parameters())
    names = {name: getattr(vasso, name) for name in dir(vasso)}
    pairs = [(model[0].weight, model[1].weight)]
    if "FlatLoRA" in call or "BiLoRA" in call:
        model[0].lora_A, model[0].lora_B = (torch.nn.Parameter(x) for x in ADAPTER)
        base = torch.optim.SGD([model[0].lora_A, model[0].lora_B], lr=0.1)
    given = {**GIVEN, "model": model, "base": base, "pairs": pairs}
    return eval(call, {**names, **ELSEWHERE, **given})


@pytest.mark.parametrize("name", vasso.methods())
def test_what_the_page_shows_makes_the_method(name: str) -> None:
    method = vasso.methods()[name]
    made = typed(SHOWN[name])
    assert type(made) is getattr(method.build, "func", method.build)
    if method.kind in {"preset", "stepper"}:
        known = {**GIVEN, **method.example}
        known |= {"pairs": [(x.A, x.B) for x in getattr(made, "pairs", ())]}
        asked = {key: known[key] for key in known if f", {key}=" in SHOWN[name]}
        asked |= {"model": made.model} if "model=model" in SHOWN[name] else {}
        assert made.parts == method.build(made.unwrap(), **asked).parts


@pytest.mark.parametrize(
    ("name", "meant"),
    [("vaso", "VaSSO"), ("LINFSAM", "SAM (l-infinity)"), ("LateSAM", "late phase")],
)
def test_a_name_that_is_not_there_is_answered_by_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(KeyError, match=re.escape(f"Did you mean {meant!r}?")):
        vasso.methods()[name]


def test_the_table_is_a_mapping_like_any_other() -> None:
    table = vasso.methods()
    assert "vaso" not in table
    assert table.get("vaso") is None
    assert dict(table) == {name: table[name] for name in table}
    with pytest.raises(KeyError, match="has them all"):
        table["0123456789"]
    with pytest.raises(TypeError):
        table["mine"] = table["SAM"]  # type: ignore[index]


def test_evidence_of_ours_is_a_run_in_a_record() -> None:
    files = sorted((ROOT / "records").glob("*/runs.jsonl"))
    runs = [json.loads(line)["run"] for file in files for line in file.read_text().splitlines()]
    in_records = {run["method"].get("name") for run in runs} & vasso.methods().keys()
    assert in_records == {name for name, m in vasso.methods().items() if m.evidence == "ours"}


@pytest.mark.parametrize("name", NOT_HERE)
def test_a_method_that_is_not_built_is_an_error_with_the_reason(name: str) -> None:
    with pytest.raises(KeyError, match=re.escape(f"{name} is not built: {NOT_HERE[name][1]}")):
        vasso.methods()[name.lower()]
