"""A pickle that does harm when it is read."""

from pathlib import Path
from typing import Any


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "evil")
