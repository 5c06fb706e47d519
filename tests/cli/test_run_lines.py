"""Entries of runs as lines of a terminal: whole, live, narrow, in a pipe, and from somebody hostile."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.story import BEGAN, HOSTILE, Story, hostile, repaired

from holdfast import Entry
from holdfast.api.model.money import describe_cost
from holdfast.api.run.info import RunInfo, RunStatus, Stage
from holdfast.cli.run.follow import conclude
from holdfast.cli.run.status import describe_status
from holdfast.cli.terminal.agent_text import cut, describe_time, one_line, plain, width_of, wrap
from holdfast.cli.terminal.run_lines import Line, RunLines
from holdfast.cli.terminal.tool_lines import describe_call, describe_tool, summarize_output


def told(lines: list[Line]) -> list[str]:
    return ["".join(cell.text for cell in line).rstrip() for line in lines]


def render(entries: list[Entry], width: int | None = 80) -> list[str]:
    view = RunLines(width=width)
    return [line for entry in entries for line in told(view.take(entry))]


def test_a_run_that_lost_its_box_and_went_on_reads_like_its_story() -> None:
    assert render(repaired()) == [
        "  box          b-7fq2 local (bubblewrap, seccomp, no network)  38 ms",
        "",
        "  > The tests fail. Find out why, and repair it.",
        "  ● pi 0.87.1 · scripted/demo",
        "    ∴ Where to begin?  (2 lines)",
        "    I'll run the tests first.",
        "    $ python3 -m unittest -q                ✗ FAILED (failures=1)        812 ms",
        "    The failure is in price.py: the discount is applied twice.",
        "    ✎ price.py  +1 −2",
        "  ✗ box b-7fq2 is gone  14 entries are safe on the thread",
        "  ↻ resumed in box b-9mx1, session rebuilt from the thread, files kept    41 ms",
        "    ⟳ retrying (1): 429 Too Many Requests",
        "    $ python3 -m unittest -q                OK                           799 ms",
        "    Fixed: the discount is now applied once.",
        "  ✓ completed in 4.3 s · 2 boxes · 23 entries",
    ]


def charged(*costs: float | None) -> list[str]:
    story = Story()
    story.add("signal.run.started", run="r-1", epoch=1, agent="pi", model="mine/a", prompts=[])
    story.add("pi.assistant", message="m-1", text="Done.", usage={"cost": 0.0})
    for cost in costs:
        story.add("signal.model.call", run="r-1", model="mine/a", input=5, output=5, cost=cost)
    story.add("signal.run.finished", run="r-1", status="completed")
    return render(story.entries)


def test_the_cost_of_a_run_is_what_the_server_counted_and_unknown_is_not_nothing() -> None:
    assert charged(0.25, 0.5)[-1].endswith("entries · $0.75")
    assert charged(0.25, None)[-1].endswith("entries · at least $0.25, 1 call without a price")
    assert charged(0, None)[-1].endswith("entries · cost unknown")
    assert charged(None)[-1].endswith("entries · cost unknown")
    assert charged(0)[-1].endswith("entries · $0.00")
    assert charged()[-1].endswith("entries")  # an agent that does not know a price says 0


def test_a_failed_setup_shows_what_its_command_printed() -> None:
    story = Story()
    story.add("signal.run.started", run="r-1", epoch=1, agent="pi", model="mine/a", prompts=[])
    printed = "\n".join(f"line {number}" for number in range(12))
    message = f"the setup command ended with 1: pip install pytest\n{printed}"
    error = {"code": "setup_failed", "message": message, "hint": "correct the command"}
    story.add("signal.run.finished", run="r-1", status="failed", error=error)
    shown = render(story.entries)
    begins = shown.index("    the setup command ended with 1: pip install pytest")
    assert shown[begins + 1 :] == [*(f"    line {number}" for number in range(2, 12)), "    correct the command"]


def test_a_failover_and_a_budget_are_shown() -> None:
    story = Story()
    story.add("signal.run.started", run="r-1", epoch=1, agent="pi", model="mine/a", prompts=[])
    switched: dict[str, Any] = {
        "model": "mine/a",
        "reason": "rate",
        "status": 429,
        "message": "slow",
        "pause_ms": 30_000,
    }
    story.add("signal.model.failover", run="r-1", to="spare/b", **switched)
    story.add("signal.model.failover", run="r-1", to=None, **switched)
    nearly: dict[str, Any] = {"scope": "run", "subject": "r-1", "unit": "cost", "limit": 5.0}
    story.add("signal.model.budget", run="r-1", state="warning", spent=4.1, **nearly)
    story.add(
        "signal.model.budget", run="r-1", state="reached", spent=900, **{**nearly, "unit": "tokens", "limit": 900}
    )
    far = {**nearly, "limit": 0.00002}
    story.add("signal.model.budget", run="r-1", state="warning", spent=0.3, **far)
    story.add("signal.model.budget", run="r-1", state="reached", spent=0.3, **far)  # is not said twice
    assert render(story.entries, None)[-5:] == [
        "    ⇄ mine/a has too many requests: going on with spare/b",
        "    ⇄ mine/a has too many requests: no other is left",
        "    ! the budget of this run is nearly used up: $4.10 of $5.00",
        "    ! the budget of this run is used up: 900 tokens of 900 tokens",
        "    ! the budget of this run is used up: $0.30 of $0.00002",
    ]


def test_a_used_up_budget_is_said_once_whatever_the_agent_repeats() -> None:
    story = Story()
    words = "Holdfast: this day is out of budget: $3.0000 of $3.0000 are spent"
    story.add("signal.run.started", run="r-1", epoch=1, agent="pi", model="mine/a", prompts=[])
    reached: dict[str, Any] = {"scope": "day", "subject": "", "unit": "cost", "limit": 3.0, "spent": 3.0}
    story.add("signal.model.budget", run="r-1", state="reached", **reached)
    story.add("pi.retry", attempt=1, message=words, status=402)
    story.add("pi.notice", level="error", text=words)
    story.add("pi.notice", level="error", text="something else")
    error = {"code": "over_budget", "message": words, "hint": "wait"}
    story.add("signal.run.finished", run="r-1", status="failed", error=error)
    assert render(story.entries, None)[-4:] == [
        "    ! the budget of this day is used up: $3.00 of $3.00",
        "    ! something else",
        "  ✗ failed after 250 ms · 0 boxes · 6 entries",
        "    wait",
    ]


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        ("box_gone", "box b-1 is gone, and the agent with it", ["  ✗ box b-1 is gone  3 entries"]),
        ("box_stopped", "box b-1 was stopped or killed while …", ["  ✗ box b-1 was stopped or killed  3 entries"]),
        (
            "runner_lost",
            "its runner exited without reporting an end",
            [
                "  ✗ the run in box b-1 was lost  3 entries",
                "    its runner exited without reporting an end",
                "    resume it",
            ],
        ),
        (
            "disk_limit",
            "what ran in box b-1 was ended by its disk limit: 100 MB",
            [
                "  ✗ the run in box b-1 was lost  3 entries",
                "    what ran in box b-1 was ended by its disk limit: 100 MB",
                "    resume it",
            ],
        ),
    ],
)
def test_a_run_that_was_lost_says_with_what(code: str, message: str, expected: list[str]) -> None:
    view = RunLines(width=80)
    story = Story()
    story.add("signal.run.started", run="r-1", agent="pi", model="m")
    story.add("signal.run.box", run="r-1", box="b-1", provider="local", how="created", ms=1)
    error = {"code": code, "message": message, "hint": "resume it"}
    story.add("signal.run.finished", run="r-1", status="orphaned", by="reconciler", ms=1, error=error)
    lines = [line for entry in story.entries for line in told(view.take(entry))]
    shown = lines[-len(expected) :]
    assert [line.replace(" are safe on the thread", "") for line in shown] == expected


def test_a_box_that_was_killed_on_purpose_is_told_so() -> None:
    view = RunLines(width=80)
    view.on_purpose.add("b-7fq2")
    lines = [line for entry in repaired() for line in told(view.take(entry))]
    assert "  ✗ box b-7fq2 killed (on purpose)  14 entries are safe on the thread" in lines


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120, 300])
def test_no_line_of_the_agents_is_wider_than_the_terminal(width: int) -> None:
    story = Story()
    story.add("signal.run.started", run="r-1", agent="pi", model="m")
    story.add("pi.assistant", text="宽" * 200 + " wide " * 40 + "x" * 500, thinking="思" * 300)
    story.add(
        "pi.tool", call="1", name="bash", arguments={"command": "echo 宽" * 50}, result="界" * 300, status="ok", ms=5
    )
    story.add("pi.tool", call="2", name="write", arguments={"path": "路" * 100, "content": "a\nb\n"}, status="ok")
    story.add("pi.retry", attempt=1, message="é" * 400)
    story.add("pi.delta", text="live " * 100)
    view = RunLines(width=width)
    lines = [line for entry in story.entries for line in told(view.take(entry))]
    lines += told(view.live(BEGAN + 60_000, 10))
    assert max(width_of(line) for line in lines) <= width


def test_in_a_pipe_nothing_is_cut() -> None:
    story = Story()
    story.add("pi.assistant", text="word " * 100)
    story.add("pi.tool", call="1", name="bash", arguments={"command": "x" * 300}, result="y" * 300, status="ok", ms=5)
    prose, tool = render(story.entries, None)
    assert prose == "    " + ("word " * 100).rstrip()
    assert "x" * 300 in tool
    assert "y" * 300 in tool


def test_words_are_drawn_as_they_come_and_are_replaced_by_the_whole_message() -> None:
    story = Story()
    view = RunLines(width=80)
    started = story.add("signal.run.started", run="r-1", agent="pi", model="m")
    assert told(view.take(started)) == []
    assert told(view.live(started.ts + 2500, 10)) == ["  getting a box · 2.0 s · Ctrl-C leaves it running"]
    view.take(story.add("signal.run.provisioned", run="r-1", agent="pi", session="new"))
    assert told(view.take(story.add("pi.delta", message="m", thinking="Hm.\nLet me see"))) == []
    assert told(view.live(BEGAN, 10))[0] == "    ∴ Let me see"
    view.take(story.add("pi.delta", message="m", text="I will "))
    view.take(story.add("pi.delta", message="m", text="look."))
    assert told(view.live(BEGAN, 10))[0] == "    I will look."
    assert told(view.take(story.add("pi.assistant", message="m", text="I will look."))) == ["    I will look."]
    called = story.add("pi.call", call="1", name="bash", arguments={"command": "sleep 9"})
    view.take(called)
    assert told(view.live(called.ts + 3000, 10))[0].split() == ["$", "sleep", "9", "…", "3.0", "s"]
    view.take(story.add("pi.tool", call="1", name="bash", arguments={}, status="ok"))
    assert len(view.live(BEGAN, 10)) == 1
    view.take(story.add("signal.run.finished", run="r-1", status="completed"))
    assert view.live(BEGAN, 10) == []
    assert not view.running


def installs(story: Story) -> list[Entry]:
    started = story.add("signal.run.started", run="r-1", agent="pi", model="m")
    box = story.add("signal.run.box", run="r-1", box="b-1", provider="local", how="created", ms=1)
    began = story.add("signal.run.installing", run="r-1", what="pi 0.87.1")
    return [started, box, began, story.add("signal.run.installing", run="r-1", what="pi 0.87.1", ms=8300)]


def test_what_is_installed_first_is_seen_meanwhile_and_how_long_it_took_afterwards() -> None:
    started, box, began, done = installs(Story())
    view = RunLines(width=80)
    view.take(started)
    view.take(box)
    assert told(view.take(began)) == []
    assert told(view.live(started.ts + 5000, 10)) == ["  installing pi 0.87.1 · 5.0 s · Ctrl-C leaves it running"]
    assert told(view.take(done)) == ["  installed    pi 0.87.1  8.3 s"]
    assert told(view.live(started.ts + 9000, 10)) == ["  preparing the agent · 9.0 s · Ctrl-C leaves it running"]


def test_in_a_pipe_what_is_installed_is_said_when_it_begins() -> None:
    assert render(installs(Story()), None) == ["  installing   pi 0.87.1", "  installed    pi 0.87.1  8.3 s"]


def test_why_a_model_is_not_reached_stands_in_the_line_of_each_retry_and_is_told_once() -> None:
    """Claude Code says `server_error` of each, and the reason at the very end."""
    story, why = Story(), "api.example.com cannot be reached: Name or service not known"
    lines = render(
        [
            story.add("signal.run.started", run="r-1", agent="claude", model="m"),
            story.add("signal.run.model_trouble", run="r-1", message=why),
            story.add("claude.retry", attempt=1, message="server_error", status=502),
            story.add("claude.retry", attempt=2, message="rate_limit", status=429),
            story.add("claude.notice", level="error", text=f"API Error: 502 Holdfast: {why}"),
            story.add("signal.run.finished", run="r-1", status="failed",
                      error={"code": "model_unreachable", "message": f"API Error: 502 Holdfast: {why}", "hint": "do"}),
        ],
        200,
    )  # fmt: skip
    assert f"    ⟳ retrying (1): {why}" in lines
    assert "    ⟳ retrying (2): rate_limit" in lines
    assert len([line for line in lines if "API Error" in line]) == 1
    assert lines[-1] == "    do"


def test_what_goes_on_never_takes_more_lines_than_there_are() -> None:
    story = Story()
    view = RunLines(width=40)
    view.take(story.add("signal.run.started", run="r-1", agent="pi", model="m"))
    view.take(story.add("pi.delta", text="line\n" * 500))
    for number in range(50):
        view.take(story.add("pi.call", call=str(number), name="bash", arguments={"command": "x"}))
    assert len(view.live(BEGAN, 8)) == 8


@pytest.mark.parametrize("width", [40, 80, None])
def test_hostile_entries_drive_no_terminal(width: int | None) -> None:
    view = RunLines(width=width)
    lines = []
    for entry in hostile():
        lines += told(view.take(entry))
        lines += told(view.live(BEGAN, 20))
    assert lines
    for line in lines:
        assert line.isprintable(), line
        assert "owned" not in line or "\\u001b" in line
    assert view.close() == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain\ntext", "plain\ntext"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://evil.example/\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x1b]52;c;ZXZpbA==\x07copied", "copied"),
        ("\x9b2Jcleared", "cleared"),
        ("10%\r50%\r100%\nnext\r\n", "100%\nnext\n"),
        ("\x1b", "␛"),
        ("\x1b[" + "1" * 100, "␛[" + "1" * 100),
        ("a\tb", "a    b"),
        ("a\u202eb", "a⟨202E⟩b"),
        ("no\u00a0break\u3000wide\u200djoined", "no break wide⟨200D⟩joined"),
        ("\x07\x08\x00", "␇␈␀"),
        ("\ud800", "⟨D800⟩"),
    ],
)
def test_what_would_drive_a_terminal_is_taken_out_or_shown(text: str, seen: str) -> None:
    assert plain(text) == seen


def test_hostile_text_is_neutral() -> None:
    assert plain(HOSTILE).isprintable()


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 8, ["one two", "three"]),
        ("abcdefghijkl", 8, ["abcdefgh", "ijkl"]),
        ("宽宽宽宽宽", 8, ["宽宽宽宽", "宽"]),
        ("    indented text", 12, ["    indented", "    text"]),
        ("a\n\nb", 8, ["a", "", "b"]),
    ],
)
def test_text_is_wrapped_by_columns(text: str, width: int, lines: list[str]) -> None:
    assert list(wrap(text, width)) == lines


def test_text_is_cut_by_columns() -> None:
    assert cut("宽宽宽", 5) == "宽宽…"
    assert cut("宽宽", 4) == "宽宽"
    assert one_line("\n  first \nsecond") == "first …"


@pytest.mark.parametrize(
    ("name", "arguments", "mark", "what", "added", "removed"),
    [
        ("bash", {"command": "ls -l"}, "$", "ls -l", None, None),
        ("exec", {"cmd": ["bash", "-lc", "ls\npwd"]}, "$", "ls …", None, None),
        ("edit", {"path": "/workspace/a.py", "oldText": "1\n2", "newText": "1\n3\n4"}, "✎", "a.py", 2, 1),
        ("Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}, "✎", "a.py", 1, 1),
        ("multi", {"path": "a", "edits": [{"oldText": "1", "newText": "2"}] * 2}, "✎", "a", 2, 2),
        ("write", {"filePath": "b.txt", "content": "1\n2\n"}, "✎", "b.txt", 2, None),
        ("apply_patch", "*** Begin Patch\n*** Update File: c.py\n@@\n-a\n+b\n+c\n*** End Patch", "✎", "c.py", 2, 1),
        ("change", {"changes": [{"path": "a"}, {"path": "b"}]}, "✎", "a, b", None, None),
        ("read", {"path": "a.py"}, "·", "read a.py", None, None),
        ("grep", {"pattern": "x+"}, "·", "grep x+", None, None),
        ("think", {}, "·", "think", None, None),
        ("odd", {"n": 1}, "·", 'odd {"n": 1}', None, None),
    ],
)
def test_a_call_shows_by_its_shape(
    name: str, arguments: object, mark: str, what: str, added: int | None, removed: int | None
) -> None:
    line = describe_call(name, arguments)
    assert (line.mark, line.what, line.added, line.removed) == (mark, what, added, removed)


@pytest.mark.parametrize(
    ("result", "status", "said"),
    [
        ("1\n2\n3 passed\n", "ok", "3 passed"),
        ("boom\nCommand exited with code 2", "error", "boom · exit 2"),
        ("(no output)\n\nCommand exited with code 1", "error", "exit 1"),
        ("", "error", "failed"),
        ("", "ok", ""),
        ("half", "interrupted", "interrupted"),
    ],
)
def test_a_command_says_how_it_went_in_its_last_line(result: str, status: str, said: str) -> None:
    assert describe_tool("bash", {"command": "x"}, result, status).result == said
    assert summarize_output("ok\nexit code: 0", failed=False) == "ok"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(-5, "0 ms"), (38.2, "38 ms"), (980, "1.0 s"), (9400, "9.4 s"), (59_960, "1 min 0 s"), (7_384_000, "2 h 3 min")],
)
def test_times_are_as_exact_as_anybody_cares(milliseconds: float, text: str) -> None:
    assert describe_time(milliseconds) == text


@pytest.mark.parametrize(("dollars", "text"), [(0, "$0.00"), (0.0042, "$0.0042"), (1234.5, "$1,234.50")])
def test_costs(dollars: float, text: str) -> None:
    assert describe_cost(dollars) == text


@pytest.mark.parametrize("sign", ["signal.run.heartbeat", "pi.session"])
def test_a_run_that_gives_no_sign_of_life_says_for_how_long(sign: str) -> None:
    view = RunLines(width=80)
    story = Story()
    view.take(story.add("signal.run.started", run="r-1", agent="pi", model="m"))
    assert view.silence(BEGAN + 600_000) == "", "its box may take long to be made"
    beat = story.add(sign, run="r-1")
    view.take(beat)
    assert view.silence(beat.ts + 14_000) == ""
    assert view.silence(beat.ts + 200_000) == "no heartbeat for 3 min"
    assert told(view.live(beat.ts + 40_000, 10))[-1].startswith("  no heartbeat for 40 s · ")
    view.take(story.add("signal.run.finished", run="r-1", status="completed", ms=1))
    assert view.silence(beat.ts + 200_000) == ""


@pytest.mark.parametrize(
    ("status", "stage", "ago", "shown"),
    [
        ("running", "event", 14, "running"),
        ("running", "event", 95, "running, no heartbeat for 1 min"),
        ("running", "provision", 95, "running"),
        ("completed", "event", 95, "completed"),
    ],
)
def test_a_status_says_that_a_runner_is_silent(status: str, stage: str, ago: int, shown: str) -> None:
    run = RunInfo(
        id="r-1", thread="t-1", agent="pi", version=None, model="m", status=RunStatus(status), stage=Stage(stage),
        started_at=0, ended_at=None, last_sign_at=1_000_000, prompts=(), waiting=0, resumes=None, provider="local",
        box=None, box_how=None, files=None, session=None, cancel=None, exit_code=None, error=None, usage=None,
        ended_by=None,
    )  # fmt: skip
    assert describe_status(status, run, 1000 + ago) == shown
    assert describe_status(status, None, 1000) == status


def tool_call(**arguments: str) -> RunLines:
    view = RunLines(width=None)
    for payload in (
        {"type": "signal.run.started", "run": "r-1", "agent": "pi"},
        {"type": "pi.tool", "name": "x", "arguments": arguments, "result": "", "status": "ok"},
        {"type": "signal.run.finished", "run": "r-1", "status": "completed"},
    ):
        view.take(Entry("e", 1, payload))
    return view


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [
        ({"command": "sed -i s/a/b/ x"}, ["diff", "apply", "resume"]),
        ({"path": "x", "content": "new"}, ["diff", "apply", "resume"]),
        ({"path": "x"}, ["resume"]),
    ],
)
def test_the_end_of_a_run_that_may_have_changed_files_says_how_they_come_home(
    arguments: dict[str, str], commands: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("holdfast.cli.run.follow.is_terminal", lambda: True)
    assert conclude("t-1", tool_call(**arguments).latest) == 0
    shown = [line.split()[-3:] for line in capsys.readouterr().out.splitlines() if "t-1" in line]
    assert shown == [["holdfast", command, "t-1"] for command in commands]


def test_a_failed_run_of_a_session_goes_on_with_a_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("holdfast.cli.run.follow.is_terminal", lambda: True)
    view, lines = RunLines(width=None), []
    for payload in (
        {"type": "signal.session.created", "agent": "pi"},
        {"type": "signal.run.started", "run": "r-1", "agent": "pi"},
        {"type": "signal.run.finished", "run": "r-1", "status": "failed",
         "error": {"code": "agent_lost", "message": "lost", "hint": "continue with: holdfast resume t-1"}},
    ):  # fmt: skip
        lines += told(view.take(Entry("e", 1, payload)))
    assert conclude("t-1", view.latest) == 1
    shown = "\n".join(lines) + capsys.readouterr().out
    assert shown.count('session prompt t-1 "…"') == 2
    assert "resume" not in shown


def test_who_follows_a_session_sees_what_is_asked_and_answered_and_that_it_sleeps() -> None:
    story = Story()
    story.add("signal.run.started", run="r-1", epoch=1, agent="opencode", model="mine/a", prompts=[])
    story.add("opencode.question", question="que_1", text="Which\ndatabase?", options=["PostgreSQL", "SQLite"])
    story.add("opencode.answer", question="que_1", answer="PostgreSQL")
    story.add("opencode.question", question="per_1", text="May it use bash: ls?")
    story.add("opencode.answer", question="per_1", answer="__expired__")
    story.add("signal.run.finished", run="r-1", status="completed")
    story.add("signal.session.hibernated", version=4)
    woken: dict[str, Any] = {"from": "restoring"}
    story.add("signal.session.running", version=6, **woken)
    story.add("signal.session.booted", ms=3)
    story.add("signal.session.terminated", version=7, why="its box is gone")
    lines = render(story.entries)
    assert "    ? Which database? (PostgreSQL, SQLite)" in lines
    assert "      holdfast session answer SESSION que_1 ANSWER" in lines
    assert "    ? answered: PostgreSQL" in lines
    assert "    ? nobody answered in time" in lines
    assert lines[-3:] == [
        "    · asleep, with its files saved; a prompt wakes it",
        "    · awake again",
        "    · session terminated: its box is gone",
    ]
