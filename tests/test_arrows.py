"""Arrows point one way, and presets only choose parts: read from the syntax trees."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vasso

PACKAGE = Path(vasso.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = """
    numerics _names
    validation records optional
    parts
    engine schedules
    optimizer losses
    presets standalone
    catalogue
    diagnostics
    integrations
    lab.schema lab.statistics
    lab.models lab.data
    lab.translation
    lab.experiment
    lab.store
    lab.training
    lab.execution
    lab.studies
    lab.probe
    lab.report
    lab.cli
"""
"""From the lowest to the highest: a file imports its own line and those above it."""

RANK = {name: rank for rank, line in enumerate(LAYERS.split("\n")) for name in line.split()}
OUTER = {"diagnostics", "integrations", "lab"}
CORE = [path for path in FILES if path.relative_to(PACKAGE).parts[0] not in OUTER]
LAB = sorted((PACKAGE / "lab").rglob("*.py"))
DIAGNOSTICS = sorted((PACKAGE / "diagnostics").rglob("*.py"))
NOT_YET = {}


def dotted(path: Path) -> str:
    words = ("vasso", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(words).removesuffix(".__init__")


MODULES = {dotted(path) for path in FILES}


def imported(path: Path) -> set[str]:
    """Every module a file imports, at whatever depth the statement stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (inner & MODULES) or {node.module or ""}
    return names


def outside(path: Path, *extras: str) -> set[str]:
    """What a file imports but for torch, the standard library, ours and these extras."""
    known = {"torch", "vasso", *extras, *sys.stdlib_module_names}
    return {name for name in imported(path) if name.split(".")[0] not in known}


def layer(module: str) -> str | None:
    """The layer of a module of ours: `vasso.lab.store.json` is of `lab.store`."""
    words = module.split(".")[1:]
    return next((n for n in (".".join(words[:2]), ".".join(words[:1])) if n in RANK), None)


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_no_file_imports_a_higher_layer(path: Path) -> None:
    own = layer(dotted(path))
    ours = {name for name in imported(path) if name.split(".")[0] == "vasso"}
    if own is None:
        assert dotted(path) in {"vasso", "vasso.lab", "vasso.lab.__main__"}, "a file without layer"
        return
    facade = {"vasso"} if path in CORE else set()
    back = {n for n in ours if n in facade or RANK.get(layer(n) or "", -1) > RANK[own]}
    assert back == {name for module, name in NOT_YET if module == dotted(path)}


def test_every_layer_has_files() -> None:
    assert {layer(name) for name in MODULES} - {None} == set(RANK)


@pytest.mark.parametrize("path", CORE, ids=dotted)
def test_core_imports_torch_the_standard_library_and_itself(path: Path) -> None:
    assert not outside(path)


@pytest.mark.parametrize("path", DIAGNOSTICS, ids=lambda path: "/".join(path.parts[-2:]))
def test_diagnostics_compute_with_numpy_and_scipy_and_only_figures_draw(path: Path) -> None:
    draws = "figures" in path.parts
    assert not outside(path, "numpy", "scipy", *(("matplotlib", "plotly") if draws else ()))
    above = ("vasso.lab", "vasso.integrations", *(() if draws else ("vasso.diagnostics.figures",)))
    assert not {name for name in imported(path) if name.startswith(above)}


@pytest.mark.parametrize("path", LAB, ids=lambda path: "/".join(path.parts[-2:]))
def test_the_lab_imports_its_extras_and_no_host_but_fabric(path: Path) -> None:
    extras = {"numpy", "scipy", "sklearn", "PIL", "rich", "tyro", "docstring_parser"}
    extras |= {"jinja2", "markupsafe", "matplotlib"} if "report" in path.parts else set()
    extras |= {"tokenizers", "sacremoses"} if "translation" in path.parts else set()
    extras |= {"sacrebleu"} if path.name == "bleu.py" else set()
    extras |= {"mlflow", "wandb"} if path.name == "loggers.py" else set()
    extras |= {"ray": {"ray"}, "slurm": {"submitit"}}.get(path.stem.partition("_")[0], set())
    assert not {x for x in outside(path, *extras) if not x.startswith("lightning_fabric")}
    assert not {name for name in imported(path) if name.startswith("vasso.integrations")}


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
