"""What an extra brings is missed by name, with the remedy; the rest works without it."""

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
    "vasso.diagnostics.snr": "numpy is not installed: pip install '.[diagnostics]'",
    "vasso.lab.probing": "numpy is not installed: pip install '.[lab]'",
    "vasso.lab.statistics": "numpy is not installed: pip install '.[lab]'",
    "vasso.lab.data": "numpy is not installed: pip install '.[lab]'",
    "vasso.lab.translation.pieces": "tokenizers is not installed: pip install '.[lab]'",
    "vasso.lab.train": "lightning_fabric is not installed: pip install '.[lab]'",
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
    except ModuleNotFoundError as trouble:
        print(trouble)
"""


def told(modules: list[str], *hidden: str) -> list[str]:
    """What is said where modules are imported and others are not there."""
    code = HIDDEN.format(modules=modules, hidden=hidden)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_whatever_needs_an_extra_says_which() -> None:
    hosts = ("accelerate", "lightning", "transformers", "lightning_fabric")
    hidden = (*hosts, "numpy", "scipy", "tokenizers", "jinja2")
    assert told(list(REMEDIES), *hidden) == list(REMEDIES.values())


def test_figures_that_turn_say_that_plotly_is_missing() -> None:
    expected = ["plotly is not installed: pip install '.[figures]'"]
    assert told(["vasso.diagnostics.figures.turnable"], "plotly") == expected


@pytest.mark.parametrize("remedy", sorted(set(REMEDIES.values())))
def test_there_is_such_an_extra(remedy: str) -> None:
    path = Path(__file__).parent.parent / "pyproject.toml"
    extras = tomllib.loads(path.read_text())["project"]["optional-dependencies"]
    assert remedy.partition("[")[2].rstrip("]'") in extras
