"""Golden loss curves: `python -m tests.golden` adds those of new methods, drops those of old ones.

With `--all` it writes every curve anew: a change of numbers should be a decision. Values have ten
digits, because processors differ in the later ones.
"""

import json
import sys
from pathlib import Path

import torch

from tests.contract.training import OPTIMIZERS, CatalogueRun

PATH = Path(__file__).parent / "losses.json"

if __name__ == "__main__":
    torch.set_num_threads(1)
    kept = {} if "--all" in sys.argv else json.loads(PATH.read_text())
    new = [name for name in OPTIMIZERS if name not in kept]
    for name in new:
        kept[name] = [float(f"{loss:.10g}") for loss in CatalogueRun(name).train(12).losses]
    PATH.write_text(json.dumps({name: kept[name] for name in OPTIMIZERS}, indent=1) + "\n")
    print(f"{len(new)} curves written: {', '.join(new)}")
