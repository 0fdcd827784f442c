"""What does the adversary do while a model trains? A probe that rides along and changes no bit.

Every `every` steps it writes what the step's own vectors tell: norms, cos(d, g), how far the
adversary turned since the step before, the realised radius, how often steps climb, the cost. Less
often it takes the measurements it was given, such as the SNR, at the weights of that step.

Between the steps it looks at it is no observer, so that they cost what they cost without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vasso.diagnostics.passes import untouched
from vasso.optimizer import SharpnessAware
from vasso.records import StepRecord
from vasso.settings import STEP
from vasso.vectors import dot, norm

Measure: TypeAlias = Callable[[], Any]
"""Gives a number, a mapping of numbers, or a result with `row()`."""


class Probe:
    """Writes a line of JSON every few steps of an optimizer.

    Args:
        opt: the optimizer, a `SharpnessAware`.
        path: the file; lines are added to it. None writes none.
        every: steps from one line to the next.
        measures: name -> what to measure now and then, without arguments; whatever it does to the
            model is undone. Give it a loader of its own: one that training is in the middle of may
            not like to be iterated twice.
        measure_every: steps from one measurement to the next; a multiple of `every`.
        model: the model; the optimizer's own if None.
        writer: something with ``add_scalar(name, value, step)``, such as TensorBoard's
            `SummaryWriter`.

    Attributes:
        rows: the lines written so far by this probe.

    Raises:
        ValueError: steps do not fit, or there are measures but no model.
        TypeError: the optimizer has no steps to observe.

    Example:
        >>> from vasso import SAM
        >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> opt = SAM(torch.optim.SGD([w], lr=0.1), rho=0.5)
        >>> with Probe(opt, every=2) as probe:
        ...     for _ in range(3):
        ...         w.grad = None
        ...         w.square().sum().backward()
        ...         with opt.ascended():
        ...             w.square().sum().backward()
        ...         opt.step()
        >>> [(row["step"], round(row["epsilon_norm"], 3)) for row in probe.rows]
        [(0, 0.5), (2, 0.5)]
    """

    def __init__(
        self,
        opt: SharpnessAware,
        path: str | Path | None = None,
        *,
        every: int = 10,
        measures: Mapping[str, Measure] | None = None,
        measure_every: int | None = None,
        model: nn.Module | None = None,
        writer: Any = None,
    ) -> None:
        if not isinstance(opt, SharpnessAware):
            raise TypeError(
                f"a probe observes a SharpnessAware optimizer, got {type(opt).__name__}"
            )
        self.opt, self.writer = opt, writer
        self.path = None if path is None else Path(path)
        self.model = opt.model if model is None else model
        self.measures = dict(measures or {})
        self.every, self.measure_every = every, measure_every or 10 * every
        self._check()
        self.rows: list[dict[str, Any]] = []
        self._steps = self._climbs = 0
        self._before: dict[int, Tensor] = {}
        self._told = -1
        self._observer: RemovableHandle | None = None
        self._hook: RemovableHandle | None = opt.register_step_post_hook(self._count)
        self._attend(opt.param_groups[0])

    def _check(self) -> None:
        if self.every < 1 or self.measure_every % self.every:
            raise ValueError(
                f"every must be at least 1 and measure_every a multiple of it, got {self.every} "
                f"and {self.measure_every}"
            )
        if self.measures and self.model is None:
            raise ValueError("measures need model=, here or in the optimizer, to undo what they do")

    # -- which steps ------------------------------------------------------------------------------

    def _attend(self, group: Mapping[str, Any]) -> None:
        """Observes the next step if it is to be told, or the one after it is."""
        step = group[STEP]
        wanted = step % self.every == 0 or (step + 1) % self.every == 0
        if wanted and self._observer is None:
            self._observer = self.opt.observe(self._see)
        elif not wanted and self._observer is not None:
            self._observer.remove()
            self._observer = None

    def _count(self, opt: Any, *_: Any) -> None:
        """After a step: did it climb, and is the next one to be observed?"""
        self._steps += 1
        self._climbs += opt.last.climbed  # of a plain step of the base it is false
        self._attend(opt.param_groups[0])

    # -- what they tell ---------------------------------------------------------------------------

    @torch.no_grad()
    def _see(self, record: StepRecord) -> None:
        """Of several shares of one step the first is told."""
        if record.step == self._told:
            return
        self._told = record.step
        if record.step % self.every == 0:
            row = {"step": record.step, **vectors_of(record), **self._turn(record)}
            row |= self._course(record)
            if self.measures and record.step % self.measure_every == 0:
                row |= self._measured()
            self._write(row)
        keep = (record.step + 1) % self.every == 0 and record.epsilon is not None
        pairs = zip(record.params, record.epsilon or [], strict=keep)
        self._before = {id(p): e.clone() for p, e in pairs} if keep else {}

    def _turn(self, record: StepRecord) -> dict[str, float | None]:
        """cos(epsilon_t, epsilon_{t-1}) over the tensors that both moved."""
        pairs = zip(record.params, record.epsilon or [], strict=record.epsilon is not None)
        both = [(e, self._before[id(p)]) for p, e in pairs if id(p) in self._before]
        if not both:
            return {"cos_epsilon": None}
        return {"cos_epsilon": cosine([a for a, _ in both], [b for _, b in both])}

    def _course(self, record: StepRecord) -> dict[str, Any]:
        """Losses, settings, and the share of steps that climbed since the last line."""
        told, group = record.summary, self.opt.param_groups[0]
        loss, above = (_number(x) for x in (told.loss, told.perturbed_loss))
        both = loss is not None and above is not None and told.loss_at == "w"
        steps, climbs = self._steps + 1, self._climbs + told.climbed
        self._steps, self._climbs = -1, -int(told.climbed)  # this step is yet to be counted
        settings = {s.name: _number(group[s.key]) for s in self.opt.settings}
        return {
            "loss": loss,
            "perturbed_loss": above,
            "rise": above - loss if both and above is not None and loss is not None else None,
            "climbed": told.climbed,
            "fire_rate": climbs / steps,
            "skipped": self.opt.skipped,
            "cost": self.opt.cost,
            "lr": _number(group["lr"]) if "lr" in group else None,
            **settings,
        }

    def _measured(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, measure in self.measures.items():
            with untouched(self.model) if self.model is not None else nullcontext():
                result = measure()
            row = result.row() if hasattr(result, "row") else result
            if isinstance(row, Mapping):
                found |= {f"{name}/{key}": value for key, value in row.items()}
            else:
                found[name] = _number(row)
        return found

    def _write(self, row: dict[str, Any]) -> None:
        row = {key: _finite(value) for key, value in row.items()}
        self.rows.append(row)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        if self.writer is not None:
            for key, value in row.items():
                if isinstance(value, int | float) and key != "step":
                    self.writer.add_scalar(f"probe/{key}", float(value), row["step"])

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the optimizer alone from now on."""
        for handle in (self._observer, self._hook):
            if handle is not None:
                handle.remove()
        self._observer = self._hook = None
        self._before = {}

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def vectors_of(record: StepRecord) -> dict[str, float | None]:
    """Norms and cosines of the vectors of a step; None where there is none.

    Args:
        record: what an observer gets.

    Returns:
        Name -> value.
    """
    g, d, epsilon = record.g, record.d, record.epsilon
    rows = [i for i, x in enumerate(record.h or []) if x is not None]
    h = [x for x in record.h or [] if x is not None]
    some_g = [g[i] for i in rows] if g else []
    return {
        "g_norm": norm(g).item() if g else None,
        "d_norm": norm(d).item() if d else None,
        "h_norm": norm(h).item() if h else None,
        "epsilon_norm": norm(epsilon).item() if epsilon is not None else None,
        "cos_dg": cosine(d, g) if d and g else None,
        "cos_gh": cosine(some_g, h) if some_g and h else None,
    }


def cosine(a: list[Tensor], b: list[Tensor]) -> float:
    """<a, b> / (||a|| ||b||), 0 if one of them is 0.

    Args:
        a: a vector.
        b: another of the same shapes.

    Returns:
        A number.

    Example:
        >>> cosine([torch.tensor([1.0, 1.0])], [torch.tensor([2.0, 2.0])])
        1.0
    """
    lengths = norm(a).item() * norm(b).item()
    b = [y.to(x.dtype) for x, y in zip(a, b, strict=True)]
    return max(-1.0, min(1.0, dot(a, b).item() / lengths)) if lengths else 0.0


def _number(x: Any) -> float | None:
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 else None
    return float(x) if isinstance(x, int | float) else None


def _finite(x: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(x, float) and not math.isfinite(x) else x


def read(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a probe, by step; of a step that was run again after a resume, the last.

    Args:
        path: the file; a last line that was cut off is left out.

    Returns:
        One mapping for each step, in order.

    Raises:
        ValueError: a line within the file is not JSON.
    """
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    rows = {}
    for i, line in enumerate(lines):
        try:
            row = json.loads(line) if line else None
        except json.JSONDecodeError as error:
            if i < len(lines) - 1:
                raise ValueError(f"{path}, line {i + 1} is not JSON: {line[:40]!r}") from error
            row = None
        if row is not None:
            rows[row["step"]] = row
    return [rows[step] for step in sorted(rows)]
