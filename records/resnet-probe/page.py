"""Tables, figures and README.md of this record, made of its files alone."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vasso.diagnostics.estimates import (
    Estimate,
    crossed_mean,
    crossed_ratio,
    crossed_share,
    mean_of,
)
from vasso.diagnostics.figures.style import canvas, look, plain_log, reference_line, save, styled

THETAS = (1.0, 0.9, 0.4, 0.2)
TITLES = {"clean": "clean labels", "wrong": "75 % wrong labels"}
AT = {"equal rho": "at equal rho", "equal rise": "at equal rise on the own batch"}


@dataclass(frozen=True)
class Course:
    """The lines of one run.

    Attributes:
        labels: "clean" or "wrong".
        seed: of the run.
        lines: all of them.
    """

    labels: str
    seed: int
    lines: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Lines of a kind."""
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def start(self) -> dict[str, Any]:
        """The line with the settings of the run."""
        return self.of("start")[0]

    @property
    def end(self) -> dict[str, Any]:
        """The line with the results of the run."""
        return self.of("end")[0]


@dataclass(frozen=True)
class Group:
    """The adversaries of one theta at one instant.

    Attributes:
        epoch: the instant.
        theta: of the slope.
        own: rise on the own batch, one for each adversary.
        others: rise on each other batch.
        rho: radius of each.
        cos_dg: cosine with the gradient.
        cos_turn: with the adversary of the step before.
    """

    epoch: float
    theta: float
    own: np.ndarray
    others: np.ndarray
    rho: np.ndarray
    cos_dg: np.ndarray
    cos_turn: np.ndarray

    @property
    def falls(self) -> np.ndarray:
        """1 where an other batch's loss falls."""
        return (self.others < 0).astype(float)


def courses(folder: Path) -> list[Course]:
    """All complete runs of a folder, clean ones first."""
    found = []
    for path in sorted(folder.glob("lines-*.jsonl")):
        _, labels, seed = path.stem.split("-")
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if lines[-1]["kind"] == "end":
            found.append(Course(labels, int(seed.removeprefix("s")), lines))
    return found


def groups(course: Course, kind: str, at: str) -> dict[float, list[Group]]:
    """theta -> its groups over the run."""
    rows = [x for x in course.of(kind) if x["at"] == at]
    found: dict[float, list[Group]] = {theta: [] for theta in THETAS}
    for epoch, some in groupby(rows, key=lambda x: math.ceil(x["epoch"])):
        of_epoch = list(some)
        for theta in THETAS:
            mine = [x for x in of_epoch if x["theta"] == theta]
            if len(mine) > 1:
                found[theta].append(_group(float(epoch), theta, mine))
    return found


def _group(epoch: float, theta: float, rows: list[dict[str, Any]]) -> Group:
    names = ("own", "others", "rho", "cos_dg", "cos_turn")
    columns = [np.array([row[name] for row in rows], dtype=np.float64) for name in names]
    return Group(epoch, theta, *columns)


# -- quantities of a group ------------------------------------------------------------------------


def rate(x: Group) -> Estimate:
    """Share of other batches whose loss falls."""
    return crossed_share(x.falls)


def carried(x: Group) -> Estimate:
    """Rise on others over rise on the own batch."""
    return crossed_ratio(x.others, x.own)


def own_gain(x: Group) -> Estimate:
    """Rise on the own batch per rho."""
    return mean_of(x.own / x.rho)


def cross_gain(x: Group) -> Estimate:
    """Rise on other batches per rho."""
    return crossed_mean(x.others / x.rho[:, None])


def radius(x: Group) -> Estimate:
    """The radius."""
    return mean_of(x.rho)


def cos_dg(x: Group) -> Estimate:
    """Cosine of slope and gradient."""
    return mean_of(x.cos_dg)


def cos_turn(x: Group) -> Estimate:
    """Cosine of this adversary and the one before."""
    return mean_of(x.cos_turn)


def friendliness_gap(course: Course, kind: str, at: str, theta: float) -> Estimate:
    """Mean over instants of SAM's share of falling batches minus that of a theta."""
    found = groups(course, kind, at)
    pairs = zip(found[1.0], _like(found[theta], found[1.0]), strict=True)
    apart = [float(a.falls.mean() - b.falls.mean()) for a, b in pairs if b is not None]
    return mean_of(apart)


def _like(some: list[Group], others: list[Group]) -> list[Group | None]:
    by_epoch = {x.epoch: x for x in some}
    return [by_epoch.get(x.epoch) for x in others]


def over_all(course: Course, kind: str, at: str, theta: float, quantity: Callable[..., Any]) -> Any:
    """The mean over instants of one quantity, with Student's interval over them."""
    values = [quantity(x).value for x in groups(course, kind, at)[theta]]
    return mean_of([x for x in values if math.isfinite(x)])


# -- figures --------------------------------------------------------------------------------------


def _draw(
    axes: Any, found: dict[float, list[Group]], quantity: Callable[[Group], Estimate]
) -> None:
    for shift, (theta, some) in enumerate(found.items()):
        style = look("SAM" if theta == 1 else f"VaSSO theta={theta:g}")
        estimates = [quantity(x) for x in some]
        x = [g.epoch * (1 + 0.025 * (shift - 1.5)) if g.epoch else 0.5 for g in some]
        y = [e.value for e in estimates]
        ends = [
            [max(e.value - e.low, 0) for e in estimates],
            [max(e.high - e.value, 0) for e in estimates],
        ]
        label = "SAM (theta 1)" if theta == 1 else f"theta {theta:g}"
        axes.plot(x, y, color=style.colour, marker=style.marker, markersize=4, lw=1.3, label=label)
        axes.errorbar(x, y, ends, color=style.colour, lw=0.8, alpha=0.3, fmt="none")


def _epochs(axes: Any) -> None:
    axes.set_xscale("log")
    ticks = (1, 2, 3, 5, 7, 10, 16, 24)
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()


@styled
def friendliness_figure(
    some: list[Course], quantity: Callable[[Group], Estimate], name: str
) -> Figure:
    """One quantity over the epochs: columns are labels, rows equal rho and equal rise."""
    figure = canvas("wide", 2.7, 2, len(some), sharex=True, sharey="row")
    grid = np.array(figure.axes).reshape(2, len(some))
    for column, course in enumerate(some):
        for row, at in enumerate(AT):
            axes = grid[row, column]
            _draw(axes, groups(course, "followed", at), quantity)
            axes.set_title(f"{TITLES[course.labels]}, {AT[at]}")
            _epochs(axes)
            reference_line(axes, 0)
    for row in range(2):
        grid[row, 0].set_ylabel(name)
    for axes in grid[1]:
        axes.set_xlabel("epoch")
    grid[0, 0].legend(ncols=2)
    return figure


@styled
def noise_figure(some: list[Course]) -> Figure:
    """SNR, cos(d, g) and the turn of the adversaries."""
    figure = canvas("wide", 2.7, 1, 3)
    left, middle, right = figure.axes
    for course, dash in zip(some, ("-", "--"), strict=False):
        rows = course.of("snr")
        x = [max(row["epoch"], 0.5) for row in rows]
        left.plot(x, [row["snr"] for row in rows], dash, marker="o", label=TITLES[course.labels])
        lows, highs = ([max(row[key], 1e-4) for row in rows] for key in ("snr_low", "snr_high"))
        left.fill_between(x, lows, highs, alpha=0.15, lw=0)
    left.set_yscale("log")
    plain_log(left.yaxis)
    left.set_title("signal / noise of a gradient")
    left.legend()
    wrong = some[-1]
    _draw(middle, groups(wrong, "followed", "equal rho"), cos_dg)
    _draw(right, groups(wrong, "followed", "equal rho"), cos_turn)
    middle.set_title(f"cos(d, g), {TITLES[wrong.labels]}")
    right.set_title("cos(ε(t), ε(t-1))")
    right.legend(ncols=2, loc="center", bbox_to_anchor=(0.5, 0.53), columnspacing=1)
    for axes in figure.axes:
        _epochs(axes)
        axes.set_xlabel("epoch (0.5: at the start)" if axes is left else "epoch")
    return figure


# -- the page -------------------------------------------------------------------------------------


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def format_estimate(x: Estimate, digits: int = 3) -> str:
    """Value and interval."""
    value, low, high = (0.0 if abs(end) < 1e-12 else end for end in (x.value, x.low, x.high))
    return f"{value:.{digits}g} [{low:.{digits}g}, {high:.{digits}g}]"


def summary(course: Course, kind: str) -> str:
    """Means over instants, for each theta."""
    rows = []
    for theta in THETAS:
        cells = [f"{theta:g}"]
        for at, quantities in (("equal rho", (own_gain, cross_gain)), ("equal rise", (radius,))):
            cells += [
                format_estimate(over_all(course, kind, at, theta, quantity))
                for quantity in quantities
            ]
        for at in AT:
            cells += [
                format_estimate(over_all(course, kind, at, theta, quantity))
                for quantity in (carried, rate)
            ]
        rows.append(cells)
    head = ["theta", "own gain", "cross gain", "rho of equal rise"]
    return table(
        [*head, "carried", "friendly", "carried, equal rise", "friendly, equal rise"], rows
    )


def differences(some: list[Course], kind: str) -> str:
    """SAM's share of falling batches minus that of each theta."""
    rows = []
    for course in some:
        for theta in THETAS[1:]:
            both = [format_estimate(friendliness_gap(course, kind, at, theta)) for at in AT]
            rows.append([TITLES[course.labels], str(course.seed), f"{theta:g}", *both])
    return table(["labels", "seed", "theta", *AT.values()], rows + over_runs(some, kind))


def over_runs(some: list[Course], kind: str) -> list[list[str]]:
    """The mean of the runs' means; with two or more seeds, Student's interval over runs."""
    rows = []
    for labels, title in TITLES.items():
        mine = [course for course in some if course.labels == labels]
        for theta in THETAS[1:] if len(mine) > 1 else ():
            each = {at: [friendliness_gap(x, kind, at, theta).value for x in mine] for at in AT}
            both = [format_estimate(mean_of(values)) for values in each.values()]
            rows.append([title, f"mean of {len(mine)} runs", f"{theta:g}", *both])
    return rows


def instants(course: Course) -> str:
    """One row for each instant: SNR, and SAM against theta 0.4 and 0.2."""
    rows = []
    found = {at: groups(course, "followed", at) for at in AT}
    noise = {math.ceil(row["epoch"]): row for row in course.of("snr")}
    for x in found["equal rho"][1.0]:
        row = noise[int(x.epoch)]
        cells = [f"{x.epoch:g}", f"{row['snr']:.3g} [{row['snr_low']:.3g}, {row['snr_high']:.3g}]"]
        for at in AT:
            for theta in (1.0, 0.4, 0.2):
                same = [g for g in found[at][theta] if g.epoch == x.epoch]
                if at == "equal rho" or theta != 1:
                    cells.append(format_estimate(rate(same[0]), 2) if same else "not reached")
        rows.append(cells)
    equal = [f"friendly, theta {t:g}" for t in (1, 0.4, 0.2)]
    rise = [f"theta {t:g}, equal rise" for t in (0.4, 0.2)]
    return table(["epoch", "SNR", *equal, *rise], rows)


def numbers(course: Course) -> dict[str, Any]:
    """The numbers in the text: means over instants, for slopes that follow the training."""
    sam = over_all(course, "followed", "equal rho", 1.0, rate)
    each = {}
    for theta in THETAS[1:]:
        less = {at: friendliness_gap(course, "followed", at, theta) for at in AT}
        own = over_all(course, "followed", "equal rho", theta, own_gain).value
        share = over_all(course, "followed", "equal rho", theta, carried).value
        rho = over_all(course, "followed", "equal rise", theta, radius).value
        each[f"{theta:g}"] = {
            "less often a friend": {at: _plain(found) for at, found in less.items()},
            "weaker on its batch": 1 - own / _of_sam(course, own_gain),
            "carries times": share / _of_sam(course, carried),
            "rho times": rho / _of_sam(course, radius),
        }
    return {"SAM is a friend": _plain(sam), "instants": int(sam.n), "theta": each}


def _of_sam(course: Course, quantity: Callable[..., Any]) -> float:
    found: float = over_all(course, "followed", "equal rho", 1.0, quantity).value
    return found


def _plain(x: Estimate) -> dict[str, float]:
    return {"value": x.value, "low": x.low, "high": x.high}


def numbers_in_text(course: Course) -> dict[str, str]:
    """The same numbers as text: shares in percentage points, ratios as factors."""
    found = numbers(course)
    name = f"{course.labels} {course.seed}"
    texts = {f"{name} friend": f"{100 * found['SAM is a friend']['value']:.1f}"}
    for theta, of in found["theta"].items():
        for at, less in of["less often a friend"].items():
            texts[f"{name} {theta} {at}"] = (
                f"{100 * less['value']:.1f} ({100 * less['low']:.1f} to {100 * less['high']:.1f})"
            )
        for what in ("weaker on its batch", "carries times", "rho times"):
            digits = 2 if what == "weaker on its batch" else 1
            texts[f"{name} {theta} {what}"] = f"{of[what]:.{digits}f}"
    return texts


def provenance(course: Course) -> list[str]:
    """One row of the table of runs."""
    start, end = course.start, course.end
    made, result = start["certificate"], end["result"]
    commit = made["commit"][:10] + ("-changed" if made["commit"].endswith("-changed") else "")
    return [
        TITLES[course.labels],
        str(course.seed),
        f"{result['last']['test_accuracy']:.2f} %",
        f"{result['cost']:.0f}",
        f"{result['seconds'] / 60:.1f} min",
        commit,
        f"torch {made['packages']['torch']}, {made['processor']}",
        end["weights"][:12],
    ]


def write_page(folder: Path) -> None:
    """README.md and the figures."""
    some = courses(folder)
    if not some:
        raise SystemExit("there is no complete run yet: see --help")
    first = [next(x for x in some if x.labels == name) for name in TITLES if _has(some, name)]
    save(
        friendliness_figure(first, rate, "other batches whose loss falls"), folder / "friendly.svg"
    )
    save(friendliness_figure(first, carried, "rise on others / own rise"), folder / "carried.svg")
    save(noise_figure(first), folder / "noise.svg")
    text = (folder / "words.md").read_text(encoding="utf-8")
    runs = [
        "labels",
        "seed",
        "test accuracy",
        "gradients",
        "training",
        "commit",
        "made by",
        "weights",
    ]
    filled = {
        "runs": table(runs, [provenance(x) for x in some]),
        "differences": differences(some, "followed"),
        "held differences": differences(some, "held"),
    }
    for course in first:
        filled[f"{course.labels} summary"] = summary(course, "followed")
        filled[f"{course.labels} held"] = summary(course, "held")
        filled[f"{course.labels} instants"] = instants(course)
    for course in some:
        filled |= numbers_in_text(course)
    summed = {f"{x.labels} {x.seed}": numbers(x) for x in some}
    (folder / "summary.json").write_text(f"{json.dumps(summed, indent=1)}\n", encoding="utf-8")
    for name, value in filled.items():
        text = text.replace(f"<{name}>", value)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _has(some: list[Course], labels: str) -> bool:
    return any(x.labels == labels for x in some)
