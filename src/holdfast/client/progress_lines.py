"""Reads the answer to a long request: lines of JSON about its progress, and then its result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from holdfast.api.errors import error_from_document

if TYPE_CHECKING:
    import httpx

    from holdfast.api.progress import Progress


async def follow_progress(response: httpx.Response, told: Progress | None) -> dict[str, Any] | None:
    """Pass the progress on to `told`. Returns the last line, or None if the connection was closed before it.

    Raises the error that the server sends as its last line.
    """
    async for text in response.aiter_lines():
        if not text:
            continue
        line: dict[str, Any] = json.loads(text)
        match line["type"]:
            case "error":
                raise error_from_document(line["error"])
            case "begin":
                if told is not None:
                    told.begin(line["step"], line["detail"], total=line["total"])
            case "advance":
                if told is not None:
                    told.advance(line["amount"])
            case "output":
                if told is not None:
                    told.output(line["text"].encode())
            case "end":
                if told is not None:
                    told.end(line["summary"])
            case "skip":
                if told is not None:
                    told.skip(line["step"], line["detail"])
            case _:
                return line
    return None
