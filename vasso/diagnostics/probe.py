"""A live probe of an optimizer: it records adversaries during training and changes no bit of it.

Every `every` steps it writes a row computed from the vectors of the step: norms, cos(d, g), the
turn of the adversary since the step before, the realised radius, the share of perturbed steps, the
cost. Less often it takes measurements such as the SNR, at the weights of that step.

Between these steps the probe does not observe the optimizer, so they cost nothing extra.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vasso.diagnostics.passes import untouched
from vasso.engine.groups import STEP
from vasso.numerics.vectors import dot, norm
from vasso.optimizer import SharpnessAware
from vasso.records import StepRecord

Measure: TypeAlias = Callable[[], Any]
"""Returns a number, a mapping of numbers, or a result with `row()`."""


class Probe:
    """Writes a line of JSON every few steps of an optimizer.

    Args:
        opt: the optimizer, a `SharpnessAware`.
        path: the file that lines are appended to; None for no file.
        every: number of steps from one line to the next.
        measures: name -> a function without arguments that measures something; the model is
            restored after it. Use a separate loader: the one of the training is in use.
        measure_every: number of steps from one measurement to the next; a multiple of `every`.
        model: the model; the optimizer's own if None.
        writer: something with ``add_scalar(name, value, step)``, such as TensorBoard's
            `SummaryWriter`.

    Attributes:
        rows: the lines written so far by this probe.

    Raises:
        ValueError: step counts are invalid, or there are measures but no model.
        TypeError: the optimizer is not a `SharpnessAware`.

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
        self._steps = self._perturbed = 0
        self._previous_epsilon: dict[int, Tensor] = {}
        self._last_step = -1
        self._observer: RemovableHandle | None = None
        self._hook: RemovableHandle | None = opt.register_step_post_hook(self._count)
        self._update_observer(opt.param_groups[0])

    def _check(self) -> None:
        if self.every < 1 or self.measure_every % self.every:
            raise ValueError(
                f"every must be at least 1 and measure_every a multiple of it, got {self.every} "
                f"and {self.measure_every}"
            )
        if self.measures and self.model is None:
            raise ValueError(
                "measures need model=, here or in the optimizer, to restore the model after them"
            )

    def _update_observer(self, group: Mapping[str, Any]) -> None:
        """Observes the next step if it, or the step after it, is written."""
        step = group[STEP]
        is_needed = step % self.every == 0 or (step + 1) % self.every == 0
        if is_needed and self._observer is None:
            self._observer = self.opt.observe(self._observe)
        elif not is_needed and self._observer is not None:
            self._observer.remove()
            self._observer = None

    def _count(self, opt: Any, *_: Any) -> None:
        """Counts a step after it, and decides whether the next one is observed."""
        self._steps += 1
        self._perturbed += opt.last.climbed  # False for a plain step of the base
        self._update_observer(opt.param_groups[0])

    @torch.no_grad()
    def _observe(self, record: StepRecord) -> None:
        """Writes a row; of several passes of one step only for the first."""
        if record.step == self._last_step:
            return
        self._last_step = record.step
        if record.step % self.every == 0:
            row = {"step": record.step, **vectors_of(record), **self._cos_epsilon(record)}
            row |= self._progress(record)
            if self.measures and record.step % self.measure_every == 0:
                row |= self._measured()
            self._write(row)
        keep = (record.step + 1) % self.every == 0 and record.epsilon is not None
        pairs = zip(record.params, record.epsilon or [], strict=keep)
        self._previous_epsilon = {id(p): e.clone() for p, e in pairs} if keep else {}

    def _cos_epsilon(self, record: StepRecord) -> dict[str, float | None]:
        """cos(epsilon_t, epsilon_{t-1}) over the tensors that both steps perturbed."""
        pairs = zip(record.params, record.epsilon or [], strict=record.epsilon is not None)
        both = [
            (e, self._previous_epsilon[id(p)]) for p, e in pairs if id(p) in self._previous_epsilon
        ]
        if not both:
            return {"cos_epsilon": None}
        return {"cos_epsilon": cosine([a for a, _ in both], [b for _, b in both])}

    def _progress(self, record: StepRecord) -> dict[str, Any]:
        """Losses, settings, and the share of steps that were perturbed since the last line."""
        summary, group = record.summary, self.opt.param_groups[0]
        loss, above = (_number(x) for x in (summary.loss, summary.perturbed_loss))
        both = loss is not None and above is not None and summary.loss_at == "w"
        steps, perturbed = self._steps + 1, self._perturbed + summary.climbed
        self._steps, self._perturbed = -1, -int(summary.climbed)  # the hook counts this step later
        settings = {s.name: _number(group[s.key]) for s in self.opt.settings}
        return {
            "loss": loss,
            "perturbed_loss": above,
            "rise": above - loss if both and above is not None and loss is not None else None,
            "climbed": summary.climbed,
            "fire_rate": perturbed / steps,
            "skipped": self.opt.skipped,
            "cost": self.opt.cost,
            "lr": _number(group["lr"]) if "lr" in group else None,
            **settings,
        }

    def _measured(self) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for name, measure in self.measures.items():
            with untouched(self.model) if self.model is not None else nullcontext():
                result = measure()
            row = result.row() if hasattr(result, "row") else result
            if isinstance(row, Mapping):
                columns |= {f"{name}/{key}": value for key, value in row.items()}
            else:
                columns[name] = _number(row)
        return columns

    def _write(self, row: dict[str, Any]) -> None:
        infinite = [k for k, x in row.items() if isinstance(x, float) and not math.isfinite(x)]
        row |= dict.fromkeys(infinite)  # JSON has no NaN and no infinity
        self.rows.append(row)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        if self.writer is not None:
            for key, value in row.items():
                if isinstance(value, int | float) and key != "step":
                    self.writer.add_scalar(f"probe/{key}", float(value), row["step"])

    def close(self) -> None:
        """Stops observing the optimizer."""
        for handle in (self._observer, self._hook):
            if handle is not None:
                handle.remove()
        self._observer = self._hook = None
        self._previous_epsilon = {}

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def vectors_of(record: StepRecord) -> dict[str, float | None]:
    """Norms and cosines of the vectors of a step; None where a vector is missing."""
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
    """<a, b> / (||a|| ||b||); 0 if a or b is 0."""
    lengths = norm(a).item() * norm(b).item()
    b = [y.to(x.dtype) for x, y in zip(a, b, strict=True)]
    return max(-1.0, min(1.0, dot(a, b).item() / lengths)) if lengths else 0.0


def _number(x: Any) -> float | None:
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 else None
    return float(x) if isinstance(x, int | float) else None


def read(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a probe's file by step; of a step that was repeated after a resume, the last.

    An incomplete last line is ignored.
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
