"""Writes docs/methods.md from the catalogue: a table for each question, a block for each method.

    python docs/_ext/methods_page.py > docs/methods.md        (make methods)

Equations are plain text in the catalogue, so that they can be read in a terminal; here they become
TeX, which the site and GitHub typeset.
"""

import re
from typing import get_args

from vasso.catalogue import NOT_HERE, Method, Question, methods

HEAD = """# Methods

Every method and variant, and the call that makes it. `base` is your optimizer. Names are imported
from `vasso`, except `SAF` and `MESA` (`vasso.losses`) and `AveragedModel`
(`torch.optim.swa_utils`). In Python the same is `vasso.methods()`. Not sure which one?
[Which method?](faq.md#which-method-should-i-use)

*Gradients* are those of a step, *vectors* those kept between steps, beyond the base's; a vector has
the size of the weights. *Evidence* says who has compared the method with training without it:
"ours", [a record](records/index.md) of this repository, whatever its answer; "published", its
paper; "none". A method with *theta* takes variance suppression: `theta=0.4`.

{tables}

## Named, not here

Methods that users ask for and that are not built, with the reason.

| method | source | why not |
|---|---|---|
{not_here}

## Each method

A call shows the settings that define the method and those without a default; the values of `total`
(steps of the training) and `start` (first step that may perturb) are examples. In the equations
$g$ is the gradient at $w$ and $h$ that at $w + \\epsilon$. $u$ is the gradient that the base steps
by, and $v_\\perp(a)$ the component of $v$ orthogonal to $a$. A method may need more than a
base and a closure:

- *batch*: `opt.step(Samples(...))` instead of a closure: the method looks at single samples;
- *other batch*: `opt.step(closure, ascent_closure=...)`;
- *source*: an object with `full()` and `fresh()`, which return closures of all data and of a new
  batch (`vasso.Source`);
- *model*: the model as `model=`, whose layers the method looks at;
- *adapters*: a `model` with LoRA layers, peft's or your own, whose factors the base trains;
- *momentum*: a base with momentum; *SGD*: `torch.optim.SGD` as base.

This page is written by `make methods`.
"""
QUESTIONS: dict[Question, str] = {
    "wrong labels": "Some training labels are wrong. Tune rho first; begin with SAM.",
    "cheapest": "A second gradient in every step is too much.",
    "language models": "The loss is that of the next token, the vocabulary large.",
    "fine-tuning": "The weights have been trained before; adapters such as LoRA.",
    "long training": "From scratch and for long; two gradients a step can be paid.",
    "research probes": "Control experiments and ideas for slopes and solvers, not for daily use.",
}
GREEK = "epsilon|rho|theta|sigma|kappa|zeta|gamma|beta|tau|phi|eta|alpha|mu|xi|Pi|Sigma|perp|sum"
NAMES = {name: f"\\{name} " for name in GREEK.split("|")} | {"lam": r"\lambda ", "grad": r"\nabla "}


def as_tex(equation: str) -> str:
    """An equation of the catalogue as TeX; words stay words."""
    text = equation.replace("`", "").replace("||", r"\|").replace(r"\|.\|", r"\|\cdot\|")
    text = text.replace(">=", r"\ge").replace(".(", r"\cdot (").replace(" ~ ", r" \sim ")
    text = re.sub(r", (?=[^,(]* = )", r",\\quad ", text)
    text = re.sub(r"(\w)~", r"\\tilde{\1}", text)
    text = re.sub(r"sqrt\(((?:[^()]|\([^()]*\))*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:-[A-Za-z]+)*", _word, text)
    text = re.sub(r"\} \\text\{", " ", text)
    text = re.sub(r"( ?)\\text\{(.*?)\}( ?)", r"\\text{\1\2\3}", text)
    return re.sub(r" (?= |[_,)])", "", text)


def _word(found: re.Match[str]) -> str:
    word = found[0]
    within = found.string[found.start() - 1] == "_" and word not in NAMES
    return f"{{\\text{{{word}}}}}" if within else NAMES.get(word, f"\\text{{{word}}}")


def anchor(title: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def title(name: str, method: Method) -> str:
    """The heading of a method, with its kind if it is no choice of parts."""
    return name if method.kind == "preset" else f"{name} ({method.kind})"


def section(question: Question) -> str:
    """The heading and the table of one question; empty if it has no methods."""
    found = {name: m for name, m in methods().items() if m.question == question}
    if not found:
        return ""
    head = [
        f"## {question.capitalize()}",
        "",
        QUESTIONS[question],
        "",
        "| method | what it does | gradients | vectors | evidence | theta |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(row(*item) for item in found.items())])


def row(name: str, method: Method) -> str:
    """A line of a table."""
    link = f"[{name}](#{anchor(title(name, method))})"
    facts = [method.what, method.price, method.vectors, method.evidence]
    return f"| {' | '.join([link, *facts, 'yes' if method.theta else ''])} |"


def block(name: str, method: Method) -> str:
    """The call, the equation and the facts of a method."""
    facts = [f"Gradients a step: {method.price}", f"vectors: {method.vectors}"]
    facts += [f"evidence: {method.evidence}"]
    facts += ["theta applies"] * method.theta
    facts += [f"needs *{', '.join(method.needs)}*"] if method.needs else []
    return "\n\n".join([
        f"### {title(name, method)}",
        f"{method.what} ({method.paper})",
        f"    {method.call}",
        f"$${as_tex(method.equation)}$$",
        "; ".join(facts) + ".",
    ])


def page() -> str:
    """The text of docs/methods.md."""
    tables = "\n\n".join(filter(None, map(section, get_args(Question))))
    not_here = "\n".join(f"| {name} | {of} | {why} |" for name, (of, why) in NOT_HERE.items())
    head = HEAD.format(tables=tables, not_here=not_here).rstrip()
    return "\n\n".join([head, *(block(*x) for x in methods().items())])


if __name__ == "__main__":
    print(page())
