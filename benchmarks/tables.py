"""Tables of the benchmarks, from the stored JSON value alone."""

from typing import Any

BUDGETS = {"VaSSO recompute ignore": 11.5, "VaSSO copy ignore": 15.0}
BUDGET_OF_CHECKS = 4.0


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table that also reads well as it is."""
    columns = zip(head, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def time_table(result: dict[str, Any]) -> str:
    """Units beyond the base: minimum (median)."""
    shapes = result["shapes"]
    rows = []
    for label in next(iter(shapes.values()))["units"]:
        units = [shape["units"][label] for shape in shapes.values()]
        rows.append([label, *(f"{u['min']:.1f} ({u['median']:.1f})" for u in units)])
    one = [min(shape["milliseconds"]["unit"]) for shape in shapes.values()]
    rows.append(["one unit, ms", *(f"{x:.2f}" for x in one)])
    return table(["units beyond the base, min (median)", *shapes], rows)


def memory_table(result: dict[str, Any]) -> str:
    """Vectors beyond the base at the peak, and calls into torch."""
    shapes = result["shapes"]
    rows = [
        [label, *(f"{shape['memory'][label]:.2f}" for shape in shapes.values()), *calls]
        for label, counts in result["operations"].items()
        for calls in [[str(count) for count in counts.values()]]
    ]
    head = ["extra vectors at the peak", *shapes, "calls, 10 tensors", "calls, 100 tensors"]
    return table(head, rows)


def budget_lines(result: dict[str, Any]) -> list[str]:
    """Whether ResNet-18 on one thread stays within what we allow ourselves."""
    if "resnet18" not in result["shapes"] or result["hardware"]["threads"] != 1:
        return []
    units = {k: v["min"] for k, v in result["shapes"]["resnet18"]["units"].items()}
    spent = [(label, units[label], most) for label, most in BUDGETS.items()]
    for label in BUDGETS:
        checks = units[label.replace("ignore", "skip")] - units[label]
        spent.append((f"checks of {label.removesuffix(' ignore')}", checks, BUDGET_OF_CHECKS))
    return [
        f"{'within' if cost <= most else 'OVER'} budget: {label} {cost:.1f} of {most:g} units"
        for label, cost, most in spent
    ]


def show(result: dict[str, Any]) -> str:
    """The tables, from the stored value alone."""
    where = result["hardware"]
    values = (
        f"{where['cpu']}, {where['threads']} thread(s), torch {result['versions']['torch']}, "
        f"{result['date'][:10]}, {result['settings']['rounds']} rounds"
    )
    return "\n\n".join([
        values,
        time_table(result),
        memory_table(result),
        "\n".join(budget_lines(result)),
    ]).strip()
