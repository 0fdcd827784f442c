"""Results to draw, of the shapes that measurements give; made of formulas."""

from __future__ import annotations

import numpy as np

from vasso.diagnostics.density import Density
from vasso.diagnostics.eigen import Eigenpairs
from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.friendliness import Friendliness
from vasso.diagnostics.landscape import Slice, Surface
from vasso.diagnostics.radius import RiseCurve
from vasso.diagnostics.sharpness import Sharpness
from vasso.diagnostics.snr import Snr

METHODS = {"SAM rho=0.1": 1.0, "VaSSO rho=0.1 theta=0.4": 0.4, "VaSSO rho=0.1 theta=0.2": 0.2}


def about(value: float, reach: float) -> Estimate:
    return Estimate(value, value - reach, value + reach, 0.95, 20)


def snrs(scale: float = 1.0, epochs: int = 24) -> list[tuple[float, Snr]]:
    found = []
    for epoch in range(epochs):
        value = scale * (0.02 + 0.15 * float(np.exp(-epoch / 4)) + 0.006 * np.sin(epoch))
        estimate = Estimate(value, max(value - 0.016, 0.0), value + 0.016, 0.95, 50)
        found.append((float(epoch), Snr(estimate, estimate, estimate, 50, 128)))
    return found


def friendly(theta: float, epochs: int = 24) -> list[tuple[float, Friendliness]]:
    found = []
    for epoch in range(epochs):
        rate = 0.1 + 0.35 * theta * (1 - float(np.exp(-epoch / 8))) + 0.02 * np.cos(3 * epoch)
        found.append(
            (
                float(epoch),
                Friendliness(
                    0.1, theta, about(2, 0.2), about(1, 0.3), about(1 - rate, 0.1),
                    about(rate, 0.06), 8, 10,
                ),
            )
        )  # fmt: skip
    return found


def curve(theta: float) -> RiseCurve:
    rhos = (0.01, 0.05, 0.1, 0.2, 0.4)
    own = tuple(about(r * (1 + 3 * theta) + r**2, 0.1 * r) for r in rhos)
    others = tuple(about(r * (1.2 - theta) + 2 * r**2, 0.2 * r) for r in rhos)
    return RiseCurve(rhos, own, others, theta, 8, 10)


def pairs(sharp: float) -> Eigenpairs:
    values = sharp / np.arange(1, 6) ** 0.7
    return Eigenpairs(values, np.eye(5), values / 50, 60, 2000)


def density(sharp: float, seed: int = 0) -> Density:
    luck = np.random.default_rng(seed)
    nodes = np.sort(np.concatenate([luck.normal(0, 0.3, (4, 36)), sharp * luck.random((4, 4))], 1))
    weights = np.concatenate([np.full((4, 36), 1 / 36), np.full((4, 4), 1e-4)], 1)
    return Density(nodes, weights / weights.sum(1, keepdims=True), 10_000, 160, 2000)


def along(sharp: float) -> Slice:
    at = np.linspace(-1, 1, 51)
    losses = 0.2 + sharp * at**2 + 0.1 * at**3
    return Slice(at, losses, 0.02 + 0.05 * np.abs(at), 2000)


def between(height: float) -> Slice:
    at = np.linspace(0, 1, 51)
    return Slice(at, 0.2 + 0.1 * at + height * np.sin(np.pi * at), np.full(51, 0.02), 2000)


def plane(sharp: float) -> Surface:
    at = np.linspace(-1, 1, 25)
    losses = 0.2 + sharp * (at[:, None] ** 2 + 0.6 * (at[None, :] + 0.3 * at[:, None]) ** 2)
    return Surface(at, at, losses, np.full_like(losses, 0.01), 2000)


def sharp(value: float, rho: float = 0.1) -> Sharpness:
    return Sharpness(about(value, 0.02), rho, "l2", False, "apgd", None, 10, 200)
