"""Byte-pair encoding in plain Python: count all pairs, merge the most frequent, again and again.

Of equally frequent pairs the one whose first piece is older, then whose second is; letters are in
the order of the alphabet, those within words before those that end one.
"""

from collections import Counter
from itertools import pairwise

END = "</w>"


def learnt(lines: list[str], count: int) -> list[str]:
    words = Counter(word for line in lines for word in line.split())
    cut = {word: [*word[:-1], word[-1] + END] for word in sorted(words)}
    letters = sorted({x for word in words for x in word})
    age = {letter: i for i, letter in enumerate(letters)}
    merges: list[str] = []
    ending = sorted({pieces[-1] for pieces in cut.values()})
    age |= {piece: len(age) + i for i, piece in enumerate(ending)}
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in cut.items():
            for pair in pairwise(pieces):
                pairs[pair] += words[word]
        pairs = Counter({pair: n for pair, n in pairs.items() if n >= 2})
        if not pairs:
            break
        a, b = min(pairs, key=lambda pair: (-pairs[pair], age[pair[0]], age[pair[1]]))
        merges.append(f"{a} {b}")
        age.setdefault(a + b, len(age))
        cut = {word: merged(pieces, a, b) for word, pieces in cut.items()}
    return merges


def merged(pieces: list[str], a: str, b: str) -> list[str]:
    found: list[str] = []
    for piece in pieces:
        if found and found[-1] == a and piece == b:
            found[-1] = a + b
        else:
            found.append(piece)
    return found


def applied(word: str, merges: list[str]) -> list[str]:
    pieces = [*word[:-1], word[-1] + END]
    for merge in merges:
        pieces = merged(pieces, *merge.split(" "))
    return pieces
