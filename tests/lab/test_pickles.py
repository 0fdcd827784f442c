"""Pickles and files of torch are read without running what is in them."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.lab.evil import Evil
from vasso.lab.data import (
    DataError,
)
from vasso.lab.data.pickles import read_pickle, read_torch


@pytest.mark.parametrize("protocol", [0, 2, 3, 4])
def test_pickles_of_arrays_are_read(protocol: int) -> None:
    content = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2], "t": b"x"}
    read = read_pickle(io.BytesIO(pickle.dumps(content, protocol)), "batch")
    assert read.keys() == content.keys()
    assert np.array_equal(read[b"data"], content[b"data"])
    assert read[b"labels"] == [1, 2]


def test_a_pickle_that_would_run_something_does_not(tmp_path: Path) -> None:
    for evil in (Evil(tmp_path / "pwned"), {b"data": Evil(tmp_path / "pwned")}):
        with pytest.raises(DataError, match="is not read further"):
            read_pickle(io.BytesIO(pickle.dumps(evil)), "batch")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "name", ["os system", "builtins eval", "numpy load", "numpy.core.multiarray scalar"]
)
def test_only_what_arrays_need_may_be_named(name: str) -> None:
    module, attribute = name.split()
    program = f"c{module}\n{attribute}\n.".encode()
    with pytest.raises(DataError, match=f"it asks for {module}.{attribute}"):
        read_pickle(io.BytesIO(program), "batch")


@pytest.mark.parametrize("cut", [0, 1, 10, 60])
def test_truncated_pickles_are_told(cut: int) -> None:
    whole = pickle.dumps({b"data": np.arange(10)})
    with pytest.raises(DataError, match="batch is not a pickle of arrays"):
        read_pickle(io.BytesIO(whole[:cut]), "batch")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("number", [np.uint8, np.int64])
def test_files_of_torch_with_arrays_are_read(tmp_path: Path, zipped: bool, number: Any) -> None:
    content = {"clean_label": np.arange(5, dtype=number)}
    torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    assert read_torch(tmp_path / "x.pt")["clean_label"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_file_of_torch_that_would_run_something_does_not(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "x.pt"
    evil = {"clean_label": Evil(tmp_path / "pwned")}
    torch.save(evil, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(DataError, match="is not read further"):
        read_torch(path)
    assert not (tmp_path / "pwned").exists()
