"""Sharpness-aware training in PyTorch: wrap the optimizer you have, in one line."""

# methods
from vasso.presets import SAM as SAM
from vasso.presets import VaSSO as VaSSO

# the step, and the parts to make a method of one's own
from vasso.optimizer import SharpnessAware as SharpnessAware
from vasso.ascents import OneStep as OneStep
from vasso.descents import Perturbed as Perturbed
from vasso.directions import Ema as Ema
from vasso.geometries import L2 as L2
from vasso.policies import Always as Always

# what a step tells
from vasso.records import StepRecord as StepRecord
from vasso.records import StepSummary as StepSummary

__version__ = "0.1.0"
