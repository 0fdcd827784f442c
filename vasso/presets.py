"""Presets: each method as a choice of parts, and nothing else.

All presets share four arguments, described here once:

- `base`: the optimizer to wrap, an instance;
- `rho`: radius of the ball in which the weights are perturbed, a number, a schedule or a rule
  (`FromGap`);
- `theta`: weight of the newest gradient in the averaged slope d, in (0, 1]. At 1 the method is the
  published one, below 1 the same method with variance suppression. Presets whose slope is not the
  gradient of the batch have no theta;
- `**options`: the options of `SharpnessAware`, such as `model=` and `restore=`.

All other arguments are those of the parts that a preset names; `data` is the `source=` of the full
gradient.
"""

from __future__ import annotations

from typing import Literal, Unpack

from torch import dtype
from torch.nn import Module
from torch.optim import Optimizer

from vasso.optimizer import Options, SharpnessAware
from vasso.parts.ascents import FrankWolfe, MultiStep
from vasso.parts.descents import (
    Accumulated,
    GradientNormPenalty,
    Lookbehind,
    MeanOfPath,
    Perturbed,
    Rescaled,
    Reuse,
    SurrogateGap,
    WeightedSharpness,
)
from vasso.parts.directions import (
    AffineEma,
    BaseMomentum,
    Ema,
    LastGradient,
    Noisy,
    Random,
    Sarah,
    Storm,
    Svrg,
    TopEigenvector,
)
from vasso.parts.geometries import (
    L2,
    Adaptive,
    Centred,
    Fisher,
    Geometry,
    LayerRelative,
    Linf,
    Normalisation,
    Preconditioned,
    RandomMask,
    Unnormalised,
    ZScore,
    kept_mask,
)
from vasso.parts.outputs import Functional, HeadOnly
from vasso.parts.part import Setting
from vasso.parts.plans import Chunks, Fraction, SelectTop, Source, SubSample
from vasso.parts.policies import (
    AdaptiveNorm,
    After,
    Bernoulli,
    EveryK,
    Policy,
    Refresh,
    RefreshEveryK,
)
from vasso.parts.radii import AccumulatedNorm, LossBudget, Rho

# This file is a table: signatures are wrapped by hand.
# fmt: off


class SAM(SharpnessAware):
    """Sharpness-aware minimisation: perturbs the weights along the gradient of the batch.

    epsilon_t = rho g_t(x_t) / ||g_t(x_t)||,  u = g_t(x_t + epsilon_t)

    Foret, Kleiner, Mobahi and Neyshabur, ICLR 2021. Two gradient evaluations per step, no memory
    between steps. With theta below 1 this is `VaSSO`.

    Example:
        >>> import torch
        >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> opt = SAM(torch.optim.SGD([w], lr=0.5), rho=0.5)
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = 0.5 * w.square().sum()
        ...     loss.backward()
        ...     return loss
        >>> opt.step(closure).item()
        12.5
        >>> w  # (3, 4) minus half of the gradient at (3.3, 4.4)
        tensor([1.3500, 1.8000], requires_grad=True)
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), **options)


class VaSSO(SharpnessAware):
    """Sharpness-aware minimisation with variance suppression: perturbs along an averaged slope.

    d_t = (1 - theta) d_{t-1} + theta g_t(x_t),  epsilon_t = rho d_t / ||d_t||,
    u = g_t(x_t + epsilon_t)

    Li and Giannakis, NeurIPS 2023, eq. (4). Two gradient evaluations per step, one vector between
    steps, or half a vector with `slope_dtype=torch.bfloat16` (see `Ema`). With theta = 1 this is
    `SAM`. Along the averaged slope the same rho raises the loss of the current batch less than
    SAM's does, so the best rho tends to be larger.

    Without settings, rho is 0.05, the default of the authors' code, and theta 0.4, the paper's best
    for ResNet-18 and WRN-28-10. This rho is a careful start, and too small a rho loses the gain: in
    our records on wrong labels the best one is 3 to 25 times as large. `vasso advise` measures one
    to begin with.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = VaSSO(torch.optim.AdamW(model.parameters()), rho=0.1, theta=0.2)
        >>> opt.param_groups[0]["theta"]
        0.2
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, theta: Setting = 0.4,
                 slope_dtype: dtype | None = None, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta, dtype=slope_dtype), **options)


class ASAM(SharpnessAware):
    """SAM in a ball that scales with the weights: epsilon = rho T^2 d / ||T d||, T = |w| + eta.

    Kwon, Kim, Park and Choi, ICML 2021; see `Adaptive`. Its rho is about ten times SAM's. Pass
    `model=`, so that biases are recognised by name.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.5, eta: float = 0.01,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), geometry=Adaptive(eta=eta), **options)


class FisherSAM(SharpnessAware):
    """SAM in the metric of the Fisher information.

    epsilon = rho q d / sqrt(d.(q d)),  q = 1 / (1 + eta g^2)

    Kim, Li, Hu and Hospedales, ICML 2022; see `Fisher`. rho is the paper's gamma.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.1, eta: float = 1.0,
                 source: Literal["batch", "ema", "direction"] = "batch", theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), geometry=Fisher(eta, source),
                         **options)


class SAMON(SharpnessAware):
    """SAM-ON: perturbs the weights and biases of normalisation layers alone; pass `model=`.

    epsilon = rho d / ||d|| over these parameters, all others descend by h too.

    Mueller, Vlaar, Rolnick and Hein, NeurIPS 2023; see `Normalisation`. Its rho is larger than
    SAM's: 10 in the authors' example for the adaptive form on CIFAR-100, `geometry` being
    `Adaptive(eta=0.0)` there. A step takes about 1.67 times the base's. With theta below 1 this is
    VaSSO-ON, whose slope has the size of these layers.
    """

    def __init__(self, base: Optimizer, *, rho: Setting = 0.5, geometry: Geometry | None = None,
                 also: tuple[type[Module], ...] = (), theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta),
                         geometry=Normalisation(geometry or L2(), also), **options)


class LESAM(SharpnessAware):
    """SAM with a budget of loss in place of a radius: rho = min(sigma / ||g||, most).

    2605.10183, ICML 2026; see `LossBudget`, which every method takes as its rho. rho is a factor.
    """

    def __init__(self, base: Optimizer, *, rho: Setting = 1.0, sigma: Setting = 0.5,
                 most: float = 0.5, theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=LossBudget(sigma, most, factor=rho), direction=Ema(theta),
                         **options)


class LightSAM(SharpnessAware):
    """LightSAM-I, second-hand: the radius and the learning rate of AdaGrad, one number each.

    epsilon = rho d / sqrt(U),  u = h / sqrt(V),  U and V the sums of ||d||^2 and ||h||^2 so far

    See `AccumulatedNorm` and `Accumulated`. For SGD as base, whose lr is then another. Read in a
    catalogue and in reviews only: the paper was withdrawn from ICLR 2025, with doubts on its proof.
    """

    def __init__(self, base: Optimizer, *, rho: Setting = 0.05, small: float = 1e-8,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=AccumulatedNorm(small, factor=rho), direction=Ema(theta),
                         descent=Accumulated(small), **options)


class EigenSAM(SharpnessAware):
    """SAM along the gradient, tilted towards the top eigenvector of the Hessian.

    epsilon = rho (n + alpha sign(g.v) (v - (n.v) n)),  n = d / ||d||

    Luo et al., NeurIPS 2024; see `TopEigenvector`. Five gradients more every 100 steps, for v.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.1, alpha: Setting = 0.2, every: int = 100,
                 steps: int = 5, seed: int = 0, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, geometry=Unnormalised(),
                         direction=TopEigenvector(theta, alpha=alpha, every=every, steps=steps,
                                                  seed=seed), **options)


class GCSAM(SharpnessAware):
    """SAM along the centred gradient: epsilon = rho c / ||d||.

    Hassan, Vakanski, Zhang and Xian, 2025; see `Centred`.
    """

    def __init__(self, base: Optimizer, *, rho: Setting = 0.05,
                 norm: Literal["before", "after"] = "before", theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), geometry=Centred(norm), **options)


class ZSharp(SharpnessAware):
    """SAM along the entries of the gradient that stand out in their tensor.

    Yun, 2025; see `ZScore`, which says what the two norms are.
    """

    def __init__(self, base: Optimizer, *, rho: Setting = 0.05, q: float = 0.95,
                 norm: Literal["global", "tensor"] = "global", theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), geometry=ZScore(q, norm), **options)


class StableSAM(SharpnessAware):
    """Descends along h as far as g would: u = h ||g|| / ||h||.

    Tan, Zhang, Liu, Wang and Hao, JMLR 2025, also called SSAM, as Sparse SAM is; see `Rescaled`.
    With `normalised=False` it is around the ascent epsilon = rho d; see `Unnormalised`.
    """

    def __init__(self, base: Optimizer, *, rho: Setting = 0.05, normalised: bool = True,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), descent=Rescaled(),
                         geometry=L2() if normalised else Unnormalised(), **options)


class WSAM(SharpnessAware):
    """Weighs the sharpness: x moves by -lr gamma / (1 - gamma) (h - g) beyond the base's step by g.

    Yue, Jiang, Ye, Gao, Liu and Zhang, KDD 2023; see `WeightedSharpness`.
    """

    def __init__(self, base: Optimizer, *, rho: Setting = 0.05, gamma: Setting = 0.9,
                 decoupled: bool = True, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta),
                         descent=WeightedSharpness(gamma, decoupled), **options)


class GSAM(SharpnessAware):
    """SAM that also reduces the surrogate gap: u = h - alpha g_perp(h).

    Zhuang et al., ICLR 2022; see `SurrogateGap`. With theta below 1 it is the VaSSO paper's V+G.
    For the published radius pass `rho=proportional_to_lr(...)`.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.1, alpha: Setting = 0.4,
                 minimise: Literal["perturbed", "clean"] = "perturbed", theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), descent=SurrogateGap(alpha, minimise),
                         **options)


class NoisySAM(SharpnessAware):
    """SAM along the gradient plus noise: a control experiment of the VaSSO paper.

    epsilon = rho (g + zeta) / ||g + zeta||; see `Noisy`.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, kappa: float = 1.0,
                 sigma: float = 0.0, seed: int = 0, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Noisy(theta, sigma=sigma, kappa=kappa, seed=seed),
                         **options)


class RandomSAM(SharpnessAware):
    """Perturbs in a random direction: epsilon = rho zeta / ||zeta||. One gradient per step.

    See `Random`.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, seed: int = 0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Random(seed), **options)


class HalfSAM(SharpnessAware):
    """Both passes on the same random half of each batch: the price of plain training.

    `fraction` may be another; see `Fraction`. `step` needs a `Batch`. In a loop of your own, halve
    the batch of the loader, keep the number of steps and use `SAM` or `VaSSO`. rho is about half of
    that for the whole batch.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, fraction: float = 0.5, seed: int = 0,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), plan=Fraction(fraction, seed),
                         **options)


class ChunkedSAM(SharpnessAware):
    """m-sharpness: a perturbation for each chunk of m samples; u is the mean over the chunks.

    Foret et al., ICLR 2021; see `Chunks`. `step` needs a `Batch`. With theta below 1 all chunks
    share one averaged slope.
    """

    def __init__(self, base: Optimizer, *, m: int = 32, rho: Rho = 0.05, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), plan=Chunks(m), **options)


class SubSampledSAM(SharpnessAware):
    """The perturbation comes from m samples of the batch, the gradient there from all of them.

    The VaSSO paper's definition of m-sharpness; see `SubSample`. `step` needs a `Batch`.
    """

    def __init__(self, base: Optimizer, *, m: int = 32, rho: Rho = 0.05, seed: int = 0,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), plan=SubSample(m, seed), **options)


class LookSAM(SharpnessAware):
    """Perturbs every k-th step and reuses in between what the perturbation added to the gradient.

    u = g + alpha (||g|| / ||v||) v, v the part of the last h that is orthogonal to its g

    Liu, Mai, Chen, Hsieh and You, CVPR 2022; see `Reuse`. Every step updates the averaged slope.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, k: int = 5, alpha: Setting = 0.7,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), descent=Reuse(alpha),
                         policy=EveryK(k), **options)


class ESAM(SharpnessAware):
    """Perturbs a random part of the weights and descends by the samples whose loss rises most.

    Du et al., ICLR 2022; see `RandomMask` and `SelectTop`. `step` needs a `Batch`.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, beta: float = 0.6,
                 gamma: float = 0.5, level: Literal["element", "tensor"] = "element", seed: int = 0,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta),
                         geometry=RandomMask(beta=beta, level=level, seed=seed),
                         plan=SelectTop(gamma), **options)


class SSSAM(SharpnessAware):
    """Perturbs with probability p, which may be scheduled; otherwise takes a plain step.

    Zhao, Zhang and Hu, 2022, also called randomised sharpness-aware training; see `Bernoulli`.
    Every step updates the averaged slope.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, p: Setting = 0.5, seed: int = 0,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), policy=Bernoulli(p, seed), **options)


class AESAM(SharpnessAware):
    """Perturbs when the gradient is large compared with its recent average.

    Jiang, Yang, Zhang and Kwok, ICLR 2023; see `AdaptiveNorm`. Every step updates the averaged
    slope.
    """

    def __init__(self, base: Optimizer, *, total: int, rho: Rho = 0.05, delta: float = 0.9,
                 lambda_1: float = -1.0, lambda_2: float = 1.0, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta),
                         policy=AdaptiveNorm(total, delta, lambda_1, lambda_2), **options)


class AELookSAM(SharpnessAware):
    """AE-SAM that reuses, as LookSAM does, what the last perturbation added to the gradient.

    Jiang, Yang, Zhang and Kwok, ICLR 2023; see `AdaptiveNorm` and `Reuse`. Every step updates the
    averaged slope.
    """

    def __init__(self, base: Optimizer, *, total: int, rho: Rho = 0.05, alpha: Setting = 0.7,
                 delta: float = 0.9, lambda_1: float = -1.0, lambda_2: float = 1.0,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), descent=Reuse(alpha),
                         policy=AdaptiveNorm(total, delta, lambda_1, lambda_2), **options)


class LateSAM(SharpnessAware):
    """Plain steps first, perturbations from step `start` on; see `After`.

    Every step updates the averaged slope. `then` is the policy from step `start` on; None perturbs
    at every step.
    """

    def __init__(self, base: Optimizer, *, start: int, rho: Rho = 0.05,
                 then: Policy | None = None, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho,
                         direction=Ema(theta, stale="stay" if then and then.spares_clean else None),
                         policy=After(start, then) if then else After(start), **options)


class ReusedSAM(SharpnessAware):
    """Perturbs at every step, but takes a new gradient at w only in some: 1 + 1/k gradients a step.

    In between the slope stays, or follows the last gradient at w + epsilon (`stale`, see `Ema`).
    `refresh` is a `RefreshEveryK`, `RefreshRandomly` or `RefreshAdaptive`; None: every fifth step.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, theta: Setting = 0.4,
                 refresh: Refresh | None = None, stale: Literal["stay", "follow"] = "stay",
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta, stale=stale),
                         policy=refresh or RefreshEveryK(), **options)


class MSAM(SharpnessAware):
    """Momentum-SAM: perturbs along the momentum of the base, one gradient per step.

    epsilon_t = -rho v_t / ||v_t||, v_t the momentum before this step's update

    Becker, Altrock and Risse, 2024; see `BaseMomentum`. The base needs momentum. rho is at least
    about ten times SAM's.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 3.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=BaseMomentum(), **options)


class S2SAM(SharpnessAware):
    """Perturbs along the gradient of the step before: one gradient per step.

    epsilon_t = rho h_{t-1} / ||h_{t-1}||

    Ji et al., NeurIPS 2024; see `LastGradient`.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=LastGradient(), **options)


class FriendlySAM(SharpnessAware):
    """Perturbs along what is specific to the batch: d = g - sigma m, m the averaged gradient.

    Li, Zhou, He, Cheng and Huang, CVPR 2024; see `AffineEma`. The opposite of VaSSO.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.2, sigma: Setting = 1.0,
                 lam: float = 0.6, use: Literal["new", "old"] = "new",
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=AffineEma(sigma, lam, use), **options)


class StormSAM(SharpnessAware):
    """Perturbs along an average that is corrected for the movement of the weights; see `Storm`.

    d_t = g_t(x_t) + (1 - a) (d_{t-1} - g_t(x_{t-1})), three gradients per step
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, a: Setting = 0.1,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Storm(a), **options)


class SVRGSAM(SharpnessAware):
    """Perturbs along a variance-reduced slope with snapshots; see `Svrg`."""

    def __init__(self, base: Optimizer, *, data: Source, rho: Rho = 0.05, every: int = 50,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Svrg(every), source=data, **options)


class SARAHSAM(SharpnessAware):
    """Perturbs along a variance-reduced slope of summed differences; see `Sarah`."""

    def __init__(self, base: Optimizer, *, data: Source, rho: Rho = 0.05, every: int = 50,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Sarah(every), source=data, **options)


class PGN(SharpnessAware):
    """Penalises the norm of the gradient: u = (1 - alpha) g + alpha h.

    Zhao, Zhang and Hu, ICML 2022; see `GradientNormPenalty`. rho is the paper's r.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.1, alpha: Setting = 0.8,
                 unit: bool = False, theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta),
                         descent=GradientNormPenalty(alpha, unit), **options)


class PreconditionedSAM(SharpnessAware):
    """SAM in the metric in which the base steps, for bases such as AdamW.

    epsilon = rho q d / sqrt(d.(q d)),  q = 1 / M,  M from the base's second moment

    The ball is ours, see `Preconditioned`.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, damping: float = 0.01,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), geometry=Preconditioned(damping),
                         **options)


class FunctionalSAM(SharpnessAware):
    """Perturbs the network and not the loss: the gradient of the logits stays that at w.

    u = J_z(w + epsilon)^T v,  v = dL/dz at w

    Singh et al., ICML 2025, second-hand, see `Functional`: for language models, which SAM makes
    worse. `step` needs `Outputs`. Both passes draw the same dropout masks. With `preconditioned`
    the ball is that of `PreconditionedSAM`, which is ours. In `ascended()` it is two lines around
    `SAM`, and this class is refused.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, preconditioned: bool = False,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), plan=Functional(),
                         geometry=Preconditioned() if preconditioned else L2(),
                         **(Options(same_rng=True) | options))


class LogitsSAM(SharpnessAware):
    """Perturbs the weight of the output layer alone; one pass through the rest of the model.

    E = rho G / ||G||,  G the gradient for the head's weight,  u = the gradient at W + E

    ICLR 2026; see `HeadOnly`. `step` needs `Outputs` with a `head`. The authors fine-tune a model
    of 7 billion weights with rho = 1e-3; their code's default is 0.05.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), plan=HeadOnly(), **options)


class MultiStepSAM(SharpnessAware):
    """Perturbs in n steps with a new slope at each point; n + 1 gradients per step.

    Foret et al., 2021; Andriushchenko and Flammarion, 2022; Kim et al., 2023; see `MultiStep`. With
    `mean` the descent is by the mean of the gradients at all points; see `MeanOfPath`.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, n: int = 2,
                 stride: Literal["rho", "rho/n"] = "rho", mean: bool = False, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), ascent=MultiStep(n, stride),
                         descent=MeanOfPath() if mean else Perturbed(), **options)


class LookbehindSAM(SharpnessAware):
    """Climbs k times and steps the base by each gradient, then goes part of the way back.

    Mordido, Malviya, Baratin and Chandar, ICML 2024; see `Lookbehind`. k + 1 gradients per step,
    where the authors' code takes 2 k. Evaluate between steps: the weights are the slow ones.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, k: int = 2, alpha: float | None = 0.5,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta),
                         ascent=MultiStep(k, project=False), descent=Lookbehind(k, alpha),
                         **options)


class FrankWolfeSAM(SharpnessAware):
    """Approximates the maximum by K steps of Frank-Wolfe; K + 1 gradients per step.

    Reddi et al., 2016; see `FrankWolfe`.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.05, K: int = 2, momentum: bool = False,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), ascent=FrankWolfe(K, momentum),
                         **options)


class SparseSAM(SharpnessAware):
    """Perturbs only weights with a large Fisher information, or those of a dynamic mask.

    Mi et al., NeurIPS 2022: "fisher" is SSAM-F, see `FisherMask` (needs a `Batch`); "dynamic" is
    SSAM-D, see `DynamicMask`.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 0.1, sparsity: float = 0.5,
                 mask: Literal["fisher", "dynamic"] = "fisher", every: int = 100, seed: int = 0,
                 theta: Setting = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta),
                         geometry=kept_mask(mask, sparsity=sparsity, every=every, seed=seed),
                         **options)


class AWP(SharpnessAware):
    """Adversarial weight perturbation: each layer moves in proportion to its own norm.

    epsilon_l = gamma ||w_l|| d_l / ||d_l||, with gamma as rho

    Wu, Xia and Wang, NeurIPS 2020; see `LayerRelative`. For adversarial training let the closure
    compute its loss on adversarial inputs. Pass `model=`, so that weights are recognised by name.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 5e-3, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), geometry=LayerRelative(), **options)


class LinfSAM(SharpnessAware):
    """SAM in the cube: epsilon = rho sign(d), with rho half the length of an edge.

    Foret et al., 2021, for p = infinity; see `Linf`.
    """

    def __init__(self, base: Optimizer, *, rho: Rho = 1e-4, theta: Setting = 1.0,
                 **options: Unpack[Options]) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), geometry=Linf(), **options)
