"""Diagnostics know the core, numpy and scipy; they do not know the lab or any host."""

import ast
import sys
from pathlib import Path

import pytest

from tests.test_arrows import imported
from vasso import diagnostics

FILES = sorted(Path(diagnostics.__file__).parent.glob("*.py"))
DRAWS = {"figures.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_computing_imports_numpy_scipy_torch_and_the_core(path: Path) -> None:
    names = imported(path)
    assert not {name for name in names if name.startswith(("vasso.lab", "vasso.integrations"))}
    allowed = {"numpy", "scipy", "torch", "vasso", *sys.stdlib_module_names}
    outside = {name for name in names if name.split(".")[0] not in allowed}
    assert not outside or path.name in DRAWS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_results_are_frozen(path: Path) -> None:
    """Whatever has a `row` is a frozen dataclass."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and "row" in {
            n.name for n in node.body if isinstance(n, ast.FunctionDef)
        }:
            marks = {ast.unparse(mark) for mark in node.decorator_list}
            assert "dataclass(frozen=True)" in marks, node.name
