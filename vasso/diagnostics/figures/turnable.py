"""What does one want to turn? Spheres and landscapes, by plotly, for a page that works offline.

A fragment is a `<div>` and a `<script>` without plotly itself, which a page includes once
(`library`); a page is whole, about 5 MB, and asks nothing of the network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vasso.diagnostics.figures.palette import INK, look
from vasso.diagnostics.landscape import Surface
from vasso.diagnostics.sphere import Cloud
from vasso.extras import brought_by

with brought_by("figures"):
    import plotly.graph_objects as go  # type: ignore[import-untyped]
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

CLEAR = "rgba(0,0,0,0)"
SETTINGS = {"displayModeBar": False, "responsive": True}
"""No buttons: one turns by dragging, and nothing is sent anywhere."""


def turnable_sphere(clouds: Sequence[Cloud], *, title: str = "") -> Any:
    """Adversaries on a sphere, all thetas in one; a click on the legend hides one.

    Args:
        clouds: of one SNR and one gradient, in three dimensions.
        title: above it.

    Returns:
        A plotly figure, for `fragment` or `page`.

    Raises:
        ValueError: the clouds do not belong on one sphere.
    """
    if not clouds or any(len(c.gradient) != 3 for c in clouds):
        raise ValueError("a sphere needs one or more clouds in 3 dimensions")
    if len({(c.snr, *map(float, c.gradient)) for c in clouds}) > 1:
        raise ValueError("clouds on one sphere must have one SNR and one gradient")
    figure = go.Figure([_ball(), _arrow(clouds[0]), *map(_points, clouds)])
    near = {"aspectmode": "data", "camera": {"eye": {"x": 1.0, "y": 0.9, "z": 0.4}}}
    _dress(figure, title, near, hidden=True)
    return figure


def turnable_surface(surface: Surface, *, title: str = "", highest: float | None = None) -> Any:
    """The loss over a plane as a surface.

    Args:
        surface: of `vasso.diagnostics.landscape`.
        title: above it.
        highest: losses above it are cut off; None shows all.

    Returns:
        A plotly figure, for `fragment` or `page`.
    """
    losses = surface.losses if highest is None else np.minimum(surface.losses, highest)
    drawn = go.Surface(
        x=_rounded(surface.across),
        y=_rounded(surface.along),
        z=_rounded(losses.T),
        colorscale="Cividis",
        colorbar={"title": "loss", "thickness": 12, "tickfont": {"color": INK}},
        hovertemplate="loss %{z:.4g}<extra></extra>",
    )
    figure = go.Figure([drawn])
    _dress(figure, title, {"zaxis": {"title": "loss"}, "aspectratio": {"x": 1, "y": 1, "z": 0.7}})
    return figure


def fragment(figure: Any, *, name: str | None = None, height: int = 420) -> str:
    """A figure as `<div>` and `<script>`; the page includes `library()` once, before it.

    Args:
        figure: of this module.
        name: id of the div; by default the figure's content makes it.
        height: in pixels; the width is that of the page.

    Returns:
        HTML.
    """
    data = figure.to_json()
    name = name or f"turnable-{hashlib.sha256(data.encode()).hexdigest()[:10]}"
    safe = data.replace("</", "<\\/")
    return (
        f'<div id="{name}" class="turnable" style="height: {height}px"></div>\n'
        f"<script>(() => {{ const figure = {safe}; "
        f'Plotly.newPlot("{name}", figure.data, figure.layout, {json.dumps(SETTINGS)}); }})()'
        "</script>"
    )


def library() -> str:
    """plotly itself, for the head of a page.

    Returns:
        A `<script>` of about 5 MB.
    """
    return f"<script>{get_plotlyjs()}</script>"


def page(figures: Sequence[Any], path: str | Path, *, title: str) -> Path:
    """A whole page that works without a network, light or dark as the reader's system.

    Args:
        figures: of this module.
        path: where to.
        title: of the page.

    Returns:
        The path.

    Raises:
        ValueError: there are no figures.
    """
    if not figures:
        raise ValueError("there are no figures to put on the page")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = title.replace("&", "&amp;").replace("<", "&lt;")
    body = "\n".join(fragment(figure, name=f"figure-{i}") for i, figure in enumerate(figures))
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{head}</title><style>:root {{ color-scheme: light dark }} "
        "body { font-family: system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem }"
        f"</style>{library()}</head>\n<body><h1>{head}</h1>\n{body}\n</body></html>\n"
    )
    path.write_text(text, encoding="utf-8")
    return path


# -- pieces ----------------------------------------------------------------------------------------


def _dress(figure: Any, title: str, scene: dict[str, Any], *, hidden: bool = False) -> None:
    """Transparent, in ink, and without the template's colours."""
    axis = (
        {"visible": False} if hidden else {"color": INK, "gridcolor": INK, "showbackground": False}
    )
    axes = {f"{a}axis": {**axis, **scene.pop(f"{a}axis", {})} for a in "xyz"}
    figure.update_layout(
        template="none",
        title={"text": title},
        paper_bgcolor=CLEAR,
        font={"color": INK, "family": "system-ui, sans-serif"},
        margin={"l": 0, "r": 0, "b": 0, "t": 40 if title else 0},
        legend={"x": 0, "y": 1, "bgcolor": CLEAR},
        scene={**axes, **scene},
    )


def _ball() -> Any:
    across, up = np.meshgrid(np.linspace(0, 2 * np.pi, 37), np.linspace(-np.pi / 2, np.pi / 2, 19))
    lines = [np.stack([np.cos(u) * np.cos(a), np.cos(u) * np.sin(a), np.sin(u)], -1)
             for a, u in ((across[::3], up[::3]), (across.T[::3], up.T[::3]))]  # fmt: skip
    gap = np.full((1, 3), np.nan)
    path = np.concatenate([np.concatenate([row, gap]) for grid in lines for row in grid])
    x, y, z = _rounded(path.T)
    style = {"color": INK, "width": 1}
    return go.Scatter3d(
        x=x, y=y, z=z, mode="lines", line=style, opacity=0.35, hoverinfo="skip", showlegend=False
    )


def _arrow(cloud: Cloud) -> Any:
    x, y, z = _rounded(1.25 * cloud.gradient / np.linalg.norm(cloud.gradient))
    return go.Scatter3d(
        x=[0, x], y=[0, y], z=[0, z], mode="lines", name="true gradient",
        line={"color": INK, "width": 6}, hoverinfo="name",
    )  # fmt: skip


def _points(cloud: Cloud) -> Any:
    x, y, z = _rounded(cloud.points.T)
    name = "SAM" if cloud.theta == 1 else f"VaSSO θ={cloud.theta:g}"
    return go.Scatter3d(
        x=x, y=y, z=z, mode="markers", name=name,
        marker={"size": 3, "color": look("SAM", cloud.theta).colour},
        customdata=_rounded(cloud.cosines),
        hovertemplate="cosine to the true gradient %{customdata:.2f}<extra>" + name + "</extra>",
    )  # fmt: skip


def _rounded(x: Any) -> list[Any]:
    """Four digits: a picture shows no more, and the file is a third as large."""
    found: list[Any] = np.round(np.asarray(x, dtype=np.float64), 4).tolist()
    return found
