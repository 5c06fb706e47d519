"""Replies in the format of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.testing.model.reply import Part, Piece, Reply, arguments_text, error_type, event


class Chat:
    @staticmethod
    def stream(reply: Reply) -> Iterator[Piece]:
        step = reply.step

        def chunk(delta: Mapping[str, Any], part: Part, *, counts: bool = False, finish: str | None = None) -> Piece:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return Piece(event({**_head(reply, "chat.completion.chunk"), "choices": [choice]}), part, counts)

        yield chunk({"role": "assistant", "content": ""}, "opening")
        for words in reply.deltas(step.thinking):
            yield chunk({"reasoning_content": words}, "words", counts=True)
        for words in reply.deltas(step.text):
            yield chunk({"content": words}, "words", counts=True)
        for index, call in enumerate(_calls(reply)):
            arguments = call["function"]["arguments"]
            begun = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
            yield chunk({"tool_calls": [begun]}, "calls")
            for words in reply.deltas(arguments):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": words}}]}, "calls", counts=True)
        yield chunk({}, "closing", finish=_finish(reply))
        head = _head(reply, "chat.completion.chunk")
        yield Piece(event({**head, "choices": [], "usage": _usage(reply)}), "closing")
        yield Piece(event("[DONE]"), "closing")

    @staticmethod
    def whole(reply: Reply) -> Mapping[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.step.text or None}
        if reply.step.thinking:
            message["reasoning_content"] = reply.step.thinking
        if reply.calls:
            message["tool_calls"] = _calls(reply)
        choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
        return {**_head(reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)}

    @staticmethod
    def error(status: int, message: str) -> Mapping[str, Any]:
        kind = error_type(status)
        return {"error": {"message": message, "type": kind, "param": None, "code": kind}}

    @staticmethod
    def broken(reply: Reply, message: str) -> bytes:
        return event(Chat.error(500, message))


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.token}", "object": kind, "created": reply.now, "model": reply.model}


def _calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{reply.token}{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for index, call in enumerate(reply.calls)
    ]


def _finish(reply: Reply) -> str:
    return "length" if reply.step.stop == "length" else "tool_calls" if reply.calls else "stop"


def _usage(reply: Reply) -> dict[str, Any]:
    usage = reply.step.usage
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
    }
