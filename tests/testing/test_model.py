"""The scripted model answers in the words of each API, by its script, and tells what it was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast.api.model.models import Api
from holdfast.testing.model import (
    EXHAUSTED,
    FOR_EVER,
    SIDE_ANSWER,
    Bash,
    Request,
    ScriptedModel,
    Step,
    Tool,
    Usage,
    bash,
    edit,
    error,
    step_of,
    text,
    tool,
    write,
)

pytestmark = pytest.mark.anyio

PATHS = {Api.OPENAI_CHAT: "/v1/chat/completions", Api.OPENAI_RESPONSES: "/v1/responses", Api.ANTHROPIC: "/v1/messages"}
every_api = pytest.mark.parametrize("api", list(Api))

_SHELL = {"type": "object", "properties": {"command": {"type": "string"}}}
_WRITE = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}


def tools_of(api: Api, **schemas: dict[str, Any]) -> list[dict[str, Any]]:
    match api:
        case Api.OPENAI_CHAT:
            return [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in schemas.items()]
        case Api.OPENAI_RESPONSES:
            return [{"type": "function", "name": n, "parameters": s} for n, s in schemas.items()]
        case Api.ANTHROPIC:
            return [{"name": n, "input_schema": s} for n, s in schemas.items()]


def body_of(api: Api, prompt: str = "hello", *, stream: bool = True, tools: bool = True) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "scripted", "stream": stream}
    body["input" if api is Api.OPENAI_RESPONSES else "messages"] = [{"role": "user", "content": prompt}]
    if tools:
        body["tools"] = tools_of(api, bash=_SHELL, write=_WRITE)
    return body


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "text/event-stream"
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def read_into(seen: bytearray, pieces: AsyncIterator[bytes]) -> None:
    async for piece in pieces:
        seen += piece


def streamed(api: Api, events: list[dict[str, Any]]) -> tuple[str, str, list[tuple[str, Any]], str]:
    """What a client makes of a stream: thinking, text, calls, and how it ended."""
    thinking, said, ended = "", "", ""
    calls: dict[int, list[str]] = {}
    for event in events:
        if api is Api.OPENAI_CHAT:
            for choice in event["choices"]:
                delta = choice["delta"]
                thinking += delta.get("reasoning_content", "")
                said += delta.get("content", "")
                for call in delta.get("tool_calls", ()):
                    begun = calls.setdefault(call["index"], [call["function"].get("name", ""), ""])
                    begun[1] += call["function"]["arguments"]
                ended = choice["finish_reason"] or ended
        elif api is Api.OPENAI_RESPONSES:
            kind = event["type"]
            thinking += event["delta"] if kind == "response.reasoning_summary_text.delta" else ""
            said += event["delta"] if kind == "response.output_text.delta" else ""
            if kind == "response.output_item.added" and event["item"]["type"].endswith("_call"):
                calls[event["output_index"]] = [event["item"]["name"], ""]
            if kind == "response.function_call_arguments.delta":
                calls[event["output_index"]][1] += event["delta"]
            ended = kind
        else:
            kind = event["type"]
            if kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
                calls[event["index"]] = [event["content_block"]["name"], ""]
            if kind == "content_block_delta":
                thinking += event["delta"].get("thinking", "")
                said += event["delta"].get("text", "")
                if event["delta"]["type"] == "input_json_delta":
                    calls[event["index"]][1] += event["delta"]["partial_json"]
            if kind == "message_delta":
                ended = event["delta"]["stop_reason"]
    return thinking, said, [(name, json.loads(arguments)) for name, arguments in calls.values()], ended


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as model:
        yield model


@pytest.fixture
async def client(model: ScriptedModel) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=model.url, timeout=240) as client:
        yield client


@every_api
async def test_a_stream_brings_thinking_text_and_calls_in_deltas(
    model: ScriptedModel, client: httpx.AsyncClient, api: Api
) -> None:
    calls = (Bash("ls -l"), Tool("other", {"deep": {"list": [1, 2]}}))
    model.script([Step(thinking="Let me look into the folder.", text="I look at the files now.", calls=calls)])
    events = events_of(await client.post(PATHS[api], json=body_of(api)))
    thinking, said, made, ended = streamed(api, events)
    assert thinking == "Let me look into the folder."
    assert said == "I look at the files now."
    assert made == [("bash", {"command": "ls -l"}), ("other", {"deep": {"list": [1, 2]}})]
    expected = {Api.OPENAI_CHAT: "tool_calls", Api.OPENAI_RESPONSES: "response.completed", Api.ANTHROPIC: "tool_use"}
    assert ended == expected[api]


@every_api
async def test_an_answer_that_is_not_streamed_says_the_same(
    model: ScriptedModel, client: httpx.AsyncClient, api: Api
) -> None:
    model.script([Step(text="I look.", calls=(Bash("ls"),), usage=Usage(7, 3, cache_read=5))])
    answer = (await client.post(PATHS[api], json=body_of(api, stream=False))).json()
    match api:
        case Api.OPENAI_CHAT:
            message = answer["choices"][0]["message"]
            assert message["content"] == "I look."
            assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}
            assert answer["usage"]["prompt_tokens"] == 12
            assert answer["usage"]["completion_tokens"] == 3
        case Api.OPENAI_RESPONSES:
            assert answer["output"][0]["content"][0]["text"] == "I look."
            assert json.loads(answer["output"][1]["arguments"]) == {"command": "ls"}
            assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 5
        case Api.ANTHROPIC:
            assert answer["content"][0] == {"type": "text", "text": "I look."}
            assert answer["content"][1]["input"] == {"command": "ls"}
            assert answer["usage"]["cache_read_input_tokens"] == 5
            assert answer["usage"]["input_tokens"] == 7


@every_api
async def test_steps_are_taken_in_order_and_side_requests_take_none(
    model: ScriptedModel, client: httpx.AsyncClient, api: Api
) -> None:
    model.script(["one", {"text": "two"}])
    answers = []
    for tools in (False, True, False, True, True):
        events = events_of(await client.post(PATHS[api], json=body_of(api, tools=tools)))
        answers.append(streamed(api, events)[1])
    assert answers == [SIDE_ANSWER, "one", SIDE_ANSWER, "two", EXHAUSTED]
    assert [request.step for request in model.requests] == [None, 0, None, 1, None]
    assert len(model.main_requests) == 3
    assert model.left() == 0


@every_api
async def test_an_error_step_answers_with_its_status_as_often_as_it_says(
    model: ScriptedModel, client: httpx.AsyncClient, api: Api
) -> None:
    model.script([error(429, "slow down", times=2, headers={"retry-after": "0"}), text("now")])
    for _ in range(2):
        refused = await client.post(PATHS[api], json=body_of(api))
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "0"
        assert refused.json()["error"] == {
            **refused.json()["error"],
            "type": "rate_limit_error",
            "message": "slow down",
        }
    assert streamed(api, events_of(await client.post(PATHS[api], json=body_of(api))))[1] == "now"
    assert [request.ending for request in model.requests] == ["refused", "refused", "answered"]


async def test_an_error_may_last_for_ever(model: ScriptedModel, client: httpx.AsyncClient) -> None:
    model.script([error(500, times=FOR_EVER), text("never")])
    for _ in range(5):
        assert (await client.post("/v1/messages", json=body_of(Api.ANTHROPIC))).status_code == 500


@every_api
@pytest.mark.parametrize("cut", [True, 2])
async def test_a_cut_ends_the_connection_in_mid_stream(
    model: ScriptedModel, client: httpx.AsyncClient, api: Api, cut: bool | int
) -> None:
    model.script([Step(text="x" * 36, calls=(Bash("ls"),), cut=cut)])
    seen = bytearray()
    async with client.stream("POST", PATHS[api], json=body_of(api)) as answer:
        pieces = answer.aiter_bytes()
        with pytest.raises(httpx.RemoteProtocolError):
            await read_into(seen, pieces)
    assert seen.count(b"x" * 12) >= 2
    assert (b"x" * 13) not in seen
    assert b"command" not in seen
    assert model.requests[0].ending == "cut"


@every_api
async def test_a_broken_stream_ends_with_the_error_event_of_its_api(
    model: ScriptedModel, client: httpx.AsyncClient, api: Api
) -> None:
    model.script([Step(text="half of it", broken="Overloaded")])
    last = events_of(await client.post(PATHS[api], json=body_of(api)))[-1]
    found = last["response"]["error"] if api is Api.OPENAI_RESPONSES else last["error"]
    assert found["message"] == "Overloaded"


@every_api
async def test_an_answer_can_be_too_long(model: ScriptedModel, client: httpx.AsyncClient, api: Api) -> None:
    model.script([Step(text="and so", stop="length")])
    ended = streamed(api, events_of(await client.post(PATHS[api], json=body_of(api))))[3]
    assert ended in ("length", "response.incomplete", "max_tokens")


@pytest.mark.parametrize(
    ("schemas", "step", "expected"),
    [
        ({"Bash": {"properties": {"command": {}, "description": {}}}}, bash("ls"), ("Bash", {"command": "ls"})),
        ({"exec_command": {"properties": {"cmd": {}}}}, bash("ls"), ("exec_command", {"cmd": "ls"})),
        (
            {"shell": {"properties": {"command": {"type": "array"}}}},
            bash("ls"),
            ("shell", {"command": ["bash", "-lc", "ls"]}),
        ),
        (
            {"Write": {"properties": {"file_path": {}, "content": {}}}},
            write("a", "b"),
            ("Write", {"file_path": "a", "content": "b"}),
        ),
        (
            {"edit": {"properties": {"path": {}, "edits": {"type": "array"}}}},
            edit("a", "b", "c"),
            ("edit", {"path": "a", "edits": [{"oldText": "b", "newText": "c"}]}),
        ),
        (
            {"Edit": {"properties": {"file_path": {}, "old_string": {}, "new_string": {}}}},
            edit("a", "b", "c"),
            ("Edit", {"file_path": "a", "old_string": "b", "new_string": "c"}),
        ),
        ({}, tool("free", {"a": 1}), ("free", {"a": 1})),
    ],
)
async def test_a_call_finds_the_tool_of_the_agent(
    model: ScriptedModel, client: httpx.AsyncClient, schemas: dict[str, Any], step: Step, expected: tuple[str, Any]
) -> None:
    model.script([step])
    offered = tools_of(Api.ANTHROPIC, unrelated={"type": "object"}, **schemas)
    events = events_of(await client.post("/v1/messages", json={**body_of(Api.ANTHROPIC), "tools": offered}))
    [(name, arguments)] = streamed(Api.ANTHROPIC, events)[2]
    assert name == expected[0]
    assert {key: value for key, value in arguments.items() if key != "description"} == expected[1]


async def test_a_file_is_written_by_a_patch_or_by_the_shell_where_there_is_no_tool_for_it(
    model: ScriptedModel, client: httpx.AsyncClient
) -> None:
    model.script([write("a/b.txt", "it's\n"), write("a/b.txt", "it's\n")])
    shell = tools_of(Api.OPENAI_RESPONSES, exec_command={"properties": {"cmd": {}}})
    asked = {**body_of(Api.OPENAI_RESPONSES), "tools": shell}
    [(name, arguments)] = streamed(Api.OPENAI_RESPONSES, events_of(await client.post("/v1/responses", json=asked)))[2]
    assert name == "exec_command"
    assert arguments["cmd"] == 'mkdir -p "$(dirname a/b.txt)" && printf %s aXQncwo= | base64 -d > a/b.txt'
    asked["tools"] = [*shell, {"type": "custom", "name": "apply_patch"}]
    [item] = events_of(await client.post("/v1/responses", json=asked))[-1]["response"]["output"]
    assert item["type"] == "custom_tool_call"
    assert item["input"] == "*** Begin Patch\n*** Add File: a/b.txt\n+it's\n*** End Patch\n"


async def test_a_script_that_wants_a_tool_which_is_not_offered_says_so(
    model: ScriptedModel, client: httpx.AsyncClient
) -> None:
    model.script([bash("ls")])
    offered = tools_of(Api.OPENAI_CHAT, read={"type": "object"})
    answer = await client.post("/v1/chat/completions", json={**body_of(Api.OPENAI_CHAT), "tools": offered})
    assert answer.status_code == 400
    assert "not offer a shell tool, only: read" in answer.json()["error"]["message"]


async def test_a_step_may_look_at_the_request_first(model: ScriptedModel, client: httpx.AsyncClient) -> None:
    def echo(request: Request) -> Step:
        return text(request.user_texts[0].upper())

    def fails(request: Request) -> Step:
        raise RuntimeError("no idea")

    model.script([echo, fails])
    api = Api.ANTHROPIC
    assert streamed(api, events_of(await client.post(PATHS[api], json=body_of(api, "hi"))))[1] == "HI"
    refused = await client.post(PATHS[api], json=body_of(api))
    assert "no idea" in refused.json()["error"]["message"]


async def test_models_are_listed_and_tokens_counted(model: ScriptedModel, client: httpx.AsyncClient) -> None:
    assert [one["id"] for one in (await client.get("/v1/models")).json()["data"]] == ["scripted"]
    assert (await client.get("/v1/models/scripted")).json()["id"] == "scripted"
    assert (await client.get("/v1/models/other")).status_code == 404
    counted = await client.post("/v1/messages/count_tokens?beta=true", json=body_of(Api.ANTHROPIC))
    assert counted.json()["input_tokens"] > 10
    assert (await client.post("/v1/nothing", json={})).status_code == 404
    assert model.requests == []
    assert model.visits[-1] == "POST /v1/nothing"


async def test_a_wrong_key_is_refused(client: httpx.AsyncClient) -> None:
    async with ScriptedModel([text("in")], key="right") as model, httpx.AsyncClient(base_url=model.url) as client:
        body = body_of(Api.ANTHROPIC)
        for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
            refused = await client.post("/v1/messages", json=body, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["type"] == "authentication_error"
        assert (await client.post("/v1/messages", json=body, headers={"x-api-key": "right"})).status_code == 200
        assert [request.credential for request in model.requests] == ["right"]


@pytest.mark.parametrize(
    "given", [{"txet": "x"}, {"calls": [{"hammer": 1}]}, {"gate": {"at": "middle"}}, {"gate": {"at": -1}}]
)
def test_a_step_with_a_mistake_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"use|must be at"):
        step_of(given)
