"""Keeps the server of OpenCode running in a session: started, watched, restarted after a crash, and given up.

Restarts are paused for 2 to 32 seconds. A minute without a crash starts the count again. After five crashes it stays
down until it gets a new configuration.
"""

from __future__ import annotations

import http.client
import os
import threading
from functools import partial

from holdfast.harnesses.opencode.server import MAX_LINE, Failed, Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from holdfast.guest.runner.event_loop import Timer
    from holdfast.guest.session_runner.mailbox import Mailbox

MOST_CRASHES = 5
FIRST_PAUSE = 2.0
LONGEST_PAUSE = 32.0
HEALTHY = 60.0
_MOST_WAITING = 4096


class Crashes:
    """Counts crashes, and decides what follows. No effects."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, healthy_for: float | None) -> float | None:
        """Returns the seconds to wait before the next start, or None if there is none. `healthy_for` is how long the
        server was well.
        """
        if healthy_for is not None and healthy_for >= HEALTHY:
            self.count = 0
        self.count += 1
        if self.count >= MOST_CRASHES:
            return None
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self.count - 1))


_MOST_STREAMS = 5
"""Attempts to get a new stream of events after one was lost."""


class Supervisor:
    """Owns the process of the server. All callbacks come in the main thread."""

    def __init__(
        self,
        mailbox: Mailbox,
        program: str,
        environment: Mapping[str, str],
        folder: str,
        *,
        on_ready: Callable[[], None],
        on_event: Callable[[bytes], None],
        on_lost: Callable[[int | None], None],
        on_events_lost: Callable[[], None],
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        """`report` gets the fields of `runner-health`."""
        self.server: Server | None = None
        """Set while it is healthy."""
        self.fatal = ""
        """Why it stays down, or empty."""
        self._mailbox = mailbox
        self._program = program
        self._environment = environment
        self._folder = folder
        self._on_ready = on_ready
        self._on_event = on_event
        self._on_lost = on_lost
        self._on_events_lost = on_events_lost
        self._report = report
        self._crashes = Crashes()
        self._process: Server | None = None
        self._healthy_at: float | None = None
        self._restart: Timer | None = None
        self._slots = threading.BoundedSemaphore(_MOST_WAITING)

    def start(self) -> None:
        """Start the server in the background, if it is not running."""
        self._mailbox.cancel(self._restart)
        self._restart = None
        if self._process is not None:
            return
        try:
            self._process = server = Server(self._program, {**os.environ, **self._environment}, self._folder)
        except OSError as error:
            self._give_up(f"it cannot be started: {error}")
            return
        threading.Thread(target=self._watch_start, args=(server,), daemon=True).start()
        threading.Thread(target=self._watch_exit, args=(server,), daemon=True).start()

    def restart(self) -> None:
        """Start it again, with a new configuration: also if it was given up."""
        self.stop()
        self.fatal = ""
        self._crashes = Crashes()
        self.start()

    def stop(self) -> None:
        """End the server: two seconds after it was asked to, it is killed."""
        self._mailbox.cancel(self._restart)
        self._restart = None
        process, self._process, self.server = self._process, None, None
        if process is not None:
            process.stop()

    # --- in threads ---

    def _watch_start(self, server: Server) -> None:
        try:
            server.wait()
            server.ask("GET", "/global/health")
            stream = server.events()
        except Failed as error:
            why = str(error)
            self._mailbox.put(lambda: self._not_healthy(server, why))
            return
        self._mailbox.put(lambda: self._healthy(server))
        self._read_events(server, stream)

    def _read_events(self, server: Server, stream: http.client.HTTPResponse) -> None:
        while True:
            try:
                while line := stream.readline(MAX_LINE):
                    if line.startswith(b"data:"):
                        self._slots.acquire()
                        data = line[5:].strip()
                        self._mailbox.put(lambda data=data: self._event(server, data))  # type: ignore[misc]
            except (OSError, http.client.HTTPException, ValueError):
                pass
            if server.process.poll() is not None:
                return
            stream.close()
            try:
                stream = self._open_events(server)
            except Failed as error:
                self._mailbox.put(partial(self._not_healthy, server, str(error)))
                return
            self._mailbox.put(lambda: self._events_again(server))

    def _open_events(self, server: Server) -> http.client.HTTPResponse:
        """Returns a new stream of events. Without one, nothing of what the server does is seen: then it is ended."""
        for _ in range(_MOST_STREAMS - 1):
            try:
                return server.events()
            except Failed:
                if server.ended() is not None:  # waits for half a second
                    break
        return server.events()

    def _watch_exit(self, server: Server) -> None:
        code = server.process.wait()
        self._mailbox.put(lambda: self._exited(server, code))

    # --- in the main thread ---

    def _event(self, server: Server, line: bytes) -> None:
        self._slots.release()
        if server is self._process:
            self._on_event(line)

    def _events_again(self, server: Server) -> None:
        if server is self._process:
            self._on_events_lost()

    def _healthy(self, server: Server) -> None:
        if server is self._process:
            self.server = server
            self._healthy_at = self._mailbox.clock()
            self._on_ready()

    def _not_healthy(self, server: Server, why: str) -> None:
        if server is not self._process or server.process.poll() is not None:
            return  # its exit is reported
        self._report({"kind": "opencode_health_timeout", "message": why[:2000]})
        server.process.kill()

    def _exited(self, server: Server, code: int) -> None:
        if server is not self._process:
            return  # it was stopped
        self._process = self.server = None
        healthy_for = None if self._healthy_at is None else self._mailbox.clock() - self._healthy_at
        self._healthy_at = None
        pause = self._crashes.add(healthy_for)
        self._report({"kind": "opencode_crash", "exitCode": code, "crashCount": self._crashes.count})
        self._on_lost(code)
        if pause is None:
            self._give_up(f"it crashed {self._crashes.count} times")
        else:
            self._restart = self._mailbox.after(pause, self.start)

    def _give_up(self, why: str) -> None:
        self.fatal = why
        self._report({"kind": "opencode_fatal", "crashCount": self._crashes.count, "message": why[:2000]})
        self._on_lost(None)
