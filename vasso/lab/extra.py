"""Is what the command needs installed? It is the extra `lab`; figures that turn are another."""

from __future__ import annotations

MODULES = {
    *("PIL", "jinja2", "lightning_fabric", "matplotlib", "numpy", "rich", "sacrebleu"),
    *("sacremoses", "scipy", "sklearn", "tokenizers", "tyro"),
}
"""What the extra brings, as it is imported."""
FIGURES = {"plotly"}
"""What only some figures need; those say themselves how to install it."""


def lacks(trouble: ModuleNotFoundError) -> bool:
    """Whether a module is missing because an extra is not installed.

    Args:
        trouble: what an import has raised.

    Returns:
        False for a module of our own, or of anybody else.

    Example:
        >>> lacks(ModuleNotFoundError(name="tyro.conf")), lacks(ModuleNotFoundError(name="vasso.x"))
        (True, False)
    """
    return _missing(trouble) in MODULES | FIGURES


def remedy(trouble: ModuleNotFoundError) -> str:
    """What to do about it.

    Args:
        trouble: what an import has raised.

    Returns:
        A sentence.
    """
    missing = _missing(trouble)
    if missing in FIGURES:
        return str(trouble)
    return f"the command needs the lab, and {missing} is not installed: pip install '.[lab]'"


def _missing(trouble: ModuleNotFoundError) -> str:
    return str(trouble.name).partition(".")[0]
