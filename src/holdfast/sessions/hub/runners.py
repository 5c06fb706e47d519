"""The runners of sessions that are connected to this server, and the prompts that are on their way to them.

Launches send prompts through it. The hub adds and removes connections, and takes what they say.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from holdfast.api.errors.sessions import AgentAway
from holdfast.sessions.hub.connection import RunnerConnection
from holdfast.time_limit import time_limit

_STOP_SECONDS: Final = 10.0
_REMEMBERED: Final = 10_000


class Runners:
    """One connection for each session, the latest. The hub owns them."""

    def __init__(self) -> None:
        self._connections: dict[str, RunnerConnection] = {}
        """By session."""
        self._arrivals: dict[str, asyncio.Event] = {}
        self._prompts: dict[str, dict[str, Any] | None] = {}
        """Prompts that were sent, or are about to be, by run, until their runner reports them."""

    # --- connections ---

    def add(self, connection: RunnerConnection) -> RunnerConnection | None:
        """Returns the connection that it replaces."""
        old = self._connections.get(connection.thread)
        self._connections[connection.thread] = connection
        return old

    def remove(self, connection: RunnerConnection) -> None:
        if self._connections.get(connection.thread) is connection:
            del self._connections[connection.thread]

    def greet(self, connection: RunnerConnection) -> None:
        """The runner has told its status."""
        connection.greeted.set()
        if (arrived := self._arrivals.get(connection.thread)) is not None:
            arrived.set()

    def find(self, thread: str) -> RunnerConnection | None:
        return self._connections.get(thread)

    def get(self, thread: str) -> RunnerConnection:
        """Raises `AgentAway` if no runner of the session is connected."""
        connection = self._connections.get(thread)
        if connection is None:
            raise AgentAway(
                f"the agent of session {thread} is not connected",
                hint=f"a prompt starts it: holdfast session prompt {thread} PROMPT",
            )
        return connection

    def models(self, thread: str) -> list[dict[str, Any]]:
        """Returns the models that the agent of a session knows, as it told last. Raises `AgentAway`."""
        return self.get(thread).models

    async def stop(self, thread: str) -> bool:
        """Have the runner of a session end, with its agent, and wait for that. Returns whether there was one."""
        connection = self._connections.get(thread)
        if connection is None:
            return False
        await connection.send("stop", {})
        with suppress(TimeoutError):  # then it ends with its box
            async with time_limit(_STOP_SECONDS):
                await connection.ended.wait()
        return True

    # --- prompts ---

    def connected(self, thread: str, box: str) -> RunnerConnection | None:
        """Returns the runner of a session in this box, if it is connected and has told its status."""
        found = self._connections.get(thread)
        if found is None or found.box != box or not found.is_open or not found.greeted.is_set():
            return None
        found.use()
        return found

    async def wait(self, thread: str, box: str, process: str, seconds: float) -> RunnerConnection:
        """Wait until a runner that was just started is connected. Raises `AgentAway`."""
        try:
            async with time_limit(seconds):
                while True:
                    arrived = self._arrivals.setdefault(thread, asyncio.Event())
                    found = self.connected(thread, box)
                    if found is not None and found.process == process:
                        return found
                    arrived.clear()
                    await arrived.wait()
        except TimeoutError:
            raise AgentAway(
                f"the runner of session {thread} did not connect within {seconds:g} s",
                hint=f"see its output: holdfast session diagnose {thread}",
            ) from None

    def expect(self, run: str) -> None:
        """A prompt is about to be sent for this run: that its runner does not know it yet means nothing."""
        self._prompts[run] = None
        while len(self._prompts) > _REMEMBERED:
            del self._prompts[next(iter(self._prompts))]

    def forget(self, run: str) -> None:
        self._prompts.pop(run, None)

    async def prompt(self, connection: RunnerConnection, run: str, fields: dict[str, Any]) -> None:
        """Send a prompt. If the connection is lost, it is sent again on the next one."""
        self._prompts[run] = fields
        connection.last_turn = run
        connection.use()
        await connection.send("prompt", fields)

    def expects(self, run: str) -> bool:
        """Returns whether a prompt of this run is on its way."""
        return run in self._prompts

    async def repeat_prompt(self, connection: RunnerConnection, run: str) -> None:
        """Send a prompt again that was sent over a connection that is lost."""
        fields = self._prompts.get(run)
        if fields is not None:
            await connection.send("prompt", fields)
