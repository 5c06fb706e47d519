"""Answers of the scripted model stand at gates, and many conversations have their scripts at one server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.testing.test_model import PATHS, body_of, events_of, every_api, streamed

from holdfast.api.model.models import Api
from holdfast.testing.model import Gate, Request, ScriptedModel, Step, bash, held, text

pytestmark = pytest.mark.anyio


async def ask(model: ScriptedModel, api: Api = Api.ANTHROPIC, prompt: str = "hello", **more: Any) -> str:
    async with httpx.AsyncClient(base_url=model.url, timeout=240) as client:
        return streamed(api, events_of(await client.post(PATHS[api], json=body_of(api, prompt, **more))))[1]


@every_api
async def test_a_gate_holds_a_stream_at_its_point_until_it_is_released(api: Api) -> None:
    first, middle, last = Gate("start"), Gate(2), Gate("end")
    step = Step(text="a" * 12 + "b" * 12 + "c" * 12, gates=(first, middle, last))
    async with ScriptedModel([step]) as model, httpx.AsyncClient(base_url=model.url, timeout=240) as client:
        request = client.build_request("POST", PATHS[api], json=body_of(api))
        asking = asyncio.create_task(client.send(request, stream=True))
        await first.reached()
        assert not asking.done()
        first.release()
        answer = await asking
        seen, pieces = "", answer.aiter_text()
        while "b" * 12 not in seen:  # these come although the answer is held
            seen += await anext(pieces)
        await middle.reached()
        assert "c" * 12 not in seen
        assert not last.is_reached
        middle.release()
        while "c" * 12 not in seen:
            seen += await anext(pieces)
        await last.reached()
        assert model.requests[0].ending is None
        last.release()
        async for piece in pieces:
            seen += piece
        await answer.aclose()
        assert await model.requests[0].ended() == "answered"


async def test_a_client_that_goes_while_its_answer_is_held_is_noticed() -> None:
    gate = Gate(1)
    async with ScriptedModel([held(text("a long answer"), gate)]) as model:
        asking = asyncio.create_task(ask(model))
        await gate.reached()
        asking.cancel()
        assert await model.requests[0].ended() == "gone"


async def test_a_server_ends_while_an_answer_is_held() -> None:
    gate = Gate()
    async with ScriptedModel([held(text("never"), gate)]) as model:
        asking = asyncio.create_task(ask(model))
        await gate.reached()
    with pytest.raises(httpx.TransportError):
        await asking
    assert model.requests[0].ending == "gone"


def test_gates_and_scripts_work_from_other_threads() -> None:
    gate = Gate("end")
    with ScriptedModel([held(text("done"), gate)]) as model:

        async def both() -> str:
            asking = asyncio.create_task(ask(model))
            await gate.reached()
            assert len(await model.until(lambda seen: len(seen) == 1)) == 1
            gate.release()
            return await asking

        assert asyncio.run(both()) == "done"
        gate.wait_reached(0)


@every_api
async def test_conversations_have_scripts_of_their_own_by_a_marker(api: Api) -> None:
    async with ScriptedModel(["for all"]) as model:
        for name in ("task-1", "task-12", "task-3"):
            model.script([f"{name} one", f"{name} two"], when=name)
        async with asyncio.TaskGroup() as group:
            asked = {
                name: group.create_task(ask(model, api, f"please do {name}"))
                for name in ("task-1", "task-12", "task-3")
            }
        assert {name: task.result() for name, task in asked.items()} == {name: f"{name} one" for name in asked}
        assert await ask(model, api, "please do task-12 again") == "task-12 two"
        assert await ask(model, api, "something else") == "for all"
        assert model.left("task-1") == 1
        assert model.left("task-12") == 0
        assert [request.script for request in model.requests][-2:] == ["task-12", ""]


async def test_the_beginning_of_a_conversation_decides_over_what_was_said_later() -> None:
    async with ScriptedModel() as model, httpx.AsyncClient(base_url=model.url) as client:
        model.script(["right"], when="alpha")
        model.script(["wrong"], when="alphabet")
        messages = [
            {"role": "user", "content": "alpha"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "now alphabet"},
        ]
        asked = {**body_of(Api.OPENAI_CHAT), "messages": messages}
        events = events_of(await client.post("/v1/chat/completions", json=asked))
        assert streamed(Api.OPENAI_CHAT, events)[1] == "right"


HISTORIES: dict[Api, dict[str, Any]] = {
    Api.OPENAI_CHAT: {
        "messages": [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": [{"type": "text", "text": "fix it"}]},
            {
                "role": "assistant",
                "content": "I try",
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "function": {"name": "bash", "arguments": '{"command": "ls -l"}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
            {"role": "assistant", "tool_calls": [{"id": "c2", "function": {"name": "bash", "arguments": "{"}}]},
        ]
    },
    Api.OPENAI_RESPONSES: {
        "instructions": "be good",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I try"}]},
            {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command": "ls -l"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "bash", "input": "{"},
        ],
    },
    Api.ANTHROPIC: {
        "system": [{"type": "text", "text": "be good"}],
        "messages": [
            {"role": "user", "content": "fix it"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I try"},
                    {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls -l"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "a.txt"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c2", "name": "bash", "input": "{"}]},
        ],
    },
}


@every_api
def test_a_request_tells_its_conversation_whatever_the_api(api: Api) -> None:
    request = Request(1, api, PATHS[api], {}, HISTORIES[api])
    assert request.system == "be good"
    assert request.user_texts == request.opening == ["fix it"]
    assert request.assistant_texts == ["I try"]
    assert request.thoughts == ["hm"]
    assert [(call.name, call.arguments) for call in request.calls] == [("bash", {"command": "ls -l"}), ("bash", "{")]
    result = request.result_of(request.calls[0])
    assert result is not None
    assert result.text == "a.txt"
    assert [call.call for call in request.open_calls] == ["c2"]
    assert all(request.saw(words) for words in ("fix it", "I try", "ls -l", "a.txt"))
    assert not request.saw("something else")


@every_api
@pytest.mark.parametrize(
    ("left_out", "complaint"), [(0, "no result follows the call c2 of bash"), (1, None), (2, "follows the call c1")]
)
async def test_a_conversation_that_real_models_refuse_is_refused(
    api: Api, left_out: int, complaint: str | None
) -> None:
    """The last turn is an open call; the one before it, the result of the first call."""
    async with ScriptedModel(["fine"]) as model, httpx.AsyncClient(base_url=model.url) as client:
        turns = "input" if api is Api.OPENAI_RESPONSES else "messages"
        kept = HISTORIES[api][turns][: len(HISTORIES[api][turns]) - left_out]
        answer = await client.post(PATHS[api], json={**body_of(api), **HISTORIES[api], turns: kept})
        if complaint is None:
            assert answer.status_code == 200
        else:
            assert answer.status_code == 400
            assert complaint in answer.json()["error"]["message"]
        assert model.left() == (0 if complaint is None else 1)


@every_api
def test_a_result_without_its_call_is_something_to_complain_of(api: Api) -> None:
    turns = "input" if api is Api.OPENAI_RESPONSES else "messages"
    lost = [turn for turn in HISTORIES[api][turns] if "c1" in str(turn) and "a.txt" in str(turn)]
    assert Request(1, api, "/", {}, {turns: lost}).complaint == "the result of c1 follows no such call"
    assert Request(1, api, "/", {}, {turns: lost, "previous_response_id": "r"}).complaint is None


@every_api
@pytest.mark.parametrize("strange", [None, 7, "text", [None, 1, {}], {"type": "x"}, [{"role": [], "content": {}}]])
def test_a_strange_history_is_read_without_an_error(api: Api, strange: Any) -> None:
    body = {"messages": strange, "input": strange, "system": strange, "instructions": strange, "tools": strange}
    request = Request(1, api, "/", {}, body)
    assert request.calls == []
    assert request.is_main == bool(strange)


async def test_old_requests_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.model.server._MAX_KEPT", 3)
    async with ScriptedModel() as model:
        for _ in range(5):
            await ask(model)
        assert [request.number for request in model.requests] == [3, 4, 5]


async def test_it_is_a_program_too(tmp_path: Path) -> None:
    script = [{"bash": "ls", "gate": {"name": "first", "at": 0}}, {"text": "done"}]
    (tmp_path / "script.json").write_text(json.dumps(script))
    command = ["-m", "holdfast.testing.model", "--script", str(tmp_path / "script.json"), "--port", "0"]
    command += ["--port-file", str(tmp_path / "port")]
    program = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        assert program.stdout is not None
        url = (await program.stdout.readline()).decode().strip().removeprefix("listening on ")
        assert url == f"http://127.0.0.1:{(tmp_path / 'port').read_text()}"
        async with httpx.AsyncClient(base_url=url, timeout=240) as client:
            api = Api.OPENAI_CHAT
            asking = asyncio.create_task(client.post(PATHS[api], json=body_of(api)))
            assert (await client.get("/_/gates/first")).status_code == 200
            assert not asking.done()
            await client.post("/_/gates/first")
            assert streamed(api, events_of(await asking))[2] == [("bash", {"command": "ls"})]
            [request] = (await client.get("/_/requests")).json()
            assert request["ending"] == "answered"
            assert request["body"] == body_of(api)
            await client.post("/_/script", json={"steps": [{"text": "other"}]})
            assert streamed(api, events_of(await client.post(PATHS[api], json=body_of(api))))[1] == "other"
            assert (await client.get("/_/gates/none")).status_code == 404
            assert (await client.post("/_/script", json={"steps": [{"what": 1}]})).status_code == 400
    finally:
        program.terminate()
        async with asyncio.timeout(240):
            assert await program.wait() == 0


async def test_steps_wait_as_long_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    step = Step(text="x" * 30, delay=7, hang=30, delta_delay=2)
    async with ScriptedModel([step, bash("ls")]) as model:
        monkeypatch.setattr("holdfast.testing.model.server._sleep", note)
        await ask(model)
    assert slept == [7, 32, 2, 2]
