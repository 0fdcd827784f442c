"""Is the adversary any good, and how flat is it here? Measurements that leave no trace.

Everything here computes; drawing is apart. Results are frozen dataclasses that know their
uncertainty and how to become a row of a table.

Names are imported when they are first used. The functions `snr`, `friendliness` and `sharpness`
live in modules of the same name: `from vasso.diagnostics.snr import snr`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vasso.extras import need

if TYPE_CHECKING:
    # how sure we are
    from vasso.diagnostics.estimates import Estimate as Estimate
    from vasso.diagnostics.estimates import mean_of as mean_of
    from vasso.diagnostics.estimates import share_of as share_of

    # how noisy gradients and slopes are
    from vasso.diagnostics.snr import Snr as Snr
    from vasso.diagnostics.snr import SnrMeter as SnrMeter
    from vasso.diagnostics.slope_error import ErrorMeter as ErrorMeter
    from vasso.diagnostics.slope_error import SlopeError as SlopeError
    from vasso.diagnostics.slope_error import Stability as Stability
    from vasso.diagnostics.slope_error import slope_errors as slope_errors
    from vasso.diagnostics.sphere import Cloud as Cloud
    from vasso.diagnostics.sphere import cloud as cloud

    # what adversaries do, to their own batch and to others
    from vasso.diagnostics.friendliness import Friendliness as Friendliness
    from vasso.diagnostics.friendliness import friendliness_of as friendliness_of
    from vasso.diagnostics.radius import Adversary as Adversary
    from vasso.diagnostics.radius import RiseCurve as RiseCurve
    from vasso.diagnostics.radius import Rises as Rises
    from vasso.diagnostics.radius import rise_along as rise_along
    from vasso.diagnostics.radius import rise_curve as rise_curve

    # how sharp it is
    from vasso.diagnostics.sharpness import Sharpness as Sharpness
    from vasso.diagnostics.sharpness import average_sharpness as average_sharpness
    from vasso.diagnostics.products import GaussNewton as GaussNewton
    from vasso.diagnostics.products import Hessian as Hessian
    from vasso.diagnostics.eigen import Eigenpairs as Eigenpairs
    from vasso.diagnostics.eigen import top_eigenpairs as top_eigenpairs
    from vasso.diagnostics.density import Density as Density
    from vasso.diagnostics.density import spectral_density as spectral_density
    from vasso.diagnostics.trace import Trace as Trace
    from vasso.diagnostics.trace import hutch_plus_plus as hutch_plus_plus
    from vasso.diagnostics.trace import hutchinson as hutchinson

    # what it looks like around
    from vasso.diagnostics.landscape import Slice as Slice
    from vasso.diagnostics.landscape import Surface as Surface
    from vasso.diagnostics.landscape import direction as direction
    from vasso.diagnostics.landscape import interpolation as interpolation
    from vasso.diagnostics.landscape import slice_1d as slice_1d
    from vasso.diagnostics.landscape import slice_2d as slice_2d

    # a model as a function of its weights, and a live probe
    from vasso.diagnostics.passes import Objective as Objective
    from vasso.diagnostics.passes import OfModel as OfModel
    from vasso.diagnostics.passes import gradient_of as gradient_of
    from vasso.diagnostics.passes import objective as objective
    from vasso.diagnostics.passes import untouched as untouched
    from vasso.diagnostics.probe import Probe as Probe

need("diagnostics", "numpy", "scipy")

_HOMES = {
    "estimates": "Estimate mean_of share_of",
    "snr": "Snr SnrMeter",
    "slope_error": "ErrorMeter SlopeError Stability slope_errors",
    "sphere": "Cloud cloud",
    "friendliness": "Friendliness friendliness_of",
    "radius": "Adversary RiseCurve Rises rise_along rise_curve",
    "sharpness": "Sharpness average_sharpness",
    "products": "GaussNewton Hessian",
    "eigen": "Eigenpairs top_eigenpairs",
    "density": "Density spectral_density",
    "trace": "Trace hutch_plus_plus hutchinson",
    "landscape": "Slice Surface direction interpolation slice_1d slice_2d",
    "passes": "Objective OfModel gradient_of objective untouched",
    "probe": "Probe",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
