"""Pieces of words by byte-pair encoding (Sennrich, Haddow and Birch, 2016), and dictionaries.

Words are cut into letters, and the most frequent pair of neighbours is merged, again and again. The
merges are learnt once for both languages. The last piece of a word ends in `</w>`. Each
language has its own dictionary: the pieces of its training text, the most frequent first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vasso.optional import needs_extra

with needs_extra("lab"):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

END_OF_WORD = "</w>"
PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
VOCABULARY_FILE = "vocabulary.json"
MULTIPLE = 8
"""The size of dictionaries is rounded up to a multiple of this, as in fairseq, for speed."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """Cuts words into pieces by merges: pairs in order, separated by a blank.

    Example:
        >>> cut = Pieces(["h a", "u s</w>", "ha us</w>"], "haus")
        >>> cut(["haus haha"])
        [['haus</w>', 'ha', 'h', 'a</w>']]
    """

    merges: Sequence[str]
    letters: str

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        pairs = [(a, b) for a, _, b in (merge.partition(" ") for merge in self.merges)]
        letters = [
            x for letter in sorted(set(self.letters)) for x in (letter, letter + END_OF_WORD)
        ]
        known = dict.fromkeys((SPECIAL[UNKNOWN], *letters))
        known |= dict.fromkeys(x for a, b in pairs for x in (a, b, a + b))
        ids = {piece: i for i, piece in enumerate(known)}
        unknown = SPECIAL[UNKNOWN]
        model = models.BPE(ids, pairs, unk_token=unknown, end_of_word_suffix=END_OF_WORD)
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer

    def __call__(self, lines: Sequence[str]) -> list[list[str]]:
        """The pieces of each sentence of tokens."""
        return [encoding.tokens for encoding in self._tokenizer.encode_batch(list(lines))]


def learn_merges(lines: Iterable[str], count: int) -> list[str]:
    """At most `count` merges of a text, in order, the same on every machine.

    Of equally frequent pairs the one with older pieces comes first.

    Example:
        >>> learn_merges(["aa ab ab", "ab"], 1)
        ['a b</w>']
    """
    if count < 1:
        raise ValueError(f"pieces must be 1 or more, got {count}")
    text = list(lines)
    letters = sorted({letter for line in text for letter in line if not letter.isspace()})
    ends = sorted({word[-1] + END_OF_WORD for line in text for word in line.split()})
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix=END_OF_WORD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=len(letters) + len(ends) + count,
        special_tokens=[*letters, *ends],  # fixes their age, otherwise the order of a hash map
        end_of_word_suffix=END_OF_WORD,
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(text, trainer)
    return _merges(tokenizer)[:count]


def _merges(tokenizer: Tokenizer) -> list[str]:
    import json

    found = json.loads(tokenizer.to_str())["model"]["merges"]
    return [" ".join(pair) if isinstance(pair, list) else pair for pair in found]


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The pieces of a language, numbered; special ones come first.

    Example:
        >>> both = Dictionary.of([["b</w>", "a</w>"], ["b</w>"]])
        >>> len(both), both.numbers(["a</w>", "c</w>"]), both.text([4, 5])
        (8, [5, 3], 'b a')
    """

    entries: tuple[str, ...]

    @staticmethod
    def of(sentences: Iterable[Sequence[str]]) -> Dictionary:
        """The dictionary of a text in pieces: by frequency, then by the alphabet."""
        counts = Counter(piece for sentence in sentences for piece in sentence)
        for special in SPECIAL:
            counts.pop(special, None)
        ordered = [piece for piece, _ in sorted(counts.items(), key=lambda x: (-x[1], x[0]))]
        missing = -(len(SPECIAL) + len(ordered)) % MULTIPLE
        return Dictionary((*SPECIAL, *ordered, *(f"<unused{i}>" for i in range(missing))))

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.entries)}

    def numbers(self, pieces: Iterable[str]) -> list[int]:
        """The numbers of pieces; `UNKNOWN` for others."""
        return [self._numbers.get(piece, UNKNOWN) for piece in pieces]

    def text(self, numbers: Iterable[int]) -> str:
        """The words that numbers of pieces stand for; padding, begin and end are left out."""
        pieces = [self.entries[n] for n in numbers if n not in {PAD, BEGIN, END}]
        whole = [f"{p}{END_OF_WORD}" if p == SPECIAL[UNKNOWN] else p for p in pieces]
        return "".join(whole).replace(END_OF_WORD, " ").strip()


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Merges and both dictionaries: what a translator needs besides its weights.

    A finished run keeps them in `vocabulary.json`, so that it translates where its corpus is gone
    or has changed.
    Example:
        >>> both = Dictionary.of([["b</w>", "a</w>"]])
        >>> table = Vocabulary(both, both, Pieces(["a b</w>"], "ab")).as_table()
        >>> again = Vocabulary.of(table)
        >>> again.source.entries == both.entries, again.cut(["ab"])
        (True, [['ab</w>']])
    """

    source: Dictionary
    target: Dictionary
    cut: Pieces

    def as_table(self) -> dict[str, Any]:
        """Merges, letters and the entries of both dictionaries, as JSON may hold them."""
        return {
            "merges": list(self.cut.merges),
            "letters": self.cut.letters,
            "source": list(self.source.entries),
            "target": list(self.target.entries),
        }

    @staticmethod
    def of(table: Mapping[str, Any]) -> Vocabulary:
        """The inverse of `as_table`; a ValueError names what is wrong."""
        for name in ("merges", "source", "target"):
            given = table.get(name)
            if not isinstance(given, list) or not all(isinstance(x, str) for x in given):
                raise ValueError(f"{name} must be a list of texts")
        for name in ("source", "target"):
            if tuple(table[name][: len(SPECIAL)]) != SPECIAL:
                raise ValueError(f"{name} does not begin with {', '.join(SPECIAL)}")
        if not isinstance(table.get("letters"), str):
            raise ValueError("letters must be a text")
        source, target = (Dictionary(tuple(table[name])) for name in ("source", "target"))
        return Vocabulary(source, target, Pieces(table["merges"], table["letters"]))
