"""Sharpness-aware training in PyTorch: wrap the optimizer you have, in one line."""

import typing as _typing

# methods
from vasso.catalogue import Method as Method
from vasso.catalogue import methods as methods
from vasso.presets import AELookSAM as AELookSAM
from vasso.presets import AESAM as AESAM
from vasso.presets import ASAM as ASAM
from vasso.presets import AWP as AWP
from vasso.presets import ChunkedSAM as ChunkedSAM
from vasso.presets import ESAM as ESAM
from vasso.presets import FisherSAM as FisherSAM
from vasso.presets import FrankWolfeSAM as FrankWolfeSAM
from vasso.presets import FriendlySAM as FriendlySAM
from vasso.presets import GSAM as GSAM
from vasso.presets import LateSAM as LateSAM
from vasso.presets import LinfSAM as LinfSAM
from vasso.presets import LookSAM as LookSAM
from vasso.presets import MSAM as MSAM
from vasso.presets import MultiStepSAM as MultiStepSAM
from vasso.presets import NoisySAM as NoisySAM
from vasso.presets import PGN as PGN
from vasso.presets import RandomSAM as RandomSAM
from vasso.presets import ReusedSAM as ReusedSAM
from vasso.presets import S2SAM as S2SAM
from vasso.presets import SAM as SAM
from vasso.presets import SARAHSAM as SARAHSAM
from vasso.presets import SSSAM as SSSAM
from vasso.presets import SVRGSAM as SVRGSAM
from vasso.presets import SparseSAM as SparseSAM
from vasso.presets import StormSAM as StormSAM
from vasso.presets import SubSampledSAM as SubSampledSAM
from vasso.presets import VaSSO as VaSSO

# methods that are not that one step
from vasso.steppers import EntropySGD as EntropySGD
from vasso.steppers import SAMPa as SAMPa

# the step, and the parts to make a method of one's own
from vasso.optimizer import SharpnessAware as SharpnessAware
from vasso.directions import AffineEma as AffineEma
from vasso.directions import BaseMomentum as BaseMomentum
from vasso.directions import Ema as Ema
from vasso.directions import LastGradient as LastGradient
from vasso.directions import Noisy as Noisy
from vasso.directions import Random as Random
from vasso.directions import Sarah as Sarah
from vasso.directions import Storm as Storm
from vasso.directions import Svrg as Svrg
from vasso.geometries import Adaptive as Adaptive
from vasso.geometries import DynamicMask as DynamicMask
from vasso.geometries import Fisher as Fisher
from vasso.geometries import FisherMask as FisherMask
from vasso.geometries import L2 as L2
from vasso.geometries import LayerRelative as LayerRelative
from vasso.geometries import Linf as Linf
from vasso.geometries import RandomMask as RandomMask
from vasso.ascents import FrankWolfe as FrankWolfe
from vasso.ascents import MultiStep as MultiStep
from vasso.ascents import OneStep as OneStep
from vasso.descents import GradientNormPenalty as GradientNormPenalty
from vasso.descents import MeanOfPath as MeanOfPath
from vasso.descents import Perturbed as Perturbed
from vasso.descents import Reuse as Reuse
from vasso.descents import SurrogateGap as SurrogateGap
from vasso.policies import AdaptiveNorm as AdaptiveNorm
from vasso.policies import After as After
from vasso.policies import Always as Always
from vasso.policies import Bernoulli as Bernoulli
from vasso.policies import EveryK as EveryK
from vasso.policies import RefreshAdaptive as RefreshAdaptive
from vasso.policies import RefreshEveryK as RefreshEveryK
from vasso.policies import RefreshRandomly as RefreshRandomly
from vasso.plans import Batch as Batch
from vasso.plans import Chunks as Chunks
from vasso.plans import Same as Same
from vasso.plans import Samples as Samples
from vasso.plans import SelectTop as SelectTop
from vasso.plans import Source as Source
from vasso.plans import SubSample as SubSample

# settings over time
from vasso import schedules as schedules

# what a step tells
from vasso.records import StepRecord as StepRecord
from vasso.records import StepSummary as StepSummary

# names that are nearly ours
if not _typing.TYPE_CHECKING:  # to a type checker any name would be there
    from vasso.misnomers import not_there as __getattr__  # noqa: F401 (Python asks it)

__version__ = "0.1.0"
