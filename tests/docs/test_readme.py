"""README.md: short enough to be read, sentences too, and both sides of its diff run."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LONGEST = 30
"""Words of a sentence."""


def paragraphs(text: str) -> list[str]:
    """Paragraphs, list items and cells of tables, without code, comments and targets of links."""
    text = re.sub(r"^```.*?^```|<!--.*?-->|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"\n\s*\n|^[-#] |^\||(?<!\|)\|(?!\|)", text, flags=re.MULTILINE)
    return [" ".join(part.split()) for part in parts if re.search(r"\w", part)]


def sentences(text: str) -> list[str]:
    return [s for part in paragraphs(text) for s in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\d])", part)]


def words(sentence: str) -> int:
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def test_it_has_less_than_200_lines() -> None:
    assert len(README.splitlines()) < 200


def test_no_sentence_is_longer_than_thirty_words() -> None:
    assert len(sentences(README)) > 100
    assert [s for s in sentences(README) if words(s) > LONGEST] == []


def test_long_sentences_are_found() -> None:
    long = " ".join(["Word", *["word"] * 30])
    for page in (f"{long}.", f"- {long}\n", f"| a | {long} |", f"Short. [{long}](x.md)."):
        assert [words(s) for s in sentences(page) if words(s) > LONGEST] == [31]


def test_it_asks_for_nothing_to_be_filled_in() -> None:
    assert not re.search(r"<(?!!--|https?:)[^>\n]+>", README)


def test_every_rho_to_begin_with_is_on_the_page_of_questions_too() -> None:
    table = README[README.index("| base and model |") :].partition("\n\n")[0]
    assert table.replace("](records/", "](../records/") in (ROOT / "docs" / "faq.md").read_text()


def test_the_rho_of_our_record_is_that_of_the_claims() -> None:
    claims = (ROOT / "docs" / "claims.md").read_text()
    best = r"^\| (SAM|VaSSO θ=0\.4) \| .* \(ρ ([\d.]+), n \d+\) \|"
    (_, sam), (_, vasso), (_, sam_mlp), (_, vasso_mlp) = re.findall(best, claims, re.MULTILINE)
    assert f"| {sam}; `VaSSO(theta=0.4)` {vasso} | [our record]" in README
    assert f"| {sam_mlp} for both | [our record]" in README
    assert sam_mlp == vasso_mlp
    record = (ROOT / "records" / "noisy-digits" / "README.md").read_text()
    (sam,), (vasso,) = (
        re.findall(rf"^\| {x} \| ([\d.]+) \|", record, re.M) for x in ("SAM", "VaSSO")
    )
    assert f"| {sam}; `VaSSO(theta=0.2)` {vasso} | [our record]" in README


@pytest.mark.parametrize("sign", ["-", "+"])
def test_the_loop_runs_before_and_after(sign: str) -> None:
    import torch

    (diff,) = re.findall(r"^```diff\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    code = "\n".join(line[2:] for line in diff.splitlines() if line[:1] in {" ", "", sign})
    model = torch.nn.Linear(4, 2)
    loader = [(torch.randn(8, 4), torch.randint(2, (8,)))] * 3
    names = {"model": model, "loader": loader, "loss_fn": torch.nn.CrossEntropyLoss()}
    before = model.weight.clone()
    exec(code, names)
    assert not torch.equal(before, model.weight)
    assert getattr(names["opt"], "cost", None) == (6 if sign == "+" else None)
