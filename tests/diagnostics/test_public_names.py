"""Public names of the diagnostics: importable, documented, typed, and loaded on first use."""

import ast
import doctest
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from vasso import diagnostics

FILES = sorted(Path(diagnostics.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("name", diagnostics.__all__)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(diagnostics, name)
    assert found.__name__ == name
    assert inspect.getdoc(found)
    assert name in dir(diagnostics)


def functions() -> list[str]:
    """Public functions, also those that share the name of their module."""
    named = [n for n in diagnostics.__all__ if inspect.isfunction(getattr(diagnostics, n))]
    places = [f"{getattr(diagnostics, name).__module__}.{name}" for name in named]
    modules = ("adversary.snr", "adversary.friendliness", "sharpness")
    return [*places, *(f"vasso.diagnostics.{n}.{n.rpartition('.')[2]}" for n in modules)]


@pytest.mark.parametrize("place", functions())
def test_a_public_function_shows_how_it_is_called(place: str) -> None:
    """The example is run where modules are tested; here it is there, and calls the function."""
    module, _, name = place.rpartition(".")
    found = getattr(import_module(module), name)
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(found) or "")
    assert any(f"{name}(" in example.source for example in examples), place


def test_readers_of_types_are_told_the_same_names() -> None:
    tree = ast.parse(Path(diagnostics.__file__).read_text())
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    names = {a.name: n.module for n in typed.body if isinstance(n, ast.ImportFrom) for a in n.names}
    homes = {n: f"vasso.diagnostics.{m}" for n, m in diagnostics._MODULE_OF.items()}
    assert names == homes


def test_results_of_every_exported_module_are_public() -> None:
    """A frozen dataclass with rows is what a measurement gives."""
    folder, missing = Path(diagnostics.__file__).parent, []
    for module in diagnostics._MODULES:
        for node in ast.parse((folder / f"{module.replace('.', '/')}.py").read_text()).body:
            inner = node.body if isinstance(node, ast.ClassDef) else []
            tells = {n.name for n in inner if isinstance(n, ast.FunctionDef)} & {"row", "rows"}
            if isinstance(node, ast.ClassDef) and tells and node.name not in diagnostics.__all__:
                missing.append(node.name)
    assert not missing


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Sharp'"):
        _ = diagnostics.Sharp


def test_importing_the_package_brings_in_no_extra() -> None:
    code = (
        "import sys, vasso.diagnostics;"
        "print([m for m in ('scipy', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_results_are_frozen(path: Path) -> None:
    """Whatever has a `row` is a frozen dataclass."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and "row" in {
            n.name for n in node.body if isinstance(n, ast.FunctionDef)
        }:
            marks = {ast.unparse(mark) for mark in node.decorator_list}
            assert "dataclass(frozen=True)" in marks, node.name
