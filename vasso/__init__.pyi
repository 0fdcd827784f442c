"""The public names of `vasso`, by the modules that define them."""

# methods
# settings over time
from vasso import schedules as schedules
from vasso.catalogue import Method as Method
from vasso.catalogue import methods as methods

# the optimizer, and the parts of which methods are made
from vasso.optimizer import SharpnessAware as SharpnessAware
from vasso.parts.ascents import FrankWolfe as FrankWolfe
from vasso.parts.ascents import MultiStep as MultiStep
from vasso.parts.ascents import OneStep as OneStep
from vasso.parts.descents import Accumulated as Accumulated
from vasso.parts.descents import GradientNormPenalty as GradientNormPenalty
from vasso.parts.descents import Lookbehind as Lookbehind
from vasso.parts.descents import MeanOfPath as MeanOfPath
from vasso.parts.descents import Perturbed as Perturbed
from vasso.parts.descents import Rescaled as Rescaled
from vasso.parts.descents import Reuse as Reuse
from vasso.parts.descents import SurrogateGap as SurrogateGap
from vasso.parts.descents import WeightedSharpness as WeightedSharpness
from vasso.parts.directions import AffineEma as AffineEma
from vasso.parts.directions import BaseMomentum as BaseMomentum
from vasso.parts.directions import Ema as Ema
from vasso.parts.directions import LastGradient as LastGradient
from vasso.parts.directions import Noisy as Noisy
from vasso.parts.directions import Random as Random
from vasso.parts.directions import Sarah as Sarah
from vasso.parts.directions import Storm as Storm
from vasso.parts.directions import Svrg as Svrg
from vasso.parts.directions import TopEigenvector as TopEigenvector
from vasso.parts.geometries import L2 as L2
from vasso.parts.geometries import Adaptive as Adaptive
from vasso.parts.geometries import Centred as Centred
from vasso.parts.geometries import DynamicMask as DynamicMask
from vasso.parts.geometries import Fisher as Fisher
from vasso.parts.geometries import FisherMask as FisherMask
from vasso.parts.geometries import LayerRelative as LayerRelative
from vasso.parts.geometries import Linf as Linf
from vasso.parts.geometries import Normalisation as Normalisation
from vasso.parts.geometries import Preconditioned as Preconditioned
from vasso.parts.geometries import RandomMask as RandomMask
from vasso.parts.geometries import Unnormalised as Unnormalised
from vasso.parts.geometries import ZScore as ZScore
from vasso.parts.outputs import Functional as Functional
from vasso.parts.outputs import HeadOnly as HeadOnly
from vasso.parts.outputs import Outputs as Outputs
from vasso.parts.plans import Batch as Batch
from vasso.parts.plans import Chunks as Chunks
from vasso.parts.plans import Fraction as Fraction
from vasso.parts.plans import Same as Same
from vasso.parts.plans import Samples as Samples
from vasso.parts.plans import SelectTop as SelectTop
from vasso.parts.plans import Source as Source
from vasso.parts.plans import SubSample as SubSample
from vasso.parts.policies import AdaptiveNorm as AdaptiveNorm
from vasso.parts.policies import After as After
from vasso.parts.policies import Always as Always
from vasso.parts.policies import Bernoulli as Bernoulli
from vasso.parts.policies import EveryK as EveryK
from vasso.parts.policies import RefreshAdaptive as RefreshAdaptive
from vasso.parts.policies import RefreshEveryK as RefreshEveryK
from vasso.parts.policies import RefreshRandomly as RefreshRandomly
from vasso.parts.radii import AccumulatedNorm as AccumulatedNorm
from vasso.parts.radii import FromGap as FromGap
from vasso.parts.radii import LossBudget as LossBudget
from vasso.presets import AESAM as AESAM
from vasso.presets import ASAM as ASAM
from vasso.presets import AWP as AWP
from vasso.presets import ESAM as ESAM
from vasso.presets import GCSAM as GCSAM
from vasso.presets import GSAM as GSAM
from vasso.presets import LESAM as LESAM
from vasso.presets import MSAM as MSAM
from vasso.presets import PGN as PGN
from vasso.presets import S2SAM as S2SAM
from vasso.presets import SAM as SAM
from vasso.presets import SAMON as SAMON
from vasso.presets import SARAHSAM as SARAHSAM
from vasso.presets import SSSAM as SSSAM
from vasso.presets import SVRGSAM as SVRGSAM
from vasso.presets import WSAM as WSAM
from vasso.presets import AELookSAM as AELookSAM
from vasso.presets import ChunkedSAM as ChunkedSAM
from vasso.presets import EigenSAM as EigenSAM
from vasso.presets import FisherSAM as FisherSAM
from vasso.presets import FrankWolfeSAM as FrankWolfeSAM
from vasso.presets import FriendlySAM as FriendlySAM
from vasso.presets import FunctionalSAM as FunctionalSAM
from vasso.presets import HalfSAM as HalfSAM
from vasso.presets import LateSAM as LateSAM
from vasso.presets import LightSAM as LightSAM
from vasso.presets import LinfSAM as LinfSAM
from vasso.presets import LogitsSAM as LogitsSAM
from vasso.presets import LookbehindSAM as LookbehindSAM
from vasso.presets import LookSAM as LookSAM
from vasso.presets import MultiStepSAM as MultiStepSAM
from vasso.presets import NoisySAM as NoisySAM
from vasso.presets import PreconditionedSAM as PreconditionedSAM
from vasso.presets import RandomSAM as RandomSAM
from vasso.presets import ReusedSAM as ReusedSAM
from vasso.presets import SparseSAM as SparseSAM
from vasso.presets import StableSAM as StableSAM
from vasso.presets import StormSAM as StormSAM
from vasso.presets import SubSampledSAM as SubSampledSAM
from vasso.presets import VaSSO as VaSSO
from vasso.presets import ZSharp as ZSharp

# records of a step
from vasso.records import StepRecord as StepRecord
from vasso.records import StepSummary as StepSummary

# methods with a step of their own
from vasso.standalone import BAR as BAR
from vasso.standalone import BiLoRA as BiLoRA
from vasso.standalone import EntropySGD as EntropySGD
from vasso.standalone import FlatLoRA as FlatLoRA
from vasso.standalone import SAMPa as SAMPa

__version__: str
