"""The method page of the docs is the catalogue, and what it shows can be typed."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import vasso
from vasso import losses
from vasso.catalogue import as_markdown

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"
ROW = r"^\| (.*?)(?: \((?:stepper|loss|averager)\))? \| `(\w+\(.*?\))` \|"
SHOWN = dict(re.findall(ROW, PAGE.read_text(), re.MULTILINE))


def test_the_method_page_is_up_to_date() -> None:
    assert PAGE.read_text() == as_markdown(), "run: python -m vasso.catalogue > docs/methods.md"


class Source:
    """Stands for data beyond the batch at hand."""

    def full(self) -> Any: ...
    def fresh(self) -> Any: ...


GIVEN: dict[str, Any] = {"samples": 8, "classes": 2, "data": Source(), "source": Source()}
ELSEWHERE = {"SAF": losses.SAF, "MESA": losses.MESA, "AveragedModel": AveragedModel}


def typed(call: str) -> Any:
    """What comes of a call on the page, typed by someone who has a model and a base."""
    model = torch.nn.Linear(4, 2)
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return eval(call, {**vars(vasso), **ELSEWHERE, **GIVEN, "model": model, "base": base})


@pytest.mark.parametrize("name", vasso.methods())
def test_what_the_page_shows_makes_the_method(name: str) -> None:
    method = vasso.methods()[name]
    made = typed(SHOWN[name])
    assert type(made) is getattr(method.build, "func", method.build)
    if method.kind in {"preset", "stepper"}:
        known = {**GIVEN, **method.example}
        asked = {key: known[key] for key in known if f", {key}=" in SHOWN[name]}
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
