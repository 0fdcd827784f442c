"""User functions: import and call data, models and losses that are named by `module:function`.

Such a function may be missing, want other arguments, fail, or return something else. Each error
names the function, its arguments and what it has to return.
"""

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def is_user_function(name: str) -> bool:
    """Whether a name has the form `module:function`."""
    return ":" in name


def look_in(folder: Path) -> None:
    """Look for modules of the user in a folder too."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def import_function(name: str) -> Any:
    """The function named by `module:function`; the current directory is searched too."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"{name!r} is incomplete: write module:function, as in my_module:my_data")
    look_in(Path.cwd())
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        where = f"looked in {Path.cwd()} and sys.path"
        raise ValueError(f"{name}: {error}; {where}{_path_hint(module, function)}") from None
    except Exception as error:
        why = describe_error(error)
        raise ValueError(f"{name}: the module {module} cannot be imported ({why})") from error
    if not hasattr(imported, function):
        raise ValueError(f"{name}: the module {module} has no {function!r}")
    return getattr(imported, function)


def _path_hint(module: str, function: str) -> str:
    if not module.endswith(".py"):
        return ""
    dotted = ".".join(Path(module).with_suffix("").parts)
    return f". Did you mean '{dotted}:{function}'? A module is named without .py"


def call_function(name: str, kinds: Any, wanted: str, **arguments: Any) -> Any:
    """Call a user's function and check the type of its result: `kinds`, in words `wanted`."""
    call = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    function = import_function(name)
    try:
        result = function(**arguments)
    except Exception as error:
        why = describe_error(error)
        raise ValueError(f"{call} failed ({why}): it has to return {wanted}") from error
    if not isinstance(result, kinds):
        raise ValueError(f"{call} returned {type(result).__name__}, it has to return {wanted}")
    return result


def describe_error(error: Exception) -> str:
    """Type, message, file and line of an error; no line if the call itself was wrong."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"; {Path(frame.filename).name}, line {frame.lineno}"
    return f"{type(error).__name__}: {error}{where if frame.filename != __file__ else ''}"


def check_model_and_loss(
    model: nn.Module,
    criterion: Callable[..., Any],
    shape: tuple[int, ...],
    *,
    names: tuple[str, str],
) -> None:
    """Compute the losses of two black images of a shape, before a user's model or loss is trained.

    Weights, running statistics and random number generators stay as they are. `names` are those of
    the model and of the loss, for messages.
    """
    like = next(model.parameters(), None)
    if like is None:
        raise ValueError(f"the model of {names[0]} has no parameters: there is nothing to train")
    x = torch.zeros(2, *shape, dtype=like.dtype, device=like.device)
    y = torch.zeros(2, dtype=torch.int64, device=like.device)
    training = model.training
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            output = _try_call(names[0], "images", model.eval(), x)
        finally:
            model.train(training)
        losses = _try_call(names[1], "outputs and labels", criterion, output, y)
    if not isinstance(losses, Tensor) or losses.shape != y.shape:
        raise ValueError(
            f"the loss {names[1]}, given {_shapes(output, y)}, returned {_shapes(losses)}: it has "
            "to return one loss for each sample, here a tensor of shape (2,)"
        )


def _try_call(name: str, what: str, function: Callable[..., Any], *inputs: Any) -> Any:
    try:
        return function(*inputs)
    except Exception as error:
        called = "a batch of images" if len(inputs) == 1 else "(outputs of the model, labels)"
        raise ValueError(
            f"{name}, given {what} as {_shapes(*inputs)}, failed ({describe_error(error)}): it is "
            f"called with {called}"
        ) from error


def _shapes(*values: Any) -> str:
    return " and ".join(
        f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        for value in values
    )
