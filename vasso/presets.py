"""Which parts make a method? A preset is a choice of parts and nothing else.

Every preset whose slope is the gradient of the batch takes `theta`: 1 is the method as published,
below 1 the same method with variance suppression. The others refuse it. All take the options of
`SharpnessAware`.
"""

from __future__ import annotations

from typing import Literal, Unpack

from torch.optim import Optimizer

from vasso.ascents import FrankWolfe, MultiStep
from vasso.descents import GradientNormPenalty, MeanOfPath, Perturbed, Reuse, SurrogateGap
from vasso.directions import (
    AffineEma,
    BaseMomentum,
    Ema,
    LastGradient,
    Noisy,
    Random,
    Sarah,
    Storm,
    Svrg,
)
from vasso.geometries import (
    Adaptive,
    Fisher,
    LayerRelative,
    Linf,
    RandomMask,
    kept_mask,
)
from vasso.optimizer import Options, SharpnessAware
from vasso.parts import Setting
from vasso.plans import Chunks, SelectTop, Source, SubSample
from vasso.policies import AdaptiveNorm, After, Bernoulli, EveryK, Policy, Refresh, RefreshEveryK


class SAM(SharpnessAware):
    """Sharpness-aware minimisation: climbs along the gradient of the batch.

    epsilon_t = rho g_t(x_t) / ||g_t(x_t)||,  u = g_t(x_t + epsilon_t)

    Foret, Kleiner, Mobahi and Neyshabur, ICLR 2021. Costs two gradient evaluations per step and no
    memory between steps.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        theta: weight of the newest gradient in the slope; below 1 this is `VaSSO`.
        **options: see `SharpnessAware`.

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
        >>> w  # from (3, 4) half of the gradient at (3.3, 4.4) down
        tensor([1.3500, 1.8000], requires_grad=True)
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), **options)


class VaSSO(SharpnessAware):
    """Sharpness-aware minimisation with variance suppression: climbs along an averaged slope.

    d_t = (1 - theta) d_{t-1} + theta g_t(x_t),  epsilon_t = rho d_t / ||d_t||,
    u = g_t(x_t + epsilon_t)

    Li and Giannakis, NeurIPS 2023, eq. (4). Costs two gradient evaluations per step and one vector
    between steps.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball. The averaged slope turns less of it into a rise of the loss on its
            own batch than SAM's does, so its best rho tends to be larger.
        theta: weight of the newest gradient, in (0, 1]; at 1 this is `SAM`.
        **options: see `SharpnessAware`.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = VaSSO(torch.optim.AdamW(model.parameters()), rho=0.1, theta=0.2)
        >>> opt.param_groups[0]["theta"]
        0.2
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        theta: Setting = 0.4,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), **options)


class ASAM(SharpnessAware):
    """SAM in a ball that grows with the weights: epsilon = rho T^2 d / ||T d||, T = |w| + eta.

    Kwon, Kim, Park and Choi, ICML 2021; see `Adaptive`. Its rho is about ten times SAM's.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        eta: keeps T away from 0.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`; pass `model=`, so that biases can be told from weights.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.5,
        eta: float = 0.01,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), geometry=Adaptive(eta=eta), **options)


class FisherSAM(SharpnessAware):
    """SAM in the metric of the Fisher information.

    epsilon = rho q d / sqrt(d.(q d)),  q = 1 / (1 + eta g^2)

    Kim, Li, Hu and Hospedales, ICML 2022; see `Fisher`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball, the paper's gamma.
        eta: how much the metric counts.
        source: where the metric comes from; see `Fisher`.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.1,
        eta: float = 1.0,
        source: Literal["batch", "ema", "direction"] = "batch",
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base, rho=rho, direction=Ema(theta), geometry=Fisher(eta, source), **options
        )


class GSAM(SharpnessAware):
    """Also closes the gap between the loss above and the loss at w: u = h - alpha g_perp(h).

    Zhuang et al., ICLR 2022; see `SurrogateGap`. With theta below 1 it is the VaSSO paper's V+G.
    For the published radius pass `rho=proportional_to_lr(...)`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        alpha: how much of the gap.
        minimise: what goes down beside the gap; see `SurrogateGap`.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.1,
        alpha: Setting = 0.4,
        minimise: Literal["perturbed", "clean"] = "perturbed",
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base,
            rho=rho,
            direction=Ema(theta),
            descent=SurrogateGap(alpha, minimise),
            **options,
        )


class NoisySAM(SharpnessAware):
    """SAM along a gradient with noise on it: a probe of the VaSSO paper.

    epsilon = rho (g + zeta) / ||g + zeta||; see `Noisy`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        kappa: power of the noise as a multiple of the gradient's.
        sigma: standard deviation of noise that does not depend on the gradient.
        seed: of the noise.
        theta: weight of the newest noisy gradient in the slope.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        kappa: float = 1.0,
        sigma: float = 0.0,
        seed: int = 0,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base,
            rho=rho,
            direction=Noisy(theta, sigma=sigma, kappa=kappa, seed=seed),
            **options,
        )


class RandomSAM(SharpnessAware):
    """Climbs anywhere: epsilon = rho zeta / ||zeta||, a probe that costs one gradient per step.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        seed: of the noise.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Random(seed), **options)


class ChunkedSAM(SharpnessAware):
    """m-sharpness: every chunk of m samples has an adversary of its own; u is the mean.

    Foret et al., ICLR 2021; see `Chunks`. `step` needs a `Batch`.

    Args:
        base: the optimizer to wrap, an instance.
        m: samples in a chunk.
        rho: radius of the ball.
        theta: weight of the newest gradient in the slope, which is shared by the chunks.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        m: int = 32,
        rho: Setting = 0.05,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), plan=Chunks(m), **options)


class SubSampledSAM(SharpnessAware):
    """The adversary comes from m samples of the batch, its gradient from all of them.

    The VaSSO paper's wording of m-sharpness; see `SubSample`. `step` needs a `Batch`.

    Args:
        base: the optimizer to wrap, an instance.
        m: samples of the adversary.
        rho: radius of the ball.
        seed: of the choice.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        m: int = 32,
        rho: Setting = 0.05,
        seed: int = 0,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), plan=SubSample(m, seed), **options)


class LookSAM(SharpnessAware):
    """Climbs every k-th step and reuses what that added to the gradient in between.

    u = g + alpha (||g|| / ||v||) v, v the part of the last h that is orthogonal to its g

    Liu, Mai, Chen, Hsieh and You, CVPR 2022; see `Reuse`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        k: steps from climb to climb.
        alpha: how much is reused.
        theta: weight of the newest gradient in the slope, which every step updates.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        k: int = 5,
        alpha: Setting = 0.7,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base, rho=rho, direction=Ema(theta), descent=Reuse(alpha), policy=EveryK(k), **options
        )


class ESAM(SharpnessAware):
    """Climbs with a random part of the weights and descends by the samples whose loss rises most.

    Du et al., ICLR 2022; see `RandomMask` and `SelectTop`. `step` needs a `Batch`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        beta: share of the weights.
        gamma: share of the samples.
        level: what a coin of the mask is tossed for.
        seed: of the mask.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        beta: float = 0.6,
        gamma: float = 0.5,
        level: Literal["element", "tensor"] = "element",
        seed: int = 0,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base,
            rho=rho,
            direction=Ema(theta),
            geometry=RandomMask(beta=beta, level=level, seed=seed),
            plan=SelectTop(gamma),
            **options,
        )


class SSSAM(SharpnessAware):
    """Climbs with probability p, which may be scheduled; a plain step otherwise.

    Zhao, Zhang and Hu, 2022, later called randomised sharpness-aware training; see `Bernoulli`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        p: probability to climb.
        seed: of the coin.
        theta: weight of the newest gradient in the slope, which every step updates.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        p: Setting = 0.5,
        seed: int = 0,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), policy=Bernoulli(p, seed), **options)


class AESAM(SharpnessAware):
    """Climbs when the gradient is large for its time; a plain step otherwise.

    Jiang, Yang, Zhang and Kwok, ICLR 2023; see `AdaptiveNorm`.

    Args:
        base: the optimizer to wrap, an instance.
        total: steps of the training.
        rho: radius of the ball.
        delta: weight of the old averages.
        lambda_1: threshold in deviations at the end.
        lambda_2: threshold in deviations at the start.
        theta: weight of the newest gradient in the slope, which every step updates.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        total: int,
        rho: Setting = 0.05,
        delta: float = 0.9,
        lambda_1: float = -1.0,
        lambda_2: float = 1.0,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base,
            rho=rho,
            direction=Ema(theta),
            policy=AdaptiveNorm(total, delta, lambda_1, lambda_2),
            **options,
        )


class AELookSAM(SharpnessAware):
    """AE-SAM that reuses, as LookSAM does, what the last climb added.

    Jiang, Yang, Zhang and Kwok, ICLR 2023; see `AdaptiveNorm` and `Reuse`.

    Args:
        base: the optimizer to wrap, an instance.
        total: steps of the training.
        rho: radius of the ball.
        alpha: how much is reused.
        delta: weight of the old averages.
        lambda_1: threshold in deviations at the end.
        lambda_2: threshold in deviations at the start.
        theta: weight of the newest gradient in the slope, which every step updates.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        total: int,
        rho: Setting = 0.05,
        alpha: Setting = 0.7,
        delta: float = 0.9,
        lambda_1: float = -1.0,
        lambda_2: float = 1.0,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base,
            rho=rho,
            direction=Ema(theta),
            descent=Reuse(alpha),
            policy=AdaptiveNorm(total, delta, lambda_1, lambda_2),
            **options,
        )


class LateSAM(SharpnessAware):
    """Plain steps at first, climbs from a step on; see `After`.

    Args:
        base: the optimizer to wrap, an instance.
        start: the first step that may climb.
        rho: radius of the ball.
        then: the policy from there on; None climbs at every step.
        theta: weight of the newest gradient in the slope, which every step updates.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        start: int,
        rho: Setting = 0.05,
        then: Policy | None = None,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base,
            rho=rho,
            direction=Ema(theta, stale="stay" if then and then.spares_clean else None),
            policy=After(start, then) if then else After(start),
            **options,
        )


class ReusedSAM(SharpnessAware):
    """Climbs at every step, but takes a new gradient at w only in some: 1 + 1/k gradients a step.

    In between the slope stays, or follows the last gradient taken above w; see `RefreshEveryK`,
    `RefreshRandomly`, `RefreshAdaptive`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        theta: weight of the newest gradient in the slope.
        refresh: when to take a new one; None is every fifth step.
        stale: what the slope does in between.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        theta: Setting = 0.4,
        refresh: Refresh | None = None,
        stale: Literal["stay", "follow"] = "stay",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base,
            rho=rho,
            direction=Ema(theta, stale=stale),
            policy=refresh or RefreshEveryK(),
            **options,
        )


class MSAM(SharpnessAware):
    """Momentum-SAM: goes on along the base's momentum, one gradient per step.

    epsilon_t = -rho v_t / ||v_t||, v_t the momentum before this step's update

    Becker, Altrock and Risse, 2024; see `BaseMomentum`. Its rho is about ten times SAM's or more.

    Args:
        base: the optimizer to wrap, an instance with momentum.
        rho: radius of the ball.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 3.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=BaseMomentum(), **options)


class S2SAM(SharpnessAware):
    """Climbs along the gradient of the step before: one gradient per step.

    epsilon_t = rho h_{t-1} / ||h_{t-1}||

    Ji et al., NeurIPS 2024; see `LastGradient`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=LastGradient(), **options)


class FriendlySAM(SharpnessAware):
    """Climbs along what is special to the batch: d = g - sigma m, m the averaged gradient.

    Li, Zhou, He, Cheng and Huang, CVPR 2024; see `AffineEma`. The opposite of VaSSO.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        sigma: how much of the average is taken out.
        lam: weight of the old average.
        use: the average with or without this gradient; see `AffineEma`.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.2,
        sigma: Setting = 1.0,
        lam: float = 0.6,
        use: Literal["new", "old"] = "new",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=AffineEma(sigma, lam, use), **options)


class StormSAM(SharpnessAware):
    """Climbs along a slope that is corrected for the way the weights have gone; see `Storm`.

    d_t = g_t(x_t) + (1 - a) (d_{t-1} - g_t(x_{t-1})), three gradients per step

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        a: weight of the newest gradient.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        a: Setting = 0.1,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Storm(a), **options)


class SVRGSAM(SharpnessAware):
    """Climbs along a variance-reduced slope with snapshots; see `Svrg`.

    Args:
        base: the optimizer to wrap, an instance.
        data: where the full gradient comes from.
        rho: radius of the ball.
        every: steps between snapshots.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        data: Source,
        rho: Setting = 0.05,
        every: int = 50,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Svrg(every), source=data, **options)


class SARAHSAM(SharpnessAware):
    """Climbs along a variance-reduced slope of summed differences; see `Sarah`.

    Args:
        base: the optimizer to wrap, an instance.
        data: where the full gradient comes from.
        rho: radius of the ball.
        every: steps between full gradients.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        data: Source,
        rho: Setting = 0.05,
        every: int = 50,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Sarah(every), source=data, **options)


class PGN(SharpnessAware):
    """Penalises the norm of the gradient: u = (1 - alpha) g + alpha h.

    Zhao, Zhang and Hu, ICML 2022; see `GradientNormPenalty`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball, the paper's r.
        alpha: penalty divided by rho.
        unit: whether the clean part has length 1, as in the authors' code.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.1,
        alpha: Setting = 0.8,
        unit: bool = False,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base,
            rho=rho,
            direction=Ema(theta),
            descent=GradientNormPenalty(alpha, unit),
            **options,
        )


class MultiStepSAM(SharpnessAware):
    """Climbs in n steps with a new slope at each point; n + 1 gradients per step.

    Foret et al., 2021; Andriushchenko and Flammarion, 2022; Kim et al., 2023; see `MultiStep`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        n: points.
        stride: length of a step up.
        mean: whether the gradients of all points go down, instead of the last.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        n: int = 2,
        stride: Literal["rho", "rho/n"] = "rho",
        mean: bool = False,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base,
            rho=rho,
            direction=Ema(theta),
            ascent=MultiStep(n, stride),
            descent=MeanOfPath() if mean else Perturbed(),
            **options,
        )


class FrankWolfeSAM(SharpnessAware):
    """Seeks the adversary by K steps of Frank-Wolfe; K + 1 gradients per step; see `FrankWolfe`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        K: points.
        momentum: whether slopes are averaged over the points.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        K: int = 2,
        momentum: bool = False,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base, rho=rho, direction=Ema(theta), ascent=FrankWolfe(K, momentum), **options
        )


class SparseSAM(SharpnessAware):
    """Climbs with some of the weights only: those with a large Fisher information, or dynamic ones.

    Mi et al., NeurIPS 2022; see `FisherMask` (needs a `Batch`) and `DynamicMask`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        sparsity: share of weights that do not climb.
        mask: "fisher" (SSAM-F) or "dynamic" (SSAM-D).
        every: steps between refreshments of the mask.
        seed: of a dynamic mask.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.1,
        sparsity: float = 0.5,
        mask: Literal["fisher", "dynamic"] = "fisher",
        every: int = 100,
        seed: int = 0,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            base,
            rho=rho,
            direction=Ema(theta),
            geometry=kept_mask(mask, sparsity=sparsity, every=every, seed=seed),
            **options,
        )


class AWP(SharpnessAware):
    """Adversarial weight perturbation: each layer moves by a share of its own size.

    epsilon_l = gamma ||w_l|| d_l / ||d_l||, with gamma as rho

    Wu, Xia and Wang, NeurIPS 2020; see `LayerRelative`. For adversarial training let the closure
    compute its loss on adversarial inputs.

    Args:
        base: the optimizer to wrap, an instance.
        rho: the paper's gamma.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`; pass `model=`, so that weights are known by name.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 5e-3,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), geometry=LayerRelative(), **options)


class LinfSAM(SharpnessAware):
    """SAM in the cube: epsilon = rho sign(d).

    Foret et al., 2021, for p = infinity; see `Linf`.

    Args:
        base: the optimizer to wrap, an instance.
        rho: half the length of an edge.
        theta: weight of the newest gradient in the slope.
        **options: see `SharpnessAware`.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 1e-4,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), geometry=Linf(), **options)
