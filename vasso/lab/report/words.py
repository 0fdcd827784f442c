"""How is a number written? With its interval, its count, and no more digits than it deserves."""

from __future__ import annotations

import math
import re

from vasso.diagnostics.estimates import Estimate
from vasso.lab.report.headlines import Headline
from vasso.lab.statistics import LEAST, POWER

MINUS = "\N{MINUS SIGN}"
KINDS = {
    "best": "each at its best ρ",
    "one": "one ρ for all",
    "given": "each at the ρ that the study has",
    "base": "against the plain base",
}
RIVALS = {
    "best": "Against SAM, each at its best ρ",
    "one": "Against SAM, at one ρ for all",
    "given": "Against SAM, each at the ρ that the study has",
    "base": "Against the plain base",
}
VERDICTS = {
    "agrees": "agrees with",
    "disagrees": "disagrees with",
    "cannot tell": "neither for nor against",
    "no verdict": "no verdict on",
}


def number(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """A number with so many digits after the point.

    Args:
        value: the number.
        digits: after the point.
        sign: whether a plus is written.

    Returns:
        With a true minus.

    Example:
        >>> number(-0.126), number(3.0, 1, sign=True)
        ('−0.13', '+3.0')
    """
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.replace("-", MINUS)


def half_width(estimate: Estimate, digits: int = 2) -> str:
    """Half the interval.

    Args:
        estimate: with its interval.
        digits: after the point.

    Returns:
        Such as "± 0.31"; "" where it is infinite.
    """
    half = (estimate.high - estimate.low) / 2
    return f"± {half:.{digits}f}" if math.isfinite(half) else ""


def interval(estimate: Estimate, digits: int = 2, *, sign: bool = False) -> str:
    """The interval in words.

    Args:
        estimate: with its interval.
        digits: after the point.
        sign: whether a plus is written.

    Returns:
        Such as "95 % interval 28.70 to 31.43".
    """
    if not math.isfinite(estimate.low):
        return "one run has no interval"
    ends = (number(end, digits, sign=sign) for end in (estimate.low, estimate.high))
    return f"{100 * estimate.level:g} % interval {' to '.join(ends)}"


def seeds(n: int) -> str:
    """What a number of seeds allows.

    Args:
        n: how many.

    Returns:
        "n = 1, no verdict" where there are too few.

    Example:
        >>> seeds(1), seeds(5)
        ('n = 1, no verdict', 'n = 5')
    """
    return f"n = {n}, no verdict" if n < LEAST else f"n = {n}"


def duration(seconds: float) -> str:
    """A time one can picture.

    Args:
        seconds: how long.

    Returns:
        Two units at most.

    Example:
        >>> duration(16.2), duration(104), duration(7260)
        ('16 s', '1 min 44 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def begun_large(text: str) -> str:
    """A text with a large first letter.

    Args:
        text: the text.

    Returns:
        The rest as it is; Greek letters are symbols and stay small.

    Example:
        >>> begun_large("BLEU on the test set"), begun_large("test accuracy"), begun_large("λ1")
        ('BLEU on the test set', 'Test accuracy', 'λ1')
    """
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def short(source: str) -> str:
    """A source in a few words.

    Args:
        source: in full.

    Returns:
        Its beginning, up to a bracket, a colon or a semicolon.

    Example:
        >>> short("Li and Giannakis, 2023, Table 1")
        'Li and Giannakis, 2023, Table 1'
        >>> short("lk-eg, Efficient-SAM (abb2f2b), an independent re-run; means from its files")
        'lk-eg, Efficient-SAM'
    """
    return re.split(r"\s*[(:;]", source, maxsplit=1)[0]


def p_value(p: float) -> str:
    """A p-value.

    Args:
        p: the value.

    Returns:
        Three digits, or that it is smaller.

    Example:
        >>> p_value(0.0421), p_value(1e-5)
        ('0.042', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def missed(percent: float) -> str:
    """The steps that were not taken.

    Args:
        percent: their share, above 0.

    Returns:
        Such as "8.1 % of steps skipped".

    Example:
        >>> missed(8.13), missed(0.004)
        ('8.1 % of steps skipped', '< 0.1 % of steps skipped')
    """
    return f"{'< 0.1' if percent < 0.1 else f'{percent:.1f}'} % of steps skipped"


def runs(count: int, what: str = "run") -> str:
    """A count with its noun.

    Args:
        count: how many.
        what: of what, in the singular.

    Returns:
        The words.

    Example:
        >>> runs(1), runs(1200)
        ('1 run', '1,200 runs')
    """
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def decides(headline: Headline, count: int) -> str:
    """How many seeds a difference would take.

    Args:
        headline: which names the difference.
        count: how many seeds.

    Returns:
        A sentence.

    Example:
        >>> from vasso.lab.report.headlines import BLEU
        >>> decides(BLEU, 34)
        'At this spread 34 seeds would decide a difference of 0.15 BLEU four times in five.'
    """
    often = "four times in five" if POWER == 0.8 else f"{100 * POWER:g} times in a hundred"
    size = headline.size(f"{headline.matters:g}")
    return f"At this spread {count:,} seeds would decide a difference of {size} {often}."


def one_radius(rho: float, labels: str, n: int, wrong: float) -> str:
    """Where the one radius for all comes from: another choice can turn the answer round.

    Args:
        rho: the radius.
        labels: "clean" if clean labels have chosen it, "same" if those at hand, "none" if it is the
            only one there is.
        n: seeds of the runs that it was chosen by.
        wrong: share of wrong labels of the task at hand.

    Returns:
        A sentence.

    Example:
        >>> one_radius(0.2, "clean", 3, 0.75)
        'One ρ for all: ρ = 0.2, the best for SAM on clean labels, by validation (n = 3).'
        >>> one_radius(0.1, "none", 3, 0.0)
        'One ρ for all: ρ = 0.1, the only one that SAM has here.'
    """
    if labels == "none":
        return f"One ρ for all: ρ = {rho:g}, the only one that SAM has here."
    these = "on these labels (there are no runs on clean labels to choose by)" if wrong else "here"
    at = "on clean labels" if labels == "clean" and wrong else these
    return f"One ρ for all: ρ = {rho:g}, the best for SAM {at}, by validation ({seeds(n)})."


def otherwise(count: int) -> str:
    """What is said of runs that were measured in another way.

    Args:
        count: how many.

    Returns:
        A sentence.

    Example:
        >>> otherwise(1)
        '1 run was measured with other settings than this study asks for and is not counted.'
    """
    is_are = "was" if count == 1 else "were"
    counted = "is" if count == 1 else "are"
    return (
        f"{runs(count)} {is_are} measured with other settings than this study asks for and "
        f"{counted} not counted."
    )
