"""The density of all eigenvalues, by stochastic Lanczos quadrature.

A random unit vector weights all eigenvalues equally on average. Some Lanczos steps from it give
nodes and weights of a Gauss quadrature of the density (Golub & Welsch, 1969; Ghorbani et al.,
2019), exact for polynomials of degree 2 * steps - 1.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh_tridiagonal

from vasso.diagnostics.curvature.products import Curvature
from vasso.diagnostics.estimates import Array


@dataclass(frozen=True)
class Density:
    """The density of eigenvalues as a sum of points, one row for each random vector.

    Attributes:
        nodes: eigenvalues, (probes, steps).
        weights: their weights, (probes, steps); each row sums to 1.
        size: number of eigenvalues.
        products: number of products of the matrix with a vector.
        samples: number of samples that the matrix is a mean over.
    """

    nodes: Array
    weights: Array
    size: int
    products: int
    samples: int

    def moment(self, power: int) -> tuple[float, float]:
        """tr H^power / size, and its standard error over the random vectors."""
        return _over_probes((self.weights * self.nodes**power).sum(axis=1))

    def share_above(self, threshold: float) -> tuple[float, float]:
        """The share of eigenvalues above a threshold, and its standard error."""
        return _over_probes((self.weights * (self.nodes > threshold)).sum(axis=1))

    def at(self, x: Array, width: float) -> tuple[Array, Array]:
        """The density smoothed by Gaussians, and its standard error over the random vectors.

        `width` is the standard deviation of the Gaussians, in units of the eigenvalues.
        """
        if not width > 0:
            raise ValueError(f"width must be above 0, got {width}")
        distances = (x[None, :, None] - self.nodes[:, None, :]) / width
        gaussians = np.exp(-(distances**2) / 2) / (width * np.sqrt(2 * np.pi))
        each = (gaussians * self.weights[:, None, :]).sum(axis=2)
        return each.mean(axis=0), each.std(axis=0, ddof=1) / np.sqrt(len(each))

    def row(self) -> dict[str, float]:
        """One row of a table: column -> value."""
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
        probes: number of random vectors.
        steps: products for each of them; more steps give a finer resolution.

    Example:
        >>> import torch
        >>> from vasso.diagnostics.curvature.products import Hessian
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> batches = [(torch.diag(torch.tensor([1.0, 3.0])).double(), torch.zeros(2, 1).double())]
        >>> density = spectral_density(Hessian(model, torch.nn.MSELoss(), batches))
        >>> np.sort(density.nodes[0]).round(6).tolist()
        [1.0, 9.0]
    """
    if probes < 2 or steps < 1:
        raise ValueError(f"needs probes >= 2 and steps >= 1, got {probes} and {steps}")
    steps = min(steps, curvature.size)
    generator = np.random.default_rng(seed)
    before = curvature.products
    nodes, weights = np.zeros((probes, steps)), np.zeros((probes, steps))
    for i in range(probes):
        diagonal, off_diagonal = lanczos(
            curvature, generator.standard_normal(curvature.size), steps
        )
        values, vectors = eigh_tridiagonal(diagonal, off_diagonal)
        nodes[i, : len(values)], weights[i, : len(values)] = values, vectors[0] ** 2
        nodes[i, len(values) :] = values[0]  # weightless: the vector met few eigenvalues
    spent = curvature.products - before
    return Density(nodes, weights, curvature.size, spent, curvature.samples)


def lanczos(curvature: Curvature, start: Array, steps: int) -> tuple[Array, Array]:
    """Diagonal and off-diagonal of Q'HQ for a Krylov basis Q of at most `steps` columns."""
    # Q is orthogonalised in full at every step.
    Q = [start / np.linalg.norm(start)]
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    while True:
        image = curvature.times(Q[-1])
        diagonal.append(float(Q[-1] @ image))
        scale = float(np.linalg.norm(image))
        basis = np.stack(Q)
        for _ in range(2):  # once is not enough: rounding brings the old directions back
            image = image - basis.T @ (basis @ image)
        length = float(np.linalg.norm(image))
        if len(Q) == steps or length <= 1e-10 * max(scale, 1e-300):
            return np.array(diagonal), np.array(off_diagonal)
        off_diagonal.append(length)
        Q.append(image / length)


def _over_probes(each: Array) -> tuple[float, float]:
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))
