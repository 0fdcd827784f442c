"""What is a word? Moses's tokens, in lower case; and which pairs of sentences are kept.

Moses's scripts as `sacremoses` has them: quotes become `&quot;`, hyphens stay within a word. A pair
is kept if both sides have 1 to 175 tokens and neither is more than 1.5 times as long as the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

RATIO, LONGEST = 1.5, 175


@cache
def _tokenizer(language: str) -> Any:
    from sacremoses import MosesTokenizer  # type: ignore[import-untyped]

    return MosesTokenizer(lang=language)


@cache
def _detokenizer(language: str) -> Any:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang=language)


def tokenised(lines: Iterable[str], language: str) -> list[str]:
    """Sentences as tokens with a blank between, in lower case.

    Args:
        lines: sentences as they are written.
        language: "de", "en", ...

    Returns:
        As many sentences.

    Example:
        >>> tokenised(["Don't walk, run!"], "en")
        ['don &apos;t walk , run !']
    """
    tokenize = _tokenizer(language).tokenize
    return [tokenize(line, return_str=True).lower() for line in lines]


def detokenised(lines: Iterable[str], language: str) -> list[str]:
    """Tokens put together again, as one would write them.

    Args:
        lines: tokens with a blank between.
        language: "de", "en", ...

    Returns:
        As many sentences.

    Example:
        >>> detokenised(["don &apos;t walk , run !"], "en")
        ["don't walk, run!"]
    """
    detokenize = _detokenizer(language).detokenize
    return [detokenize(line.split(), return_str=True) for line in lines]


def is_kept(source: str, target: str) -> bool:
    """Whether a pair is fit for training.

    Args:
        source: tokens.
        target: tokens.

    Returns:
        True if neither is empty, too long, or too long beside the other.

    Example:
        >>> is_kept("ein haus", "a house"), is_kept("ein haus", "a house by the sea")
        (True, False)
    """
    m, n = len(source.split()), len(target.split())
    return min(m, n) >= 1 and max(m, n) <= min(LONGEST, RATIO * min(m, n))
