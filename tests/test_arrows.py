"""Arrows point one way, and presets only choose parts: read from the syntax trees."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vasso

PACKAGE = Path(vasso.__file__).parent
CORE = sorted(PACKAGE.glob("*.py"))
LAB = sorted((PACKAGE / "lab").rglob("*.py"))
DIAGNOSTICS = sorted((PACKAGE / "diagnostics").rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module a file imports, at whatever depth the statement stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_core_imports_torch_the_standard_library_and_itself(path: Path) -> None:
    outside = {
        name
        for name in imported(path)
        if name.split(".")[0] not in {"torch", "vasso", *sys.stdlib_module_names}
    }
    assert not outside


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_core_does_not_know_the_other_layers(path: Path) -> None:
    layers = ("vasso.lab", "vasso.diagnostics", "vasso.integrations")
    assert not {name for name in imported(path) if name.startswith(layers)}


@pytest.mark.parametrize("path", DIAGNOSTICS, ids=lambda path: "/".join(path.parts[-2:]))
def test_diagnostics_compute_with_numpy_and_scipy_and_only_figures_draw(path: Path) -> None:
    draws = "figures" in path.parts
    extras = {"numpy", "scipy", *({"matplotlib", "plotly"} if draws else ())}
    outside = {
        name
        for name in imported(path)
        if name.split(".")[0] not in {"torch", "vasso", *extras, *sys.stdlib_module_names}
    }
    assert not outside
    above = ("vasso.lab", "vasso.integrations", *(() if draws else ("vasso.diagnostics.figures",)))
    assert not {name for name in imported(path) if name.startswith(above)}


@pytest.mark.parametrize("path", LAB, ids=lambda path: "/".join(path.parts[-2:]))
def test_the_lab_imports_its_extras_and_no_host_but_fabric(path: Path) -> None:
    extras = {"numpy", "scipy", "sklearn", "PIL", "rich", "tyro"}
    extras |= {"jinja2", "markupsafe", "matplotlib"} if "report" in path.parts else set()
    extras |= {"tokenizers", "sacremoses", "sacrebleu"} if "translation" in path.parts else set()
    outside = {
        name
        for name in imported(path)
        if name.split(".")[0] not in {"torch", "vasso", *extras, *sys.stdlib_module_names}
        and not name.startswith("lightning_fabric")
    }
    assert not outside
    assert not {name for name in imported(path) if name.startswith("vasso.integrations")}


@pytest.mark.parametrize("part", ["data", "models"])
def test_data_and_models_do_not_know_the_rest_of_the_lab(part: str) -> None:
    for path in sorted((PACKAGE / "lab" / part).rglob("*.py")):
        ours = {name for name in imported(path) if name.startswith("vasso.")} - {"vasso.extras"}
        assert not {name for name in ours if not name.startswith(f"vasso.lab.{part}")}, path


def test_parts_do_not_know_the_optimizer() -> None:
    above = {"vasso.optimizer", "vasso.presets", "vasso.guest", "vasso.underway"}
    parts = ("directions", "geometries", "ascents", "descents", "policies", "here", "vectors")
    assert not {name for part in parts for name in imported(PACKAGE / f"{part}.py") & above}


def test_a_preset_has_a_constructor_and_nothing_else() -> None:
    tree = ast.parse((PACKAGE / "presets.py").read_text())
    for preset in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        members = [n.name for n in preset.body if isinstance(n, ast.FunctionDef)]
        assert members == ["__init__"], preset.name
        (constructor,) = (n for n in preset.body if isinstance(n, ast.FunctionDef))
        assert len(constructor.body) == 1, preset.name


def test_importing_vasso_brings_in_torch_alone() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import vasso;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - sys.stdlib_module_names;"
        "print(sorted(new - {'torch'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['vasso']"
