"""A missing extra is reported with its name and the remedy; the rest works without it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REMEDIES = {
    "vasso.integrations.accelerate": "accelerate is not installed: pip install '.[accelerate]'",
    "vasso.integrations.lightning": "lightning is not installed: pip install '.[lightning]'",
    "vasso.integrations.transformers": "transformers is not installed: "
    "pip install '.[transformers]'",
    "vasso.diagnostics": "numpy is not installed: pip install '.[diagnostics]'",
    "vasso.diagnostics.adversary.snr": "numpy is not installed: pip install '.[diagnostics]'",
    "vasso.lab.probe.run": "numpy is not installed: pip install '.[lab]'",
    "vasso.lab.statistics": "numpy is not installed: pip install '.[lab]'",
    "vasso.lab.data": "numpy is not installed: pip install '.[lab]'",
    "vasso.lab.translation.pieces": "tokenizers is not installed: pip install '.[lab]'",
    "vasso.lab.training.loop": "numpy is not installed: pip install '.[lab]'",
    "vasso.lab.report.page": "jinja2 is not installed: pip install '.[lab]'",
}
HIDDEN = """
import sys, warnings
from importlib import import_module
warnings.simplefilter("ignore")  # torch itself misses numpy
for name in {hidden!r}:
    sys.modules[name] = None
for module in {modules!r}:
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        print(error)
"""


def messages(modules: list[str], *hidden: str) -> list[str]:
    """What is said where modules are imported and others are not there."""
    code = HIDDEN.format(modules=modules, hidden=hidden)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_whatever_needs_an_extra_says_which() -> None:
    hosts = ("accelerate", "lightning", "transformers", "lightning_fabric")
    hidden = (*hosts, "numpy", "scipy", "tokenizers", "jinja2")
    assert messages(list(REMEDIES), *hidden) == list(REMEDIES.values())


@pytest.mark.parametrize(
    ("module", "missing"), [("figures.interactive", "plotly"), ("figures", "matplotlib")]
)
def test_figures_say_what_is_missing(module: str, missing: str) -> None:
    modules = ["vasso.diagnostics.adversary.snr", f"vasso.diagnostics.{module}"]  # the first works
    assert messages(modules, missing) == [f"{missing} is not installed: pip install '.[figures]'"]


@pytest.mark.parametrize("remedy", sorted(set(REMEDIES.values())))
def test_there_is_such_an_extra(remedy: str) -> None:
    path = Path(__file__).parent.parent / "pyproject.toml"
    extras = tomllib.loads(path.read_text())["project"]["optional-dependencies"]
    assert remedy.partition("[")[2].rstrip("]'") in extras
