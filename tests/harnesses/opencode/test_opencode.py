"""The real OpenCode, against a scripted model, on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harnesses.driving import TOKEN, Bench, Driven, node, place_in, program_of

from holdfast.harnesses.harness import Api
from holdfast.harnesses.opencode import OpenCode
from holdfast.testing.model import FOR_EVER, Gate, ScriptedModel, Step, Usage, bash, error, text, tool

pytestmark = pytest.mark.sampled(share=0.25)  # each start of OpenCode takes seconds

APIS = [Api.OPENAI_CHAT, Api.ANTHROPIC]


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def bench(model: ScriptedModel, tmp_path: Path) -> Bench:
    place = place_in(tmp_path / "here", program_of("opencode"), node())
    return Bench(OpenCode(retries=1), model, Api.OPENAI_CHAT, place)


def server_of(agent: Driven) -> int:
    """The process of `opencode serve`."""
    [pid] = [pid for pid in agent.children() if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    return pid


# --- a run that goes well ---


@pytest.mark.parametrize("api", APIS)
def test_a_run_with_a_tool_call_completes_and_goes_on_elsewhere_from_the_thread_alone(
    bench: Bench, tmp_path: Path, api: Api
) -> None:
    bench = replace(bench, api=api)
    bench.model.script(
        [
            bash("echo hällo > a.txt; cat a.txt", thinking="I should write it.", text="Writing."),
            text("All done ✓", usage=Usage(20, 7)),
            text("Third."),
        ]
    )
    agent = bench.run("write a.txt")
    assert agent.outcome["status"] == "completed", agent.said()
    assert agent.exit_code == 0
    assert Path(bench.place.workspace, "a.txt").read_text() == "hällo\n"
    [user], [first, last] = agent.of("user"), agent.of("assistant")
    assert user["text"] == "write a.txt"
    assert (first["text"], first["thinking"]) == ("Writing.", "I should write it.")
    assert [call["name"] for call in first["calls"]] == ["bash"]
    [call], [done] = agent.of("call"), agent.of("tool")
    assert call["arguments"]["command"] == done["arguments"]["command"] == "echo hällo > a.txt; cat a.txt"
    assert (done["result"], done["status"], done["call"]) == ("hällo\n", "ok", first["calls"][0]["id"])
    assert (last["text"], last["model"], last["stop"]) == ("All done ✓", "scripted", "stop")
    assert last["usage"] == {"input": 20, "output": 7, "cacheRead": 0, "cacheWrite": 0, "cost": 0}
    assert agent.outcome["usage"]["output"] == 17
    assert agent.of("session")[0]["session"] == agent.reader.session
    kinds = [payload["type"].partition(".")[2] for payload in agent.payloads if not payload["type"].endswith(".delta")]
    assert kinds == ["session", "user", "assistant", "call", "tool", "event", "assistant"]
    assert {request.credential for request in bench.model.requests} == {TOKEN}
    assert len(bench.model.requests) == 2
    resumed = bench.resume_elsewhere(tmp_path / "there", agent.entries(), "go on")
    assert resumed.outcome["status"] == "completed", resumed.said()
    assert [user["text"] for user in resumed.of("user")] == ["go on"]
    request = bench.model.main_requests[-1]
    assert request.user_texts == ["write a.txt", "go on"]
    assert request.assistant_texts == ["Writing.", "All done ✓"]
    assert [call.name for call in request.calls] == ["bash"]
    assert [result.text for result in request.results] == ["hällo\n"]


def test_words_are_streamed_as_they_come_and_are_all_in_the_whole_message(bench: Bench) -> None:
    gate = Gate(3)
    bench.model.script([text("one two three four five six", thinking="hm hm", delta_size=5, gates=(gate,))])
    with bench.start("count") as agent:
        agent.wait_for("delta", lambda delta: "text" in delta)
        assert agent.of("assistant") == []
        assert b"OPENCODE_SERVER_PASSWORD=" in Path(f"/proc/{server_of(agent)}/environ").read_bytes()
        gate.release()
        agent.finish()
    [whole] = agent.of("assistant")
    deltas = agent.of("delta")
    assert {delta["message"] for delta in deltas} == {whole["message"]}
    assert "".join(delta.get("text", "") for delta in deltas) == whole["text"] == "one two three four five six"
    assert "".join(delta.get("thinking", "") for delta in deltas) == whole["thinking"] == "hm hm"


def test_a_prompt_is_never_taken_for_anything_else(bench: Bench) -> None:
    prompt = '--help it\'s "quoted"\n\n$HOME `ls` /undo @a.txt ünï\u2028✓ ' + "x" * 300_000
    bench.model.script([text("Heard.")])
    agent = bench.run(prompt)
    assert agent.outcome["status"] == "completed", agent.said()
    assert bench.model.main_requests[0].user_texts == [prompt]


def test_the_configuration_of_a_repository_changes_neither_the_model_nor_what_is_allowed(bench: Bench) -> None:
    Path(bench.place.workspace).mkdir(parents=True)
    asking = {"bash": "ask"}
    theirs = {"model": "other/model", "permission": asking, "agent": {"build": {"permission": asking}}}
    Path(bench.place.workspace, "opencode.json").write_text(json.dumps(theirs))
    bench.model.script([bash("echo allowed"), text("Heard.")])
    agent = replace(bench, model_name="vendor/some-model:7b").run("hello")
    assert agent.outcome["status"] == "completed", agent.said()
    assert bench.model.main_requests[-1].model == "vendor/some-model:7b"
    assert agent.of("tool")[0]["result"] == "allowed\n"


def test_huge_and_strange_output_is_told_in_part_and_failing_tools_as_errors(bench: Bench) -> None:
    loud = bash("head -c 300000 /dev/urandom; seq 200000; printf '\\ud800 ✓'")
    calls = (*bash("echo oh no; exit 3").calls, *tool("read", {"filePath": "/no/such/file"}).calls)
    bench.model.script([loud, Step(text="Trying.", calls=calls), text("It failed.")])
    agent = bench.run("be loud, then fail")
    assert agent.outcome["status"] == "completed", agent.said()
    first, *others = agent.of("tool")
    assert 0 < len(first["result"].encode()) < 80_000
    assert first["record"]["state"]["status"] == "completed"
    assert [done["status"] for done in others] == ["error", "error"], agent.said()
    assert len(agent.of("call")) == 3


# --- a run that does not ---


@pytest.mark.parametrize(
    ("api", "status", "code"),
    [(Api.OPENAI_CHAT, 401, "model_unauthorized"), (Api.ANTHROPIC, 400, "model_refused")],
)
def test_a_provider_that_refuses_fails_the_run(bench: Bench, api: Api, status: int, code: str) -> None:
    bench.model.script([error(status, "not today", times=FOR_EVER)])
    agent = replace(bench, api=api).run("try")
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == code, agent.said()
    assert "not today" in agent.outcome["error"]["message"]


def test_a_provider_that_fails_for_ever_is_given_up(bench: Bench) -> None:
    # OpenCode tries again after as long as it is told. The last time that is long enough to be given up meanwhile.
    soon = error(500, "Internal server error", headers={"retry-after-ms": "10"})
    late = error(500, "Internal server error", times=FOR_EVER, headers={"retry-after-ms": "600000"})
    bench.model.script([soon, late])
    agent = bench.run("try")
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == "model_unavailable", agent.said()
    assert [retry["attempt"] for retry in agent.of("retry")] == [1, 2]
    assert len(bench.model.main_requests) == 2


def test_a_provider_that_fails_faster_than_it_can_be_given_up_is_given_up_once(bench: Bench) -> None:
    bench.model.script([error(500, "Internal server error", times=FOR_EVER, headers={"retry-after-ms": "1"})])
    agent = bench.run("try")
    assert agent.outcome["error"]["code"] == "model_unavailable", agent.said()
    given_up = [each["text"] for each in agent.of("notice") if "gave up" in each["text"]]
    assert given_up == ["gave up after 2 attempts: Internal server error"]


def test_a_provider_that_asks_to_wait_for_hours_is_given_up(bench: Bench) -> None:
    bench.model.script([error(429, "Rate limit reached", times=FOR_EVER, headers={"retry-after": "7200"})])
    agent = bench.run("try")
    assert agent.outcome["error"]["code"] == "model_rate_limited", agent.said()


def test_a_stream_that_is_cut_is_tried_again_and_the_run_completes(bench: Bench) -> None:
    gate = Gate(1)
    bench.model.script([text("vanished words", cut=1, delta_size=9, gates=(gate,)), text("Whole again.")])
    with bench.start("go") as agent:
        agent.wait_for("delta", lambda delta: "vanished" in delta.get("text", ""))
        gate.release()
        agent.finish()
    assert agent.outcome["status"] == "completed", agent.said()
    assert [(each["text"], each.get("partial", False)) for each in agent.of("assistant")] == [
        ("vanished ", True),
        ("Whole again.", False),
    ]
    assert len({each["message"] for each in agent.of("assistant")}) == 2
    assert agent.text() == "Whole again."
    # The model is never shown what was lost: not by OpenCode's own session, nor by one that is rebuilt.
    bench.model.script([text("More.")])
    bench.run("more", session=agent.reader.session)
    rebuilt = bench.harness.rebuild(agent.entries(), bench.task("more"))
    assert rebuilt is not None
    bench.model.script([text("More.")])
    with Driven(bench.harness, bench.task("more", rebuilt.session), rebuilt=rebuilt) as again:
        again.finish()
    for request in bench.model.main_requests[-2:]:
        assert "Whole again." in json.dumps(request.body["messages"])
        assert "vanished" not in json.dumps(request.body["messages"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_in_mid_stream_fails_the_run_and_leaves_the_partial_message_whole(bench: Bench, number: int) -> None:
    gate = Gate(2)
    bench.model.script([bash("echo from-a-tool", text="First."), text("half of a long answer", gates=(gate,))])
    with bench.start("begin") as agent:
        agent.wait_for("delta", lambda delta: "half" in delta.get("text", ""))
        agent.kill(number)
        agent.finish()
    gate.release()
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == "agent_killed"
    whole = agent.of("assistant")[-1]
    assert whole["partial"] is True
    assert whole["text"].startswith("half of a")
    assert whole["message"] == agent.of("delta")[-1]["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_killed_while_a_tool_runs_fails_the_run_and_closes_the_call(bench: Bench, number: int) -> None:
    bench.model.script([bash("exec sleep 1000"), text("Then.")])
    with bench.start("wait") as agent:
        agent.wait_for("call")
        os.kill(server_of(agent), number)
        agent.finish()
    assert agent.outcome["error"]["code"] == "agent_killed", agent.said()
    assert agent.exit_code == -number
    assert [done["status"] for done in agent.of("tool")] == ["interrupted"]
    resumed = bench.run("go on", session=agent.reader.session)
    assert resumed.outcome["status"] == "completed", resumed.said()
    assert [result.text for result in bench.model.main_requests[-1].results] == ["[Tool execution was interrupted]"]


def test_an_abort_in_mid_stream_ends_the_turn_and_opencode_itself(bench: Bench) -> None:
    gate = Gate(2)
    bench.model.script([text("half of a long answer", gates=(gate,))])
    with bench.start("begin") as agent:
        agent.wait_for("delta", lambda delta: "half" in delta.get("text", ""))
        agent.abort()
        agent.finish()
        assert agent.children() == []
    gate.release()
    assert agent.exit_code == 0
    assert agent.outcome["error"]["code"] == "agent_aborted", agent.said()
    [whole] = agent.of("assistant")
    assert whole["partial"]
    assert whole["text"].startswith("half of a")


def test_an_abort_while_a_tool_runs_ends_the_tool_too_and_the_session_goes_on(bench: Bench) -> None:
    bench.model.script([bash("exec sleep 1000"), text("Then.")])
    with bench.start("wait") as agent:
        agent.wait_for("call")
        agent.abort()
        agent.process.wait(240)
        assert agent.children() == []
        agent.finish()
    assert agent.outcome["error"]["code"] == "agent_aborted"
    assert [done["status"] for done in agent.of("tool")] == ["interrupted"]
    resumed = bench.run("go on", session=agent.reader.session)
    assert resumed.outcome["status"] == "completed"
    assert bench.model.main_requests[-1].user_texts == ["wait", "go on"]
    assert bench.model.main_requests[-1].open_calls == []


def test_a_session_that_is_not_there_fails_the_run(bench: Bench) -> None:
    agent = bench.run("go on", session="ses_0000000000000000000000000")
    assert agent.outcome["status"] == "failed"
    assert agent.outcome["error"]["code"] == "prompt_refused"
    assert bench.model.requests == []


# --- going on ---


def test_a_session_is_rebuilt_where_its_old_database_still_is(bench: Bench) -> None:
    bench.model.script([bash("echo one", text="First."), text("Second."), text("Third.")])
    first = bench.run("begin")
    rebuilt = bench.harness.rebuild(first.entries()[:-1], bench.task("go on"))
    assert rebuilt is not None
    assert rebuilt.session != first.reader.session
    with Driven(bench.harness, bench.task("go on", rebuilt.session), rebuilt=rebuilt) as agent:
        agent.finish()
    assert agent.outcome["status"] == "completed", agent.said()
    request = bench.model.main_requests[-1]
    assert request.assistant_texts == ["First."]
    assert [result.text for result in request.results] == ["one\n"]


def test_a_turn_ends_also_after_what_a_clock_that_was_ahead_wrote_down(bench: Bench, tmp_path: Path) -> None:
    bench.model.script([bash("echo one", text="First."), text("Second."), *[text("Third.")] * 5])
    entries = bench.run("begin").entries()
    cut = {"type": "opencode.assistant", "message": "cut", "text": "Seco", "calls": [], "partial": True}
    ahead = entries[-1]["ts"] + 3_600_000
    resumed = bench.resume_elsewhere(
        tmp_path / "there", [*entries[:-1], {"id": "cut", "ts": ahead, "payload": cut}], "go on"
    )
    assert resumed.outcome["status"] == "completed", resumed.said()
    assert resumed.text() == "Third."


def test_a_call_that_a_crash_left_open_is_closed_as_opencode_does(bench: Bench, tmp_path: Path) -> None:
    bench.model.script([bash("exec sleep 1000", text="First."), text("Then.")])
    with bench.start("begin") as agent:
        agent.wait_for("call")
        agent.kill(signal.SIGKILL)
        agent.finish()
    assert [done["status"] for done in agent.of("tool")] == ["interrupted"]
    # The runner may have died with it, and told nothing of that.
    entries = [entry for entry in agent.entries() if entry["payload"]["type"] != "opencode.tool"]
    resumed = bench.resume_elsewhere(tmp_path / "there", entries, "go on")
    assert resumed.outcome["status"] == "completed", resumed.said()
    request = bench.model.main_requests[-1]
    assert [result.text for result in request.results] == ["[Tool execution was interrupted]"]
    assert request.open_calls == []
    assert request.user_texts == ["begin", "go on"]


def test_after_a_compaction_the_rebuilt_session_starts_from_its_summary(bench: Bench, tmp_path: Path) -> None:
    bench = replace(bench, context_window=12_000)
    bench.model.answer_sides(text("SUMMARY of it all"))
    bench.model.script(
        [
            bash("echo long-ago", usage=Usage(11_000, 10)),
            bash("echo kept-result"),
            text("After."),
            text("Then."),
            text("Then."),
        ]
    )
    first = bench.run("the very first prompt")
    assert [compaction["summary"] for compaction in first.of("compaction")] == ["SUMMARY of it all"], first.said()
    assert all("SUMMARY" not in whole["text"] for whole in first.of("assistant"))
    bench.run("go on", session=first.reader.session)
    expected = bench.model.main_requests[-1]
    bench.resume_elsewhere(tmp_path / "there", first.entries(), "go on")
    request = bench.model.main_requests[-1]
    assert request.saw("SUMMARY of it all")
    assert not request.saw("long-ago")
    assert request.turns[1:] == expected.turns[1:]


def test_a_command_that_left_its_output_open_is_told_while_it_is_waited_for(bench: Bench) -> None:
    bench.model.script([bash("sleep 1000 & echo begun"), text("Done.")])
    with bench.start("begin") as agent:
        notice = agent.wait_for("notice")
        assert notice["level"] == "warning"
        assert re.search(r"waits for its output, which is held open by process \d+ \(sleep 1000\)", notice["text"])
        [sleeper] = re.findall(r"process (\d+)", notice["text"])
        os.kill(int(sleeper), signal.SIGKILL)
        agent.finish()
    assert agent.outcome["status"] == "completed", agent.said()
    assert len(agent.of("notice")) == 1


def test_a_command_that_takes_its_time_is_not_told(bench: Bench) -> None:
    bench.model.script([bash("sleep 1000 > /dev/null 2>&1 & sleep 7"), text("Done.")])
    agent = bench.run("begin")
    assert agent.outcome["status"] == "completed", agent.said()
    assert agent.of("notice") == []
