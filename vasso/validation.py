"""Validation of arguments: each check raises an error that names the value and the remedy."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vasso._names import suggest

P = TypeVar("P")


def one_of(name: str, value: object, *choices: str | None) -> None:
    """Raises ValueError unless the value is one of the choices, and suggests the nearest."""
    if value in choices:
        return
    near = suggest(value, [choice for choice in choices if choice is not None])
    hint = f". Did you mean {near!r}?" if near else ""
    listed = ", ".join(map(repr, choices))
    raise ValueError(f"{name} must be one of {listed}, got {value!r}{hint}")


def positive_or_none(name: str, value: float | None) -> None:
    """Raises ValueError unless the value is None or a finite number above 0."""
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, or None, got {value}")


def count(name: str, value: object) -> None:
    """Raises ValueError unless the value is a whole number, at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")


def part(name: str, value: object, kind: type[P]) -> P:
    """The value if it is a part of this kind; else a TypeError."""
    if isinstance(value, kind):
        return value
    given = repr(value)
    if isinstance(value, type):
        given = f"the class {value.__name__}; write {value.__name__}()"
    raise TypeError(f"{name} must be a {kind.__name__}, got {given}")


def base(value: object, method: str = "VaSSO") -> None:
    """Raises TypeError unless the value is an optimizer that steps without a closure.

    `method` is the class that would wrap it, for the example in the message.
    """
    if isinstance(value, type):
        raise TypeError(
            f"base is the class {value.__name__}: pass an instance, for example "
            f"{method}({value.__name__}(model.parameters(), lr=0.1))"
        )
    if isinstance(value, nn.Module):
        raise TypeError(
            f"base is a model ({type(value).__name__}): pass an optimizer, for example "
            f"{method}(SGD(model.parameters(), lr=0.1), model=model)"
        )
    if not isinstance(value, Optimizer):
        raise TypeError(
            f"base must be a torch optimizer, got {type(value).__name__}: pass one that has the "
            f"parameters, for example {method}(SGD(model.parameters(), lr=0.1))"
        )
    if not hasattr(value, "param_groups"):
        raise TypeError(
            f"{type(value).__name__} has no param_groups, which schedulers and ours need: pass the "
            "optimizer inside of it"
        )
    closure = inspect.signature(type(value).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(value).__name__} calls the closure itself, several times per step, and cannot "
            "be wrapped: use a base whose step() works without one (SGD, AdamW, ...)"
        )


def arguments(
    method: type, given: Sequence[object], settings: Iterable[str], options: Iterable[str]
) -> None:
    """Raises TypeError for settings without a name, and for names that a method does not take."""
    if len(given) > 1:
        raise TypeError(
            f"{method.__name__} takes its base alone without a name, got {given[1]!r} too: name "
            "each setting, such as rho=0.1"
        )
    takes = [*inspect.signature(method).parameters, *options]
    for name in settings:
        if name not in takes:
            near = suggest(name, takes)
            hint = f". Did you mean {near!r}?" if near else f": it takes {', '.join(options)}"
            raise TypeError(f"{method.__name__} got an unexpected keyword argument {name!r}{hint}")


def model(value: nn.Module | None, base: Optimizer) -> None:
    """Raises TypeError or ValueError unless the value is None or owns parameters of the base."""
    if value is None:
        return
    if not isinstance(value, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module or None, got {type(value).__name__}")
    ours = {id(p) for group in base.param_groups for p in group["params"]}
    if not any(id(p) in ours for p in value.parameters()):
        raise ValueError(
            f"model ({type(value).__name__}) has none of the optimizer's parameters: pass the "
            "model whose parameters() the base was made from"
        )


def source(value: object) -> None:
    """Raises TypeError unless the value is None or gives the closure of all data by `full()`."""
    if value is not None and not callable(getattr(value, "full", None)):
        raise TypeError(
            f"the source of data has to be a vasso.Source, an object whose full() and fresh() "
            f"return closures of all data and of a new batch, got {value!r}"
        )


def schedule(name: str, value: Callable[..., object]) -> None:
    """Raises TypeError if a schedule cannot be called with a step and a learning rate."""
    try:
        signature = inspect.signature(value)
    except ValueError:  # some functions written in C have no signature
        return
    try:
        signature.bind(0, 0.1)
    except TypeError:
        called = f"{getattr(value, '__name__', value)}{signature}"
        raise TypeError(
            f"{name} must be a number or a schedule (step, lr) -> number, got {called}"
        ) from None


def scaler(value: object, nonfinite: str) -> None:
    """Raises unless the value is None or a GradScaler whose overflows are looked for."""
    if value is None:
        return
    if not hasattr(value, "unscale_"):
        raise TypeError(f"scaler must be a torch.amp.GradScaler or None, got {value!r}")
    if nonfinite == "ignore":
        raise ValueError(
            'a GradScaler makes gradients overflow now and then, which nonfinite="ignore" would '
            'let into the slope: use nonfinite="skip"'
        )


def scaler_with_closure(value: object) -> None:
    """Raises TypeError if `step` got a scaler without a closure."""
    if value is not None:
        raise TypeError(
            "step(scaler=) goes with a closure. In a loop of your own: `with "
            "opt.ascended(scaler=scaler):`, then scaler.step(opt) and scaler.update()"
        )


def unscaled(value: bool, scaler: object, accumulate: bool) -> None:
    """Raises ValueError for `unscaled=True` without a scaler, or with micro-batches."""
    if value and scaler is None:
        raise ValueError("unscaled=True needs scaler=, the GradScaler that the body's loss uses")
    if value and accumulate:
        raise ValueError(
            "unscaled=True with accumulate=True: a scaler unscales once between two updates, so "
            "the gradients of later micro-batches cannot have been. Leave unscaled out."
        )


def local_loop(local: bool, unscaled: bool, accumulate: bool) -> None:
    """Raises ValueError for options of `ascended` that exclude perturbations of single ranks."""
    if local and (unscaled or accumulate):
        name = "unscaled=True" if unscaled else "accumulate=True"
        raise ValueError(f'{name} cannot be used with sync="local": use sync="global"')


def accumulable(accumulate: bool, params: Iterable[Tensor]) -> None:
    """Raises ValueError for a perturbation per micro-batch where gradients are sharded."""
    if accumulate and any(hasattr(p, "device_mesh") for p in params):
        raise ValueError(
            "accumulate=True cannot be used with FSDP2, which keeps gradients of its own between "
            "micro-batches: use one perturbation for the window, with all micro-batches before and "
            "inside one ascended(), or use DDP"
        )


def same_for_all_groups(name: str, values: list[float]) -> None:
    """Raises ValueError unless a setting of a policy is the same in all groups."""
    if len(set(values)) > 1:
        raise ValueError(
            f"{name} belongs to the policy and must be the same in all groups: {values}"
        )


def exact_enough(p: Tensor, restore: str) -> None:
    """Raises ValueError if adding and subtracting epsilon would lose too much of p."""
    if restore == "recompute" and p.dtype.itemsize < 4:
        raise ValueError(
            f'restore="recompute" cannot restore {p.dtype} weights: adding and subtracting '
            'epsilon rounds. Use restore="copy".'
        )


def writable(params: Iterable[Tensor]) -> None:
    """Raises ValueError for a parameter that was made under `torch.inference_mode`."""
    for p in params:
        if not nn.parameter.is_lazy(p) and p.is_inference():
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} was made under torch.inference_mode() and "
                "cannot be trained: make the model outside of it, or under torch.no_grad()"
            )


def with_values(params: Iterable[Tensor]) -> None:
    """Raises ValueError for a parameter without memory."""
    for p in params:
        if p.is_meta:
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} is on the meta device and has no values: "
                'call model.to_empty(device="cpu") and load or initialize it before the first step'
            )


def perturbable(p: Tensor, gradient: Tensor, restore: str, remembered: bool = False) -> None:
    """Raises if a parameter with this gradient at w cannot be perturbed.

    `remembered`: the method needs it also in a group with rho = 0.
    """
    leave_out = "give it an optimizer of its own" if remembered else "give its group rho=0"
    if gradient.is_nested:
        raise TypeError(
            "a nested (jagged) parameter cannot be perturbed: keep its values in a strided "
            f"parameter and make the nested tensor in forward, or {leave_out}"
        )
    if gradient.layout != torch.strided:
        raise TypeError(
            f"a parameter of shape {tuple(p.shape)} has a sparse gradient, which cannot be "
            f"perturbed: make it dense (Embedding(sparse=False)) or {leave_out}"
        )
    if p.is_complex():
        raise TypeError(
            f"a parameter of shape {tuple(p.shape)} is complex, which cannot be perturbed: "
            f"{leave_out}"
        )
    exact_enough(p, restore)


def closure(value: object) -> None:
    """Raises TypeError unless the value is None or callable."""
    if value is not None and not callable(value):
        raise TypeError(
            f"step() was given a {type(value).__name__}: it takes a closure, which zeroes the "
            "gradients, computes the loss, calls backward() and returns the loss. In a loop of "
            "your own: `with opt.ascended():`, then step() without anything"
        )


def closure_result(loss: object, params: Iterable[Tensor], perturbed: bool) -> None:
    """Raises unless a closure returned a loss and left a gradient; `perturbed`: at w + epsilon."""
    if loss is None:
        raise TypeError(
            "the closure returned None: it has to zero the gradients, compute the loss, call "
            "backward() and return the loss"
        )
    if all(p.grad is None for p in params):
        where = "second pass, at w + epsilon," if perturbed else "closure"
        raise RuntimeError(
            f"the {where} left no gradient on any parameter: does it call backward()? Does a hook "
            "step and clear gradients during backward (optimizer-in-backward)?"
        )
