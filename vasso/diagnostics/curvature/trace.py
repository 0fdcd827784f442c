"""The trace of the Hessian, estimated by products with random signs, with an interval."""

import math
from dataclasses import dataclass

import numpy as np

from vasso.diagnostics.curvature.products import Curvature
from vasso.diagnostics.estimates import Array, Estimate, student


@dataclass(frozen=True)
class Trace:
    """An estimate of the trace.

    Attributes:
        value: the estimate; its expectation is the trace.
        error: its standard error.
        probes: number of random vectors that the error is estimated from.
        products: number of products of the matrix with a vector.
        samples: number of samples that the matrix is a mean over.
    """

    value: float
    error: float
    probes: int
    products: int
    samples: int

    def estimate(self, level: float = 0.95) -> Estimate:
        """The trace with Student's interval over the probes."""
        return student(self.value, self.error, self.probes - 1, level)

    def row(self) -> dict[str, float]:
        """One row of a table: column -> value."""
        cost = {"products": self.products, "samples": self.samples}
        return {**self.estimate().row("trace"), **cost}


def hutchinson(curvature: Curvature, probes: int = 30, *, seed: int = 0) -> Trace:
    """tr H = E[z' H z] for random signs z (Hutchinson, 1989).

    Example:
        >>> import torch
        >>> from vasso.diagnostics.curvature.products import Hessian
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> batches = [(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.zeros(2, 1))]
        >>> print(hutchinson(Hessian(model, torch.nn.MSELoss(), batches), 3).estimate())
        10 [10, 10]
    """
    if probes < 2:
        raise ValueError(f"probes must be at least 2 for an interval, got {probes}")
    generator = np.random.default_rng(seed)
    forms = [_form(curvature, signs(generator, curvature.size)) for _ in range(probes)]
    return _estimate(curvature, np.array(forms), probes, 0.0)


def hutch_plus_plus(curvature: Curvature, products: int = 30, *, seed: int = 0) -> Trace:
    """tr H = tr Q'HQ + E[z'(I - QQ') H (I - QQ') z] with Q from a sketch of H (Meyer et al., 2021).

    The large eigenvalues are summed exactly and only the rest is estimated. With a few large
    eigenvalues, as in trained networks, the noise is much smaller than Hutchinson's.

    Args:
        products: number of products: a third for the sketch, a third for the exact part, a third
            for probes.

    Returns:
        The estimate; its error is that of the probes, because the exact part has none.

    Example:
        >>> import torch
        >>> from vasso.diagnostics.curvature.products import Hessian
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 3.0]]).double()
        >>> H = Hessian(model, torch.nn.MSELoss(), [(x, torch.zeros(2, 1).double())])
        >>> round(hutch_plus_plus(H, 6).value, 6)  # of [[2, 3], [3, 9]], whose rank the sketch has
        11.0
    """
    if products < 6:
        raise ValueError(f"products must be at least 6, two for each third, got {products}")
    generator = np.random.default_rng(seed)
    rank = min(products // 3, curvature.size)
    probes = products - 2 * rank
    sketch = [curvature.times(signs(generator, curvature.size)) for _ in range(rank)]
    Q, _ = np.linalg.qr(np.stack(sketch, axis=1))
    exact = sum(_form(curvature, q) for q in Q.T)
    rest = (signs(generator, curvature.size) for _ in range(probes))
    forms = [_form(curvature, z - Q @ (Q.T @ z)) for z in rest]
    return _estimate(curvature, np.array(forms), products, exact)


def signs(generator: np.random.Generator, size: int) -> Array:
    """Independent signs, each +1 or -1."""
    return generator.choice(np.array([-1.0, 1.0]), size)


def _form(curvature: Curvature, z: Array) -> float:
    return float(z @ curvature.times(z))


def _estimate(curvature: Curvature, forms: Array, products: int, exact: float) -> Trace:
    error = float(forms.std(ddof=1)) / math.sqrt(len(forms))
    value = exact + float(forms.mean())
    return Trace(value, error, len(forms), products, curvature.samples)
