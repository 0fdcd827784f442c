"""Measurements of adversaries and flatness that leave the model unchanged; figures are separate.

Results are frozen dataclasses with confidence intervals, and most have a `row()` for tables.
Arguments with the same meaning everywhere are described here once:

    model      the network; its weights, buffers, gradients and modes are restored
    loss_fn    its loss, the mean over the samples of a batch; see `passes`
    batchnorm  "running" normalises by running statistics, "batch" by those of the batch
    dropout    whether dropout is on; masks are the same at w and at w + epsilon
    seed       of the random numbers drawn
    level      confidence level of the intervals

Names are imported when they are first used. The functions `snr`, `friendliness` and `sharpness`
live in modules of the same name: `from vasso.diagnostics.adversary.snr import snr`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vasso.optional import check_installed

if TYPE_CHECKING:
    # estimates
    from vasso.diagnostics.estimates import Estimate as Estimate, mean_of as mean_of
    from vasso.diagnostics.estimates import share_of as share_of

    # noise of gradients and slopes
    from vasso.diagnostics.adversary.snr import Snr as Snr, SnrMeter as SnrMeter
    from vasso.diagnostics.adversary.slope_error import ErrorMeter as ErrorMeter
    from vasso.diagnostics.adversary.slope_error import SlopeError as SlopeError
    from vasso.diagnostics.adversary.slope_error import Stability as Stability
    from vasso.diagnostics.adversary.slope_error import slope_errors as slope_errors
    from vasso.diagnostics.adversary.sphere import Cloud as Cloud, cloud as cloud

    # effects of adversaries on their own batch and on others
    from vasso.diagnostics.adversary.friendliness import Friendliness as Friendliness
    from vasso.diagnostics.adversary.friendliness import friendliness_of as friendliness_of
    from vasso.diagnostics.adversary.radius import Adversary as Adversary, RiseCurve as RiseCurve
    from vasso.diagnostics.adversary.radius import Rises as Rises, rise_along as rise_along
    from vasso.diagnostics.adversary.radius import rise_curve as rise_curve

    # sharpness and curvature
    from vasso.diagnostics.sharpness import Sharpness as Sharpness
    from vasso.diagnostics.sharpness import average_sharpness as average_sharpness
    from vasso.diagnostics.curvature.products import GaussNewton as GaussNewton, Hessian as Hessian
    from vasso.diagnostics.curvature.eigen import Eigenpairs as Eigenpairs
    from vasso.diagnostics.curvature.eigen import top_eigenpairs as top_eigenpairs
    from vasso.diagnostics.curvature.density import Density as Density
    from vasso.diagnostics.curvature.density import spectral_density as spectral_density
    from vasso.diagnostics.curvature.trace import Trace as Trace, hutch_plus_plus as hutch_plus_plus
    from vasso.diagnostics.curvature.trace import hutchinson as hutchinson

    # the loss landscape
    from vasso.diagnostics.landscape import Slice as Slice, Surface as Surface
    from vasso.diagnostics.landscape import direction as direction, interpolation as interpolation
    from vasso.diagnostics.landscape import slice_1d as slice_1d, slice_2d as slice_2d

    # a model as a function of its weights, and a live probe
    from vasso.diagnostics.passes import Objective as Objective, OfModel as OfModel
    from vasso.diagnostics.passes import gradient_of as gradient_of, objective as objective
    from vasso.diagnostics.passes import untouched as untouched
    from vasso.diagnostics.probe import Probe as Probe

check_installed("diagnostics", "numpy", "scipy")

_MODULES = {
    "estimates": "Estimate mean_of share_of",
    "adversary.snr": "Snr SnrMeter",
    "adversary.slope_error": "ErrorMeter SlopeError Stability slope_errors",
    "adversary.sphere": "Cloud cloud",
    "adversary.friendliness": "Friendliness friendliness_of",
    "adversary.radius": "Adversary RiseCurve Rises rise_along rise_curve",
    "sharpness": "Sharpness average_sharpness",
    "curvature.products": "GaussNewton Hessian",
    "curvature.eigen": "Eigenpairs top_eigenpairs",
    "curvature.density": "Density spectral_density",
    "curvature.trace": "Trace hutch_plus_plus hutchinson",
    "landscape": "Slice Surface direction interpolation slice_1d slice_2d",
    "passes": "Objective OfModel gradient_of objective untouched",
    "probe": "Probe",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
