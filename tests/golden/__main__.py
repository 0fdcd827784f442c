"""Writes the golden loss curves anew: a change of numbers should be a decision."""

import json
from pathlib import Path

import torch

from tests.contract.workout import OPTIMIZERS, Workout

torch.set_num_threads(1)
curves = {name: Workout(name).train(12).losses for name in OPTIMIZERS}
path = Path(__file__).parent / "losses.json"
path.write_text(json.dumps(curves, indent=1) + "\n")
print(f"{len(curves)} curves written")
