"""What is in the middle of happening? All of it in one object.

One object, because a host's wrapper may copy our attributes (Fabric's does): what is set through
the wrapper has to be seen by us, and the other way round.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from vasso.guest import Guest
from vasso.here import Climb, Gradient, Here
from vasso.randomness import State
from vasso.records import StepRecord, StepSummary
from vasso.scaling import Scaling
from vasso.settings import COST, SKIPPED
from vasso.vectors import Vector
from vasso.window import Window


class NonFiniteError(ArithmeticError):
    """A gradient is infinite or NaN; ends the step under way.

    Args:
        value: the norm of the gradient.
        above: whether it is the gradient at w + epsilon, so that the slope has seen that at w.
    """

    def __init__(self, value: float, above: bool = False) -> None:
        super().__init__(f"the gradient at {'w + epsilon' if above else 'w'} has norm {value}")
        self.above = above


@dataclass
class UnderWay:
    """What is under way between two steps, or in the middle of one.

    Attributes:
        climb: the last climb; the weights may be away from home.
        attic: room for copies of the weights, kept from step to step.
        ascended: whether the caller is inside `ascended()`.
        pending: what the next `step()` has to do with the gradients that `ascended()` left.
        other_data: whether the adversary comes from other data than the descent.
        aside: gradients that wait while a pass that may be left out runs.
        scaling: the GradScaler of this step, if there is one.
        proxies: in whose names it unscales.
        window: the micro-batches of this step, if each has an adversary of its own.
        plain_steps: steps of the base alone since this optimizer was made, while there was no
            other.
        batch_size: how many samples the batch of this step has, if it tells.
        draws: the state of the random generators before the pass at w, if it is to be replayed.
        names: the names of the parameters, as far as they are known.
        named_groups: how many groups there were when the names were looked up.
        clean: whether this step has taken a gradient at w.
        losses: what the closures of this step returned, in order.
        safe_w: the tensors whose last norms of g and d were far from under- and overflow; their
            next slope is an average of both, whose norm need not be looked at by the host.
        descent_is_safe: the same of the gradient that goes down.
        started: whether a step has been begun.
        gone: whether the base has been given back.
        summary: of the last step.
        observers: who wants records.
    """

    climb: Climb | None = None
    attic: dict[Tensor, Tensor] = field(default_factory=dict)
    ascended: bool = False
    pending: Literal["descend", "skip"] | None = None
    other_data: bool = False
    aside: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    scaling: Scaling | None = None
    proxies: list[Optimizer] = field(default_factory=list)
    window: Window | None = None
    plain_steps: int = 0
    clean: bool = True
    batch_size: int | None = None
    draws: State | None = None
    names: dict[Tensor, str] = field(default_factory=dict)
    named_groups: int = 0
    losses: list[Any] = field(default_factory=list)
    safe_w: list[Tensor] = field(default_factory=list)
    descent_is_safe: bool = True
    started: bool = False
    gone: bool = False
    summary: StepSummary = field(default_factory=StepSummary)
    observers: OrderedDict[int, Callable[[StepRecord], None]] = field(default_factory=OrderedDict)

    @property
    def away(self) -> bool:
        """Whether weights are at w + epsilon."""
        return self.climb is not None and self.climb.away


class Traveller(Guest):
    """A guest that is sometimes away from home, and what one may ask it.

    Attributes:
        _now: what is under way.
    """

    _now: UnderWay

    @property
    def cost(self) -> float:
        """Gradient evaluations so far: forwards with backward, in units of one batch."""
        return float(self.param_groups[0][COST])

    @property
    def skipped(self) -> int:
        """Steps skipped so far because a gradient was not finite."""
        return int(self.param_groups[0][SKIPPED])

    @property
    def perturbed(self) -> bool:
        """Whether the weights are at w + epsilon just now: a closure should not log there."""
        return self._now.away

    @property
    def last(self) -> StepSummary:
        """What the last step knew anyway: losses, norms, whether it climbed."""
        return self._now.summary

    def observe(self, observer: Callable[[StepRecord], None]) -> RemovableHandle:
        """Calls someone with the vectors of each step, before the base steps.

        Args:
            observer: takes a `StepRecord`; what it wants to keep it has to clone.

        Returns:
            A handle; `remove()` ends it. Without observers no record is made.

        Example:
            >>> import torch
            >>> from vasso import SAM
            >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
            >>> opt = SAM(torch.optim.SGD([w], lr=0.1), rho=0.5)
            >>> handle = opt.observe(lambda record: print(record.epsilon))
            >>> w.square().sum().backward()
            >>> with opt.ascended():
            ...     w.square().sum().backward()
            [tensor([0.3000, 0.4000])]
            >>> handle.remove()
        """
        handle = RemovableHandle(self._now.observers)
        self._now.observers[handle.id] = observer
        return handle

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients as the base does; a step that was to be skipped is over with them.

        Args:
            set_to_none: whether they become None instead of zero.
        """
        super().zero_grad(set_to_none)
        if self._now.pending == "skip" and not self._now.ascended:
            self._now.pending = None

    def _refuse_away(self, what: str) -> None:
        if self._now.gone:
            raise RuntimeError(
                f"{what}: this {type(self).__name__} has given its base back (unwrap)"
            )
        if self._now.ascended or self._now.away:
            raise RuntimeError(
                f"{what} inside ascended(), or in a closure at w + epsilon: the weights are not at "
                "home. Leave the block first."
            )

    def _give_back(self) -> None:
        self._now.gone = True
        self._now.attic.clear()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_now"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_now": UnderWay()})

    def __repr__(self) -> str:
        told = ", ".join(f"{s.name}={self.param_groups[0][s.key]:g}" for s in self.settings)
        return f"{type(self).__name__}({told}; {self.method})\n{self.base!r}"

    def _note_losses(self, losses: list[Any]) -> None:
        """Puts the losses of the passes into the summary."""
        now = self._now
        now.losses = losses
        told = [loss.detach() if isinstance(loss, Tensor) else loss for loss in losses]
        climbed = now.summary.climbed
        where: Literal["w", "w, ascent data", "w + epsilon"] = "w"
        if climbed and not now.clean:
            where = "w + epsilon"
        elif climbed and now.other_data:
            where = "w, ascent data"
        now.summary = replace(
            now.summary,
            loss=told[0 if climbed else -1] if told else None,
            loss_at=where,
            perturbed_loss=told[-1] if climbed and told else None,
        )

    def _tell(
        self,
        here: Here,
        g: Vector | None,
        d: Vector | None,
        epsilon: Vector | None,
        path: list[Gradient],
    ) -> None:
        """Completes the summary and hands a record to whoever observes."""
        now = self._now
        self._note_losses(now.losses)
        if now.observers:
            h = path[-1] if path else None
            record = StepRecord(here.step, here.w, g or [], d or [], epsilon, h, now.summary)
            for observer in list(now.observers.values()):
                observer(record)
