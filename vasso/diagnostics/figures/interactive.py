"""Interactive spheres by plotly, which readers rotate in a page that works offline.

A fragment is a `<div>` and a `<script>` without plotly itself, which a page includes once
(`library`, about 5 MB). Nothing is requested from the network.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from vasso.diagnostics.adversary.sphere import Cloud
from vasso.diagnostics.figures.palette import INK, look, method_label
from vasso.diagnostics.figures.style import with_greek_letters
from vasso.optional import needs_extra

with needs_extra("figures"):
    import plotly.graph_objects as go  # type: ignore[import-untyped]
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

TRANSPARENT = "rgba(0,0,0,0)"
SETTINGS = {"displayModeBar": False, "responsive": True}
"""No buttons: one rotates by dragging, and nothing is sent anywhere."""


def interactive_sphere(clouds: Sequence[Cloud], *, title: str = "") -> Any:
    """A plotly figure of the adversaries of several thetas at one SNR, for `fragment`.

    A click on the legend hides one theta.
    """
    if not clouds or any(len(c.gradient) != 3 for c in clouds):
        raise ValueError("a sphere needs one or more clouds in 3 dimensions")
    if len({(c.snr, *map(float, c.gradient)) for c in clouds}) > 1:
        raise ValueError("clouds on one sphere must have one SNR and one gradient")
    figure = go.Figure([_globe(), _arrow(clouds[0]), *map(_points, clouds)])
    hidden = {f"{axis}axis": {"visible": False} for axis in "xyz"}
    camera = {"eye": {"x": 1.0, "y": 0.9, "z": 0.4}}
    figure.update_layout(
        template="none",
        title={"text": title},
        paper_bgcolor=TRANSPARENT,
        font={"color": INK, "family": "system-ui, sans-serif"},
        margin={"l": 0, "r": 0, "b": 0, "t": 40 if title else 0},
        legend={"x": 0, "y": 1, "bgcolor": TRANSPARENT},
        scene={**hidden, "aspectmode": "data", "camera": camera},
    )
    return figure


def fragment(figure: Any, *, name: str | None = None, height: int = 420) -> str:
    """A figure as `<div>` and `<script>`; the page includes `library()` once, before it.

    `name` is the id of the div, by default a hash of the content; `height` is in pixels.
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
    """plotly itself as a `<script>` of about 5 MB, for the head of a page."""
    return f"<script>{get_plotlyjs()}</script>"


def _globe() -> Any:
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
    name = with_greek_letters(method_label(cloud.theta))
    return go.Scatter3d(
        x=x, y=y, z=z, mode="markers", name=name,
        marker={"size": 3, "color": look("SAM", cloud.theta).colour},
        customdata=_rounded(cloud.cosines),
        hovertemplate="cosine to the true gradient %{customdata:.2f}<extra>" + name + "</extra>",
    )  # fmt: skip


def _rounded(x: Any) -> list[Any]:
    """Four digits: a picture shows no more, and the file is a third as large."""
    numbers: list[Any] = np.round(np.asarray(x, dtype=np.float64), 4).tolist()
    return numbers
