"""Words: Moses's tokens in lower case, and the pairs of sentences that are fit for training.

Tokens are those of `sacremoses`: quotes become `&quot;`, hyphens stay within a word. A pair
is kept if both sides have 1 to 175 tokens and neither is more than 1.5 times as long as the other.
"""

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
    """Sentences as tokens separated by blanks, in lower case."""
    tokenize = _tokenizer(language).tokenize
    return [tokenize(line, return_str=True).lower() for line in lines]


def detokenised(lines: Iterable[str], language: str) -> list[str]:
    detokenize = _detokenizer(language).detokenize
    return [detokenize(line.split(), return_str=True) for line in lines]


def is_kept(source: str, target: str) -> bool:
    """Whether neither side of a pair of tokens is empty, too long or much longer than the other."""
    m, n = len(source.split()), len(target.split())
    return min(m, n) >= 1 and max(m, n) <= min(LONGEST, RATIO * min(m, n))
