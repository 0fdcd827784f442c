"""A language of a few words, and its translation: quick to learn, quick to search."""

import random

from vasso.lab.translation.corpora import Corpus, Split
from vasso.lab.translation.pairs import Texts, texts_of

WORDS = {"rot": "red", "blau": "blue", "haus": "house", "hund": "dog", "und": "and", "ein": "a"}


def split(count: int, seed: int) -> Split:
    draw = random.Random(seed)
    source = [draw.choices(list(WORDS), k=draw.randint(1, 9)) for _ in range(count)]
    target = [" ".join(WORDS[word] for word in line) for line in source]
    return Split([" ".join(line) for line in source], target, target)


def texts(seed: int = 0) -> Texts:
    return texts_of(Corpus("tiny", split(120, seed), split(20, 1000), split(24, 2000)), pieces=12)


def model(source: int, target: int, seed: int) -> object:
    import torch

    from vasso.lab.translation.transformer import Size, Transformer

    torch.manual_seed(seed)
    return Transformer(Size(1, 16, 24, heads=2), source, target, dropout=0.1)
