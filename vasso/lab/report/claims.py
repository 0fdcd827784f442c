"""The claims of the paper: for each a verdict that follows from the runs of a store.

    confirmed      the difference has the sign that the paper says, p < 0.05
    contradicted   it has the other sign, p < 0.05
    undecided      otherwise, and where there are fewer than three seeds; with the seeds that a
                   difference such as the one seen would need (power 80 %)
    no verdict     a comparison with SAM where SAM is not significantly better than its base

p is of Student's paired test over seeds, Holm-corrected over the methods of a claim.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vasso.lab.experiment.method import PLAIN
from vasso.lab.report.cells import Cell
from vasso.lab.report.compare import published_differences
from vasso.lab.report.findings import Findings, SectionResult
from vasso.lab.report.metrics import Metric
from vasso.lab.report.sections import Table, family
from vasso.lab.report.text import format_number, format_seeds
from vasso.lab.statistics import ALPHA, LEAST, Paired, holm, mean, paired, seeds_to_decide

PAPER = "Li and Giannakis"
EMPTY = "–"
SNR = (0.01, 0.1)
"""The published range of the signal-to-noise ratio."""
EQUAL_LOSS = "hessian-equal-loss"
EQUAL_LOSS_PAIRS = (("SAM", "SGD"), ("VaSSO θ=0.4", "SAM"), ("VaSSO θ=0.2", "SAM"))
MOST = 1000
"""Seeds beyond which nobody will go."""
CONFIRMED, CONTRADICTED, NO_RUNS = "confirmed", "contradicted", "undecided: no runs"


# -- claims ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """Differences between methods of a study that should all have one sign.

    Attributes:
        says: in a few words.
        study: its name.
        pairs: names of methods, ours and theirs; a name that has no runs is left out.
        sign: +1 if the paper's difference is above 0, else -1.
        rules: how radii are chosen: "one" radius for all (the paper's way), or the "best" of each.
        metric: of the study's criteria; "" is the first.
        gate: whether a verdict needs SAM to be better than its base.
        wrong: the share of wrong labels; None for all tables of the study.
        paper: what the paper has, where the study file holds no figure.
    """

    says: str
    study: str
    pairs: Sequence[tuple[str, str]]
    sign: int = 1
    rules: Sequence[str] = ("one",)
    metric: str = ""
    gate: bool = False
    wrong: float | None = None
    paper: str = ""


def _against(theirs: str, *ours: str) -> list[tuple[str, str]]:
    return [(name, theirs) for name in ours]


VASSO = _against("SAM", "VaSSO θ=0.9", "VaSSO θ=0.4", "VaSSO θ=0.2")
GAIN = [("SAM", "SGD"), ("SAM", "AdamW")]
LONGER = [("SAM", "SGD, 2 times the epochs")]
BOTH = ("one", "best")
MORE = "more accurate"
AS_MANY = "ours: SAM is more accurate than SGD with as many gradients"
CLAIMS = (
    *(
        claim
        for study in ("cifar10", "cifar100")
        for claim in (
            Claim(f"SAM is {MORE} than SGD", study, GAIN, rules=("best",)),
            Claim(AS_MANY, study, LONGER, rules=("best",)),
            Claim(f"VaSSO is {MORE} than SAM", study, VASSO[:2], rules=BOTH, gate=True),
        )
    ),
    Claim(f"SAM is {MORE} than its base", "imagenet", GAIN),
    Claim(f"VaSSO is {MORE} than SAM", "imagenet", VASSO[:2], gate=True),
    Claim(
        f"V+G is {MORE} than GSAM",
        "imagenet",
        [(f"VaSSO+GSAM α={a} θ=0.4", f"GSAM α={a}") for a in (0.1, 0.4)],
        gate=True,
    ),
    Claim("SAM has more BLEU than AdamW", "translation", GAIN),
    Claim("VaSSO has more BLEU than SAM", "translation", VASSO[:2], gate=True),
    Claim("SAM's largest eigenvalue is below SGD's", "hessian", GAIN, -1),
    Claim("VaSSO's largest eigenvalue is below SAM's", "hessian", VASSO[1:2], -1),
    Claim("SAM's λ1 / λ5 is below SGD's", "hessian", GAIN, -1, metric="ratio"),
    Claim("VaSSO's λ1 / λ5 is below SAM's", "hessian", VASSO[1:2], -1, metric="ratio"),
    *(
        claim
        for wrong in (0.25, 0.5, 0.75)
        for claim in (
            Claim(f"ours: SAM is {MORE} than SGD", "label-noise", GAIN, 1, BOTH[1:], wrong=wrong),
            Claim(AS_MANY, "label-noise", LONGER, 1, BOTH[1:], wrong=wrong),
            Claim(f"VaSSO is {MORE} than SAM", "label-noise", VASSO, 1, BOTH, "", True, wrong),
        )
    ),
    Claim(
        "VaSSO is better the smaller θ is: 0.2, 0.4, 0.9",
        "label-noise",
        [("VaSSO θ=0.2", "VaSSO θ=0.4"), ("VaSSO θ=0.4", "VaSSO θ=0.9")],
        rules=BOTH,
        gate=True,
        wrong=0.75,
    ),
    Claim("ours: the same on a perceptron", "radius-mlp", VASSO, rules=BOTH, gate=True, wrong=0.75),
    Claim("ours: the same where people gave the labels", "label-noise-human", VASSO, rules=BOTH,
          gate=True),
    Claim("another batch's adversary (SAM-db) loses to SAM", "friendly-adversary",
          [("SAM-db", "SAM")], -1, gate=True, paper="below 0, no numbers"),
    Claim("half of another batch (SAM-db-m/2) loses to SAM-db", "friendly-adversary",
          [("SAM-db-m/2", "SAM-db")], -1, gate=True, paper="below 0, no numbers"),
    Claim("noise on the adversary's slope costs accuracy", "noisy-adversary",
          _against("SAM", *(f"noisy SAM (relative) κ={k}" for k in ("0.5", "2", "8"))), -1,
          gate=True, paper="below 0, no numbers"),
    Claim("a smaller m has less BLEU", "m-sharpness",
          _against("SAM", "m-SAM (chunks) m=16", "m-SAM (chunks) m=8"), -1,
          paper="below 0, no numbers"),
    Claim("more of VaSSO's rise is carried over to other batches than of SAM's", "radius", VASSO,
          metric="carried", rules=("best",), paper="above 0, no numbers"),
    Claim("the same on a perceptron", "radius-mlp", VASSO, metric="carried", rules=("best",),
          wrong=0.75, paper="above 0, no numbers"),
)  # fmt: skip
"""In the order of the page; the studies say of which table or figure they are."""
PLACES = {"radius-mlp": "Table 6", "label-noise-human": "Table 6"}
FRIENDLY = "Section 3"
RULES = {"one": "one ρ", "best": "own best ρ"}


# -- differences -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A difference of two cells; `name` is that of our method."""

    name: str
    ours: Cell
    theirs: Cell
    paired: Paired | None


def cell_of(one: SectionResult, table: Table, name: str, rule: str) -> Cell | None:
    """The cell of a method by a rule; the most tried radius where the one for all was not tried."""
    place = one.section.tables.index(table)
    if rule == "best":
        pick = one.picks[place].get(name)
        return None if pick is None else pick.cell
    cells = [cell for cell in table.families().get(name, []) if cell.n]
    radius = one.radii[place]
    shared = (c for c in cells if radius is not None and c.rho == radius.rho)
    return next(shared, max(cells, key=lambda cell: cell.n, default=None))


def differences(claim: Claim, one: SectionResult, table: Table, rule: str) -> list[Found]:
    """The pairs of a claim of which there are runs."""
    metric, found = metric_of(claim, one).name, []
    for ours, theirs in claim.pairs:
        cells = cell_of(one, table, ours, rule), cell_of(one, table, theirs, rule)
        if cells[0] is not None and cells[1] is not None:
            pair = paired(cells[0].values(metric), cells[1].values(metric))
            found.append(Found(ours, cells[0], cells[1], pair))
    return found


def metric_of(claim: Claim, one: SectionResult) -> Metric:
    """The metric of a claim."""
    metrics = one.section.criteria.metrics
    if claim.metric == "carried":
        return CARRIED
    return next((m for m in metrics if m.name == claim.metric), metrics[0])


CARRIED = Metric("carried", "carried", quantity="share of the rise carried over")


def gain(one: SectionResult, table: Table) -> Paired | None:
    """SAM at its best radius minus its base, by the first metric of the study."""
    sam, base = (cell_of(one, table, name, "best") for name in ("SAM", _base(table)))
    name = one.section.criteria.metrics[0].name
    return None if sam is None or base is None else paired(sam.values(name), base.values(name))


def gains(one: SectionResult, table: Table, rule: str) -> Iterator[str]:
    """SAM minus its base at SAM's best radius, and at the radius of the rule if that is another."""
    yield format_pair(gain(one, table), 1)
    best, shared = (cell_of(one, table, "SAM", each) for each in ("best", rule))
    base, name = cell_of(one, table, _base(table), "one"), one.section.criteria.metrics[0].name
    if base is not None and shared is not None and shared is not best:
        pair = paired(shared.values(name), base.values(name))
        yield f"at ρ {shared.rho:g} {format_pair(pair, 1)}"


def _base(table: Table) -> str:
    names = (table.name(c) for c in table.cells if c.method.name == PLAIN)
    return next(names, "")


def verdicts_of(found: Sequence[Found], sign: int, gained: Paired | None) -> list[str]:
    """The verdict of each difference, by the rules above; `gained` is None for no gate."""
    adjusted = holm({i: f.paired.p for i, f in enumerate(found) if f.paired is not None})
    return [_verdict(f.paired, adjusted.get(i, 1.0), sign, gained) for i, f in enumerate(found)]


def _verdict(pair: Paired | None, p: float, sign: int, gained: Paired | None) -> str:
    least = min(x.n for x in (pair, gained) if x is not None) if pair is not None else 0
    if pair is None or least < LEAST:
        return f"undecided: {format_seeds(least)}" if least else NO_RUNS
    if gained is not None and not (gained.p < ALPHA and gained.difference.value > 0):
        return "no verdict: SAM has no significant gain here"
    if p < ALPHA:
        return CONFIRMED if sign * pair.difference.value > 0 else CONTRADICTED
    return f"undecided: {_seeds_needed(pair)}"


def _seeds_needed(pair: Paired) -> str:
    if not pair.difference.value:
        return "no difference was seen"
    needed = seeds_to_decide(pair.difference.value, pair.spread)
    return f"needs {needed} seeds" if needed < MOST else f"needs {MOST} seeds or more"


# -- the lines -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A claim as one task, rule and pair of methods show it.

    Attributes:
        place: the table, figure or section of the paper.
        says: the claim, in a few words.
        verdict: see the module.
        tested: task, scale and rule.
        method: ours of the two methods, with the radii.
        gained: SAM minus its base, where the claim needs it.
        measured: the difference with its interval.
        published: the paper's.
        seeds: how many both methods have.
        study: name of the study.
        cells: of the two methods.
    """

    place: str
    says: str
    verdict: str
    tested: str
    method: str
    gained: str
    measured: str
    published: str
    seeds: int | str
    study: str = ""
    cells: tuple[Cell, ...] = ()

    @property
    def word(self) -> str:
        """The verdict without its reason."""
        return self.verdict.partition(":")[0]


def claim_lines(every: Findings) -> list[Line]:
    """A line for each claim, task, rule and pair of methods of the studies that are there."""
    found = [
        line
        for claim in CLAIMS
        for one in every.results
        if one.section.study.name == claim.study and not one.section.changed
        for table in one.section.tables
        if claim.wrong in (None, table.task.wrong)
        for line in _lines(claim, one, table)
    ]
    return [*found, *_equal_loss_lines(every), *_snr_lines(every)]


def judged_claims(every: Findings) -> list[Line]:
    """The lines that at least one seed of both methods stands behind."""
    return [line for line in claim_lines(every) if line.seeds]


def _lines(claim: Claim, one: SectionResult, table: Table) -> Iterator[Line]:
    if not any({ours, theirs} <= table.families().keys() for ours, theirs in claim.pairs):
        return  # the methods of another table of the study
    seen: set[tuple[str, str]] = set()
    for rule in claim.rules:
        found = differences(claim, one, table, rule)
        gained = gain(one, table) if claim.gate else None
        verdicts = verdicts_of(found, claim.sign, gained)
        for f, verdict in zip(found, verdicts, strict=True):
            if (pair := (f.ours.run.id, f.theirs.run.id)) not in seen:
                yield _line(claim, one, table, rule, f, verdict)
            seen.add(pair)
    if not seen:
        yield _line(claim, one, table, claim.rules[0], None, NO_RUNS)


def _line(
    claim: Claim, one: SectionResult, table: Table, rule: str, f: Found | None, verdict: str
) -> Line:
    study, metric = one.section.study, metric_of(claim, one)
    pair = None if f is None else f.paired
    digits = 2 if metric.name in ("carried", "ratio") else 1
    return Line(
        FRIENDLY if metric is CARRIED else study.shows or PLACES[study.name],
        claim.says,
        verdict,
        f"{table.title}, `{one.section.scale.name}`, {RULES[rule]}",
        EMPTY if f is None else f"{f.name}{_at(f)}",
        "; ".join(gains(one, table, rule)) if claim.gate else EMPTY,
        format_pair(pair, digits),
        claim.paper or _published(claim, one, table, f),
        0 if pair is None else pair.n,
        study.name,
        () if f is None else (f.ours, f.theirs),
    )


def _at(found: Found) -> str:
    """The radii, where they differ."""
    ours, theirs = found.ours.rho, found.theirs.rho
    if ours is None or theirs is None or ours == theirs:
        return "" if ours is None else f" (ρ {ours:g})"
    return f" (ρ {ours:g}, {theirs:g})"


def format_pair(pair: Paired | None, digits: int) -> str:
    """A difference with its interval, if there is more than one seed."""
    if pair is None:
        return EMPTY
    d = pair.difference
    value = format_number(d.value, digits, sign=True)
    if pair.n < 2:
        return value
    low, high = (format_number(end, digits, sign=True) for end in (d.low, d.high))
    return f"{value} ({low} to {high})"


def _published(claim: Claim, one: SectionResult, table: Table, f: Found | None) -> str:
    """The paper's difference of the same methods, for each of its networks."""
    if f is None or f.ours.task != f.theirs.task:
        return EMPTY
    methods, metric = (f.ours.method, f.theirs.method), metric_of(claim, one)
    said = published_differences(one.section.study, table.task, *methods, metric)
    values = [x for s in said if s.source.startswith(PAPER) for x in s.differences]
    ends = [format_number(x, 2, sign=True) for x in (min(values), max(values))] if values else []
    return " to ".join(dict.fromkeys(ends)) or EMPTY


def at_equal_loss(
    ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """Eigenvalues of two methods where their training losses meet; None where they do not.

    Each method has points (loss, eigenvalue). Between them the logarithms are joined by lines, and
    the loss is the lowest that both methods have reached.

    Example:
        >>> ours, theirs = [(1.0, 10.0), (0.01, 1.0)], [(2.0, 8.0), (0.1, 4.0)]
        >>> ["%.2f" % value for value in at_equal_loss(ours, theirs)]
        ['3.16', '4.00']
    """
    level = max(min(ours)[0], min(theirs)[0])
    if level > min(max(ours)[0], max(theirs)[0]):
        return None
    first, second = (
        np.exp(np.interp(np.log(level), *np.log(np.array(sorted(points)).T)))
        for points in (ours, theirs)
    )
    return float(first), float(second)


def _equal_loss_lines(every: Findings) -> Iterator[Line]:
    """Table 5 at equal training loss: the largest eigenvalues of each seed, interpolated."""
    for one in every.results:
        if one.section.study.name == EQUAL_LOSS:
            cells: dict[str, list[Cell]] = {}
            for table in one.section.tables:
                for cell in (c for c in table.cells if c.n):
                    cells.setdefault(table.names[family(cell.method)], []).append(cell)
            for ours, theirs in (pair for pair in EQUAL_LOSS_PAIRS if cells.keys() >= set(pair)):
                yield _equal_loss_line(one, ours, cells[ours], theirs, cells[theirs])


def _equal_loss_line(
    one: SectionResult, ours: str, our_cells: list[Cell], theirs: str, their_cells: list[Cell]
) -> Line:
    first, second = _points(our_cells), _points(their_cells)
    found = {s: at_equal_loss(first[s], second[s]) for s in first.keys() & second.keys()}
    met = {seed: values for seed, values in found.items() if values is not None}
    pair = paired(*({seed: values[i] for seed, values in met.items()} for i in (0, 1)))
    verdict = verdicts_of([Found(ours, our_cells[0], their_cells[0], pair)], -1, None)[0]
    if pair is None:
        verdict = "undecided: their losses do not meet in any seed"
    return Line(
        "Table 5",
        f"ours: at equal training loss {ours}'s largest eigenvalue is below {theirs}'s",
        verdict,
        f"{one.section.tables[0].task.data}, {one.section.tables[0].task.model}, "
        f"`{one.section.scale.name}`",
        ours,
        EMPTY,
        format_pair(pair, 1),
        EMPTY,
        0 if pair is None else pair.n,
        EQUAL_LOSS,
        (*our_cells, *their_cells),
    )


def _points(cells: Sequence[Cell]) -> dict[int, list[tuple[float, float]]]:
    """Of each seed (training loss, largest eigenvalue), one for each number of epochs."""
    found: dict[int, list[tuple[float, float]]] = {}
    for cell in cells:
        eigenvalues = cell.values("lambda1")
        for seed, loss in cell.values("training_loss").items():
            if seed in eigenvalues:
                found.setdefault(seed, []).append((loss, eigenvalues[seed]))
    return found


def _snr_lines(every: Findings) -> Iterator[Line]:
    """Figure 2e: is the signal-to-noise ratio, its median over epochs, in the published range?"""
    for one in every.results:
        for table in one.section.tables if one.section.study.name == "snr" else ():
            for cell in (c for c in table.cells if c.n):
                m = mean(list(cell.values("snr_median").values()))
                outside = m.low > SNR[1] or m.high < SNR[0]
                inside = SNR[0] <= m.low and m.high <= SNR[1]
                verdict = CONFIRMED if inside else CONTRADICTED if outside else "undecided"
                if cell.n < LEAST:
                    verdict = f"undecided: {format_seeds(cell.n)}"
                half = f" ± {format_number(m.high - m.value, 2)}" if cell.n > 1 else ""
                yield Line(
                    "Figure 2e",
                    f"the signal-to-noise ratio is in [{SNR[0]}, {SNR[1]}]",
                    verdict,
                    f"{table.title}, `{one.section.scale.name}`",
                    table.name(cell),
                    EMPTY,
                    f"median over epochs {format_number(m.value, 2)}{half}",
                    f"{SNR[0]} to {SNR[1]}",
                    cell.n,
                    "snr",
                    (cell,),
                )
