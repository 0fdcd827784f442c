"""Scripts of records, which are in no package: imported by name, each record by itself."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "records"
AGAIN = "run: make report"


def imported(record: str, name: str = "page") -> ModuleType:
    """A script of a record, with modules of its folder whose names other records may use too."""
    folder = RECORDS / record
    own = [path.stem for path in folder.glob("*.py")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        for each in own:
            patch.delitem(sys.modules, each, raising=False)
        module = importlib.import_module(name)
        for each in own:
            sys.modules.pop(each, None)
    return module
