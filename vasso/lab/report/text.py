"""Text of a report: numbers with their intervals, short sentences, and the command of a run."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import fields
from typing import Any

from vasso.diagnostics.estimates import Estimate
from vasso.lab.experiment.method import PLAIN, MethodConfig
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.task import Task
from vasso.lab.report.compare import Comparison, Kind
from vasso.lab.report.findings import Findings
from vasso.lab.report.metrics import ACCURACY, Metric
from vasso.lab.statistics import ALPHA, LEAST, POWER, mean
from vasso.lab.store.store import STORE

MINUS = "\N{MINUS SIGN}"
KINDS = {
    "best": "each at its best ρ",
    "one": "one ρ for all",
    "given": "each at the ρ that the study has",
    "base": "against the plain base",
}
RIVALS: Mapping[tuple[Kind, ...], str] = {
    ("base",): "against the plain base",
    ("best", "given"): "against SAM, each at its own ρ",
    ("one",): "against SAM at one ρ for all",
}
VERDICTS = {
    "agrees": "agrees with",
    "disagrees": "disagrees with",
    "inconclusive": "inconclusive about",
    "too few seeds": "too few seeds to check",
}
RULE = (
    f"Ahead or behind: p < {ALPHA:g} in a two-sided paired t-test over the shared seeds, last "
    "epoch, Holm-corrected over all comparisons of the study at this scale. Where neither way is "
    f"better, the words are larger and smaller. p ≥ {ALPHA:g} is no significant difference (n.s.), "
    f"which does not mean equal. Fewer than {LEAST} shared seeds are not tested. A published "
    "difference counts as a claim if it is larger than the root of the sum of its squared "
    "deviations; our result agrees or disagrees with its sign."
)


def format_number(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """A number with `digits` after the point and a true minus.

    Example:
        >>> format_number(-0.126), format_number(3.0, 1, sign=True)
        ('−0.13', '+3.0')
    """
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.replace("-", MINUS)


def format_half_width(estimate: Estimate, digits: int = 2) -> str:
    """Half the confidence interval, such as "± 0.31"; "" where it is infinite."""
    half = (estimate.high - estimate.low) / 2
    return f"± {half:.{digits}f}" if math.isfinite(half) else ""


def format_interval(estimate: Estimate, digits: int = 2, *, sign: bool = False) -> str:
    """The confidence interval, such as "95 % confidence interval 28.70 to 31.43"."""
    if not math.isfinite(estimate.low):
        return "no confidence interval from one run"
    ends = (format_number(end, digits, sign=sign) for end in (estimate.low, estimate.high))
    return f"{100 * estimate.level:g} % confidence interval {' to '.join(ends)}"


def format_seeds(n: int) -> str:
    """A number of seeds, marked if they are too few for a test.

    Example:
        >>> format_seeds(1), format_seeds(5)
        ('n = 1, too few seeds', 'n = 5')
    """
    return f"n = {n}, too few seeds" if n < LEAST else f"n = {n}"


def format_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_p(p: float) -> str:
    """A p-value with three digits.

    Example:
        >>> format_p(0.0421), format_p(1e-5)
        ('0.042', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def format_skipped(percent: float) -> str:
    """The share of skipped steps, above 0.

    Example:
        >>> format_skipped(8.13), format_skipped(0.004)
        ('8.1 % of steps skipped', '< 0.1 % of steps skipped')
    """
    return f"{'< 0.1' if percent < 0.1 else f'{percent:.1f}'} % of steps skipped"


def count_of(count: int, one: str = "run", many: str = "") -> str:
    """A count with its noun.

    Example:
        >>> count_of(1), count_of(1200), count_of(2, "study", "studies")
        ('1 run', '1,200 runs', '2 studies')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def capitalized(text: str) -> str:
    """A text with its first letter in upper case; Greek letters and a user's functions stay.

    Example:
        >>> capitalized("test accuracy"), capitalized("λ1"), capitalized("mine:data, resnet8")
        ('Test accuracy', 'λ1', 'mine:data, resnet8')
    """
    stays = not text[:1].isascii() or re.match(r"[\w.]+:\w", text)
    return text if stays else text[:1].upper() + text[1:]


def short_source(source: str) -> str:
    """A source up to the first bracket, colon or semicolon.

    Example:
        >>> short_source("lk-eg, Efficient-SAM (abb2f2b), an independent re-run; means from files")
        'lk-eg, Efficient-SAM'
    """
    return re.split(r"\s*[(:;]", source, maxsplit=1)[0]


def describe_seeds_needed(metric: Metric, count: int) -> str:
    """How many seeds the relevant difference of a metric would take.

    Example:
        >>> from vasso.lab.report.metrics import BLEU
        >>> describe_seeds_needed(BLEU, 34)
        'At this spread a difference of 0.15 BLEU takes 34 seeds (power 80 %).'
    """
    size = metric.with_unit(f"{metric.relevant:g}")
    return f"At this spread a difference of {size} takes {count:,} seeds (power {100 * POWER:g} %)."


def describe_one_radius(rho: float, labels: str, n: int, wrong: float) -> str:
    """How the one radius for all was chosen: another choice can reverse the result.

    `rho`, `labels` and `n` are those of `compare.OneRadius`, `wrong` the share of wrong labels.
    """
    if labels == "none":
        return f"One ρ for all: ρ = {rho:g}, the only one that SAM has here."
    these = "on these labels (there are no runs on clean labels to choose by)" if wrong else "here"
    at = "on clean labels" if labels == "clean" and wrong else these
    return f"One ρ for all: ρ = {rho:g}, the best for SAM {at}, by validation ({format_seeds(n)})."


def summarize(found: Findings) -> list[str]:
    """Three sentences: what was asked, what was found, how sure that is."""
    results, runs = found.results, f"{count_of(len(found.contents.runs))} in “{found.name}”"
    pairs = {
        (c.metric, c.kind, c.ours.run.id, c.theirs.run.id): c  # studies can share runs
        for result in results
        for c in result.comparisons
        if c.paired is not None
    }
    tested = [c for c in pairs.values() if c.standing != "too few seeds"]
    sure = _how_sure(tested, pairs)
    if len(results) == 1:
        first = [(c, c.paired.difference) for c in results[0].first(3) if c.paired]
        asked = results[0].section.study.question
        said, sure = "; ".join(_describe_difference(*each) for each in first), f"{runs}: {sure}"
    else:
        studies = count_of(len(results), "study", "studies")
        asked = f"{studies} with {runs} ask what beats SAM, and whether SAM beats the plain base."
        said = "; ".join(_describe_tested(tested))
    return [asked, f"Found: {said or 'nothing that can be compared'}.", capitalized(sure)]


def _describe_difference(c: Comparison, d: Estimate) -> str:
    name, digits = c.metric.name, c.metric.digits
    ours, theirs = (
        f"{c.table.label(cell)} {format_number(mean([*cell.values(name).values()]).value, digits)}"
        for cell in (c.ours, c.theirs)
    )
    size = f"{format_number(d.value, digits, sign=True)} {format_half_width(d, digits)}".rstrip()
    unit = c.metric.unit or c.metric.quantity
    return f"{ours} against {theirs}, {size} {unit}, {c.standing}"


def _describe_tested(tested: Sequence[Comparison]) -> Iterator[str]:
    for kinds, rival in RIVALS.items():
        some = [c.standing for c in tested if c.kind in kinds and c.metric.better != "neither"]
        if some:
            ahead, behind = some.count("ahead"), some.count("behind")
            yield f"{rival}, {ahead} of {len(some)} ahead and {behind} behind"


def _how_sure(tested: Sequence[Comparison], every: Sized) -> str:
    few = len(every) - len(tested)
    counts = sorted({c.paired.n for c in tested if c.paired is not None})
    seeds = " to ".join(str(n) for n in dict.fromkeys(counts[:1] + counts[-1:]))
    parts = [f"paired tests over {seeds} seeds, Holm-corrected, decide"] if tested else []
    if few:
        has = "comparison has" if few == 1 else "comparisons have"
        parts.append(f"{few} {has} too few seeds to be tested")
    return f"{'; '.join([*parts, 'no epoch and no seed is selected by test accuracy'])}."


def describe_range(published: tuple[float, float], values: Sequence[float]) -> str:
    """Where our values lie beside a published range.

    Example:
        >>> describe_range((0.01, 0.1), [0.05, 0.2, 0.3])
        'Shaded: the published range, 0.01 to 0.1; of our 3 values 0 lie below it and 2 above it.'
    """
    low, high = published
    below, above = sum(v < low for v in values), sum(v > high for v in values)
    where = f"of our {len(values)} values {below} lie below it and {above} above it"
    if len(values) in {below, above}:
        where = f"all our {len(values)} values lie {'below' if below else 'above'} it"
    return f"Shaded: the published range, {low:g} to {high:g}; {where}."


def describe_other_settings(count: int) -> str:
    """A warning about runs that were measured with other settings."""
    was, is_ = ("was", "is") if count == 1 else ("were", "are")
    return (
        f"{count_of(count)} {was} measured with other settings than this study asks for and "
        f"{is_} not counted."
    )


def describe_comparison(c: Comparison) -> str:
    """A comparison in one sentence: who, by how much, and what follows."""
    by = f"{c.metric.quantity}, " if c.metric is not ACCURACY else ""
    rule = f"({by}{KINDS[c.kind]})"
    who = f"{c.table.label(c.ours)} against {c.table.label(c.theirs)} {rule}"
    if c.paired is None:
        return f"{who}: no seed in common, not tested."
    d, digits = c.paired.difference, c.metric.digits
    size = c.metric.with_unit(format_number(d.value, digits, sign=True))
    interval = format_interval(d, digits, sign=True)
    against = "".join(
        f"; {VERDICTS[a.verdict]} {a.published.source}" for a in c.agreements if a.published.claims
    )
    needed = c.seeds_needed
    more = f" {describe_seeds_needed(c.metric, needed)}" if needed is not None else ""
    return f"{who}: {size}, {interval}, n = {c.paired.n}: {c.standing}{against}.{more}"


def train_command(run: Run, store: str = str(STORE)) -> str:
    """The command that trains a run, for a shell.

    Example:
        >>> sam = MethodConfig.of({"name": "SAM", "rho": 0.1})
        >>> train_command(Run(Task(wrong=0.5), sam, seed=2))
        'vasso train --method SAM --rho 0.1 --wrong 0.5 --seed 2'
    """
    name = run.method.base if run.method.name == PLAIN else run.method.name
    words = ["vasso", "train", "--method", name]
    own = dict(run.method.settings)
    words += [word for key in ("rho", "theta") if key in own for word in _flag(key, own.pop(key))]
    words += [word for f in fields(MethodConfig) for word in _flag_unless_default(f, run.method)]
    words += [word for f in fields(Task) for word in _flag_unless_default(f, run.task)]
    words += ["--set", *(f"{key}={value}" for key, value in own.items())] if own else []
    place = [] if store == str(STORE) else ["--store", store]
    return shlex.join([*words, "--seed", str(run.seed), *place])


def _flag_unless_default(field: Any, of: MethodConfig | Task) -> list[str]:
    value = getattr(of, field.name)
    if field.name in {"name", "settings"} or value == field.default:
        return []
    if field.name == "base" and isinstance(of, MethodConfig) and of.name == PLAIN:
        return []
    return _flag(field.name, value)


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag] if value else [f"--no-{flag[2:]}"]
    return [flag, repr(value) if isinstance(value, float) else str(value)]
