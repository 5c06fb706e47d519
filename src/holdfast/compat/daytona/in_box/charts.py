"""A backend of matplotlib that shows nothing, and writes what it would show as data: the charts of `code_run`.

`code_run` puts it beside the program as `daytona_charts.py` and names it in MPLBACKEND. A program that does not import
matplotlib never loads it. Each figure becomes a line of JSON in the file that DAYTONA_CHARTS names.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import math
import os
from typing import Any

from matplotlib._pylab_helpers import Gcf  # type: ignore[import-not-found]
from matplotlib.axes import Axes  # type: ignore[import-not-found]
from matplotlib.backend_bases import FigureManagerBase  # type: ignore[import-not-found]
from matplotlib.backends.backend_agg import FigureCanvasAgg  # type: ignore[import-not-found]
from matplotlib.collections import PathCollection  # type: ignore[import-not-found]
from matplotlib.container import BarContainer  # type: ignore[import-not-found]
from matplotlib.patches import Wedge  # type: ignore[import-not-found]

MOST_FIGURES = 50
MOST_POINTS = 10_000
shown = 0


class FigureManager(FigureManagerBase):  # type: ignore[misc]
    @classmethod
    def pyplot_show(cls, **ignored: Any) -> None:
        show()


class FigureCanvas(FigureCanvasAgg):  # type: ignore[misc]
    manager_class = FigureManager


def show(*_: Any, **ignored: Any) -> None:
    """Write all open figures and close them, as a user would who has seen them."""
    global shown
    for manager in Gcf.get_all_fig_managers():
        if shown < MOST_FIGURES:
            shown += 1
            chart = chart_of_figure(manager.canvas.figure)
            with open(os.environ["DAYTONA_CHARTS"], "a", encoding="utf-8") as file:
                file.write(json.dumps(chart) + "\n")
    Gcf.destroy_all()


def chart_of_figure(figure: Any) -> dict[str, Any]:
    axes = [each for each in figure.axes if not hasattr(each, "_colorbar")]
    image = io.BytesIO()
    figure.savefig(image, format="png")
    png = base64.b64encode(image.getvalue()).decode()
    if len(axes) == 1:
        return {**chart_of_axes(axes[0]), "png": png}
    title = figure._suptitle.get_text() if figure._suptitle is not None else ""
    return {"type": "composite_chart", "title": title, "elements": [chart_of_axes(each) for each in axes], "png": png}


def chart_of_axes(axes: Any) -> dict[str, Any]:
    chart: dict[str, Any] = {"title": axes.get_title()}
    boxes = getattr(axes, "_daytona_boxes", [])
    wedges = [each for each in axes.patches if isinstance(each, Wedge)]
    bars = [each for each in axes.containers if isinstance(each, BarContainer)]
    clouds = [each for each in axes.collections if isinstance(each, PathCollection)]
    if wedges:
        return {**chart, "type": "pie", "elements": [pie_element(each) for each in wedges]}
    chart.update(x_label=axes.get_xlabel(), y_label=axes.get_ylabel())
    if boxes:
        return {**chart, "type": "box_and_whisker", "elements": [box_element(each) for each in boxes]}
    if bars:
        elements = [element for each in bars for element in bar_elements(each, axes)]
        return {**chart, "type": "bar", "elements": elements[:MOST_POINTS]}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        chart[name + "_ticks"] = numbers(axis.get_majorticklocs())
        chart[name + "_tick_labels"] = [label.get_text() for label in axis.get_majorticklabels()]
        chart[name + "_scale"] = axis.get_scale()
    if clouds:
        elements = [{"label": label(each), "points": points(each.get_offsets())} for each in clouds]
        return {**chart, "type": "scatter", "elements": elements}
    if axes.lines:
        elements = [{"label": label(each), "points": points(each.get_xydata())} for each in axes.lines]
        return {**chart, "type": "line", "elements": elements}
    return {**chart, "type": "unknown", "elements": []}


def pie_element(wedge: Any) -> dict[str, Any]:
    return {"label": wedge.get_label(), "angle": float(wedge.theta2 - wedge.theta1), "radius": float(wedge.r)}


def box_element(box: dict[str, Any]) -> dict[str, Any]:
    return {
        "label": str(box.get("label", "")),
        "min": float(box["whislo"]),
        "first_quartile": float(box["q1"]),
        "median": float(box["med"]),
        "third_quartile": float(box["q3"]),
        "max": float(box["whishi"]),
        "outliers": numbers(box.get("fliers", [])),
    }


def bar_elements(container: Any, axes: Any) -> list[dict[str, Any]]:
    lying = container.orientation == "horizontal"
    axis = axes.yaxis if lying else axes.xaxis
    names = {float(at): text.get_text() for at, text in zip(axis.get_majorticklocs(), axis.get_majorticklabels())}
    elements = []
    for bar in container.patches:
        middle = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
        value = bar.get_width() if lying else bar.get_height()
        near = min(names, key=lambda at: abs(at - middle), default=None)
        name = names[near] if near is not None and abs(near - middle) < 0.5 else ""
        elements.append({"label": name or f"{middle:g}", "value": f"{value:g}", "group": label(container)})
    return elements


def label(artist: Any) -> str:
    """What a legend would say. Names that matplotlib gives begin with an underscore."""
    text = str(artist.get_label())
    return "" if text.startswith("_") else text


def points(pairs: Any) -> list[list[float]]:
    found = []
    for x, y in pairs[:MOST_POINTS]:
        pair = [float(x), float(y)]
        if all(map(math.isfinite, pair)):
            found.append(pair)
    return found


def numbers(values: Any) -> list[float]:
    return [float(value) for value in list(values)[:MOST_POINTS] if math.isfinite(value)]


def _with_boxes(draw: Any) -> Any:
    @functools.wraps(draw)
    def bxp(axes: Any, bxpstats: Any, *arguments: Any, **more: Any) -> Any:
        axes._daytona_boxes = [*getattr(axes, "_daytona_boxes", []), *bxpstats]
        return draw(axes, bxpstats, *arguments, **more)

    return bxp


# The lines of a box plot do not tell that they are one, so its numbers are taken where they are drawn.
Axes.bxp = _with_boxes(Axes.bxp)
