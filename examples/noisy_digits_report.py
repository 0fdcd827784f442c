"""What do the runs of noisy_digits.py say? Rebuilds the table and the figure from the runs alone.

python examples/noisy_digits_report.py records/noisy-digits/demo.json --figure demo.svg
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from rich import box
from rich.console import Console
from rich.table import Table

Results = list[dict[str, Any]]
COLOURS = {"SGD": "#8a8a8a", "SAM": "#e07b00", "VaSSO": "#1f87e0"}  # seen on white and on black
INK = "#7d7d7d"
HERE = Path(__file__).parent


# -- numbers ---------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % t-interval."""
    n = len(values)
    half = scipy.stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)
    return float(np.mean(values)), float(half)


def cells(results: Results) -> Iterator[tuple[str, float, Results]]:
    """The runs that differ in nothing but the seed, by method and rho."""
    for method, rho in dict.fromkeys((r["method"], r["rho"]) for r in results):
        same = [r for r in results if (r["method"], r["rho"]) == (method, rho)]
        yield method, rho, sorted(same, key=lambda r: r["seed"])


def last(runs: Results) -> list[float]:
    """Accuracy at the last epoch, by seed."""
    return [r["accuracy"][-1] for r in runs]


def accuracy_so_far(runs: Results) -> str:
    return f"{np.mean(last(runs)):.1f} % right"


def per_step(runs: Results) -> float:
    """Gradient evaluations per step: opt.cost, or the calls of the closure where it is missing."""
    spent = sum(r["evaluations"] if r["cost"] is None else r["cost"] for r in runs)
    return spent / sum(r["steps"] for r in runs)


def difference(better: str, than: str, results: Results) -> str:
    """The paired difference of two methods, and whether it can be told from nothing."""
    by_method = {method: last(runs) for method, _, runs in cells(results)}
    paired = np.subtract(by_method[better], by_method[than])
    mean, half = interval(paired)
    low, high = mean - half, mean + half
    says = f"{better} is ahead of {than} here" if low > 0 else f"{better} is behind {than} here"
    if low <= 0 <= high:
        says = f"the interval contains 0, so these runs cannot tell {better} from {than}"
    return (
        f"{better} − {than} = {mean:+.1f} points (95 % interval {low:+.1f} to {high:+.1f}): {says}."
    )


# -- words -----------------------------------------------------------------------------------------


def demo_table(results: Results) -> Table:
    any_run = results[0]
    title = f"{any_run['wrong_labels']} of 1,000 labels wrong, {any_run['epochs']} epochs"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    heads = ("rho", "theta", "test accuracy %", "wrong labels\nlearnt %", "gradients\na step")
    for head in ("method", *heads, "CPU time\n/ SGD"):
        table.add_column(head, justify="left" if head == "method" else "right")
    seconds = {method: sum(r["cpu_seconds"] for r in runs) for method, _, runs in cells(results)}
    for method, rho, runs in cells(results):
        settings = [f"{rho:g}", f"{runs[0]['theta']:g}"] if rho else ["–", "–"]
        mean, half = interval(last(runs))
        learnt = np.mean([r["memorised"] for r in runs])
        took = f"{seconds[method] / seconds['SGD']:.1f}"
        numbers = (f"{mean:.1f} ± {half:.1f}", f"{learnt:.1f}", f"{per_step(runs):g}", took)
        table.add_row(method, *settings, *numbers)
    return table


def tuning_table(results: Results) -> Table:
    table = Table(title="validation accuracy %", box=box.SIMPLE_HEAD)
    rows: dict[float, dict[str, str]] = {}
    for method, rho, runs in cells(results):
        mean, half = interval(last(runs))
        rows.setdefault(rho, {})[method] = f"{mean:.1f} ± {half:.1f}"
    for head in ("rho", "SAM", "VaSSO"):
        table.add_column(head, justify="right")
    for rho, row in rows.items():
        table.add_row(f"{rho:g}", row["SAM"], row["VaSSO"])
    return table


def choices(results: Results) -> Iterator[str]:
    """The best rho of each method, with a warning where the grid ends too early."""
    for name in ("SAM", "VaSSO"):
        means = {rho: np.mean(last(runs)) for method, rho, runs in cells(results) if method == name}
        best = max(means, key=lambda rho: means[rho])
        edge = " at the edge of the grid: extend it" if best in {min(means), max(means)} else ""
        yield f"--rho-{name.lower()} {best:g}{edge}"


def show(results: Results) -> None:
    """Prints the table and what it says, in words computed from the numbers."""
    console, seeds = Console(), len({r["seed"] for r in results})
    if results[0]["judged_on"] == "validation":
        console.print(tuning_table(results))
        console.print(f"Chosen over {seeds} seeds:", ", ".join(choices(results)), highlight=False)
        return
    console.print(demo_table(results))
    told = f"Mean ± 95 % t-interval over {seeds} seeds, at the last epoch; differences are paired."
    pairs = (("SAM", "SGD"), ("VaSSO", "SAM"))
    console.print(
        "\n".join([told, *(difference(*pair, results) for pair in pairs)]), highlight=False
    )


# -- files -----------------------------------------------------------------------------------------


def refuse_early(*files: Path | None) -> None:
    """Says before the training what would fail after it."""
    for file in filter(None, files):
        if not file.parent.is_dir():
            sys.exit(f"{file}: there is no directory {file.parent}")
        if file.suffix not in {".json", ".svg", ".png"}:
            sys.exit(f"{file}: expected a name that ends in .json, .svg or .png")
        if file.suffix != ".json" and not find_spec("matplotlib"):
            sys.exit("--figure needs matplotlib: pip install 'vasso[demo]'")


def commit() -> str:
    """The commit of this checkout, and whether what ran may differ from it."""
    try:
        told = [
            subprocess.check_output(["git", *words], cwd=HERE, text=True, stderr=subprocess.DEVNULL)
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "../vasso", "."))
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown: not a git checkout"
    return told[0].strip() + (" with changes not committed" if told[1] else "")


def save(results: Results, file: Path) -> None:
    """Writes the runs, and where they come from."""
    origin = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "versions": {name: version(name) for name in ("vasso", "torch", "scikit-learn", "numpy")},
        "python": platform.python_version(),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
    }
    head = json.dumps(origin, indent=1).removesuffix("\n}")
    runs = ",\n".join(map(json.dumps, results))  # a line for each
    file.write_text(f'{head},\n "runs": [\n{runs}\n]}}\n')


def draw(results: Results, file: Path) -> None:
    """Test accuracy over epochs: the mean of each method and its 95 % interval as a band."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"font.size": 11, "text.color": INK, "svg.hashsalt": "vasso"})
    figure = Figure(figsize=(7, 4), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    axes = figure.add_subplot()
    labels = []
    for method, _, runs in cells(results):
        curves = np.transpose([r["accuracy"] for r in runs])
        mean, half = np.transpose([interval(at_epoch) for at_epoch in curves])
        epochs = np.arange(1, len(mean) + 1)
        axes.plot(epochs, mean, color=COLOURS[method], linewidth=2.2)
        axes.fill_between(epochs, mean - half, mean + half, color=COLOURS[method], alpha=0.25, lw=0)
        labels.append((mean[-1], f"{method}  {mean[-1]:.1f}", COLOURS[method]))
    dress(axes, results)
    put_labels(axes, labels, len(mean))
    figure.savefig(file, transparent=True, metadata={"Date": None} if file.suffix == ".svg" else {})


def put_labels(axes: Any, labels: list[tuple[float, str, str]], epochs: int) -> None:
    """A label at the end of each line; two that would touch move apart."""
    heights, texts, colours = map(list, zip(*sorted(labels), strict=True))
    room = 0.075 * np.diff(axes.get_ylim())[0]
    for i in range(1, len(heights)):
        push = max(0.0, room - (heights[i] - heights[i - 1])) / 2
        heights[i - 1], heights[i] = heights[i - 1] - push, heights[i] + push
    style: dict[str, Any] = {"va": "center", "weight": "bold", "annotation_clip": False}
    for height, text, colour in zip(heights, texts, colours, strict=True):
        end, right = (epochs, height), (8, 0)
        axes.annotate(text, end, right, textcoords="offset points", color=colour, **style)


def dress(axes: Any, results: Results) -> None:
    run, seeds = results[0], len({r["seed"] for r in results})
    title = f"Test accuracy (%), {run['noise'] * 100:g} % of the training labels wrong"
    axes.set_title(title, loc="left", weight="bold", pad=10)
    axes.set_xlabel(f"epoch (digits; mean and 95 % interval over {seeds} seeds)", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK)
    axes.grid(axis="y", color=INK, alpha=0.25, linewidth=0.7)
    axes.set_xlim(1, run["epochs"])
    axes.set_ylim(None, 100)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("json", type=Path, help="what noisy_digits.py --json wrote")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the curves, .svg or .png")
    args = parser.parse_args()
    refuse_early(args.figure)
    runs = json.loads(args.json.read_text())["runs"]
    show(runs)
    if args.figure:
        draw(runs, args.figure)
