"""Time to compute the five largest eigenvalues of a real network: ours and PyHessian, in one run.

    python benchmarks/hessian.py --json out.json       # needs CIFAR-10 and PyHessian
    python benchmarks/hessian.py --show out.json       # the table again, from the file alone

PyHessian (`pip install --no-deps pyhessian`) does power iteration with deflation and stops when an
eigenvalue changes by less than a tolerance, which says little about the vector. So it runs first,
and its residuals ||H v - lambda v|| / |lambda| are measured with our products. The worst of these
is the tolerance of our run: equal residual, or better. Both use the same network, trained here for
some epochs, the same 2,000 training images in the same batches, BatchNorm in evaluation mode and
float32. Times are processor times on one thread; they include our residuals and exclude
PyHessian's.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from certificate import certificate
from tables import table
from torch import Tensor, nn

import vasso
from vasso.diagnostics.curvature.eigen import top_eigenpairs
from vasso.diagnostics.curvature.products import Hessian
from vasso.lab.data import load, normalised
from vasso.lab.models import build

K = 5
LOSS = nn.CrossEntropyLoss()
OURS = (
    ("vasso", False),
    ("vasso kept graphs", True),
)


def images(count: int) -> tuple[Tensor, Tensor]:
    """The first training images of CIFAR-10, every class with its share."""
    data = load("cifar10", train_size=count, seed=0, download=False)
    return normalised(data.train_x, data.mean, data.std), data.train_y


def trained(args: argparse.Namespace, x: Tensor, y: Tensor) -> nn.Module:
    """A network that has seen these images for some epochs, with SAM."""
    model = build(args.model, classes=10, width=args.width, seed=0)
    opt = vasso.SAM(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), rho=0.05, model=model
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(args.epochs):
        for rows in torch.randperm(len(x), generator=generator).split(100):

            def closure(rows: Tensor = rows) -> Tensor:
                opt.zero_grad()
                loss = LOSS(model(x[rows]), y[rows])
                loss.backward()
                return loss

            opt.step(closure)
    opt.zero_grad()
    return model.eval()


def timed(act: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and its processor time in seconds."""
    start = time.process_time()
    found = act()
    return found, time.process_time() - start


def theirs(model: nn.Module, batches: list[Any], tolerance: float, most: int) -> dict[str, Any]:
    """PyHessian's five eigenpairs; products are counted, residuals measured apart."""
    from pyhessian import hessian

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch on backward(create_graph=True)
        one = len(batches) == 1
        data = {"data": batches[0]} if one else {"dataloader": batches}
        passes = [0]
        hook = model.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
        (values, vectors), seconds = timed(
            lambda: hessian(model, LOSS, cuda=False, **data).eigenvalues(most, tolerance, K)
        )
        hook.remove()
    model.zero_grad()
    H = Hessian(model, LOSS, batches)
    flat = [torch.cat([part.reshape(-1) for part in v]).double() for v in vectors]
    flat = [v / v.norm() for v in flat]
    products = [H @ v for v in flat]
    quotients = [float(v @ product) for v, product in zip(flat, products, strict=True)]
    residuals = [
        float((i - r * v).norm()) for v, i, r in zip(flat, products, quotients, strict=True)
    ]
    return {
        "values": [float(value) for value in values],
        "residuals": [a / abs(r) for a, r in zip(residuals, quotients, strict=True)],
        "seconds": seconds,
        "products": None if one else passes[0] // len(batches),
        "tolerance": tolerance,
    }


def ours(model: nn.Module, batches: list[Any], tolerance: float, keep: bool) -> dict[str, Any]:
    """Our five eigenpairs at a given relative residual."""
    H = Hessian(model, LOSS, batches, keep_graphs=keep)
    found, seconds = timed(lambda: top_eigenpairs(H, K, tolerance=tolerance))
    return {
        "values": found.values.tolist(),
        "residuals": (found.residuals / np.abs(found.values)).tolist(),
        "seconds": seconds,
        "products": found.products,
        "tolerance": tolerance,
    }


def certificate_of(args: argparse.Namespace) -> dict[str, Any]:
    """Time, machine, package versions and settings."""
    names = ("model", "width", "epochs", "samples", "batch", "tolerances", "most")
    settings = {name: getattr(args, name) for name in names}
    packages = ("torch", "scipy", "pyhessian", "vasso")
    return certificate("the five largest eigenvalues of a Hessian", packages, settings)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All results as one JSON value, which is also written after every tolerance."""
    x, y = images(args.samples)
    model = trained(args, x, y)
    batches = list(zip(x.split(args.batch), y.split(args.batch), strict=True))
    result = certificate_of(args)
    with torch.no_grad():
        right = sum(int((model(a).argmax(1) == b).sum()) for a, b in batches)
    result["parameters"] = sum(p.numel() for p in model.parameters())
    result["training_accuracy"] = right / len(y)
    result["runs"] = {}
    for tolerance in args.tolerances:
        run = {"pyhessian": theirs(model, batches, tolerance, args.most)}
        asked = max(run["pyhessian"]["residuals"])
        for label, keep in OURS:
            run[label] = ours(model, batches, asked, keep)
        result["runs"][f"{tolerance:g}"] = run
        if args.json:
            args.json.write_text(json.dumps(result) + "\n")
        print(show(result), flush=True)
    return result


def show(result: dict[str, Any]) -> str:
    """The table, from the stored value alone."""
    rows = []
    for tolerance, run in result["runs"].items():
        for label, found in run.items():
            rows.append([
                tolerance,
                label,
                f"{found['values'][0]:.4g}",
                f"{found['values'][-1]:.4g}",
                f"{max(found['residuals']):.1e}",
                str(found["products"] or "-"),
                f"{found['seconds']:.0f}",
                f"{run['pyhessian']['seconds'] / found['seconds']:.1f}x",
            ])
    head = ["tolerance", "by", "lambda1", "lambda5", "worst residual", "products", "s", "faster"]
    return table(head, rows)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--tolerances", type=float, nargs="+", default=[1e-2, 1e-3])
    parser.add_argument("--most", type=int, default=100, help="PyHessian's iterations, at most")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--show", type=Path, help="only print the table of this file")
    return parser.parse_args()


def main() -> None:
    """Measures, or prints the table of a stored file."""
    args = arguments()
    if args.show:
        print(show(json.loads(args.show.read_text())))
        return
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    measure(args)


if __name__ == "__main__":
    main()
