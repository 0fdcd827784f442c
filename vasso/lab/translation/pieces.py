"""Into which pieces are words cut? Byte-pair encoding, learnt once for both languages.

Words are cut into letters; the most frequent pair of neighbours becomes one piece, again and again
(Sennrich, Haddow and Birch, 2016). The last piece of a word ends in `</w>`. Each language then has
a dictionary of its own: the pieces that its training text is made of, the frequent ones first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from vasso.extras import brought_by

with brought_by("lab"):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

END_OF_WORD = "</w>"
PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
MULTIPLE = 8
"""Dictionaries are filled up to a multiple of this, as fairseq does: matrices like it."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """A way to cut words.

    Args:
        merges: pairs that become one piece, the first first, with a blank between the two.

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
        """Cuts sentences.

        Args:
            lines: tokens with a blank between.

        Returns:
            The pieces of each.
        """
        return [encoding.tokens for encoding in self._tokenizer.encode_batch(list(lines))]


def learnt(lines: Iterable[str], count: int) -> list[str]:
    """The merges for a text; the same on every machine.

    Args:
        lines: tokens with a blank between.
        count: how many merges, at most.

    Returns:
        Pairs with a blank between, the first first; of equally frequent pairs the one whose pieces
        are older.

    Raises:
        ValueError: count is below 1.

    Example:
        >>> learnt(["aa ab ab", "ab"], 1)
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
        special_tokens=[*letters, *ends],  # their age, which else is that of a hash map's order
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
    """The numbers of pieces.

    Args:
        entries: the pieces, special ones first.

    Example:
        >>> both = Dictionary.of([["b</w>", "a</w>"], ["b</w>"]])
        >>> len(both), both.numbers(["a</w>", "c</w>"]), both.text([4, 5])
        (8, [5, 3], 'b a')
    """

    entries: tuple[str, ...]

    @staticmethod
    def of(sentences: Iterable[Sequence[str]]) -> Dictionary:
        """The dictionary of a text.

        Args:
            sentences: pieces.

        Returns:
            Frequent pieces first; equally frequent ones by the alphabet.
        """
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
        """The numbers of some pieces.

        Args:
            pieces: the pieces.

        Returns:
            As many numbers; that of `<unk>` where there is none.
        """
        return [self._numbers.get(piece, UNKNOWN) for piece in pieces]

    def text(self, numbers: Iterable[int]) -> str:
        """Words from numbers.

        Args:
            numbers: of pieces.

        Returns:
            Words with a blank between; padding, begin and end left out.
        """
        pieces = [self.entries[n] for n in numbers if n not in {PAD, BEGIN, END}]
        whole = [f"{p}{END_OF_WORD}" if p == SPECIAL[UNKNOWN] else p for p in pieces]
        return "".join(whole).replace(END_OF_WORD, " ").strip()
