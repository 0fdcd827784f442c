"""Files of others are data: nothing in them is run, obeyed by a terminal, or taken for markup."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.calls import Command
from tests.lab.runs import on_digits
from tests.lab.stores import as_store, probe_of, rewritten, trained
from vasso.lab.cli.errors import FAILED

ROOT = Path(__file__).parents[2]
FOLDERS = ("vasso", "benchmarks", "records", "examples", "docs")
UNSAFE = {("pickle", "load"), ("pickle", "loads"), ("pickle", "Unpickler"), ("joblib", "load")}
CHECKED = {"vasso/lab/data/cifar.py"}
"""Overrides `find_class`, and checks md5 before; see `test_image_files.py`."""
BETWEEN_PROCESSES = {"vasso/lab/execution/ranks.py", "vasso/lab/execution/slurm.py"}
"""What processes of one run tell each other, in a directory that the study has just made."""
OF_ITS_OWN = {"benchmarks/compatibility.py"}
"""Reads what it has just written in memory, which may be any object of another package."""
HOSTILE = "\x1b[2J\x07\u202e<script>alert(1)</script>"


def calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def attribute(call: ast.Call) -> tuple[str, str]:
    """The name of a module or class, and of what is called of it."""
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        return call.func.value.id, call.func.attr
    return "", getattr(call.func, "id", "")


def test_every_file_of_tensors_is_read_as_tensors() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 150
    loads = [
        (path, {k.arg: k.value for k in call.keywords}.get("weights_only"))
        for path in files
        for call in calls(path)
        if attribute(call) == ("torch", "load") and str(path.relative_to(ROOT)) not in OF_ITS_OWN
    ]
    assert loads
    for path, given in loads:
        assert isinstance(given, ast.Constant), path
        assert given.value is True, path


def test_no_pickle_is_read_without_a_list_of_what_it_may_name() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "vasso").rglob("*.py")
        for call in calls(path)
        if attribute(call) in UNSAFE
    }
    assert found <= CHECKED | BETWEEN_PROCESSES


@pytest.mark.parametrize("flag", ["--table", "-o"])
def test_hostile_names_are_shown_and_not_obeyed(
    flag: str, tmp_path: Path, command: Command
) -> None:
    """In a certificate, a probe, a file of a stranger, and names of folders."""
    run = on_digits({"name": "SGD"})
    probed = {**probe_of(run), "sentences": [HOSTILE], "notes": [HOSTILE]}
    about = {"processor": HOSTILE, "vasso": HOSTILE, "python": HOSTILE, "system": HOSTILE}
    one = trained(run)
    one = replace(one, probe=probed, certificate={**one.certificate, **about}, begun=HOSTILE)
    store = as_store(tmp_path / "runs", [one])
    folder = store.root / f"a{HOSTILE.replace('/', '')}"
    folder.mkdir()
    (folder / "run.json").write_text("{")
    page = tmp_path / "page.html"
    words = [flag] if flag == "--table" else [flag, page]
    said = command("report", store.root, *words, code=FAILED)
    shown = said.out + said.err + (page.read_text() if page.exists() else "")
    assert not set(shown) & {"\x1b", "\x07", "\u202e"}
    assert "\\x1b[2J" in shown
    assert ("<script>alert" in page.read_text() if page.exists() else False) is False


def test_a_result_with_the_name_of_another_file_leads_nowhere(tmp_path: Path) -> None:
    run = on_digits({"name": "SGD"})
    store = as_store(tmp_path / "runs", [trained(run)])
    rewritten(store.folder(run.id).path / "run.json", id="../../etc/passwd")
    assert [folder.id for folder in store.folders()] == [run.id]
