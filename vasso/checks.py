"""Is what we were given usable? Each check names the value it got and the remedy."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from vasso.ascents import Ascent
    from vasso.descents import Descent
    from vasso.directions import Direction
    from vasso.geometries import Geometry
    from vasso.plans import Plan
    from vasso.policies import Policy

P = TypeVar("P")


def one_of(name: str, value: object, *choices: str) -> None:
    """Raises unless the value is one of the choices, and suggests the nearest.

    Args:
        name: the argument.
        value: what was given for it.
        *choices: what may be given.

    Raises:
        ValueError: it is something else.

    Example:
        >>> one_of("restore", "copi", "copy", "recompute")
        Traceback (most recent call last):
        ...
        ValueError: restore must be one of 'copy', 'recompute', got 'copi'. Did you mean 'copy'?
    """
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    told = ", ".join(repr(choice) for choice in choices)
    raise ValueError(f"{name} must be one of {told}, got {value!r}{hint}")


def positive_or_none(name: str, value: float | None) -> None:
    """Raises unless the value is None or a finite number above 0.

    Args:
        name: the argument.
        value: what was given for it.

    Raises:
        ValueError: it is out of range.
    """
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, or None, got {value}")


def count(name: str, value: object) -> None:
    """Raises unless the value is a whole number, at least 1.

    Args:
        name: the argument.
        value: what was given for it.

    Raises:
        ValueError: it is something else.

    Example:
        >>> count("k", 2.5)
        Traceback (most recent call last):
        ...
        ValueError: k must be a whole number, at least 1, got 2.5
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")


def part(name: str, value: object, kind: type[P]) -> P:
    """The value, if it is a part of this kind.

    Args:
        name: the argument.
        value: what was given for it.
        kind: what answers the argument's question.

    Returns:
        The value.

    Raises:
        TypeError: it is something else, perhaps a class instead of an instance.
    """
    if isinstance(value, kind):
        return value
    told = repr(value)
    if isinstance(value, type):
        told = f"the class {value.__name__}; write {value.__name__}()"
    raise TypeError(f"{name} must be a {kind.__name__}, got {told}")


def called(method: type, given: tuple[object, ...], settings: Iterable[str]) -> None:
    """Raises unless a method was called as ``method(base, name=value, ...)``.

    Args:
        method: its class.
        given: what was given without a name; it should be the base.
        settings: the names of all else.

    Raises:
        TypeError: it was called in some other way, perhaps as other implementations are.

    Example:
        >>> from vasso import VaSSO
        >>> VaSSO(torch.optim.SGD([torch.zeros(1)]), rh=0.1)
        Traceback (most recent call last):
        ...
        TypeError: VaSSO has no setting 'rh'. Did you mean 'rho'?
    """
    parameters = _parameters(next(_constructors(method)))
    if not parameters or parameters[0].name != "base":
        return  # a class of somebody's own, which knows how it is called
    if given:
        base(given[0], method.__name__)
    if len(given) > 1 and all(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters[1:]):
        raise TypeError(
            f"{method.__name__} takes its settings by name, got {given[1]!r} without one: "
            f"for example {method.__name__}(base, rho=0.1)"
        )
    known = _settings_of(method)
    for name in settings:
        if known and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
            raise TypeError(f"{method.__name__} has no setting {name!r}. {hint}")


def _constructors(method: type) -> Iterator[Callable[..., None]]:
    """Its own, and those that it hands on to."""
    return (vars(kind)["__init__"] for kind in method.__mro__ if "__init__" in vars(kind))


def _parameters(init: Callable[..., None]) -> list[inspect.Parameter]:
    return list(inspect.signature(init).parameters.values())[1:]


def _settings_of(method: type) -> list[str]:
    """What its constructor takes, with what that hands on; empty if it does not say."""
    found: list[str] = []
    for init in _constructors(method):
        parameters = _parameters(init)
        rest = [p for p in parameters if p.kind in {p.VAR_KEYWORD, p.VAR_POSITIONAL}]
        found += [p.name for p in parameters if p not in rest and p.name not in found]
        if not rest:
            return found
        if not str(rest[-1].annotation).startswith("Unpack["):
            return []
    return []


def base(value: object, method: str = "VaSSO") -> None:
    """Raises unless the value is an optimizer that steps without a closure.

    Args:
        value: what the user wants wrapped.
        method: what it is to be wrapped in.

    Raises:
        TypeError: it is not an optimizer instance, or one that calls the closure itself.
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
    closure = inspect.signature(type(value).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(value).__name__} calls the closure itself, several times per step, and cannot "
            "be wrapped: use a base whose step() works without one (SGD, AdamW, ...)"
        )


def model(value: nn.Module | None, base: Optimizer) -> None:
    """Raises unless the value is None or the model that owns some of the parameters.

    Args:
        value: what was given as `model`.
        base: the optimizer of the parameters.

    Raises:
        TypeError: it is not a module.
        ValueError: none of its parameters is in the optimizer.
    """
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
    """Raises unless the value is None or can give the closure of all data.

    Args:
        value: what was given as `source`, or as `data` of a preset.

    Raises:
        TypeError: it has no `full()`.
    """
    if value is not None and not callable(getattr(value, "full", None)):
        raise TypeError(
            f"the source of data has to be a vasso.Source, an object whose full() and fresh() "
            f"return closures of all data and of a new batch, got {value!r}"
        )


def schedule(name: str, value: Callable[..., object]) -> None:
    """Raises if a schedule cannot be called with a step and a learning rate.

    Args:
        name: the setting.
        value: what was given for it.

    Raises:
        TypeError: it takes other arguments.

    Example:
        >>> def falling(step):
        ...     return 0.1 / (1 + step)
        >>> schedule("rho", falling)
        Traceback (most recent call last):
        ...
        TypeError: rho must be a number or a schedule (step, lr) -> number, got falling(step)
    """
    try:
        signature = inspect.signature(value)
    except ValueError:  # some that are written in C do not tell
        return
    try:
        signature.bind(0, 0.1)
    except TypeError:
        called = f"{getattr(value, '__name__', value)}{signature}"
        raise TypeError(
            f"{name} must be a number or a schedule (step, lr) -> number, got {called}"
        ) from None


def recomputable(geometry: Geometry, ascent: Ascent, base: Optimizer) -> None:
    """Raises where epsilon could not be recomputed to bring the weights home.

    Args:
        geometry: the ball.
        ascent: how the maximum is sought.
        base: the optimizer of the parameters.

    Raises:
        ValueError: the ball changes with the weights, or they have low precision.
    """
    if ascent.points > 1:
        raise ValueError(
            f'restore="recompute" cannot be used with {ascent}: epsilon is a sum of several '
            'slopes, which are gone by then. Use restore="copy".'
        )
    if geometry.depends_on_w:
        raise ValueError(
            f'restore="recompute" cannot be used with {geometry}: its epsilon depends on the '
            'weights, which have moved by then. Use restore="copy".'
        )
    climbed = [group for group in base.param_groups if group.get("rho") != 0]
    for p in (p for group in climbed for p in group["params"]):
        _exact_enough(p, "recompute")


def sensible(
    direction: Direction,
    geometry: Geometry,
    ascent: Ascent,
    descent: Descent,
    policy: Policy,
    plan: Plan,
) -> None:
    """Raises where parts do not make sense together.

    Args:
        direction: which way is up?
        geometry: how far is rho?
        ascent: how is the maximum sought?
        descent: which gradient goes down?
        policy: do we climb this step?
        plan: which data where?

    Raises:
        ValueError: a part needs a gradient at w that another part does without.
    """
    wanting = [part for part in (geometry, descent, policy, plan) if part.needs_clean]
    if wanting and not direction.needs_clean:
        raise ValueError(
            f"{wanting[0]} needs the gradient at w, but {direction} never takes one: use a "
            "direction that does, such as Ema()"
        )
    if wanting and policy.spares_clean:
        raise ValueError(
            f"{wanting[0]} needs the gradient at w in every step, but {policy} spares some of them"
        )
    if policy.spares_clean and not direction.has_stale:
        raise ValueError(
            f"{policy} spares gradients at w, and {direction} does not say what to do without: "
            'use Ema(theta, stale="stay") or "follow"'
        )
    asks = [part for part in (direction, geometry) if part.asks_more]
    if ascent.points > 1 and asks:
        raise ValueError(f"{asks[0]} takes gradients of its own only at w, {ascent} climbs further")
    if ascent.points > 1 and not direction.needs_clean:
        raise ValueError(
            f"{ascent} looks at the slope of each point, but {direction} ignores gradients there: "
            "use OneStep()"
        )


def batch(part: Geometry | Plan, data: object, kind: type) -> None:
    """Raises if a part wants to see samples and gets a plain closure.

    Args:
        part: the part.
        data: what `step` was given.
        kind: what can show samples.

    Raises:
        TypeError: it cannot.
    """
    if part.needs_batch and not isinstance(data, kind):
        raise TypeError(
            f"{part} has to see samples: pass a vasso.Batch to step(), for example "
            f"vasso.Samples(opt.zero_grad, losses_of, x, y), not {data!r}"
        )


def scaler(value: object, nonfinite: str) -> None:
    """Raises unless the value is None or something that scales losses, and overflow is looked for.

    Args:
        value: what was given as `scaler`.
        nonfinite: what the optimizer does about gradients that are not finite.

    Raises:
        TypeError: it cannot unscale.
        ValueError: nobody would notice an overflow.
    """
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
    """Raises if a scaler comes without a closure.

    Args:
        value: what was given as `scaler`.

    Raises:
        TypeError: one was.
    """
    if value is not None:
        raise TypeError(
            "step(scaler=) goes with a closure. In a loop of your own: `with "
            "opt.ascended(scaler=scaler):`, then scaler.step(opt) and scaler.update()"
        )


def unscaled(value: bool, scaler: object, accumulate: bool) -> None:
    """Raises unless `unscaled` is said of the gradients of a scaler.

    Args:
        value: what was given as `unscaled`.
        scaler: the GradScaler, if any.
        accumulate: whether gradients are those of a micro-batch.

    Raises:
        ValueError: it makes no sense.
    """
    if value and scaler is None:
        raise ValueError("unscaled=True needs scaler=, the GradScaler that the body's loss uses")
    if value and accumulate:
        raise ValueError(
            "unscaled=True with accumulate=True: a scaler unscales once between two updates, so "
            "the gradients of later micro-batches cannot have been. Leave unscaled out."
        )


def divisible(plan: Plan, geometry: Geometry) -> None:
    """Raises if a geometry keeps something that has no mean over the shares of a plan.

    Args:
        plan: which data where?
        geometry: how far is rho?

    Raises:
        ValueError: it does.
    """
    if plan.divides and geometry.keeps_mask:
        raise ValueError(f"{geometry} keeps a mask, which has no mean over the shares of {plan}")


def local(
    direction: Direction, geometry: Geometry, descent: Descent, policy: Policy, plan: Plan
) -> None:
    """Raises where ranks with adversaries of their own would drift apart.

    Args:
        direction: which way is up?
        geometry: how far is rho?
        descent: which gradient goes down?
        policy: do we climb this step?
        plan: which data where?

    Raises:
        ValueError: a part sees the gradient of one rank and decides something for all.
    """
    for part, why in (
        (descent, descent.needs_clean or descent.needs_path),
        (policy, policy.needs_clean),
        (plan, plan.needs_batch),
        (geometry, geometry.keeps_mask or geometry.asks_more),
        (direction, direction.asks_more),
    ):
        if why:
            raise ValueError(
                f'{part} cannot be used with sync="local": the gradient at w is that of one rank, '
                'and ranks would drift apart. Use sync="global".'
            )


def local_loop(local: bool, unscaled: bool, accumulate: bool) -> None:
    """Raises for what `ascended` cannot do with adversaries of single ranks.

    Args:
        local: whether adversaries are those of single ranks.
        unscaled: whether a host has unscaled gradients.
        accumulate: whether each micro-batch has an adversary.

    Raises:
        ValueError: it was asked for.
    """
    if local and (unscaled or accumulate):
        name = "unscaled=True" if unscaled else "accumulate=True"
        raise ValueError(f'{name} cannot be used with sync="local": use sync="global"')


def accumulable(accumulate: bool, params: Iterable[Tensor]) -> None:
    """Raises for micro-batches with an adversary each where gradients are in shards.

    Args:
        accumulate: whether each micro-batch has an adversary.
        params: the parameters.

    Raises:
        ValueError: it was asked for.
    """
    if accumulate and any(hasattr(p, "device_mesh") for p in params):
        raise ValueError(
            "accumulate=True cannot be used with FSDP2, which keeps gradients of its own between "
            "micro-batches: let one adversary serve the window, with all micro-batches before and "
            "inside one ascended(), or use DDP"
        )


def no_theta(theta: object, method: str, direction: object) -> None:
    """Raises if variance suppression is asked of a method whose slope is not the batch gradient.

    Args:
        theta: what was given.
        method: its name.
        direction: its slope.

    Raises:
        TypeError: something was given.
    """
    if theta is not None:
        raise TypeError(
            f"{method} takes no theta: its slope is {direction}, not the batch gradient that "
            "Ema(theta) averages"
        )


def same_for_all_groups(name: str, values: list[float]) -> None:
    """Raises unless a setting of a policy is the same in all groups.

    Args:
        name: the setting.
        values: its value for each group.

    Raises:
        ValueError: they differ.
    """
    if len(set(values)) > 1:
        raise ValueError(
            f"{name} belongs to the policy and must be the same in all groups: {values}"
        )


def _exact_enough(p: Tensor, restore: str) -> None:
    if restore == "recompute" and p.dtype.itemsize < 4:
        raise ValueError(
            f'restore="recompute" would not bring {p.dtype} weights home: adding and subtracting '
            'epsilon rounds. Use restore="copy".'
        )


def climbable(p: Tensor, gradient: Tensor, restore: str) -> None:
    """Raises if a parameter with this gradient cannot be climbed.

    Args:
        p: the parameter.
        gradient: its gradient at w.
        restore: how the optimizer brings weights home.

    Raises:
        TypeError: the gradient is sparse or complex.
    """
    if gradient.layout != torch.strided:
        raise TypeError(
            f"a parameter of shape {tuple(p.shape)} has a sparse gradient, which cannot be "
            "climbed: make it dense (Embedding(sparse=False)) or give its group rho=0"
        )
    if p.is_complex():
        raise TypeError(
            f"a parameter of shape {tuple(p.shape)} is complex, which cannot be climbed: "
            "give its group rho=0"
        )
    _exact_enough(p, restore)


def closure(value: object) -> None:
    """Raises unless the value is None or can be called for a gradient.

    Args:
        value: what was given to `step`.

    Raises:
        TypeError: it is something else, perhaps the loss.
    """
    if value is not None and not callable(value):
        raise TypeError(
            f"step() was given a {type(value).__name__}: it takes a closure, which zeroes the "
            "gradients, computes the loss, calls backward() and returns the loss. In a loop of "
            "your own: `with opt.ascended():`, then step() without anything"
        )


def closure_result(loss: object, params: Iterable[Tensor], perturbed: bool) -> None:
    """Raises unless a closure returned a loss and left a gradient.

    Args:
        loss: what it returned.
        params: the parameters of the optimizer.
        perturbed: whether it ran at w + epsilon.

    Raises:
        TypeError: it returned nothing.
        RuntimeError: no parameter has a gradient.
    """
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
