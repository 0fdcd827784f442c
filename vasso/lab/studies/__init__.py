"""Studies: grids of runs in TOML files, and what they measure."""

import tomllib
from importlib import resources
from typing import Any


def names() -> list[str]:
    """The names of the studies that come with the package."""
    folder = resources.files("vasso.lab.studies") / "files"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def text_of(name: str) -> str:
    """The TOML file of a study that comes with the package."""
    return (resources.files("vasso.lab.studies") / "files" / f"{name}.toml").read_text()


def table_of(name: str) -> dict[str, Any]:
    """That file as plain values; `study.load` checks them."""
    return tomllib.loads(text_of(name))
