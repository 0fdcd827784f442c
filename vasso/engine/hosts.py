"""Hosts that make the passes: a step that would silently train other weights is an error.

Lightning, transformers and accelerate are recognised by their modules on the call stack and by
their closures; none of them is imported.
"""

import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

PACKAGES = ("lightning.pytorch.", "pytorch_lightning.")
AUTOMATIC = tuple(f"{package}loops.optimization.automatic" for package in PACKAGES)
LIGHTNING = (
    "Lightning {}. Add SharpnessAwareCallback of vasso.integrations.lightning to the Trainer's "
    "callbacks, or optimize manually."
)
TRAINER = (
    "transformers' Trainer {}. Use SharpnessAwareTrainer of vasso.integrations.transformers, or "
    "its mixin."
)

ACCELERATE = (
    "accelerate's optimizer {}. Use Window of vasso.integrations.accelerate; where a plain step is "
    "wanted, set rho to 0."
)
HOSTS = {
    AUTOMATIC: LIGHTNING,
    ("transformers.trainer",): TRAINER,  # which steps through accelerate
    ("accelerate.optimizer",): ACCELERATE,
}
"""The modules that call `step` in a host, and what it is told."""


def _callers(depth: int) -> Iterator[tuple[str, FrameType]]:
    """The nearest frames of the call stack, each with the name of its module."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and depth > 0:
        yield str(frame.f_globals.get("__name__")), frame
        frame, depth = frame.f_back, depth - 1


def check_closure(closure: object) -> None:
    """Raises RuntimeError for a closure that sees other gradients at w than at w + epsilon."""
    _check_lightning(closure)
    for name, frame in _callers(8):
        if name == "accelerate.optimizer" and "self" in frame.f_locals:
            micro_batches = frame.f_locals["self"].gradient_state.num_steps
            if micro_batches > 1:
                raise RuntimeError(
                    f"accelerate calls the closure for only the last of {micro_batches} "
                    "micro-batches. Use Window of vasso.integrations.accelerate."
                )


def _check_lightning(closure: object) -> None:
    """Lightning accumulates and clips inside of its closure, unless our callback is there."""
    if not isinstance(closure, partial) or not closure.args:
        return
    if not str(getattr(closure.func, "__module__", "")).startswith(PACKAGES):
        return
    module: Any = closure.args[0]
    trainer = module.trainer
    if not module.automatic_optimization:
        return
    if any(getattr(callback, "makes_second_pass", False) for callback in trainer.callbacks):
        return
    if trainer.accumulate_grad_batches > 1:
        several = f"accumulates {trainer.accumulate_grad_batches} batches"
        raise RuntimeError(LIGHTNING.format(f"{several}, of which the second pass sees the last"))
    if trainer.gradient_clip_val:
        clips = "clips the gradient of each pass, and with it the slope"
        raise RuntimeError(LIGHTNING.format(clips))


def check_plain_step(base: str) -> None:
    """Raises RuntimeError if a host makes plain steps of the base."""
    names = {name for name, _ in _callers(40)}
    for callers, message in HOSTS.items():
        if names.intersection(callers):
            raise RuntimeError(
                message.format(f"makes plain steps of {base}, without a perturbation")
            )
