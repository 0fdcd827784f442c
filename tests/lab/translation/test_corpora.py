"""Sentences from official files: tokens, splits, pieces; and what is said of damaged files."""

import gzip
import random
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.lab.conftest import needing
from tests.reference import bpe
from vasso.lab.data import DataError
from vasso.lab.translation.corpora import MULTI30K, PART, TESTS, lines_of
from vasso.lab.translation.pairs import load
from vasso.lab.translation.pieces import END, UNKNOWN, Dictionary, Pieces, learn_merges
from vasso.lab.translation.words import is_kept, tokenised

GERMAN = "Das ist Satz Nummer {}, nicht wahr?"
ENGLISH = "This is sentence number {}, isn't it?"


def official_iwslt14(root: Path, count: int = 50) -> None:
    top = root / "made" / "de-en"
    top.mkdir(parents=True)
    for language, form in (("de", GERMAN), ("en", ENGLISH)):
        talk = ["<url>http://x</url>", "<keywords>talks</keywords>", "<talkid>1</talkid>"]
        talk += [f"<title>{form.format('zero')}</title>", "<description>TED</description>"]
        talk += [f" {form.format(i)}" for i in range(count)]
        talk += ["ein" if language == "de" else "much longer than the other side", ""]
        (top / f"train.tags.de-en.{language}").write_text("\n".join(talk) + "\n")
        for name in TESTS:
            lines = ['<doc docid="1">', f'<seg id="1"> {form.format(name)} </seg>', "</doc>"]
            lines.insert(2, '<seg id="2"> it’s &lt;b&gt; </seg>')
            (top / f"IWSLT14.{name}.de-en.{language}.xml").write_text("\n".join(lines))
    with tarfile.open(root / "de-en.tgz", "w:gz") as archive:
        archive.add(top, "de-en")


def test_iwslt14_is_prepared_as_is_usual(tmp_path: Path) -> None:
    official_iwslt14(tmp_path)
    texts = load("iwslt14", pieces=300, root=tmp_path, download=False)
    assert len(texts.valid) == 2  # 50 sentences, a title and a description: the 23rd and the 46th
    assert len(texts.train) == 50
    assert texts.valid.words[0] == "this is sentence number 20 , isn &apos;t it ?"
    assert len(texts.test) == 2 * len(TESTS)
    assert texts.test.words[1].startswith("it &apos;s")
    assert texts.test.written[0] == ENGLISH.format("TED.dev2010")


def test_what_was_prepared_is_not_prepared_again_unless_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official_iwslt14(tmp_path)
    first = load("iwslt14", pieces=50, root=tmp_path, download=False)

    def never(lines: object, count: int) -> list[str]:
        raise AssertionError("prepared again")

    monkeypatch.setattr("vasso.lab.translation.pairs.learn_merges", never)
    again = load("iwslt14", pieces=50, root=tmp_path, download=False)
    assert torch.equal(first.train.source.numbers, again.train.source.numbers)
    assert again.train.words == first.train.words
    assert again.cut(first.train.words) == first.cut(first.train.words)
    path = tmp_path / "de-en" / "train.tags.de-en.de"
    path.write_text(path.read_text().replace("Satz", "Spruch"))
    with pytest.raises(AssertionError, match="prepared again"):
        load("iwslt14", pieces=50, root=tmp_path, download=False)


def official_multi30k(root: Path) -> None:
    (root / MULTI30K).mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for language, form in (("de", GERMAN), ("en", ENGLISH)):
            lines = "".join(f"{form.format(i)}\n" for i in range(9))
            (root / MULTI30K / f"{name}.{language}.gz").write_bytes(gzip.compress(lines.encode()))


def test_multi30k_goes_the_same_way(tmp_path: Path) -> None:
    official_multi30k(tmp_path)
    texts = load("multi30k", pieces=100, root=tmp_path, download=False)
    assert (len(texts.train), len(texts.valid), len(texts.test)) == (9, 9, 9)
    row = texts.test.target.padded(torch.tensor([3]))[0].tolist()
    assert texts.target.text(row) == texts.test.words[3]


@pytest.mark.parametrize(
    ("m", "n", "kept"),
    [
        *((2, 3, True), (3, 2, True), (3, 5, False), (5, 3, False)),
        *((175, 175, True), (175, 176, False), (176, 176, False), (0, 0, False), (0, 1, False)),
    ],
)
def test_pairs_fit_for_training_are_short_and_of_like_length(m: int, n: int, kept: bool) -> None:
    assert is_kept("wort " * m, "word " * n) is kept


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.unlink(), "train.en.* is missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:40]), "is damaged"),
        (lambda p: p.write_bytes(gzip.compress(b"one line\n")), "do not come in pairs"),
        (lambda p: p.write_bytes(gzip.compress(b"")), "is empty"),
        (lambda p: p.write_bytes(gzip.compress(b"\xff\xfe\n" * 9)), "not UTF-8"),
    ],
)
def test_a_damaged_file_is_named(spoil: object, message: str, tmp_path: Path) -> None:
    official_multi30k(tmp_path)
    spoil(tmp_path / MULTI30K / "train.en.gz")  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        load("multi30k", pieces=10, root=tmp_path, download=False)


def test_what_is_not_there_is_told_where_to_put(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"de-en\.tgz"):
        load("iwslt14", root=tmp_path, download=False)
    with pytest.raises(DataError, match=r"iwslt14-part/train\.de is missing"):
        load("iwslt14-part", root=tmp_path, download=False)


def some_text(seed: int) -> list[str]:
    draw = random.Random(seed)
    stems = ["haus", "hund", "baum", "schiff", "straße", "garten", "sch"]
    ends = ["", "e", "en", "er", "chen", "s"]
    return [
        " ".join(draw.choice(stems) + draw.choice(ends) for _ in range(draw.randint(1, 8)))
        for _ in range(60)
    ]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_merges_are_those_of_a_plain_twin(seed: int) -> None:
    """Ties and all: most of these merges are equally frequent with others."""
    lines = some_text(seed)
    ours, plain = learn_merges(lines, 40), bpe.learnt(lines, 40)
    assert ours == plain


def test_words_are_cut_as_by_a_plain_twin() -> None:
    lines = some_text(3)
    merges = learn_merges(lines, 30)
    cut = Pieces(merges, "".join(sorted(set("".join(lines)) - {" "})))
    for line in some_text(4):
        right = [piece for word in line.split() for piece in bpe.applied(word, merges)]
        assert cut([line]) == [right]


def test_the_same_text_gives_the_same_merges_in_any_order() -> None:
    lines = some_text(5)
    shuffled = random.Random(0).sample(lines, len(lines))
    assert learn_merges(lines, 60) == learn_merges(lines, 60) == learn_merges(shuffled, 60)


def test_a_letter_that_was_never_seen_is_unknown_and_words_come_back() -> None:
    lines = some_text(6)
    cut = Pieces(learn_merges(lines, 30), "".join(set("".join(lines)) - {" "}))
    known = Dictionary.of(cut(lines))
    assert known.numbers(cut(["ж"])[0]) == [UNKNOWN]
    for line in lines:
        assert known.text([*known.numbers(cut([line])[0]), END]) == line


def test_tokens_of_multi30k_are_its_letters_and_sentences_end_in_a_mark_of_their_own() -> None:
    root = needing(MULTI30K)
    raw = lines_of(root / MULTI30K / "val.en.gz")
    found = tokenised(raw, "en")
    letters = [
        "".join(line.replace("&apos;", "'").replace("&quot;", '"').split()) for line in found
    ]
    right = ["".join(line.lower().split()) for line in raw]
    same = sum(a.replace("&amp;", "&") == b for a, b in zip(letters, right, strict=True))
    assert same / len(raw) > 0.99  # nothing but blanks, case and quotes has changed
    assert all(line.endswith((" .", " !", " ?")) for line in found if line[-1] in ".!?")


def test_fairseq_s_merges_cut_the_standard_test_set_without_unknowns() -> None:
    root = needing(f"{PART}/code")
    codes = [line for line in lines_of(root / PART / "code") if not line.startswith("#")]
    assert len(codes) == 10_000
    assert {s: len(lines_of(root / PART / f"{s}.en")) for s in ("valid", "test")} == {
        "valid": 7283,
        "test": 6750,
    }
    lines = lines_of(root / PART / "test.en")[:500]
    cut = Pieces(codes, "".join({x for line in lines for x in line if not x.isspace()}))
    counts = Counter(piece for row in cut(lines) for piece in row)
    assert "<unk>" not in counts
    for line, row in zip(lines, cut(lines), strict=True):
        assert "".join(row).replace("</w>", " ").strip() == line
    word = bpe.applied("ethnographic", codes)
    assert cut(["ethnographic"]) == [word]
