"""How does a factory that builds `cls(params, **kwargs)` build one of ours? From a recipe.

Where a factory gives back an optimizer, wrap that: `VaSSO(create_optimizer(...), model=model)`. A
`Recipe` is for those that want something to call, from a registry or a configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from vasso.optimizer import Options, SharpnessAware


class Recipe:
    """Builds `method(base(params, **kwargs), **settings)`; it can be pickled and compared.

    Keywords that belong to the method, such as rho, may also come with the call: they go to the
    method, all others to the base.

    Args:
        method: one of ours, such as `VaSSO`.
        base: the class or function that makes the base.
        **settings: of the method; `model=` among them.

    Raises:
        TypeError: the method has no such setting.

    Example:
        >>> import torch
        >>> from vasso import VaSSO
        >>> recipe = Recipe(VaSSO, torch.optim.SGD, rho=0.1)
        >>> opt = recipe([torch.zeros(2, requires_grad=True)], lr=0.5, theta=0.2)
        >>> [opt.param_groups[0][name] for name in ("rho", "theta", "lr")]
        [0.1, 0.2, 0.5]
    """

    def __init__(
        self,
        method: Callable[..., SharpnessAware],
        base: Callable[..., Optimizer],
        **settings: Any,
    ) -> None:
        unknown = sorted(set(settings) - settings_of(method))
        if unknown:
            raise TypeError(
                f"{name_of(method)} has no setting {unknown[0]!r}; it takes "
                f"{', '.join(sorted(settings_of(method)))}. Settings of {name_of(base)} come with "
                "the call."
            )
        self.method, self.base, self.settings = method, base, settings

    def __call__(self, params: Any, **kwargs: Any) -> SharpnessAware:
        """Builds the optimizer.

        Args:
            params: tensors or groups, as every torch optimizer takes them.
            **kwargs: for the base, or for the method where the name is one of its settings.

        Returns:
            The wrapped optimizer.

        Raises:
            TypeError: a keyword could be meant for either.
        """
        ours = {name for name in kwargs if name in settings_of(self.method)}
        both = sorted(ours & settings_of(self.base))
        if both:
            raise TypeError(
                f"{both[0]!r} is a setting of {name_of(self.method)} and of {name_of(self.base)}: "
                f"give ours to Recipe(...), theirs by functools.partial({name_of(self.base)}, ...)"
            )
        theirs = {name: value for name, value in kwargs.items() if name not in ours}
        given = {name: kwargs[name] for name in ours}
        return self.method(self.base(params, **theirs), **{**self.settings, **given})

    @property
    def __name__(self) -> str:
        """As a class would be called, for registries that ask."""
        return f"{name_of(self.method)}({name_of(self.base)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.method, self.base, tuple(sorted(self.settings))))

    def __repr__(self) -> str:
        told = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"Recipe({name_of(self.method)}, {name_of(self.base)}{told})"


def settings_of(make: Callable[..., Any]) -> set[str]:
    """The keywords that something takes; the options of `SharpnessAware` where it takes those.

    Args:
        make: a class or function.

    Returns:
        Their names, without the optimizer or the tensors that come first.
    """
    found = list(inspect.signature(make).parameters.values())
    names = {p.name for p in found[1:] if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    inner = getattr(make, "func", make)  # functools.partial
    if isinstance(inner, type) and issubclass(inner, SharpnessAware):
        names |= set(Options.__annotations__)
    return names


def name_of(make: Callable[..., Any]) -> str:
    """What to call it in a message.

    Args:
        make: a class, a function or a partial one.

    Returns:
        Its name.
    """
    return str(getattr(getattr(make, "func", make), "__name__", make))
