"""The real Claude Code, against a scripted model, on this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harnesses.driving import TOKEN, Bench, Driven, node, place_in, program_of

from holdfast.harnesses.claude import Claude
from holdfast.harnesses.harness import Api
from holdfast.testing.model import (
    FOR_EVER,
    Bash,
    Gate,
    Request,
    ScriptedModel,
    Step,
    Tool,
    Usage,
    bash,
    error,
    text,
    write,
)

QUICK = Claude(retries=1)
FOR_LONG = "echo started; tail -f /dev/null"


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def bench(model: ScriptedModel, tmp_path: Path) -> Bench:
    return Bench(QUICK, model, Api.ANTHROPIC, place_in(tmp_path / "here", program_of("claude"), node()))


def said_by_user(request: Request) -> list[str]:
    """Without what Claude Code itself says in the user's name."""
    return [said for said in request.user_texts if not said.lstrip().startswith("<system-reminder>")]


def interrupted(bench: Bench, model: ScriptedModel, number: int) -> Driven:
    """A run that a signal ended in the middle of its second answer, after a whole first one with a tool."""
    gate = Gate(2)
    model.script([bash("echo from-a-tool", text="First."), text("half of a long answer, and the rest", gates=(gate,))])
    with bench.start("begin") as agent:
        agent.wait_for("delta", lambda delta: "half" in delta.get("text", ""))
        agent.kill(number)
        agent.finish()
    gate.release()
    return agent


# --- a run that goes well ---


def test_a_run_with_a_tool_call_is_told_and_completes(bench: Bench) -> None:
    steps = [
        bash("echo hällo > a.txt; cat a.txt; env", thinking="I should write it.", text="Writing."),
        text("All done ✓", usage=Usage(20, 7)),
    ]
    bench.model.script(steps)
    agent = bench.run("write a.txt")
    assert agent.outcome["status"] == "completed"
    assert agent.exit_code == 0
    assert Path(bench.place.workspace, "a.txt").read_text() == "hällo\n"
    [user], [first, last] = agent.of("user"), agent.of("assistant")
    assert user["text"] == "write a.txt"
    assert (first["text"], first["thinking"]) == ("Writing.", "I should write it.")
    assert [call["name"] for call in first["calls"]] == ["Bash"]
    [call], [tool] = agent.of("call"), agent.of("tool")
    assert call["arguments"]["command"] == tool["arguments"]["command"] == "echo hällo > a.txt; cat a.txt; env"
    assert (tool["status"], tool["call"]) == ("ok", first["calls"][0]["id"])
    assert tool["result"].startswith("hällo\n")
    assert TOKEN not in tool["result"]
    assert (last["text"], last["model"], last["stop"]) == ("All done ✓", "scripted", "end_turn")
    assert last["usage"] == {"input": 20, "output": 7, "cacheRead": 0, "cacheWrite": 0, "cost": 0}
    assert agent.outcome["usage"] == {"input": 120, "output": 17, "cacheRead": 0, "cacheWrite": 0, "cost": 0}
    [session] = agent.of("session")
    assert session["session"] == agent.reader.session
    assert session["version"] == "2.1.325"
    kinds = [payload["type"].rpartition(".")[2] for payload in agent.payloads]
    assert [kind for kind in kinds if kind in ("assistant", "call", "tool")] == [
        "assistant",
        "call",
        "tool",
        "assistant",
    ]


def test_it_speaks_to_the_model_of_the_run_alone_and_with_its_token(bench: Bench) -> None:
    bench.model.script([bash("echo hi"), text("Done.")])
    replace(bench, model_name="vendor/some-model:7b").run("go")
    assert {request.credential for request in bench.model.requests} == {TOKEN}
    assert {request.model for request in bench.model.requests} == {"vendor/some-model:7b"}
    assert set(bench.model.visits) == {"POST /v1/messages"}


def test_words_are_streamed_as_they_come_and_are_all_in_the_whole_message(bench: Bench) -> None:
    gate = Gate(3)
    bench.model.script([text("one two three four five six", thinking="hm hm", delta_size=5, gates=(gate,))])
    with bench.start("count") as agent:
        agent.wait_for("delta", lambda delta: "text" in delta)
        assert agent.of("assistant") == []
        gate.release()
        agent.finish()
    [whole] = agent.of("assistant")
    deltas = agent.of("delta")
    assert {delta["message"] for delta in deltas} == {whole["message"]}
    assert "".join(delta.get("text", "") for delta in deltas) == whole["text"] == "one two three four five six"
    assert "".join(delta.get("thinking", "") for delta in deltas) == whole["thinking"] == "hm hm"


def test_a_prompt_that_is_longer_than_the_context_is_told_as_that(bench: Bench) -> None:
    bench.model.script([text("Never said.")])
    agent = bench.run("word " * 200_000)
    error = agent.outcome["error"]
    assert error["code"] == "context_exceeded", agent.said()
    assert "Prompt is too long" in error["message"]
    assert "larger context" in error["hint"]
    assert "model test" not in error["hint"]


@pytest.mark.parametrize("prompt", ["--help", "@/etc/passwd", "/etc/hosts ünï\u2028\n✓"])
def test_a_prompt_is_never_taken_for_an_option_or_a_file(bench: Bench, prompt: str) -> None:
    bench.model.script([text("Heard.")])
    agent = bench.run(prompt)
    assert agent.outcome["status"] == "completed"
    [request] = bench.model.main_requests
    assert said_by_user(request) == [prompt]
    assert not request.saw("root:")


def test_a_huge_and_strange_output_is_told_in_part_and_kept(bench: Bench) -> None:
    bench.model.script([bash("head -c 300000 /dev/urandom; seq 200000; printf '\\ud800 ✓'"), text("Done.")])
    agent = bench.run("be loud")
    assert agent.outcome["status"] == "completed"
    [tool] = agent.of("tool")
    assert 0 < len(tool["result"].encode()) < 80_000
    assert tool["record"]["message"]["content"][0]["type"] == "tool_result"


def test_two_calls_at_once_are_both_told(bench: Bench, tmp_path: Path) -> None:
    wait = tmp_path / "go"
    calls = (Bash(f"until [ -e {wait} ]; do sleep 0.02; done; echo slow"), Bash("echo quick"))
    bench.model.script([Step(calls=calls), text("Both."), text("Then.")])
    with bench.start("two") as agent:
        agent.wait_for("call", lambda call: "quick" in call["arguments"]["command"])
        wait.touch()
        agent.finish()
    assert sorted(tool["result"] for tool in agent.of("tool")) == ["quick", "slow"]
    bench.resume_elsewhere(tmp_path / "there", agent.entries(), "go on")
    request = bench.model.main_requests[-1]
    assert sorted(result.text for result in request.results) == ["quick", "slow"]
    assert request.open_calls == []


@pytest.mark.parametrize("background", [True, False])
def test_what_an_agent_of_the_agent_says_is_kept_apart_and_waited_for(bench: Bench, background: bool) -> None:
    task = {"description": "look", "prompt": "look around", "subagent_type": "general-purpose"}
    call = Tool("Agent", {**task, "run_in_background": background})
    gate = Gate()
    bench.model.script([Step(calls=(call,)), text("Done."), text("Done after that.")])
    bench.model.script([bash("echo below"), text("Seen below.", gates=(gate,))], when="look around")
    with bench.start("delegate") as agent:
        gate.wait_reached()
        if background:
            agent.wait_for("event", lambda event: event["record"].get("type") == "result")
        gate.release()
        agent.finish()
    assert agent.outcome["status"] == "completed"
    said = ["", "Done.", "Done after that."] if background else ["", "Done."]
    assert [whole["text"] for whole in agent.of("assistant")] == said
    assert [tool["name"] for tool in agent.of("tool")] == ["Agent"]
    assert agent.outcome["usage"]["output"] == 10 * len(bench.model.main_requests)
    rebuilt = bench.harness.rebuild(agent.entries(), bench.task("go on"))
    assert rebuilt is not None
    assert b"echo below" not in b"".join(rebuilt.files.values())


def test_a_command_that_is_left_running_in_the_background_does_not_keep_it(bench: Bench) -> None:
    call = Tool("Bash", {"command": FOR_LONG, "description": "serve", "run_in_background": True})
    bench.model.script([Step(calls=(call,)), text("Serving.")])
    agent = bench.run("serve")
    assert agent.outcome["status"] == "completed"
    assert agent.text() == "Serving."
    assert agent.children() == []


def test_a_failing_tool_is_told_as_an_error(bench: Bench) -> None:
    bench.model.script([bash("echo oh no; exit 3"), text("It failed.")])
    agent = bench.run("fail")
    assert agent.of("tool")[0]["status"] == "error"
    assert "oh no" in agent.of("tool")[0]["result"]
    assert agent.outcome["status"] == "completed"


def test_a_repository_cannot_send_it_elsewhere(bench: Bench) -> None:
    settings = Path(bench.place.workspace, ".claude", "settings.json")
    settings.parent.mkdir(parents=True)
    settings.write_text('{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, "apiKeyHelper": "echo other"}')
    bench.model.script([text("Heard.")])
    assert bench.run("go").outcome["status"] == "completed"
    assert [request.credential for request in bench.model.requests] == [TOKEN]


# --- a run that does not ---


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "model_unauthorized"), (400, "model_refused"), (429, "model_rate_limited"), (500, "model_unavailable")],
)
def test_a_provider_that_refuses_for_ever_fails_the_run(bench: Bench, status: int, code: str) -> None:
    bench.model.script([error(status, "not today", times=FOR_EVER)])
    agent = bench.run("try")
    assert agent.exit_code == 1
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == code
    assert "not today" in agent.outcome["error"]["message"]
    assert {retry.get("status") for retry in agent.of("retry")} <= {status}
    assert bool(agent.of("retry")) is (status != 400)
    assert agent.of("assistant") == []


def test_a_stream_that_is_cut_is_tried_again_and_the_run_completes(bench: Bench) -> None:
    bench.model.script([text("these words are lost", cut=2, delta_size=6), text("Whole again.")])
    agent = bench.run("go")
    assert agent.outcome["status"] == "completed"
    assert agent.text() == "Whole again."
    assert [whole.get("partial", False) for whole in agent.of("assistant")][-1] is False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_in_mid_stream_fails_the_run_and_leaves_the_partial_message_whole(bench: Bench, number: int) -> None:
    agent = interrupted(bench, bench.model, number)
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == "agent_killed"
    assert str(int(number)) in agent.outcome["error"]["message"]
    whole = agent.of("assistant")[-1]
    assert whole["partial"] is True
    assert whole["text"].startswith("half of a")
    assert whole["message"] == agent.of("delta")[-1]["message"]


def test_an_interrupt_in_mid_stream_is_a_word_of_its_own(bench: Bench) -> None:
    agent = interrupted(bench, bench.model, signal.SIGINT)
    assert agent.outcome["status"] == "failed"
    whole = agent.of("assistant")[-1]
    assert whole["partial"] is True
    assert whole["text"].startswith("half of a")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_a_tool_runs_fails_the_run_and_closes_the_call(bench: Bench, number: int) -> None:
    bench.model.script([bash(FOR_LONG)])
    with bench.start("wait") as agent:
        agent.wait_for("call")
        agent.kill(number)
        agent.finish()
    assert agent.outcome["status"] == "failed"
    [tool] = agent.of("tool")
    assert tool["status"] in ("interrupted", "error")
    assert agent.children() == []


def test_an_abort_in_mid_stream_ends_the_turn_and_the_agent_itself(bench: Bench) -> None:
    gate = Gate(2)
    bench.model.script([text("half of a long answer, and the rest", gates=(gate,))])
    with bench.start("begin") as agent:
        agent.wait_for("delta", lambda delta: "half" in delta.get("text", ""))
        agent.abort()
        agent.finish()
    gate.release()
    assert agent.exit_code is not None
    assert agent.exit_code >= 0
    assert agent.outcome["error"]["code"] == "agent_aborted"
    [whole] = agent.of("assistant")
    assert whole["partial"]
    assert whole["text"].startswith("half of a")


def test_an_abort_while_a_tool_runs_ends_the_tool_too(bench: Bench) -> None:
    bench.model.script([bash(FOR_LONG)])
    with bench.start("wait") as agent:
        agent.wait_for("call")
        agent.abort()
        agent.finish()
        assert agent.children() == []
    assert agent.outcome["error"]["code"] == "agent_aborted"
    [tool] = agent.of("tool")
    assert tool["status"] == "error"


def test_an_abort_at_once_ends_it(bench: Bench) -> None:
    gate = Gate()
    bench.model.script([text("never", gates=(gate,))])
    with bench.start("begin") as agent:
        agent.abort()
        agent.finish()
    gate.release()
    assert agent.outcome["status"] == "failed"
    assert agent.of("assistant") == []


def test_a_session_that_is_not_there_fails_the_run(bench: Bench) -> None:
    agent = bench.run("go on", session="00000000-0000-4000-8000-000000000000")
    assert agent.outcome["status"] == "failed"
    assert bench.model.requests == []


# --- going on ---


def test_a_session_goes_on_in_its_place(bench: Bench) -> None:
    bench.model.script([bash("echo from-a-tool", text="First."), text("Second."), text("Third.")])
    first = bench.run("begin")
    agent = replace(bench, model_name="another").run("go on", session=first.reader.session)
    assert agent.outcome["status"] == "completed"
    assert agent.outcome["usage"]["output"] == 10
    assert bench.model.main_requests[-1].model == "another"
    assert agent.reader.session == first.reader.session
    request = bench.model.main_requests[-1]
    assert said_by_user(request) == ["begin", "go on"]
    assert request.assistant_texts == ["First.", "Second."]
    assert [result.text.strip() for result in request.results] == ["from-a-tool"]


def test_a_session_goes_on_elsewhere_from_the_thread_alone(bench: Bench, tmp_path: Path) -> None:
    bench.model.script(
        [
            write("b.txt", "x", thinking="Hm.", text="First."),
            bash("exit 3"),
            text("Second."),
            text("Third."),
            text("4th."),
        ]
    )
    first = bench.run("begin")
    second = bench.resume_elsewhere(tmp_path / "there", first.entries("r-1"), "go on")
    assert second.outcome["status"] == "completed"
    request = bench.model.main_requests[-1]
    assert said_by_user(request) == ["begin", "go on"]
    assert request.assistant_texts == ["First.", "Second."]
    assert [call.name for call in request.calls] == ["Write", "Bash"]
    assert len(request.results) == 2
    assert request.open_calls == []
    third = bench.resume_elsewhere(tmp_path / "yonder", [*first.entries("r-1"), *second.entries("r-2")], "on")
    assert third.outcome["status"] == "completed"
    assert bench.model.main_requests[-1].assistant_texts == ["First.", "Second.", "Third."]
    assert said_by_user(bench.model.main_requests[-1]) == ["begin", "go on", "on"]


def test_a_call_that_a_crash_left_open_is_closed_as_claude_does(bench: Bench, tmp_path: Path) -> None:
    bench.model.script([bash(FOR_LONG, text="First."), text("Then."), text("Then.")])
    with bench.start("begin") as agent:
        agent.wait_for("call")
        agent.kill(signal.SIGKILL)
        agent.finish()
    resumed = bench.resume_elsewhere(tmp_path / "there", agent.entries(), "go on")
    assert resumed.outcome["status"] == "completed"
    request = bench.model.main_requests[-1]
    assert request.open_calls == []
    assert said_by_user(request)[0] == "begin"
    assert said_by_user(request)[-1] == "go on"
    assert request.assistant_texts[0] == "First."


def test_a_session_that_was_killed_in_mid_answer_goes_on_without_the_half_answer(bench: Bench, tmp_path: Path) -> None:
    agent = interrupted(bench, bench.model, signal.SIGKILL)
    bench.model.script([text("Then.")])
    resumed = bench.resume_elsewhere(tmp_path / "there", agent.entries(), "go on")
    assert resumed.outcome["status"] == "completed"
    request = bench.model.main_requests[-1]
    assert said_by_user(request)[0] == "begin"
    assert said_by_user(request)[-1] == "go on"
    assert request.assistant_texts[0] == "First."
    assert [result.text.strip() for result in request.results] == ["from-a-tool"]


def test_a_session_that_was_aborted_goes_on_with_the_half_answer(bench: Bench, tmp_path: Path) -> None:
    gate = Gate(2)
    bench.model.script([text("half of a long answer, and the rest", gates=(gate,)), text("Then.")])
    with bench.start("begin") as agent:
        agent.wait_for("delta", lambda delta: "half" in delta.get("text", ""))
        agent.abort()
        agent.finish()
    gate.release()
    resumed = bench.resume_elsewhere(tmp_path / "there", agent.entries(), "go on")
    assert resumed.outcome["status"] == "completed"
    request = bench.model.main_requests[-1]
    assert request.saw("half of a")
    assert said_by_user(request)[-1] == "go on"


def test_a_prompt_that_was_never_answered_is_a_session_too(bench: Bench, tmp_path: Path) -> None:
    bench.model.script([text("Then.")])
    entries = [{"id": "r-1", "ts": 1_700_000_000_000, "payload": {"type": "claude.user", "text": "begin"}}]
    resumed = bench.resume_elsewhere(tmp_path / "there", entries, "go on")
    assert resumed.outcome["status"] == "completed"
    [request] = bench.model.main_requests
    assert said_by_user(request)[0] == "begin"
    assert said_by_user(request)[-1] == "go on"


def test_after_a_compaction_the_rebuilt_session_starts_from_its_summary(bench: Bench, tmp_path: Path) -> None:
    bench = replace(bench, context_window=100_000)
    bench.model.script(
        [
            bash("seq 300; echo long-ago", usage=Usage(60_000, 10)),
            bash("echo kept-result", usage=Usage(98_000, 10)),
            text("<summary>SUMMARY of it all</summary>"),
            text("<summary>SUMMARY of it all</summary>"),
            text("After."),
            text("Then."),
        ]
    )
    first = bench.run("the very first prompt")
    [compaction] = first.of("compaction")
    assert "SUMMARY of it all" in compaction["summary"]
    resumed = bench.resume_elsewhere(tmp_path / "there", first.entries(), "go on")
    assert resumed.outcome["status"] == "completed"
    request = bench.model.main_requests[-1]
    assert request.saw("SUMMARY of it all")
    assert not request.saw("long-ago")
    assert not request.saw("the very first prompt")
    assert [result.text for result in request.results] == ["kept-result"]
    assert said_by_user(request)[-1] == "go on"
