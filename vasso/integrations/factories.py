"""Factories: `Recipe` builds a vasso optimizer where a framework calls `cls(params, **kwargs)`.

If a factory returns an optimizer, wrap that: `VaSSO(create_optimizer(...), model=model)`. Use
`Recipe` for frameworks that want a callable, from a registry or a configuration.
"""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from vasso.optimizer import Options, SharpnessAware


class Recipe:
    """Builds `method(base(params, **kwargs), **settings)`; it can be pickled and compared.

    The call may also contain settings of the method, such as rho. All other keywords go to the
    base.

    Args:
        method: a method, such as `VaSSO`.
        base: the class or function that makes the base.
        **settings: settings of the method, also `model=`.

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

    def __call__(self, params: Any = None, **kwargs: Any) -> Any:
        """Builds the optimizer of parameters or of a model, which the method then gets too.

        Without anything it returns itself: transformers makes factories before it calls them.
        Raises TypeError if the method and the base share a setting.
        """
        if params is None and not kwargs:
            return self
        ours = {name for name in kwargs if name in settings_of(self.method)}
        both = sorted(ours & settings_of(self.base))
        if both:
            raise TypeError(
                f"{both[0]!r} is a setting of {name_of(self.method)} and of {name_of(self.base)}: "
                f"give ours to Recipe(...), theirs by functools.partial({name_of(self.base)}, ...)"
            )
        theirs = {name: value for name, value in kwargs.items() if name not in ours}
        given = {**self.settings, **{name: kwargs[name] for name in ours}}
        if isinstance(params, nn.Module):
            given, params = {"model": params, **given}, params.parameters()
        return self.method(self.base(params, **theirs), **given)

    @property
    def __name__(self) -> str:
        """The name, for registries that ask a class for it."""
        return f"{name_of(self.method)}({name_of(self.base)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.method, self.base, tuple(sorted(self.settings))))

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"Recipe({name_of(self.method)}, {name_of(self.base)}{settings})"


def settings_of(make: Callable[..., Any]) -> set[str]:
    """The keywords of a class or function, with the options of `SharpnessAware` for a method."""
    others = list(inspect.signature(make).parameters.values())[1:]
    names = {p.name for p in others if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    inner = getattr(make, "func", make)  # functools.partial
    if isinstance(inner, type) and issubclass(inner, SharpnessAware):
        names |= set(Options.__annotations__)
    return names


def name_of(make: Callable[..., Any]) -> str:
    """The name of a class, a function or a partial one, for messages."""
    return str(getattr(getattr(make, "func", make), "__name__", make))
