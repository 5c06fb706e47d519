"""The real pi, against a scripted model, on this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harnesses.driving import TOKEN, Bench, Driven, node, place_in, program_of

from holdfast.harnesses.harness import Api
from holdfast.harnesses.pi import Pi
from holdfast.testing.model import FOR_EVER, Bash, Gate, ScriptedModel, Step, Usage, bash, error, text, write

QUICK = Pi(retry_delay_ms=1)


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def bench(model: ScriptedModel, tmp_path: Path) -> Bench:
    return Bench(QUICK, model, Api.OPENAI_CHAT, place_in(tmp_path / "here", program_of("pi"), node()))


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


@pytest.mark.parametrize("api", list(Api))
def test_a_run_with_a_tool_call_is_told_and_completes_whatever_api_the_model_speaks(bench: Bench, api: Api) -> None:
    steps = [
        bash("echo hällo > a.txt; cat a.txt", thinking="I should write it.", text="Writing."),
        text("All done ✓", usage=Usage(20, 7)),
    ]
    bench.model.script(steps)
    agent = replace(bench, api=api).run("write a.txt")
    assert agent.outcome["status"] == "completed"
    assert agent.exit_code == 0
    assert Path(bench.place.workspace, "a.txt").read_text() == "hällo\n"
    [user], [first, last] = agent.of("user"), agent.of("assistant")
    assert user["text"] == "write a.txt"
    assert (first["text"], first["thinking"]) == ("Writing.", "I should write it.")
    assert [call["name"] for call in first["calls"]] == ["bash"]
    [call], [tool] = agent.of("call"), agent.of("tool")
    assert call["arguments"]["command"] == tool["arguments"]["command"] == "echo hällo > a.txt; cat a.txt"
    assert (tool["result"], tool["status"], tool["call"]) == ("hällo\n", "ok", first["calls"][0]["id"])
    assert tool["ms"] >= 0
    assert (last["text"], last["model"], last["stop"]) == ("All done ✓", "scripted", "stop")
    assert last["usage"] == {"input": 20, "output": 7, "cacheRead": 0, "cacheWrite": 0, "cost": 0}
    assert agent.outcome["usage"]["output"] == 17
    assert agent.of("session")[0]["session"] == agent.reader.session
    assert {request.credential for request in bench.model.requests} == {TOKEN}
    assert set(bench.model.visits) == {f"POST {request.path.partition('?')[0]}" for request in bench.model.requests}


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


@pytest.mark.parametrize("prompt", ["--help", "@/etc/passwd", "/compact", "-p ünï\u2028\n\0✓ "])
def test_a_prompt_is_never_taken_for_anything_else(bench: Bench, prompt: str) -> None:
    bench.model.script([text("Heard.")])
    agent = bench.run(prompt)
    assert agent.outcome["status"] == "completed"
    assert bench.model.main_requests[0].user_texts == [prompt]


def test_a_model_may_have_any_name(bench: Bench) -> None:
    bench.model.script([text("Heard.")])
    agent = replace(bench, model_name="vendor/some-model:7b:high").run("hello")
    assert agent.outcome["status"] == "completed"
    assert bench.model.main_requests[0].model == "vendor/some-model:7b:high"


def test_a_huge_and_strange_output_is_told_in_part_and_kept(bench: Bench) -> None:
    bench.model.script([bash("head -c 300000 /dev/urandom; seq 200000; printf '\\ud800 ✓'"), text("Done.")])
    agent = bench.run("be loud")
    assert agent.outcome["status"] == "completed"
    [tool] = agent.of("tool")
    assert 0 < len(tool["result"].encode()) < 80_000
    assert tool["record"]["role"] == "toolResult"


def test_of_two_calls_at_once_the_one_that_ends_first_is_told_first(bench: Bench, tmp_path: Path) -> None:
    wait = tmp_path / "go"
    calls = (Bash(f"until [ -e {wait} ]; do sleep 0.02; done; echo slow"), Bash("echo quick"))
    bench.model.script([Step(calls=calls), text("Both."), text("Then.")])
    with bench.start("two") as agent:
        quick = agent.wait_for("tool")
        assert quick["result"] == "quick\n"
        wait.touch()
        agent.finish()
    assert [tool["result"] for tool in agent.of("tool")] == ["quick\n", "slow\n"]
    bench.resume_elsewhere(tmp_path / "there", agent.entries(), "go on")
    request = bench.model.main_requests[-1]
    assert sorted(result.text for result in request.results) == ["quick\n", "slow\n"]
    assert request.open_calls == []


def test_a_failing_tool_is_told_as_an_error(bench: Bench) -> None:
    bench.model.script([bash("echo oh no; exit 3"), text("It failed.")])
    agent = bench.run("fail")
    assert agent.of("tool")[0]["status"] == "error"
    assert "oh no" in agent.of("tool")[0]["result"]
    assert agent.outcome["status"] == "completed"


# --- a run that does not ---


@pytest.mark.parametrize(
    ("api", "status", "code", "attempts"),
    [
        (Api.OPENAI_CHAT, 401, "model_unauthorized", 1),
        (Api.OPENAI_CHAT, 400, "model_refused", 1),
        (Api.OPENAI_CHAT, 500, "model_unavailable", 6),
        (Api.OPENAI_RESPONSES, 429, "model_rate_limited", 6),
        (Api.ANTHROPIC, 401, "model_unauthorized", 1),
        (Api.ANTHROPIC, 429, "model_rate_limited", 6),
    ],
)
def test_a_provider_that_refuses_for_ever_fails_the_run(
    bench: Bench, api: Api, status: int, code: str, attempts: int
) -> None:
    bench.model.script([error(status, "not today", times=FOR_EVER)])
    agent = replace(bench, api=api).run("try")
    assert agent.exit_code == 0
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == code
    assert "not today" in agent.outcome["error"]["message"]
    assert len(bench.model.main_requests) == attempts
    assert [retry["attempt"] for retry in agent.of("retry")] == list(range(1, attempts))


def test_a_stream_that_is_cut_is_tried_again_and_the_run_completes(bench: Bench) -> None:
    bench.model.script([text("these words are lost", cut=1, delta_size=6), text("Whole again.")])
    agent = bench.run("go")
    assert agent.outcome["status"] == "completed"
    assert agent.text() == "Whole again."
    assert [retry["attempt"] for retry in agent.of("retry")] == [1]
    [lost, whole] = agent.of("assistant")
    assert lost["partial"]
    assert lost["stop"] == "error"
    assert "partial" not in whole


def test_an_answer_that_is_cut_off_by_its_limit_fails_the_run(bench: Bench) -> None:
    bench.model.script([Step(text="and then", stop="length")] * 3)
    agent = bench.run("tell me all")
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == "model_cut_off"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_in_mid_stream_fails_the_run_and_leaves_the_partial_message_whole(bench: Bench, number: int) -> None:
    agent = interrupted(bench, bench.model, number)
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == "agent_killed"
    assert str(int(number)) in agent.outcome["error"]["message"]
    whole = agent.of("assistant")[-1]
    assert whole["partial"] is True
    assert whole["text"].startswith("half of a")
    assert whole["message"] == agent.of("delta")[-1]["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_a_tool_runs_fails_the_run_and_closes_the_call(bench: Bench, number: int) -> None:
    bench.model.script([bash("echo started > started; exec sleep 1000")])
    with bench.start("wait") as agent:
        agent.wait_for("call")
        agent.kill(number)
        agent.finish()
    assert agent.outcome["status"] == "failed"
    [tool] = agent.of("tool")
    assert tool["status"] in ("interrupted", "error")
    assert agent.children() == []


def test_an_abort_in_mid_stream_ends_the_turn_and_pi_itself(bench: Bench) -> None:
    gate = Gate(2)
    bench.model.script([text("half of a long answer, and the rest", gates=(gate,))])
    with bench.start("begin") as agent:
        agent.wait_for("delta", lambda delta: "half" in delta.get("text", ""))
        agent.abort()
        agent.finish()
    gate.release()
    assert agent.exit_code == 0
    assert agent.outcome["error"]["code"] == "agent_aborted"
    [whole] = agent.of("assistant")
    assert whole["partial"]
    assert whole["text"].startswith("half of a")


def test_an_abort_while_a_tool_runs_ends_the_tool_too(bench: Bench) -> None:
    bench.model.script([bash("sleep 1000")])
    with bench.start("wait") as agent:
        agent.wait_for("call")
        agent.abort()
        agent.finish()
        assert agent.children() == []
    assert agent.exit_code == 0
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


def test_a_session_goes_on_in_its_place_and_with_another_model_too(bench: Bench) -> None:
    bench.model.script([bash("echo from-a-tool", thinking="Hm.", text="First."), text("Second."), text("Third.")])
    first = bench.run("begin")
    agent = replace(bench, api=Api.ANTHROPIC, model_name="another").run("go on", session=first.reader.session)
    assert agent.outcome["status"] == "completed"
    assert agent.reader.session == first.reader.session
    request = bench.model.main_requests[-1]
    assert (request.api, request.model) == (Api.ANTHROPIC, "another")
    assert request.user_texts == ["begin", "go on"]
    assert [said for said in request.assistant_texts if said != "Hm."] == ["First.", "Second."]
    assert [result.text.strip() for result in request.results] == ["from-a-tool"]


@pytest.mark.parametrize("api", list(Api))
def test_a_session_goes_on_elsewhere_from_the_thread_alone(bench: Bench, tmp_path: Path, api: Api) -> None:
    bench = replace(bench, api=api)
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
    assert request.user_texts == ["begin", "go on"]
    assert request.assistant_texts == ["First.", "Second."]
    assert [call.name for call in request.calls] == ["write", "bash"]
    assert len(request.results) == 2
    assert request.open_calls == []
    third = bench.resume_elsewhere(tmp_path / "yonder", [*first.entries("r-1"), *second.entries("r-2")], "on")
    assert third.outcome["status"] == "completed"
    assert bench.model.main_requests[-1].assistant_texts == ["First.", "Second.", "Third."]
    assert bench.model.main_requests[-1].user_texts == ["begin", "go on", "on"]


def test_a_rebuilt_session_asks_the_model_the_same_as_the_one_on_disk(bench: Bench, tmp_path: Path) -> None:
    steps = [bash("echo hi", thinking="Hm.", text="First."), text("Second."), text("Third.")]
    bench.model.script(steps)
    first = bench.run("begin")
    bench.run("go on", session=first.reader.session)
    on_disk = bench.model.main_requests[-1]
    bench.model.script(steps[2:])
    bench.resume_elsewhere(tmp_path / "there", first.entries(), "go on")
    rebuilt = bench.model.main_requests[-1]
    assert on_disk.turns[1:] == rebuilt.turns[1:]
    assert on_disk.system.replace("/here/", "/there/") == rebuilt.system


def test_a_call_that_a_crash_left_open_is_closed_as_pi_does(bench: Bench, tmp_path: Path) -> None:
    bench.model.script([bash("exec sleep 1000", text="First."), text("Then.")])
    with bench.start("begin") as agent:
        agent.wait_for("call")
        agent.kill(signal.SIGKILL)
        agent.finish()
    resumed = bench.resume_elsewhere(tmp_path / "there", agent.entries(), "go on")
    assert resumed.outcome["status"] == "completed"
    request = bench.model.main_requests[-1]
    assert [result.text for result in request.results] == ["No result provided"]
    assert request.open_calls == []
    assert request.user_texts == ["begin", "go on"]


def test_a_session_that_was_killed_in_mid_answer_goes_on_without_the_half_answer(bench: Bench, tmp_path: Path) -> None:
    agent = interrupted(bench, bench.model, signal.SIGKILL)
    bench.model.script([text("Then.")])
    resumed = bench.resume_elsewhere(tmp_path / "there", agent.entries(), "go on")
    assert resumed.outcome["status"] == "completed"
    request = bench.model.main_requests[-1]
    assert request.user_texts == ["begin", "go on"]
    assert request.assistant_texts == ["First."]
    assert [result.text.strip() for result in request.results] == ["from-a-tool"]


def test_a_prompt_that_was_never_answered_is_a_session_too(bench: Bench, tmp_path: Path) -> None:
    bench.model.script([text("Then.")])
    entries = [{"id": "r-1", "ts": 1_700_000_000_000, "payload": {"type": "pi.user", "text": "begin"}}]
    resumed = bench.resume_elsewhere(tmp_path / "there", entries, "go on")
    assert resumed.outcome["status"] == "completed"
    [request] = bench.model.main_requests
    assert request.user_texts[0] == "begin"
    assert request.user_texts[-1] == "go on"


def test_after_a_compaction_the_rebuilt_session_starts_from_its_summary(bench: Bench, tmp_path: Path) -> None:
    bench = replace(bench, context_window=8000)
    bench.model.answer_sides(text("SUMMARY of it all"))
    full = Usage(7900, 10)
    bench.model.script(
        [
            bash("seq 3000; echo long-ago"),
            bash("echo kept-result", usage=full),
            text("After."),
            text("Then."),
            text("X"),
        ]
    )
    first = bench.run("the very first prompt")
    assert [compaction["summary"] for compaction in first.of("compaction")] != []
    assert "SUMMARY of it all" in first.of("compaction")[0]["summary"]
    on_disk = bench.run("go on", session=first.reader.session)
    assert on_disk.outcome["status"] == "completed"
    expected = bench.model.main_requests[-1]
    bench.resume_elsewhere(tmp_path / "there", first.entries(), "go on")
    request = bench.model.main_requests[-1]
    assert request.saw("SUMMARY of it all")
    assert not request.saw("long-ago")
    assert request.saw("After.")
    assert request.turns[1:] == expected.turns[1:]
