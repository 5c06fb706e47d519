"""Small pieces of text: durations, labels, lines of a log."""

from __future__ import annotations

import json
from datetime import UTC, date, timedelta, timezone
from typing import Any

import pytest

from holdfast import Entry
from holdfast.api.run.tasks import ThreadTree, TreeThread
from holdfast.boxes.guest_archive import boot_argv
from holdfast.calendar_time import calendar_time
from holdfast.cli.box.logs import describe_command
from holdfast.cli.terminal.console import Cell, printable, write_json, write_table
from holdfast.cli.terminal.durations import describe_duration, describe_time_left, parse_duration
from holdfast.cli.terminal.entry_lines import EntryLog, describe
from holdfast.cli.thread.commands import parse_labels
from holdfast.cli.thread.tree import tree_lines
from holdfast.exports.page import Exported, render
from holdfast.harnesses.session_files import iso


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d12h", 129600), ("1H30M", 5400)]
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "2 h", "1.5h", "-3s", "12h1d", "2w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (0.4, "0 s"), (59, "59 s"), (60, "1 min"), (7300, "2 h"), (200000, "2 d")]
)
def test_durations_are_told(seconds: float, text: str) -> None:
    assert describe_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (7 * 86400 - 0.5, "7 d"),
        (86401, "2 d"),
        (86400, "1 d"),
        (3599, "1 h"),
        (59.2, "1 min"),
        (0.1, "1 s"),
        (-5, "0 s"),
    ],
)
def test_what_is_left_is_not_shown_as_less_than_it_is(seconds: float, text: str) -> None:
    assert describe_time_left(seconds) == text


def test_labels_are_read() -> None:
    assert parse_labels(["team:core", "urgent", "url:a:b", "empty:"]) == {
        "team": "core",
        "urgent": None,
        "url": "a:b",
        "empty": "",
    }


def test_control_characters_are_shown_not_sent() -> None:
    assert printable("\x1b]0;title\x07 \x9b2J ok\n\ttab é ✓") == "␛]0;title␇ ⟨009B⟩2J ok\n\ttab é ✓"


def test_json_drives_no_terminal_and_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": "\x1b[2J \x9b2J \u202e \x7f \ud800 \U000e0001 é ✓"}
    write_json(value)
    shown = capsys.readouterr().out
    assert shown.removesuffix("\n").isprintable()
    assert "é ✓" in shown
    assert json.loads(shown) == value


@pytest.mark.parametrize(
    ("payload", "author", "text"),
    [
        ({"type": "chat", "role": "user", "text": "hello\n"}, None, "user: hello"),
        ({"type": "chat", "role": "user", "text": "hello"}, "u-1", "u-1: hello"),
        ({"type": "pi.text", "text": "hello", "usage": 3}, None, "hello"),
        ({"type": "signal.x", "a": "b", "n": [1, None]}, None, "a=b  n=[1, null]"),
        ({"type": "pi.tool", "text": {"not": "text"}}, None, 'text={"not": "text"}'),
        ({"type": "pi.tool", "long": "x" * 300}, None, "long=" + "x" * 199 + "…"),
    ],
)
def test_an_entry_says(payload: dict[str, object], author: str | None, text: str) -> None:
    assert describe(Entry("e-1", 0, payload, author)) == text


def texts(lines: list[list[Cell]]) -> list[str]:
    return ["".join(cell.text for cell in line) for line in lines]


def test_a_log_names_each_day_once_on_a_terminal() -> None:
    log = EntryLog(zone=UTC, today=date(2026, 1, 2), whole_times=False)
    day = 86_400_000
    start = 1_767_312_000_000  # 2026-01-02
    entry = Entry("e-1", start, {"type": "chat", "text": "a\nb"})
    assert texts(log.lines(entry)) == ["00:00:00  chat              a", " " * 28 + "b"]
    assert texts(log.lines(Entry("e-2", start + day, {"type": "chat", "text": "c"}))) == [
        "2026-01-03",
        "00:00:00  chat              c",
    ]


def test_lines_in_a_pipe_stand_alone() -> None:
    log = EntryLog(zone=UTC, today=date(2026, 1, 2), whole_times=True)
    [line] = texts(log.lines(Entry("e-1", 1_767_312_000_123, {"type": "chat", "text": "a"})))
    assert line == "2026-01-02T00:00:00.123+00:00  chat              a"


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12)), None])
@pytest.mark.parametrize("ts", [0, 1_767_312_000_000, 253_402_300_799_999, 4_503_599_627_370_496, 2**53 - 1])
@pytest.mark.parametrize("whole", [True, False])
def test_a_time_that_no_calendar_has_breaks_no_log(ts: int, zone: timezone | None, whole: bool) -> None:
    """Times of entries were limited to 2**53 only."""
    log = EntryLog(zone=zone, today=date(2026, 1, 2), whole_times=whole)
    assert texts(log.lines(Entry("e-1", ts, {"type": "chat", "text": "a"})))[-1].endswith("a")
    assert f"{calendar_time(ts, zone):%Y-%m-%d %H:%M:%S}"
    assert iso(ts).endswith("Z")
    assert render(Exported("t-1", "T", [Entry("e-1", ts, {"type": "chat", "text": "a"})]))


def test_tables_align_numbers_at_the_right_and_count_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(
        ("id", "calls", "cost", "title", "took"),
        [("1", "7", "$1,024.00", "漢字", "–"), (Cell("22"), "1,024", "–", "plain", "3 s"), ("3", "", "$2.00", "é", "")],
    )
    assert capsys.readouterr().out.splitlines() == [
        "id  calls       cost  title  took",
        "1       7  $1,024.00  漢字   –",
        "22  1,024          –  plain  3 s",
        "3              $2.00  é",
    ]


def test_the_threads_of_a_tree_are_in_columns() -> None:
    unused = {"parent": None, "fork_of": None, "task": False, "agent": None, "live": False}

    def thread(id: str, **about: Any) -> TreeThread:
        return TreeThread(id=id, status=about.pop("status", "completed"), last_activity_at=0, **{**unused, **about})

    tree = ThreadTree(
        root="t-1",
        truncated=False,
        threads=(
            thread("t-1", title="a"),
            thread("t-22", status="failed", fork_of="t-1", agent="pi", title="b"),
            thread("t-3", parent="t-22", task=True, title="c"),
        ),
    )
    assert ["".join(map(str, map(_text, line))) for line in tree_lines(tree, "t-1", 1)] == [
        "t-1        completed  thread    1 s ago  a",
        "└─ t-22    failed     fork, pi  1 s ago  b",
        "   └─ t-3  completed  task      1 s ago  c",
    ]


def _text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def test_programs_of_holdfast_are_shown_by_name_in_the_list_of_processes() -> None:
    assert describe_command(boot_argv(("/usr/bin/python3",), "holdfast.guest.runner.main", ("json",))) == (
        "/usr/bin/python3 … holdfast.guest.runner.main"
    )
    assert describe_command(["sh", "-c", "a b\nc"]) == "sh -c 'a b …'"
    assert describe_command(["sleep", "100"]) == "sleep 100"
