"""The wheel and the sdist, as a user installs them; versions; systems without POSIX locks."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import vasso

ROOT = Path(__file__).parent.parent
USER = """
import torch
from vasso import VaSSO, methods

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
opt = VaSSO(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1, model=model)
first = None


def closure() -> torch.Tensor:
    opt.zero_grad()
    loss: torch.Tensor = (model(torch.ones(2, 3)) - 1).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


losses: list[float] = [float(opt.step(closure)) for _ in range(5)]
assert losses[-1] < losses[0]
cost: float = opt.cost
names: list[str] = list(methods())
"""
WRONG = """
from vasso import SAM
SAM("no optimizer", rho="large", rhoo=1)
"""


def run(*words: object, cwd: Path, **options: str) -> subprocess.CompletedProcess[str]:
    """A process that sees neither the checkout nor what the caller has set for it."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(word) for word in words]
    return subprocess.run(
        command, cwd=cwd, env=kept | options, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment: the package from its archive, the rest from this one."""
    folder = tmp_path_factory.mktemp(request.param)
    builder = WheelBuilder if request.param == "wheel" else SdistBuilder
    (archive,) = builder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    done = run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = folder / "env" / "bin" / "python"
    # what a .pth file names comes after the environment's own packages
    parent = sysconfig.get_path("purelib")
    place = run(found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    (Path(place.stdout.strip()) / "parent.pth").write_text(f"{parent}\n")
    pip = (sys.executable, "-m", "pip", "--python", found, "install", "--quiet", "--no-deps")
    done = run(*pip, "--no-build-isolation", "--ignore-installed", archive, cwd=folder)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_archive_installs_trains_and_is_typed(python: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(WRONG)
    where = run(python, "-c", "import vasso; print(vasso.__file__)", cwd=tmp_path).stdout
    assert where.startswith(str(python.parent.parent))
    done = run(python, "user.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    command = python.parent / "vasso"
    assert run(command, "--version", cwd=tmp_path).stdout == f"vasso {vasso.__version__}\n"
    listed = run(command, "list", "studies", cwd=tmp_path)
    assert "noisy-digits" in listed.stdout, listed.stderr
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python)
    cache = f"--cache-dir={tmp_path}"
    checked = run(*mypy, cache, "user.py", "wrong.py", cwd=tmp_path).stdout
    errors = re.findall(r"^(\w+)\.py:\d+: error: .*\[([a-z-]+)\]$", checked, re.MULTILINE)
    assert sorted(errors) == [("wrong", "arg-type"), ("wrong", "arg-type"), ("wrong", "call-arg")]


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert [project["version"], *cited] == [vasso.__version__] * 2
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] in {"Unreleased", vasso.__version__}


def test_without_fcntl_the_lab_says_where_it_runs_and_the_rest_works(tmp_path: Path) -> None:
    hide = "import sys; sys.modules.update(fcntl=None, resource=None); "
    core = run(sys.executable, "-c", f"{hide}import vasso; vasso.SAM", cwd=ROOT)
    assert core.returncode == 0, core.stderr
    start = f"{hide}from vasso.lab.cli.main import main; main(['train', '--epochs', '1'])"
    lab = run(sys.executable, "-c", start, cwd=ROOT)
    assert (lab.returncode, lab.stdout) == (1, "")
    assert lab.stderr.startswith("vasso: the lab locks its files with fcntl, which this system")
    assert "use Linux, macOS or WSL" in lab.stderr


def test_shells_can_complete_commands_and_options(tmp_path: Path) -> None:
    code = "from vasso.lab.cli.main import main; main(['--tyro-print-completion', 'bash'])"
    done = run(sys.executable, "-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "probe" in done.stdout
    assert "--thetas" in done.stdout
    (tmp_path / "vasso.sh").write_text(done.stdout)
    bash = shutil.which("bash")
    assert bash is not None
    assert run(bash, "-n", "vasso.sh", cwd=tmp_path).returncode == 0
