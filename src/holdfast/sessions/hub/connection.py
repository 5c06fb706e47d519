"""The connection of one runner: receives its messages, takes each once, and sends it orders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from holdfast.guest.hub_messages import LONGEST_MESSAGE, InvalidMessage, from_runner, number_of, to_runner
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

NORMAL: Final = 1000
_REFUSED: Final = 1008
_SEND_SECONDS: Final = 20.0
_SILENCE_SECONDS: Final = 90.0
"""A runner says something every 30 seconds."""
_MOST_WAITING: Final = 1024
_MOST_HELD: Final = 32 * 1024 * 1024
"""Characters of messages that were received and are not done yet. A runner that says more has to wait."""
_MOST_SESSIONS: Final = 64
_LONGEST_NAME: Final = 1024
_MOST_REFUSED: Final = 20

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Message:
    __slots__ = ("fields", "number", "size", "type")

    def __init__(self, type: str, fields: dict[str, Any], number: int | None, size: int) -> None:
        self.type = type
        self.fields = fields
        self.number = number
        """None if it is said anew on each connection."""
        self.size = size
        """Its characters, as it was sent."""


class RunnerConnection:
    """One WebSocket. `serve` owns it, and returns when it has ended."""

    def __init__(self, thread: str, box: str, runner: str, process: str, receive: Receive, send: Send) -> None:
        self.thread = thread
        self.box = box
        self.runner = runner
        """Chosen by the runner, the same on all its connections."""
        self.process = process
        """The id of its process in the box."""
        self.status = ""
        self.turns: tuple[str, ...] = ()
        self.greeted = asyncio.Event()
        """Set when the runner has told its status."""
        self.sessions: dict[str, str] = {}
        """The agent's session, by channel."""
        self.last_turn = ""
        """The latest run that it worked on."""
        self.models: list[dict[str, Any]] = []
        self.refused = 0
        self.ended = asyncio.Event()
        self.used_at = asyncio.get_running_loop().time()
        """When it last had something to do."""
        self._receive = receive
        self._send = send
        self._queue: asyncio.Queue[Message] = asyncio.Queue(_MOST_WAITING)
        self._held = 0
        self._taken = 0
        self._room = asyncio.Event()
        self._closed = False

    def use(self) -> None:
        """It has something to do now."""
        self.used_at = asyncio.get_running_loop().time()

    def add_sessions(self, sessions: Mapping[str, str]) -> None:
        """Remember the agent's sessions by channel. The oldest are forgotten if there are too many."""
        for channel, session in sessions.items():
            if len(channel) <= _LONGEST_NAME and len(session) <= _LONGEST_NAME:
                self.sessions.pop(channel, None)
                self.sessions[channel] = session
        while len(self.sessions) > _MOST_SESSIONS:
            del self.sessions[next(iter(self.sessions))]

    async def send(self, type: str, fields: dict[str, Any]) -> None:
        """Send a message. A connection that is lost loses it: whoever needs an answer waits for it."""
        text = to_runner(type, fields)
        if self._closed:
            return
        try:
            async with time_limit(_SEND_SECONDS):
                await self._send({"type": "websocket.send", "text": text})
        except (OSError, RuntimeError, TimeoutError) as error:
            self._closed = True
            self._room.set()
            log.info("the runner of session %s cannot be reached: %r", self.thread, error)

    async def close(self, code: int, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._room.set()
        try:
            async with time_limit(_SEND_SECONDS):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (OSError, RuntimeError, TimeoutError) as error:
            log.info("the runner of session %s cannot be told to end: %r", self.thread, error)

    async def receive(self, refuse: Callable[[str], Awaitable[None]]) -> None:
        """Receive until the end of the connection. `refuse` is told why a message is not one of the protocol."""
        while not self._closed:
            try:
                async with time_limit(_SILENCE_SECONDS):
                    event = await self._receive()
            except TimeoutError:
                log.info("the runner of session %s is silent", self.thread)
                return
            if event["type"] == "websocket.disconnect":
                self._closed = True
                return
            text = event.get("text")
            try:
                if text is None or len(text) > LONGEST_MESSAGE:
                    raise InvalidMessage("a message is not a text, or too long")
                type, fields = from_runner(text)
            except InvalidMessage as error:
                self.refused += 1
                await refuse(str(error))
                if self.refused >= _MOST_REFUSED:
                    await self.close(_REFUSED, "too many messages that are not valid")
                continue
            if type == "ping":
                await self.send("pong", {})
                continue
            while self._held and self._held + len(text) > _MOST_HELD and not self._closed:
                self._room.clear()
                await self._room.wait()
            self._held += len(text)
            await self._queue.put(Message(type, fields, number_of(text), len(text)))

    async def messages(self) -> list[Message]:
        """Returns the messages that have arrived, at least one. Those of the call before are done."""
        self._held -= self._taken
        self._taken = 0
        self._room.set()
        found = [await self._queue.get()]
        while len(found) < _MOST_WAITING and not self._queue.empty():
            found.append(self._queue.get_nowait())
        self._taken = sum(each.size for each in found)
        return found

    @property
    def is_open(self) -> bool:
        return not self._closed
