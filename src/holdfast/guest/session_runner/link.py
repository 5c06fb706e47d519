"""The connection of a runner to the hub: one thread that connects, sends, receives, and connects again.

It is lost and found many times. What is to be said meanwhile waits in the outbox. It ends when another runner has
replaced this one, or when the server refuses it for good.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from time import monotonic

from holdfast.guest.hub_messages import LONGEST_MESSAGE, InvalidMessage, from_hub, to_hub
from holdfast.guest.runner.backoff import Backoff
from holdfast.guest.session_runner.websocket import NORMAL, Closed, Refused, WebSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.guest.session_runner.outbox import Outbox
    from holdfast.guest.session_runner.websocket import Connection

PING_SECONDS = 30.0
SILENCE_SECONDS = 75.0
"""Without a word of the hub for so long, which answers each ping, the connection counts as lost."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
MOST_REFUSALS = 5
REPLACED = "Replaced by new runner connection"


class Link:
    """`on_message` gets each message of the hub, `on_end` the reason for which there will be no more. Both are called
    in the thread of the link.
    """

    def __init__(
        self,
        dial: Callable[[], Connection],
        host: str,
        path: str,
        token: str,
        outbox: Outbox,
        *,
        greet: Callable[[], tuple[str, dict[str, Any]]],
        on_message: Callable[[str, dict[str, Any]], None],
        on_end: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        """`greet` returns the first message on each connection: the status of the agent now."""
        self._dial = dial
        self._host = host
        self._path = path
        self._token = token
        self._outbox = outbox
        self._greet = greet
        self._on_message = on_message
        self._on_end = on_end
        self._clock = clock
        self._backoff = Backoff(first_pause, LONGEST_PAUSE)
        self._refusals = 0
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, type: str, fields: dict[str, Any]) -> None:
        """Say something to the hub, now or when it can be reached. Raises `InvalidMessage`."""
        self._outbox.add(to_hub(type, fields))
        self._ring()

    def stop(self, seconds: float) -> None:
        """Send what there is, if that takes no longer than this, and end."""
        self._stopping.set()
        self._ring()
        self._thread.join(seconds)

    def _ring(self) -> None:
        try:
            os.write(self._wake, b"!")
        except BlockingIOError:
            pass  # it is awake

    def _run(self) -> None:
        while not self._stopping.is_set():
            why = self._connect_once()
            if why is not None:
                self._on_end(why)
                return
            if not self._stopping.is_set():
                self._pause(self._backoff.wait())

    def _connect_once(self) -> str | None:
        """One connection, until it is lost. Returns why there will not be another one."""
        try:
            websocket = WebSocket(self._dial(), LONGEST_MESSAGE)
        except (OSError, ValueError) as error:
            _say("the hub cannot be reached: %s" % error)
            return None
        try:
            websocket.handshake(self._host, self._path, self._token)
            self._refusals = 0
            self._talk(websocket)
        except Refused as refused:
            self._refusals += 1
            _say("%s" % refused)
            if self._refusals >= MOST_REFUSALS:
                return "the hub has refused %d times in a row: %s" % (self._refusals, refused)
        except Closed as closed:
            _say("the connection to the hub has ended: %s" % closed)
            if closed.code == NORMAL and closed.reason == REPLACED:
                return REPLACED
        except OSError as error:
            _say("the connection to the hub was lost: %s" % error)
        finally:
            websocket.close()
        return None

    def _talk(self, websocket: WebSocket) -> None:
        waiting = select.poll()
        waiting.register(websocket.fileno(), select.POLLIN)
        waiting.register(self._woken, select.POLLIN)
        self._outbox.start_again()
        greeted = False
        heard = pinged = self._clock()
        while True:
            # What waited comes first: the hub then knows all that has happened when it learns what happens now.
            while (text := self._outbox.next()) is not None:
                websocket.send(text)
            if not greeted and self._outbox.all_sent:
                greeted = True
                websocket.send(to_hub(*self._greet()))
            if self._stopping.is_set() and self._outbox.empty:
                return
            now = self._clock()
            if now - heard >= SILENCE_SECONDS:
                raise OSError("the hub has been silent for %d s" % (now - heard))
            if now - pinged >= PING_SECONDS:
                pinged = now
                websocket.send(to_hub("ping", {}))
            patience = 0.0 if websocket.came_along else min(pinged + PING_SECONDS, heard + SILENCE_SECONDS) - now
            ready = dict(waiting.poll(max(0.0, patience) * 1000))
            if self._woken in ready:
                os.read(self._woken, 4096)
            if websocket.came_along or websocket.fileno() in ready:
                messages = websocket.receive()
                if messages:
                    heard = self._clock()
                for each in messages:
                    self._take(each)
                websocket.raise_end()

    def _take(self, text: str) -> None:
        try:
            type, fields = from_hub(text)
        except InvalidMessage as error:
            _say("a message of the hub is not valid: %s" % error)
            return
        self._backoff.reset()
        if type == "ack":
            self._outbox.acknowledge(fields["seq"])
        elif type != "pong":
            self._on_message(type, fields)

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, unless the link is stopped."""
        until = self._clock() + seconds
        while not self._stopping.is_set() and self._clock() < until:
            waiting = select.poll()
            waiting.register(self._woken, select.POLLIN)
            if waiting.poll(max(0.0, until - self._clock()) * 1000):
                os.read(self._woken, 4096)
                if not self._stopping.is_set():
                    # Somebody has something to say, which changes nothing about the network.
                    self._stopping.wait(max(0.0, until - self._clock()))


def _say(text: str) -> None:
    sys.stderr.write("session runner: %s\n" % text)
    sys.stderr.flush()
