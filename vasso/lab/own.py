"""What does a function of the user's own give? It is named by `module:function`.

It may be missing, want other arguments, fail, or give something else: each is said in a sentence
that names the function, what it was given and what it has to give.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def imported(name: str) -> Any:
    """A user's function, named by `module:function`; modules of the current directory are found.

    Args:
        name: such a name.

    Returns:
        The function.

    Raises:
        ValueError: there is none.

    Example:
        >>> imported("math:sqrt")(4.0)
        2.0
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"{name!r} lacks a name: write module:function, as in my_module:my_data")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as trouble:
        where = f"looked in {Path.cwd()} and sys.path"
        raise ValueError(f"{name}: {trouble}; {where}{_instead(module, function)}") from None
    except Exception as trouble:
        why = told(trouble)
        raise ValueError(f"{name}: the module {module} cannot be imported ({why})") from trouble
    if not hasattr(found, function):
        raise ValueError(f"{name}: the module {module} has no {function!r}")
    return getattr(found, function)


def _instead(module: str, function: str) -> str:
    """What was meant by the path of a file."""
    if not module.endswith(".py"):
        return ""
    dotted = ".".join(Path(module).with_suffix("").parts)
    return f". Did you mean '{dotted}:{function}'? A module has its name, without .py"


def given_by(name: str, kinds: Any, wanted: str, **arguments: Any) -> Any:
    """What a user's function gives, if that is of the right kind.

    Args:
        name: of the function.
        kinds: what `isinstance` takes.
        wanted: the same in words.
        **arguments: what it is called with.

    Returns:
        What it gives.

    Raises:
        ValueError: it fails, or gives something else.

    Example:
        >>> given_by("builtins:dict", list, "a list", seed=0)
        Traceback (most recent call last):
        ...
        ValueError: builtins:dict(seed=0) gave dict, it has to give a list
    """
    call = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    function = imported(name)
    try:
        found = function(**arguments)
    except Exception as trouble:
        raise ValueError(f"{call} failed ({told(trouble)}): it has to give {wanted}") from trouble
    if not isinstance(found, kinds):
        raise ValueError(f"{call} gave {type(found).__name__}, it has to give {wanted}")
    return found


def told(trouble: Exception) -> str:
    """What was raised, and where.

    Args:
        trouble: it.

    Returns:
        Its kind, its message, file and line; no line where the call itself was wrong.
    """
    at = traceback.extract_tb(trouble.__traceback__)[-1]
    where = f"; {Path(at.filename).name}, line {at.lineno}" if at.filename != __file__ else ""
    return f"{type(trouble).__name__}: {trouble}{where}"


def try_out(
    model: nn.Module,
    criterion: Callable[..., Any],
    shape: tuple[int, ...],
    *,
    names: tuple[str, str],
) -> None:
    """Takes the losses of two black images, before a user's own model or loss is trained with.

    No weight, no running statistic and no random number is touched.

    Args:
        model: the model.
        criterion: outputs and labels -> one loss for each sample.
        shape: of an image.
        names: of the model and of the loss.

    Raises:
        ValueError: the model or the loss fails, or there is not one loss for each image.
    """
    like = next(model.parameters(), None)
    if like is None:
        raise ValueError(f"the model of {names[0]} has no parameters: there is nothing to train")
    x = torch.zeros(2, *shape, dtype=like.dtype, device=like.device)
    y = torch.zeros(2, dtype=torch.int64, device=like.device)
    training = model.training
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            output = _passed(names[0], "images", model.eval(), x)
        finally:
            model.train(training)
        losses = _passed(names[1], "outputs and labels", criterion, output, y)
    if not isinstance(losses, Tensor) or losses.shape != y.shape:
        raise ValueError(
            f"the loss {names[1]}, given {_shapes(output, y)}, gave {_shapes(losses)}: it has to "
            "give one loss for each sample, here a tensor of shape (2,)"
        )


def _passed(name: str, what: str, function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except Exception as trouble:
        raise ValueError(
            f"{name}, given {what} as {_shapes(*given)}, failed ({told(trouble)}): it is called "
            f"with {'a batch of images' if len(given) == 1 else '(outputs of the model, labels)'}"
        ) from trouble


def _shapes(*values: Any) -> str:
    return " and ".join(
        f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        for value in values
    )
