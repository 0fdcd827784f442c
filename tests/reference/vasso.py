"""VaSSO as on paper, tensor by tensor.

d <- (1 - theta) d + theta g(x),  epsilon = rho d / ||d||,  u = g(x + epsilon),  x <- x - lr u

Li and Giannakis, 2023, eq. (4). At a tensor's first gradient d is that gradient. Memory begins with
the first theta below 1; until then d is the gradient of the step, and there is nothing before it.
"""

from torch import Tensor

from tests.reference.sam import Gradients, Group, Oracle, add, descend, epsilon


def observe(d: Gradients, g: Gradients, groups: list[Group]) -> Gradients:
    """What is remembered; what has no gradient keeps its own, what is never climbed has none."""
    new = dict(d)
    for group in groups:
        for i in group.rows:
            if group.rho == 0 and not group.scheduled:
                new.pop(i, None)
            elif i in g and i in d:
                new[i] = (1 - group.theta) * d[i] + group.theta * g[i]
            elif i in g and group.theta < 1:
                new[i] = g[i]
    return new


def adversary(
    x: list[Tensor], d: Gradients, gradient: Oracle, groups: list[Group]
) -> tuple[Gradients, Gradients]:
    """u, the gradient that goes down, and what is remembered."""
    g = gradient(x, 0)
    d = observe(d, g, groups)
    e = epsilon({i: d.get(i, g[i]) for i in g}, groups)
    return (gradient(add(x, e), 1) if e else g), d


def step(
    x: list[Tensor], d: Gradients, gradient: Oracle, groups: list[Group]
) -> tuple[list[Tensor], Gradients]:
    """One step of VaSSO: the new weights and what is remembered."""
    u, d = adversary(x, d, gradient, groups)
    return descend(x, u, groups), d
