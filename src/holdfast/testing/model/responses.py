"""Replies in the format of OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from holdfast.testing.model.reply import Part, Piece, Reply, arguments_text, error_type, event


class Responses:
    @staticmethod
    def stream(reply: Reply) -> Iterator[Piece]:
        numbers = count()

        def sent(kind: str, where: Part, /, *, counts: bool = False, **fields: Any) -> Piece:
            return Piece(event({"type": kind, **fields, "sequence_number": next(numbers)}, kind), where, counts)

        begun = {**_response(reply), "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        yield sent("response.created", "opening", response=begun)
        yield sent("response.in_progress", "opening", response=begun)
        for index, item in enumerate(_items(reply)):
            part: Part = "words" if item["type"] in ("reasoning", "message") else "calls"
            empty, inner = _unrolled(item, reply)
            yield sent("response.output_item.added", part, output_index=index, item=empty)
            for kind, fields in inner:
                counts = kind.endswith(".delta")
                yield sent(kind, part, counts=counts, item_id=item["id"], output_index=index, **fields)
            yield sent("response.output_item.done", part, output_index=index, item=item)
        last = "response.incomplete" if reply.step.stop == "length" else "response.completed"
        yield sent(last, "closing", response=_response(reply))

    @staticmethod
    def whole(reply: Reply) -> Mapping[str, Any]:
        return _response(reply)

    @staticmethod
    def error(status: int, message: str) -> Mapping[str, Any]:
        kind = error_type(status)
        return {"error": {"message": message, "type": kind, "param": None, "code": kind}}

    @staticmethod
    def broken(reply: Reply, message: str) -> bytes:
        failed = {**_response(reply), "status": "failed", "output": [], "usage": None}
        failed["error"] = {"code": "server_error", "message": message}
        return event({"type": "response.failed", "response": failed, "sequence_number": 9999}, "response.failed")


def _response(reply: Reply) -> dict[str, Any]:
    usage, short = reply.step.usage, reply.step.stop == "length"
    given = usage.input + usage.cache_read + usage.cache_write
    return {
        "id": f"resp_{reply.token}",
        "object": "response",
        "created_at": reply.now,
        "status": "incomplete" if short else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if short else None,
        "error": None,
        "model": reply.model,
        "output": _items(reply),
        "parallel_tool_calls": True,
        "tools": [],
        "usage": {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": usage.cache_read},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + usage.output,
        },
    }


def _items(reply: Reply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.step.thinking:
        summary = [{"type": "summary_text", "text": reply.step.thinking}]
        items.append({"id": f"rs_{reply.token}", "type": "reasoning", "summary": summary})
    if reply.step.text:
        content = [{"type": "output_text", "text": reply.step.text, "annotations": []}]
        message = {"id": f"msg_{reply.token}", "type": "message", "role": "assistant", "status": "completed"}
        items.append({**message, "content": content})
    for index, call in enumerate(reply.calls):
        kind, key = ("custom_tool_call", "input") if call.is_custom else ("function_call", "arguments")
        made = {"id": f"fc_{reply.token}{index}", "type": kind, "status": "completed", "name": call.name}
        if call.namespace:
            made["namespace"] = call.namespace
        items.append({**made, "call_id": f"call_{reply.token}{index}", key: arguments_text(call)})
    return items


_Inner = list[tuple[str, dict[str, Any]]]


def _unrolled(item: Mapping[str, Any], reply: Reply) -> tuple[dict[str, Any], _Inner]:
    """Returns an item as it begins, and the events that fill it, as kinds and fields."""
    match item["type"]:
        case "reasoning":
            text = item["summary"][0]["text"]
            at: dict[str, Any] = {"summary_index": 0}
            kind = "response.reasoning_summary"
            inner: _Inner = [(f"{kind}_part.added", {**at, "part": {"type": "summary_text", "text": ""}})]
            inner += [(f"{kind}_text.delta", {**at, "delta": words}) for words in reply.deltas(text)]
            inner += [(f"{kind}_text.done", {**at, "text": text})]
            inner += [(f"{kind}_part.done", {**at, "part": item["summary"][0]})]
            return {**item, "summary": []}, inner
        case "message":
            part = item["content"][0]
            at = {"content_index": 0}
            inner = [("response.content_part.added", {**at, "part": {**part, "text": ""}})]
            inner += [("response.output_text.delta", {**at, "delta": words}) for words in reply.deltas(part["text"])]
            inner += [("response.output_text.done", {**at, "text": part["text"]})]
            inner += [("response.content_part.done", {**at, "part": part})]
            return {**item, "status": "in_progress", "content": []}, inner
    key = "input" if item["type"] == "custom_tool_call" else "arguments"
    kind = "response.custom_tool_call_input" if key == "input" else "response.function_call_arguments"
    inner = [(f"{kind}.delta", {"delta": words}) for words in reply.deltas(item[key])]
    inner += [(f"{kind}.done", {key: item[key]})]
    return {**item, "status": "in_progress", key: ""}, inner
