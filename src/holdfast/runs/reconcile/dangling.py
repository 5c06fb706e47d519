"""What an interrupted run leaves open on its thread: partial messages, and tool calls without a result.

Both are closed when the run is ended, so that readers of the thread find only complete messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.threads.run_events import DELTA

_MAX_TEXT: Final = 1024 * 1024
_MAX_OPEN: Final = 1_000


class Dangling:
    """Reads the entries of a run, oldest first."""

    def __init__(self, run: str, agent: str) -> None:
        self._run = run
        self._agent = agent
        self._message: str | None = None
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._size = 0
        self._calls: dict[str, Mapping[str, Any]] = {}

    def read(self, entry: Mapping[str, Any]) -> None:
        payload = entry["payload"]
        kind: str = payload["type"]
        if not kind.startswith(f"{self._agent}."):
            return
        match kind[len(self._agent) :]:
            case ".assistant":
                self._forget_text()
            case ".call":
                call = payload.get("call")
                if isinstance(call, str) and len(self._calls) < _MAX_OPEN:
                    self._calls[call] = payload
            case ".tool":
                call = payload.get("call")
                if isinstance(call, str):
                    self._calls.pop(call, None)
            case event if event == DELTA:
                self._gather(payload)

    def _gather(self, payload: Mapping[str, Any]) -> None:
        message = payload.get("message")
        if message != self._message:
            self._forget_text()
            self._message = message if isinstance(message, str) else None
        for pieces, piece in ((self._text, payload.get("text")), (self._thinking, payload.get("thinking"))):
            if isinstance(piece, str) and self._size < _MAX_TEXT:
                pieces.append(piece)
                self._size += len(piece)

    def _forget_text(self) -> None:
        self._text, self._thinking, self._size = [], [], 0

    def close(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns the payloads that close what is open, each with its entry id."""
        closing: list[tuple[str, dict[str, Any]]] = []
        if self._text or self._thinking:
            partial: dict[str, Any] = {
                "type": f"{self._agent}.assistant",
                "message": self._message or f"{self._run}-cut",
                "text": "".join(self._text),
                "calls": [],
                "partial": True,
            }
            if self._thinking:
                partial["thinking"] = "".join(self._thinking)
            closing.append((f"{self._run}-cut", partial))
        for number, (call, payload) in enumerate(self._calls.items()):
            closing.append(
                (
                    f"{self._run}-interrupted-{number}",
                    {
                        "type": f"{self._agent}.tool",
                        "call": call,
                        "name": payload.get("name"),
                        "arguments": payload.get("arguments"),
                        "result": "",
                        "status": "interrupted",
                    },
                )
            )
        return closing
