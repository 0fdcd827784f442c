"""The largest eigenvalues of the Hessian or Gauss-Newton matrix, by Lanczos."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.sparse import linalg

from vasso import validation
from vasso.diagnostics.curvature.products import Curvature
from vasso.diagnostics.estimates import Array

Which: TypeAlias = Literal["LA", "SA", "LM"]


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues in the order asked for, with their vectors and residuals ||H v - lambda v||.

    Attributes:
        values: lambda_1, lambda_2, ...
        vectors: one column for each, of length 1.
        residuals: ||H v - lambda v||; the distance to a true eigenvalue is at most this.
        products: number of products of the matrix with a vector, residuals included.
        samples: number of samples that the matrix is a mean over.
    """

    values: Array
    vectors: Array
    residuals: Array
    products: int
    samples: int

    @property
    def ratio(self) -> float:
        """lambda_1 / lambda_k, for k = 5 the paper's lambda_1 / lambda_5."""
        return float(self.values[0] / self.values[-1])

    @property
    def worst(self) -> float:
        """The largest residual relative to its eigenvalue."""
        return float(np.max(self.residuals / np.maximum(np.abs(self.values), 1e-300)))

    def row(self) -> dict[str, float]:
        """One row of a table: column -> value."""
        each = {f"lambda{i}": float(x) for i, x in enumerate(self.values, 1)}
        errors = {f"residual{i}": float(x) for i, x in enumerate(self.residuals, 1)}
        ratio = {f"lambda1/lambda{len(self.values)}": self.ratio}
        return {**each, **ratio, **errors, "products": self.products, "samples": self.samples}


def top_eigenpairs(
    curvature: Curvature,
    k: int = 5,
    *,
    which: Which = "LA",
    tolerance: float = 1e-3,
    basis: int | None = None,
    seed: int = 0,
) -> Eigenpairs:
    """The k largest eigenvalues of a Hessian or Gauss-Newton matrix, by Lanczos.

    Args:
        k: number of eigenvalues.
        which: "LA" the largest, "SA" the smallest, "LM" the largest in absolute value.
        tolerance: ||H v - lambda v|| <= tolerance |lambda| ends the iteration. In float32 at least
            about 1e-6.
        basis: number of float64 vectors stored; more vectors need fewer products. None is
            max(20, 2 k + 1).

    Raises:
        RuntimeError: the iteration does not converge.

    Example:
        >>> import torch
        >>> from vasso.diagnostics.curvature.products import Hessian
        >>> model = torch.nn.Linear(3, 1, bias=False).double()
        >>> x = torch.diag(torch.tensor([1.0, 2.0, 3.0])).double()
        >>> H = Hessian(model, torch.nn.MSELoss(), [(x, torch.zeros(3, 1).double())])
        >>> (top_eigenpairs(H, 2).values * 3 / 2).round(3).tolist()
        [9.0, 4.0]
    """
    validation.one_of("which", which, "LA", "SA", "LM")
    if not 1 <= k <= curvature.size:
        raise ValueError(f"k must be from 1 to {curvature.size}, the parameters, got {k}")
    before = curvature.products
    basis = min(basis or max(20, 2 * k + 1), curvature.size)
    if basis <= k + 1 or curvature.size <= 2 * k + 2:
        values, vectors = np.linalg.eigh(dense(curvature))
    else:
        values, vectors = _lanczos(curvature, k, which, tolerance, basis, seed)
    keys = {"LA": -values, "SA": values, "LM": -np.abs(values)}
    best = np.argsort(keys[which], kind="stable")[:k]
    values, vectors = values[best], vectors[:, best]
    images = np.stack([curvature.times(v) for v in vectors.T], axis=1)
    residuals = np.linalg.norm(images - vectors * values, axis=0)
    spent = curvature.products - before
    return Eigenpairs(values, vectors, residuals, spent, curvature.samples)


def dense(curvature: Curvature) -> Array:
    """The whole matrix, one product for each column; for small matrices."""
    matrix = np.stack([curvature.times(column) for column in np.eye(curvature.size)])
    symmetric: Array = (matrix + matrix.T) / 2
    return symmetric


def _lanczos(
    curvature: Curvature, k: int, which: Which, tolerance: float, basis: int, seed: int
) -> tuple[Array, Array]:
    shape = (curvature.size, curvature.size)
    operator = linalg.LinearOperator(shape, matvec=curvature.times, dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(curvature.size)
    try:
        values, vectors = linalg.eigsh(operator, k, which=which, tol=tolerance, ncv=basis, v0=start)
    except linalg.ArpackNoConvergence as error:
        raise RuntimeError(
            f"{len(error.eigenvalues)} of {k} eigenvalues converged in {curvature.products} "
            f"products: raise tolerance (now {tolerance:g}) or basis (now {basis}), or use float64"
        ) from error
    return values, vectors
