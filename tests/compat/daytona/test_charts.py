"""What `code_run` tells about the charts that a program shows."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from daytona import BarChart, BoxAndWhiskerChart, ChartType, CompositeChart, LineChart, PieChart, Sandbox, ScatterChart
from daytona.common.charts import parse_chart
from daytona_toolbox_api_client import Chart
from tests.installed_packages import packages_of

PROGRAM = """
import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 10, 5)
plt.figure()
plt.plot(x, 2 * x, label="double")
plt.plot([0, 1, float("nan")], [0, 1, 2])
plt.title("Line"), plt.xlabel("seconds"), plt.ylabel("metres")
plt.show()
plt.figure()
plt.scatter(x, x, c=x)
plt.colorbar()
plt.title("Scatter")
plt.show()
plt.figure()
plt.bar(["A", "B"], [40, 63.5], label="group")
plt.show()
plt.figure()
plt.barh(["C", "D"], [1, 2])
plt.show()
plt.figure()
plt.pie([1, 3], labels=["one", "three"])
plt.show()
plt.figure()
plt.boxplot([[1, 2, 3, 4, 100]])
plt.show()
figure, (left, right) = plt.subplots(1, 2)
left.plot([1, 2], [3, 4])
right.bar(["X"], [1])
figure.suptitle("Both")
plt.show()
plt.figure()
print("never shown")
"""


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The charts of the program above, by the real matplotlib, as the SDK reads them."""
    folder = tmp_path_factory.mktemp("charts")
    backend = resources.files("holdfast.compat.daytona.in_box").joinpath("charts.py").read_bytes()
    (folder / "daytona_charts.py").write_bytes(backend)
    (folder / "main.py").write_text(PROGRAM)
    told = {"MPLBACKEND": "module://daytona_charts", "DAYTONA_CHARTS": str(folder / "charts.jsonl")}
    command = [str(packages_of("data").parents[2] / "bin" / "python"), "main.py"]
    env = {**os.environ, **told, "MPLCONFIGDIR": str(folder)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "never shown\n"), done.stderr
    lines = Path(told["DAYTONA_CHARTS"]).read_text().splitlines()
    return [parse_chart(Chart.model_validate(json.loads(line))) for line in lines]


def test_every_kind_of_chart_is_told(charts: list[Any]) -> None:
    kinds = [LineChart, ScatterChart, BarChart, BarChart, PieChart, BoxAndWhiskerChart, CompositeChart]
    assert [type(chart) for chart in charts] == kinds
    for chart in charts:
        assert base64.b64decode(chart.png).startswith(b"\x89PNG")


def test_points_have_axes(charts: list[Any]) -> None:
    line, scatter = charts[:2]
    assert (line.type, line.title, line.x_label, line.y_label) == (ChartType.LINE, "Line", "seconds", "metres")
    assert [each.label for each in line.elements] == ["double", ""]
    assert line.elements[0].points[1] == [2.5, 5.0]
    assert line.elements[1].points == [[0.0, 0.0], [1.0, 1.0]], "what is no number is no point"
    assert (line.x_scale, line.y_scale) == ("linear", "linear")
    assert len(line.x_ticks) == len(line.x_tick_labels) > 2
    assert (scatter.title, len(scatter.elements)) == ("Scatter", 1)
    assert scatter.elements[0].points[0] == [0.0, 0.0]


def test_bars_pies_and_boxes_have_values(charts: list[Any]) -> None:
    standing, lying, pie, box, both = charts[2:]
    shown = [(each.label, each.value, each.group) for each in standing.elements]
    assert shown == [("A", "40", "group"), ("B", "63.5", "group")]
    assert [(each.label, each.value) for each in lying.elements] == [("C", "1"), ("D", "2")]
    assert [(each.label, round(each.angle)) for each in pie.elements] == [("one", 90), ("three", 270)]
    (element,) = box.elements
    assert (element.first_quartile, element.median, element.third_quartile) == (2.0, 3.0, 4.0)
    assert (element.min, element.max, element.outliers) == (1.0, 4.0, [100.0])
    assert (both.title, [each.type for each in both.elements]) == ("Both", ["line", "bar"])


@pytest.mark.box
def test_charts_come_with_the_result_of_code(shared: Sandbox) -> None:
    """The box has no matplotlib, so the program does what our backend of it does: it writes where it is told to."""
    code = """
import json, os  # for matplotlib
assert os.environ["MPLBACKEND"] == "module://daytona_charts"
with open(os.environ["DAYTONA_CHARTS"], "w") as file:
    print(json.dumps({"type": "line", "title": "T", "elements": [{"label": "a", "points": [[1, 2]]}]}), file=file)
    print("[1]\\nno JSON", file=file)
print("done")
"""
    done = shared.process.code_run(code)
    assert (done.exit_code, done.result) == (0, "done\n")
    assert done.artifacts is not None
    assert done.artifacts.charts is not None
    (chart,) = done.artifacts.charts
    assert isinstance(chart, LineChart)
    assert chart.elements[0].points == [[1, 2]]
    assert shared.process.exec("ls -d /tmp/daytona-code-* 2>/dev/null | wc -l").result == "0\n"


@pytest.mark.box
def test_a_chart_that_is_no_file_is_not_waited_for(shared: Sandbox) -> None:
    done = shared.process.code_run("import os; os.mkfifo(os.environ['DAYTONA_CHARTS'])  # matplotlib", timeout=20)
    assert (done.exit_code, done.artifacts.charts if done.artifacts else None) == (0, [])
