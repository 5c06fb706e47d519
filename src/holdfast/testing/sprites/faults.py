"""Makes the counterpart of the Sprites API misbehave on request, as a cloud sometimes does."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(slots=True)
class _Refusal:
    status: int
    retry_after: str | None
    method: str
    path: str
    times: int
    after: bool
    """Carry out the request first, and lose the answer."""


@dataclass(slots=True)
class _Delay:
    seconds: float
    method: str
    path: str
    times: int


class Faults:
    """What goes wrong next. Each fault applies to requests whose method and path match, `times` times.

    `path` is a part of the path; the empty string matches every path. May be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refusals: list[_Refusal] = []
        self._delays: list[_Delay] = []
        self._cuts: list[int] = []
        self.stale_list = False
        """Answer lists of sprites as they were when this was set."""
        self.requests: list[str] = []
        """Method and path of every request, the latest last."""

    def refuse(
        self,
        status: int,
        *,
        times: int = 1,
        retry_after: str | None = None,
        method: str = "",
        path: str = "",
        after: bool = False,
    ) -> None:
        """Answer with this status. With `after`, carry the request out before that."""
        with self._lock:
            self._refusals.append(_Refusal(status, retry_after, method, path, times, after))

    def delay(self, seconds: float, *, times: int = 1, method: str = "", path: str = "") -> None:
        """Answer late."""
        with self._lock:
            self._delays.append(_Delay(seconds, method, path, times))

    def cut(self, after: int = 0) -> None:
        """Cut the next WebSocket that has sent so many bytes, in the middle of a frame."""
        with self._lock:
            self._cuts.append(after)

    @property
    def pending(self) -> int:
        """How many faults have not happened yet, or not as often as they were asked for."""
        with self._lock:
            return len(self._refusals) + len(self._delays) + len(self._cuts)

    def clear(self) -> None:
        with self._lock:
            self._refusals.clear()
            self._delays.clear()
            self._cuts.clear()
            self.stale_list = False

    # --- for the counterpart ---

    def take_cut(self, sent: int) -> bool:
        """Returns whether a WebSocket that has sent so many bytes is cut now."""
        with self._lock:
            for after in self._cuts:
                if sent > after:
                    self._cuts.remove(after)
                    return True
        return False

    def _take(self, kind: str, method: str, path: str) -> Any:
        faults: list[Any] = self._refusals if kind == "refusal" else self._delays
        with self._lock:
            for fault in faults:
                if fault.method in ("", method) and fault.path in path:
                    fault.times -= 1
                    if fault.times <= 0:
                        faults.remove(fault)
                    return fault
        return None

    def wrap(self, app: App) -> App:
        """Returns the app with these faults."""

        async def faulty(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] not in ("http", "websocket"):
                await app(scope, receive, send)
                return
            method = scope.get("method", "WEBSOCKET")
            with self._lock:
                self.requests.append(f"{method} {scope['path']}")
            if (delay := self._take("delay", method, scope["path"])) is not None:
                await asyncio.sleep(delay.seconds)
            refusal = self._take("refusal", method, scope["path"])
            if refusal is None:
                await app(scope, receive, send)
                return
            if refusal.after:
                await app(scope, receive, _swallow)
            await _refuse(scope, send, refusal)

        return faulty


async def _swallow(message: MutableMapping[str, Any]) -> None:
    return None


async def _refuse(scope: Scope, send: Send, refusal: _Refusal) -> None:
    headers = [(b"content-type", b"application/json")]
    if refusal.retry_after is not None:
        headers.append((b"retry-after", refusal.retry_after.encode()))
    body = json.dumps({"error": "told_to", "message": f"the counterpart was told to answer {refusal.status}"}).encode()
    prefix = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    await send({"type": f"{prefix}.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
