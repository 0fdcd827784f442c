"""How are all the eigenvalues spread? Their density, by stochastic Lanczos quadrature.

A random vector of length 1 sees the eigenvalues with equal weights on average. Some Lanczos steps
from it give nodes and weights of a Gauss quadrature of that density (Golub & Welsch, 1969;
Ghorbani et al., 2019), exact for polynomials of degree 2 * steps - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh_tridiagonal

from vasso.diagnostics.products import Array, Curvature


@dataclass(frozen=True)
class Density:
    """The density of eigenvalues as a sum of points, one row for each random vector.

    Attributes:
        nodes: where, (probes, steps).
        weights: how much, (probes, steps); each row sums to 1.
        size: how many eigenvalues there are.
        products: how many products of the matrix with a vector it took.
        samples: how many samples the matrix is a mean over.
    """

    nodes: Array
    weights: Array
    size: int
    products: int
    samples: int

    def moment(self, power: int) -> tuple[float, float]:
        """tr H^power / size, and its standard error over the random vectors.

        Args:
            power: which moment.

        Returns:
            Estimate and error.
        """
        return _over_probes((self.weights * self.nodes**power).sum(axis=1))

    def share_above(self, threshold: float) -> tuple[float, float]:
        """The share of eigenvalues above a threshold, and its standard error.

        Args:
            threshold: in units of the eigenvalues.

        Returns:
            Estimate and error.
        """
        return _over_probes((self.weights * (self.nodes > threshold)).sum(axis=1))

    def at(self, where: Array, width: float) -> tuple[Array, Array]:
        """The density, each point made a Gaussian of a given width, and its standard error.

        Args:
            where: eigenvalues at which it is wanted.
            width: standard deviation of the Gaussians, in units of the eigenvalues.

        Returns:
            Mean and standard error over the random vectors, one number for each of `where`.

        Raises:
            ValueError: the width is not positive.
        """
        if not width > 0:
            raise ValueError(f"width must be above 0, got {width}")
        apart = (where[None, :, None] - self.nodes[:, None, :]) / width
        bells = np.exp(-(apart**2) / 2) / (width * np.sqrt(2 * np.pi))
        each = (bells * self.weights[:, None, :]).sum(axis=2)
        return each.mean(axis=0), each.std(axis=0, ddof=1) / np.sqrt(len(each))

    def row(self) -> dict[str, float]:
        """One line of a table.

        Returns:
            The ends of the spectrum, its mean and spread, the negative share, cost.
        """
        mean, error = self.moment(1)
        second, _ = self.moment(2)
        above, above_error = self.share_above(0.0)
        return {
            "smallest": float(self.nodes.min()),
            "largest": float(self.nodes.max()),
            "mean": mean,
            "mean_error": error,
            "spread": float(np.sqrt(max(second - mean**2, 0.0))),
            "positive_share": above,
            "positive_share_error": above_error,
            "products": self.products,
            "samples": self.samples,
        }


def spectral_density(
    curvature: Curvature, *, probes: int = 4, steps: int = 40, seed: int = 0
) -> Density:
    """The density of the eigenvalues of a Hessian or Gauss-Newton matrix.

    Args:
        curvature: the matrix.
        probes: how many random vectors.
        steps: how many products for each; more of them resolve finer.
        seed: of the random vectors.

    Returns:
        Nodes and weights.

    Raises:
        ValueError: fewer than two probes, or no step.

    Example:
        >>> import torch
        >>> from vasso.diagnostics.products import Hessian
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> batches = [(torch.diag(torch.tensor([1.0, 3.0])).double(), torch.zeros(2, 1).double())]
        >>> found = spectral_density(Hessian(model, torch.nn.MSELoss(), batches))
        >>> np.sort(found.nodes[0]).round(6).tolist()
        [1.0, 9.0]
    """
    if probes < 2 or steps < 1:
        raise ValueError(f"needs probes >= 2 and steps >= 1, got {probes} and {steps}")
    steps = min(steps, curvature.size)
    luck = np.random.default_rng(seed)
    before = curvature.products
    nodes, weights = np.zeros((probes, steps)), np.zeros((probes, steps))
    for i in range(probes):
        diagonal, beside = lanczos(curvature, luck.standard_normal(curvature.size), steps)
        values, vectors = eigh_tridiagonal(diagonal, beside)
        nodes[i, : len(values)], weights[i, : len(values)] = values, vectors[0] ** 2
        nodes[i, len(values) :] = values[0]  # weightless: the vector met few eigenvalues
    spent = curvature.products - before
    return Density(nodes, weights, curvature.size, spent, curvature.samples)


def lanczos(curvature: Curvature, start: Array, steps: int) -> tuple[Array, Array]:
    """The tridiagonal matrix Q'HQ of a Krylov basis Q, orthogonalised in full at every step.

    Args:
        curvature: the matrix H.
        start: the first vector, of any length but 0.
        steps: how many columns Q has, unless the space is exhausted earlier.

    Returns:
        The diagonal, and the one beside it.
    """
    Q = [start / np.linalg.norm(start)]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        image = curvature.times(Q[-1])
        diagonal.append(float(Q[-1] @ image))
        reach = float(np.linalg.norm(image))
        basis = np.stack(Q)
        for _ in range(2):  # once is not enough: rounding brings the old directions back
            image = image - basis.T @ (basis @ image)
        length = float(np.linalg.norm(image))
        if len(Q) == steps or length <= 1e-10 * max(reach, 1e-300):
            return np.array(diagonal), np.array(beside)
        beside.append(length)
        Q.append(image / length)


def _over_probes(each: Array) -> tuple[float, float]:
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))
