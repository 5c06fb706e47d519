"""The real Codex, against a scripted model, on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harnesses.driving import TOKEN, Bench, Driven, node, place_in, program_of

from holdfast.harnesses.codex import Codex
from holdfast.harnesses.harness import Api
from holdfast.testing.model import FOR_EVER, Gate, ScriptedModel, Step, Usage, bash, error, text, tool


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def bench(model: ScriptedModel, tmp_path: Path) -> Bench:
    place = place_in(tmp_path / "here", program_of("codex"), node())
    return Bench(Codex(retries=1), model, Api.OPENAI_RESPONSES, place)


def said(bench: Bench) -> list[str]:
    """What the user said, in the last request; what Codex says in their name is left out."""
    return [words for words in bench.model.main_requests[-1].user_texts if not words.startswith("<")]


def killed_in_a_tool(bench: Bench, number: int) -> Driven:
    bench.model.script([bash("exec sleep 1000", text="First."), text("Then.")])
    with bench.start("begin") as agent:
        agent.wait_for("call")
        agent.wait_for("assistant")
        agent.kill(number)
        agent.finish()
    return agent


# --- a run that goes well ---


def test_a_run_with_a_tool_call_is_told_and_completes(bench: Bench) -> None:
    bench.model.script(
        [
            bash("echo hällo > a.txt; cat a.txt", thinking="I should write it.", text="Writing."),
            text("All done ✓", usage=Usage(20, 7, cache_read=5)),
        ]
    )
    agent = bench.run("write a.txt")
    assert agent.outcome["status"] == "completed", agent.said()
    assert agent.exit_code == 0
    assert Path(bench.place.workspace, "a.txt").read_text() == "hällo\n"
    [user], [first, last] = agent.of("user"), agent.of("assistant")
    assert user["text"] == "write a.txt"
    assert (first["text"], first["thinking"]) == ("Writing.", "I should write it.")
    assert [call["name"] for call in first["calls"]] == ["exec_command"]
    [call], [tool] = agent.of("call"), agent.of("tool")
    assert call["arguments"]["cmd"] == tool["arguments"]["cmd"] == "echo hällo > a.txt; cat a.txt"
    assert (tool["status"], tool["call"]) == ("ok", first["calls"][0]["id"])
    assert tool["result"].endswith("hällo\n")
    assert last["text"] == "All done ✓"
    assert last["usage"] == {"input": 20, "output": 7, "cacheRead": 5, "cacheWrite": 0, "cost": 0}
    assert agent.outcome["usage"]["output"] == 17
    assert agent.of("session")[0]["session"] == agent.reader.session
    kinds = [payload["type"].partition(".")[2] for payload in agent.payloads]
    assert kinds == ["session", "user", "call", "assistant", "tool", "assistant"]
    assert {request.credential for request in bench.model.requests} == {TOKEN}


@pytest.mark.parametrize(
    "prompt", ["--help", "-", 'it\'s "quoted"\n\n$HOME `ls`', "/compact", "ünï\u2028✓ ", "x" * 300_000]
)
def test_a_prompt_is_never_taken_for_anything_else(bench: Bench, prompt: str) -> None:
    bench.model.script([text("Heard.")])
    agent = bench.run(prompt)
    assert agent.outcome["status"] == "completed", agent.said()
    assert said(bench) == [prompt]


def test_a_model_may_have_any_name(bench: Bench) -> None:
    bench.model.script([text("Heard.")])
    agent = replace(bench, model_name='vendor/some "model":7b\\n✓').run("hello")
    assert agent.outcome["status"] == "completed", agent.said()
    assert bench.model.main_requests[0].model == 'vendor/some "model":7b\\n✓'


def test_a_huge_and_strange_output_is_told_in_part_and_kept(bench: Bench) -> None:
    bench.model.script([bash("head -c 300000 /dev/urandom; seq 200000; printf '\\ud800 ✓'"), text("Done.")])
    agent = bench.run("be loud")
    assert agent.outcome["status"] == "completed", agent.said()
    [tool] = agent.of("tool")
    assert 0 < len(tool["result"].encode()) < 80_000
    assert tool["record"]["type"] == "function_call_output"


def test_a_failing_tool_is_told_as_an_error(bench: Bench) -> None:
    bench.model.script([bash("echo oh no; exit 3"), text("It failed.")])
    agent = bench.run("fail")
    assert agent.of("tool")[0]["status"] == "error"
    assert "oh no" in agent.of("tool")[0]["result"]
    assert agent.outcome["status"] == "completed"


def test_the_tools_of_an_agent_do_not_have_the_token_in_their_environment(bench: Bench) -> None:
    bench.model.script([bash("env"), text("Done.")])
    [tool] = bench.run("look around").of("tool")
    assert "PATH=" in tool["result"]
    assert TOKEN not in tool["result"]


def test_several_calls_in_one_answer_are_each_told_with_their_results(bench: Bench) -> None:
    calls = tuple(call for number in range(3) for call in bash(f"echo {number}-out").calls)
    bench.model.script([Step(calls=calls), text("Done.")])
    agent = bench.run("thrice")
    assert [call["arguments"]["cmd"] for call in agent.of("call")] == ["echo 0-out", "echo 1-out", "echo 2-out"]
    assert sorted(tool["result"].split()[-1] for tool in agent.of("tool")) == ["0-out", "1-out", "2-out"]
    assert agent.outcome["status"] == "completed"


# --- a run that does not ---


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "model_unauthorized"),
        (400, "model_refused"),
        (429, "model_rate_limited"),
        (500, "model_unavailable"),
    ],
)
def test_a_provider_that_refuses_for_ever_fails_the_run(bench: Bench, status: int, code: str) -> None:
    bench.model.script([error(status, "not today", times=FOR_EVER)])
    agent = bench.run("try")
    assert agent.exit_code == 1
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == code, agent.said()
    assert len(bench.model.main_requests) <= 4


def test_a_stream_that_is_cut_is_tried_again_and_the_run_completes(bench: Bench) -> None:
    bench.model.script([text("these words are lost", cut=1, delta_size=6), text("Whole again.")])
    agent = bench.run("go")
    assert agent.outcome["status"] == "completed", agent.said()
    assert [retry["attempt"] for retry in agent.of("retry")] == [1]
    assert [whole["text"] for whole in agent.of("assistant")] == ["Whole again."]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, "agent_killed"), (signal.SIGINT, "agent_aborted"), (signal.SIGKILL, "agent_killed")],
)
def test_a_signal_in_mid_stream_fails_the_run(bench: Bench, number: int, code: str) -> None:
    gate = Gate(2)
    bench.model.script([bash("echo from-a-tool", text="First."), text("half of a long answer", gates=(gate,))])
    with bench.start("begin") as agent:
        agent.wait_for("tool")
        gate.wait_reached()
        agent.kill(number)
        agent.finish()
    gate.release()
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == code
    assert [whole["text"] for whole in agent.of("assistant")] == ["First."]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_a_tool_runs_fails_the_run_and_closes_the_call(bench: Bench, number: int) -> None:
    agent = killed_in_a_tool(bench, number)
    assert agent.outcome["status"] == "failed"
    [tool] = agent.of("tool")
    assert tool["status"] == "interrupted"
    assert agent.children() == []
    resumed = bench.run("go on", session=agent.reader.session)
    assert resumed.outcome["status"] == "completed", resumed.said()
    assert said(bench) == ["begin", "go on"]
    assert "aborted" in bench.model.main_requests[-1].results[0].text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_codex_itself_killed_under_its_driver_ends_the_run_as_well(bench: Bench, number: int) -> None:
    bench.model.script([bash("exec sleep 1000", text="First.")])
    with bench.start("begin") as agent:
        agent.wait_for("assistant")
        [codex] = [pid for pid in agent.children() if Path(f"/proc/{pid}/exe").resolve().name == "codex"]
        os.kill(codex, number)
        agent.finish()
    assert agent.exit_code == -number
    assert agent.outcome["error"]["code"] == "agent_killed"
    assert [tool["status"] for tool in agent.of("tool")] == ["interrupted"]


def test_an_abort_in_mid_stream_ends_the_turn_and_codex_itself(bench: Bench) -> None:
    gate = Gate(2)
    bench.model.script([text("half of a long answer", gates=(gate,))])
    with bench.start("begin") as agent:
        gate.wait_reached()
        agent.abort()
        agent.finish()
    gate.release()
    assert agent.exit_code == 1
    assert agent.outcome["error"]["code"] == "agent_aborted"


def test_an_abort_while_a_tool_runs_ends_the_tool_too_and_the_session_goes_on(bench: Bench) -> None:
    bench.model.script([bash("exec sleep 1000"), text("Then.")])
    with bench.start("wait") as agent:
        agent.wait_for("call")
        agent.abort()
        agent.process.wait(240)
        assert agent.children() == []
        agent.finish()
    assert agent.outcome["error"]["code"] == "agent_aborted"
    assert [tool["status"] for tool in agent.of("tool")] == ["interrupted"]
    resumed = bench.run("go on", session=agent.reader.session)
    assert resumed.outcome["status"] == "completed"
    assert said(bench) == ["wait", "go on"]
    assert bench.model.main_requests[-1].open_calls == []


def test_a_session_that_is_not_there_fails_the_run(bench: Bench) -> None:
    agent = bench.run("go on", session="00000000-0000-4000-8000-000000000000")
    assert agent.outcome["status"] == "failed", agent.said()
    assert bench.model.requests == []


# --- going on ---


def test_a_session_goes_on_in_its_place(bench: Bench) -> None:
    bench.model.script([bash("echo from-a-tool", text="First."), text("Second."), text("Third.")])
    first = bench.run("begin")
    agent = bench.run("go on", session=first.reader.session)
    assert agent.outcome["status"] == "completed", agent.said()
    assert agent.reader.session == first.reader.session
    assert [whole["text"] for whole in agent.of("assistant")] == ["Third."]
    assert [user["text"] for user in agent.of("user")] == ["go on"]
    request = bench.model.main_requests[-1]
    assert said(bench) == ["begin", "go on"]
    assert request.assistant_texts == ["First.", "Second."]
    assert "from-a-tool" in request.results[0].text


def test_a_session_goes_on_elsewhere_from_the_thread_alone(bench: Bench, tmp_path: Path) -> None:
    bench.model.script(
        [bash("echo one", thinking="Hm.", text="First."), bash("exit 3"), text("Second."), text("Third."), text("4th.")]
    )
    first = bench.run("begin")
    second = bench.resume_elsewhere(tmp_path / "there", first.entries("r-1"), "go on")
    assert second.outcome["status"] == "completed", second.said()
    request = bench.model.main_requests[-1]
    assert said(bench) == ["begin", "go on"]
    assert request.assistant_texts == ["First.", "Second."]
    assert [call.name for call in request.calls] == ["exec_command", "exec_command"]
    assert "one" in request.results[0].text
    assert "exited with code 3" in request.results[1].text
    assert request.open_calls == []
    third = bench.resume_elsewhere(tmp_path / "yonder", [*first.entries("r-1"), *second.entries("r-2")], "on")
    assert third.outcome["status"] == "completed"
    assert bench.model.main_requests[-1].assistant_texts == ["First.", "Second.", "Third."]
    assert said(bench) == ["begin", "go on", "on"]


def test_a_rebuilt_session_asks_the_model_the_same_as_the_one_on_disk(bench: Bench, tmp_path: Path) -> None:
    steps = [bash("echo hi", thinking="Hm.", text="First."), text("Second."), text("Third.")]
    bench.model.script(steps)
    first = bench.run("begin")
    bench.run("go on", session=first.reader.session)
    on_disk = bench.model.main_requests[-1]
    bench.model.script(steps[2:])
    bench.resume_elsewhere(tmp_path / "there", first.entries(), "go on")
    rebuilt = bench.model.main_requests[-1]
    told = [turn for turn in on_disk.turns if not getattr(turn, "text", "").startswith("<")]
    assert told == [turn for turn in rebuilt.turns if not getattr(turn, "text", "").startswith("<")]
    assert sorted(str(turn).replace("/here/", "/there/") for turn in on_disk.turns) == sorted(map(str, rebuilt.turns))


def test_a_session_is_rebuilt_where_its_old_files_still_are(bench: Bench) -> None:
    bench.model.script([bash("echo one", text="First."), text("Second."), text("Third.")])
    first = bench.run("begin")
    rebuilt = bench.harness.rebuild(first.entries()[:-1], bench.task("go on"))
    assert rebuilt is not None
    assert rebuilt.session != first.reader.session
    with Driven(bench.harness, bench.task("go on", rebuilt.session), rebuilt=rebuilt) as agent:
        agent.finish()
    assert agent.outcome["status"] == "completed"
    assert bench.model.main_requests[-1].assistant_texts == ["First."]


def test_a_call_that_a_crash_left_open_is_closed_as_codex_does(bench: Bench, tmp_path: Path) -> None:
    agent = killed_in_a_tool(bench, signal.SIGKILL)
    resumed = bench.resume_elsewhere(tmp_path / "there", agent.entries(), "go on")
    assert resumed.outcome["status"] == "completed", resumed.said()
    request = bench.model.main_requests[-1]
    assert [result.text for result in request.results] == ["aborted"]
    assert request.open_calls == []
    assert said(bench) == ["begin", "go on"]


def test_a_session_file_with_a_torn_end_goes_on(bench: Bench) -> None:
    bench.model.script([text("First."), text("Second.")])
    first = bench.run("begin")
    [rollout] = Path(bench.place.state, "sessions").rglob("*.jsonl")
    with rollout.open("ab") as file:
        file.write(b'{"timestamp":"2026-01-01T00:00:00.000Z","type":"resp')
    agent = bench.run("go on", session=first.reader.session)
    assert agent.outcome["status"] == "completed"
    assert agent.of("notice") == []
    assert bench.model.main_requests[-1].assistant_texts == ["First."]


def test_after_a_compaction_the_rebuilt_session_starts_from_its_summary(bench: Bench, tmp_path: Path) -> None:
    bench = replace(bench, context_window=10_000)
    bench.model.answer_sides(text("SUMMARY of it all"))
    bench.model.script(
        [
            bash("echo long-ago", usage=Usage(9900, 10)),
            bash("echo kept-result"),
            text("After."),
            text("Then."),
            text("Then."),
        ]
    )
    first = bench.run("the very first prompt")
    assert ["SUMMARY of it all" in compaction["summary"] for compaction in first.of("compaction")] == [True]
    assert all("SUMMARY" not in whole["text"] for whole in first.of("assistant"))
    bench.run("go on", session=first.reader.session)
    expected = bench.model.main_requests[-1]
    bench.resume_elsewhere(tmp_path / "there", first.entries(), "go on")
    request = bench.model.main_requests[-1]
    assert request.saw("SUMMARY of it all")
    assert not request.saw("long-ago")
    assert request.assistant_texts == expected.assistant_texts == ["After."]
    assert [result.text for result in request.results] == [result.text for result in expected.results]
    assert said(bench)[-1] == "go on"


def test_a_tool_that_is_not_there_is_told_like_any_other(bench: Bench) -> None:
    bench.model.script([tool("no_such_tool", {"a": 1}), text("Done.")])
    agent = bench.run("try")
    assert agent.outcome["status"] == "completed", agent.said()
    assert agent.of("tool")[0]["arguments"] == {"a": 1}
