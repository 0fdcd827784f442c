"""Checkpoints that earlier versions wrote still load, and go on to the numbers of that time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data.checkpoints import AFTER, BEFORE, FOLDER, METHODS, flat, go_on, start
from vasso.origins import FORMAT

FILES = sorted(FOLDER.glob("checkpoint-format-*.pt"))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def test_there_is_a_checkpoint_of_every_format_up_to_the_present_one() -> None:
    names = [f"checkpoint-format-{number}.pt" for number in range(1, FORMAT + 1)]
    assert [path.name for path in FILES] == names


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_stored_checkpoint_goes_on_to_the_numbers_of_its_time(path: Path, name: str) -> None:
    saved = read(path)
    model, opt = start(name)
    model.load_state_dict(saved[name]["model"])
    opt.load_state_dict(saved[name]["opt"])
    assert opt.param_groups[0]["vasso_step"] == BEFORE
    go_on((model, opt), saved["x"], saved["y"], range(BEFORE, BEFORE + AFTER))
    torch.testing.assert_close(flat(model), saved[name]["end"], rtol=1e-9, atol=1e-11)
    assert opt.cost == saved[name]["cost"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_remembered_matters_to_those_numbers(path: Path) -> None:
    saved = read(path)
    model, opt = start("VaSSO, AdamW")
    model.load_state_dict(saved["VaSSO, AdamW"]["model"])
    for entry in saved["VaSSO, AdamW"]["opt"]["state"].values():
        entry["vasso_has_d"] = 0
    opt.load_state_dict(saved["VaSSO, AdamW"]["opt"])
    go_on((model, opt), saved["x"], saved["y"], range(BEFORE, BEFORE + AFTER))
    assert (flat(model) - saved["VaSSO, AdamW"]["end"]).abs().max() > 1e-4


@pytest.mark.parametrize("number", [FORMAT + 1, 0, "one"])
def test_a_format_that_we_do_not_know_is_refused_by_its_number(number: Any) -> None:
    saved = read(FILES[-1])["VaSSO, AdamW"]["opt"]
    saved["param_groups"][0]["vasso_format"] = number
    _, opt = start("VaSSO, AdamW")
    with pytest.raises(ValueError, match=f"format {number!r}.*formats 1 to {FORMAT}"):
        opt.load_state_dict(saved)
    assert opt.param_groups[0]["vasso_step"] == 0
    assert not opt.state
