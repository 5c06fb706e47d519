"""Replies in the format of Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.testing.model.reply import Part, Piece, Reply, arguments_text, error_type, event

_SIGNATURE = "c2NyaXB0ZWQ="


class Messages:
    @staticmethod
    def stream(reply: Reply) -> Iterator[Piece]:
        def sent(kind: str, where: Part, /, *, counts: bool = False, **fields: Any) -> Piece:
            return Piece(event({"type": kind, **fields}, kind), where, counts)

        message = _message(reply)
        begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
        yield sent("message_start", "opening", message=begun)
        yield sent("ping", "opening")
        for index, block in enumerate(_blocks(reply)):
            part: Part = "calls" if block["type"] == "tool_use" else "words"
            empty, deltas = _unrolled(block, reply)
            yield sent("content_block_start", part, index=index, content_block=empty)
            for delta in deltas:
                yield sent("content_block_delta", part, counts="signature" not in delta, index=index, delta=delta)
            yield sent("content_block_stop", part, index=index)
        ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        yield sent("message_delta", "closing", delta=ended, usage=message["usage"])
        yield sent("message_stop", "closing")

    @staticmethod
    def whole(reply: Reply) -> Mapping[str, Any]:
        return _message(reply)

    @staticmethod
    def error(status: int, message: str) -> Mapping[str, Any]:
        return {
            "type": "error",
            "error": {"type": error_type(status), "message": message},
            "request_id": "req_scripted",
        }

    @staticmethod
    def broken(reply: Reply, message: str) -> bytes:
        return event({"type": "error", "error": {"type": "overloaded_error", "message": message}}, "error")


def _message(reply: Reply) -> dict[str, Any]:
    usage = reply.step.usage
    stop = "max_tokens" if reply.step.stop == "length" else "tool_use" if reply.calls else "end_turn"
    return {
        "id": f"msg_{reply.token}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": _blocks(reply),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.input,
            "cache_creation_input_tokens": usage.cache_write,
            "cache_read_input_tokens": usage.cache_read,
            "output_tokens": usage.output,
        },
    }


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.step.thinking:
        blocks.append({"type": "thinking", "thinking": reply.step.thinking, "signature": _SIGNATURE})
    if reply.step.text:
        blocks.append({"type": "text", "text": reply.step.text})
    for index, call in enumerate(reply.calls):
        made = {"type": "tool_use", "id": f"toolu_{reply.token}{index}", "name": call.name}
        blocks.append({**made, "input": call.arguments})
    return blocks


def _unrolled(block: Mapping[str, Any], reply: Reply) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns a block as it begins, and the deltas that fill it."""
    match block["type"]:
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": words} for words in reply.deltas(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*deltas, signed]
        case "text":
            return {**block, "text": ""}, [
                {"type": "text_delta", "text": words} for words in reply.deltas(block["text"])
            ]
    call = next(call for index, call in enumerate(reply.calls) if block["id"] == f"toolu_{reply.token}{index}")
    words_of = reply.deltas(arguments_text(call))
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": words} for words in words_of]
