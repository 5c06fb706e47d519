"""`holdfast box top`: what is computed of two looks, and what is printed where nobody watches."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Cli

from holdfast.api.box.usage import BoxUsage
from holdfast.cli.box.top import Watch, cells, compare, fitting, sorted_by, spark, summary

METRICS = {
    "processes": 2, "connections": 0, "idleSeconds": 0.0, "memory": 100 << 20, "cpuSeconds": 10.0, "disk": 1 << 20,
    "outOfMemory": 0, "listening": 0, "sent": 1000, "received": 0, "outgoing": 0,
}  # fmt: skip


def usage(id: str = "b-1", at: int = 0, state: str = "running", **metrics: Any) -> BoxUsage:
    return BoxUsage.from_json(
        {
            "id": id,
            "provider": "local",
            "key": None,
            "state": state,
            "thread": None,
            "environment": None,
            "lastActiveAt": 0,
            "sampledAt": at,
            "cpuLimit": None,
            "memoryLimit": None,
            "metrics": None if state in ("hibernated", "stopped") else {**METRICS, **metrics},
        }
    )


def texts(line: Any) -> list[str]:
    return [cell if isinstance(cell, str) else cell.text for cell in cells(line)]


def test_what_changed_between_two_looks() -> None:
    line = compare(usage(), usage(at=2000, cpuSeconds=11.0, sent=5096, received=2048))
    assert (line.cpu, line.sent, line.received) == (0.5, 2048, 1024)
    assert texts(line)[1:8] == ["● running", "50 %", "", "100 MB", "1 MB", "2 KB/s", "1 KB/s"]
    assert compare(None, usage()).cpu is None
    assert texts(compare(None, usage()))[2] == "…"
    # One that was started anew counts from nothing again.
    assert compare(usage(), usage(at=1000, cpuSeconds=0.1)).cpu == 0


def test_one_that_sleeps_says_for_how_long() -> None:
    assert texts(compare(None, usage(at=90_000, state="hibernated"))) == [
        "b-1", "○ hibernated", "", "", "", "", "", "", "", "1 min", "",
    ]  # fmt: skip
    assert texts(compare(usage(), usage(at=5000, state="paused")))[1:3] == ["◐ paused", ""]


def test_the_heaviest_come_first_and_those_that_sleep_last() -> None:
    watch = Watch()
    watch.add([usage("a"), usage("b"), usage("c"), usage("d", state="hibernated")])
    lines = watch.add(
        [
            usage("a", 1000, cpuSeconds=10.1, memory=1),
            usage("b", 1000, cpuSeconds=10.9, memory=2),
            usage("c", 1000, memory=3),
            usage("d", 1000, state="hibernated"),
        ]
    )
    assert [line.usage.id for line in sorted_by(lines, "cpu")] == ["b", "a", "c", "d"]
    assert [line.usage.id for line in sorted_by(lines, "memory")] == ["c", "b", "a", "d"]
    assert [line.usage.id for line in sorted_by(lines, "name")] == ["a", "b", "c", "d"]
    assert summary(lines) == "3 running · 1 hibernated · 1.00 cores · 6 B memory"
    assert [round(each, 1) for each in watch.history["b"]] == [0.0, 0.9]
    watch.add([usage("a", 2000)])
    assert set(watch.history) == {"a"}


def test_a_spark_is_as_wide_as_any_other() -> None:
    assert spark([0.0, 0.01, 0.5, 1.0, 7.0], 1.0) == "      ▁▄██"
    assert spark([], 1.0) == ""


def test_columns_give_way_where_there_is_no_room() -> None:
    columns, rows = ["box", "state", "cpu", "", "memory", "disk"], [["b-1", "● running", "5 %", "▁▁▁▁", "1 MB", "2 MB"]]
    assert fitting(list(columns), [list(rows[0])], 80) == (columns, rows)
    narrow, cut = fitting(list(columns), [list(rows[0])], 24)
    assert narrow == ["box", "state", "cpu"]
    assert cut == [["b-1", "● running", "5 %"]]


def test_in_a_pipe_one_table_is_printed_and_json_for_programs(box_cli: Cli) -> None:
    id = box_cli("box", "create", "-q", "--on-idle", "hibernate", "--idle", "1h").out.strip()
    shown = box_cli("box", "show", id)
    assert "shared, hibernates after 1 h idle" in shown.out
    table = box_cli("box", "top")
    assert table.exit == 0
    assert [line for line in table.out.splitlines() if line.startswith(id) and "● running" in line]
    (box,) = [each for each in box_cli("box", "top", "--json").json()["boxes"] if each["id"] == id]
    assert box["state"] == "running"
    assert box["metrics"]["processes"] == 0
    assert "cpuCores" in box
    box_cli("box", "delete", id, "--yes")
