"""How sharp is it in its sharpest directions? The top eigenvalues of a matrix of products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import linalg

from vasso import checks
from vasso.diagnostics.products import Array, Curvature

Which: TypeAlias = Literal["LA", "SA", "LM"]
ENDS = ("LA", "SA", "LM")


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues, the most wanted first, each with how far H v is from lambda v.

    Attributes:
        values: lambda_1, lambda_2, ...
        vectors: one column for each, of length 1.
        residuals: ||H v - lambda v||; a true eigenvalue is at least as near as this to lambda.
        products: how many products of the matrix with a vector it took, residuals included.
        samples: how many samples the matrix is a mean over.
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
        """One line of a table.

        Returns:
            Eigenvalues, their ratio, residuals and cost by name.
        """
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
        curvature: the matrix.
        k: how many.
        which: "LA" the largest, "SA" the smallest, "LM" the largest in absolute value.
        tolerance: ||H v - lambda v|| <= tolerance |lambda| ends the iteration. In float32 not below
            about 1e-6.
        basis: how many vectors are kept, in float64; more of them take fewer products. None:
            max(20, 2 k + 1).
        seed: of the first vector.

    Returns:
        Eigenvalues, vectors and residuals.

    Raises:
        ValueError: k is not between 1 and the number of parameters, or `which` is unknown.
        RuntimeError: the iteration does not converge.

    Example:
        >>> import torch
        >>> from vasso.diagnostics.products import Hessian
        >>> model = torch.nn.Linear(3, 1, bias=False).double()
        >>> x = torch.diag(torch.tensor([1.0, 2.0, 3.0])).double()
        >>> H = Hessian(model, torch.nn.MSELoss(), [(x, torch.zeros(3, 1).double())])
        >>> (top_eigenpairs(H, 2).values * 3 / 2).round(3).tolist()
        [9.0, 4.0]
    """
    checks.one_of("which", which, *ENDS)
    if not 1 <= k <= curvature.size:
        raise ValueError(f"k must be from 1 to {curvature.size}, the parameters, got {k}")
    before = curvature.products
    basis = min(basis or max(20, 2 * k + 1), curvature.size)
    if basis <= k + 1 or curvature.size <= 2 * k + 2:
        values, vectors = np.linalg.eigh(dense(curvature))
    else:
        values, vectors = _lanczos(curvature, k, which, tolerance, basis, seed)
    best = _order(values, which)[:k]
    values, vectors = values[best], vectors[:, best]
    images = np.stack([curvature.times(v) for v in vectors.T], axis=1)
    residuals = np.linalg.norm(images - vectors * values, axis=0)
    spent = curvature.products - before
    return Eigenpairs(values, vectors, residuals, spent, curvature.samples)


def dense(curvature: Curvature) -> Array:
    """The whole matrix, one product for each column; for small ones.

    Args:
        curvature: the matrix.

    Returns:
        A symmetric array.
    """
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
    except linalg.ArpackNoConvergence as failure:
        raise RuntimeError(
            f"{len(failure.eigenvalues)} of {k} eigenvalues converged in {curvature.products} "
            f"products: raise tolerance (now {tolerance:g}) or basis (now {basis}), or use float64"
        ) from failure
    return values, vectors


def _order(values: Array, which: Which) -> NDArray[np.intp]:
    keys = {"LA": -values, "SA": values, "LM": -np.abs(values)}
    return np.argsort(keys[which], kind="stable")
