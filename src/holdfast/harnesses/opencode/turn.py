"""One prompt over a server of OpenCode that stays: its events become entries, until its one end.

Pure but for its clocks: it is given the events of the server, and returns what is to be done. The host acts.
"""

from __future__ import annotations

import json

from holdfast.guest.runner.entries import Entries
from holdfast.harnesses.opencode.events import ASKED, TurnEvents
from holdfast.harnesses.opencode.reader import Reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FIRST_RESPONSE = 90.0
"""Seconds until the server must tell something about its answer."""
INACTIVITY = 300.0
"""Seconds without an event while no tool runs and no question is open."""
MOST_RETRIES = 4
"""Requests to the provider that may fail in a row without any output."""
SETTLE = 3.0
"""Seconds to wait for open messages after the session became idle."""
ABORT = 10.0
"""Seconds that an abort may take."""
_LONGEST_WAIT = 900.0
_ANSWERING = ("message.part.updated", "message.part.delta")


class Turn:
    """`keep` receives each encoded entry. `clock` is monotonic, `wall` returns UTC seconds."""

    def __init__(
        self,
        run: str,
        epoch: int,
        channel: str,
        *,
        keep: Callable[[bytes], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
        timeout: float | None = None,
        retries: int = MOST_RETRIES,
    ) -> None:
        self.run = run
        self.channel = channel
        self.over = False
        self.asked: set[str] = set()
        """Questions and permissions that wait for somebody."""
        self._clock = clock
        self._wall = wall
        self._reader = Reader(clock)
        self._entries = Entries(run, epoch, Reader.agent, keep, clock, wall)
        self._events: TurnEvents | None = None
        self._began = clock()
        self._timeout = timeout
        self._retries = retries
        self._sent_at: float | None = None
        """When the prompt was sent to the server."""
        self._active_at = self._began
        self._answered = False
        self._tools: set[str] = set()
        self._failures = 0
        """Requests to the provider that failed since its last output."""
        self._ends_at: float | None = None
        self._idle = False
        self._aborting = False
        self._cancelled = False
        self._problem: dict[str, str] | None = None
        self._wants_abort = False

    # --- its course ---

    @property
    def session(self) -> str | None:
        return None if self._events is None else self._events.session

    @property
    def status(self) -> str:
        """In the words of the hub."""
        return "tool_calling" if self._tools else "streaming" if self._answered else "thinking"

    def begin(self, info: dict[str, Any]) -> None:
        """The session is there, and the prompt is about to be sent."""
        self._events = TurnEvents(str(info["id"]), self._wall() * 1000 - 1)
        self._tell("session", info=info)

    def sent(self) -> None:
        self._sent_at = self._active_at = self._clock()

    def take(self, line: bytes) -> tuple[str, dict[str, Any]] | None:
        """Take an event of the server. Returns the kind and contents of a request for somebody, if it is one."""
        event = None if self._events is None or self.over else self._events.take(line)
        if event is None or self._events is None:
            return None
        if event.kind in ASKED:
            self._active_at = self._clock()
            return event.kind, event.about
        self._active_at = self._clock()
        if event.kind in _ANSWERING:
            self._watch_answer(event.about)
        if event.told is not None:
            self._read(event.told)
        if event.kind == "session.status":
            self._watch_retries(event.about.get("status"))
        elif event.kind == "session.idle" and self._sent_at is not None:
            self._idle = True
            self._end_within(SETTLE)
        if self._idle and not self._events.open:
            self._end_within(0.0)
        return None

    def own(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns those of a session's messages that belong to this turn."""
        return [] if self._events is None else self._events.own(messages)

    def check(self) -> bool:
        """Look at the clocks. Returns whether the server has to be told to abort the turn."""
        if self.over:
            return False
        if self._entries.wait() == 0.0:
            self._entries.flush()
        now = self._clock()
        if self._ends_at is not None:
            return False
        if self._timeout is not None and now - self._began >= self._timeout:
            return self.abort(_timed_out(self._timeout))
        if self._sent_at is None or self.asked:
            self._active_at = now
            return False
        if not self._answered and now - self._sent_at >= FIRST_RESPONSE:
            return self.abort(
                _problem("no_response", f"the model gave no sign of an answer for {FIRST_RESPONSE:.0f} s")
            )
        if not self._tools and now - self._active_at >= INACTIVITY:
            return self.abort(_problem("inactive", f"OpenCode reported nothing for {INACTIVITY:.0f} s"))
        return False

    def wait(self) -> float:
        """Returns the seconds until `check`, or `is_done`, may have something new."""
        gathered = self._entries.wait()
        until_end = None if self._ends_at is None else max(0.0, self._ends_at - self._clock())
        return min([each for each in (gathered, until_end) if each is not None], default=1.0)

    @property
    def is_done(self) -> bool:
        return self._ends_at is not None and self._clock() >= self._ends_at

    def cancel(self) -> bool:
        """Somebody wants it to end. Returns whether the server has to be told."""
        self._cancelled = True
        return self.abort(None)

    def abort(self, problem: dict[str, str] | None) -> bool:
        """End the turn soon. Returns whether the server has to be told."""
        if problem is not None and self._problem is None and not self._cancelled:
            self._problem = problem
        if self._aborting or self.over:
            return False
        self._aborting = True
        self._end_within(ABORT if self._sent_at is not None else 0.0)
        return self._sent_at is not None

    # --- its end ---

    def end(self) -> None:
        """Write the end of the run, as completed, aborted or failed, by what was seen."""
        self._finish(None, ended=True)

    def lose(self, code: int | None) -> None:
        """The server has exited."""
        self._tell("exited", code=code)
        self._finish(code, ended=False)

    def fail(self, why: str) -> None:
        """The prompt could not be sent."""
        self._tell("failed", message=why)
        self._finish(None, ended=False)

    def add(self, payload: dict[str, Any]) -> None:
        """Add an entry of the agent's kind."""
        self._entries.add(payload)

    def replaced(self, entry: bytes, why: str) -> bytes:
        """Returns what to write instead of an entry that is refused."""
        return self._entries.replace(entry, why)

    def _finish(self, exit_code: int | None, *, ended: bool) -> None:
        if self.over:
            return
        if ended:
            self._tell("ended")
        for payload in self._reader.close():
            self._entries.add(payload)
        outcome = self._reader.outcome(exit_code)
        status, error = outcome.get("status", "failed"), outcome.get("error")
        if self._cancelled:
            status, error = "cancelled", None
        elif self._problem is not None:
            status, error = "failed", self._problem
        end: dict[str, Any] = {"type": "signal.run.finished", "run": self.run, "status": status}
        if status == "failed":
            end["error"] = {"code": "agent_failed", **(error if isinstance(error, dict) else {})}
        if outcome.get("usage"):
            end["usage"] = outcome["usage"]
        end["ms"] = int((self._clock() - self._began) * 1000)
        end["by"] = "runner"
        self.over = True
        self._entries.finish(end)

    # --- watching ---

    def _watch_answer(self, about: dict[str, Any]) -> None:
        part = about.get("part")
        if not isinstance(part, dict):
            self._answered = True
            self._failures = 0
            return
        if part.get("type") == "tool":
            self._answered = True
            self._failures = 0
            state = part.get("state")
            running = isinstance(state, dict) and state.get("status") == "running"
            (self._tools.add if running else self._tools.discard)(str(part.get("id")))
        elif part.get("type") == "step-start":
            self._answered = True

    def _watch_retries(self, status: Any) -> None:
        """OpenCode itself never stops retrying."""
        if not isinstance(status, dict) or status.get("type") != "retry" or self._aborting:
            return
        self._failures += 1
        self._active_at = self._sent_at = self._clock()
        following = status.get("next")
        too_late = isinstance(following, (int, float)) and following / 1000 - self._wall() > _LONGEST_WAIT
        if self._failures > self._retries or too_late:
            self._tell("gave_up", attempt=status.get("attempt"), message=str(status.get("message", "")))
            self._wants_abort = True

    @property
    def wants_abort(self) -> bool:
        """Whether the server has to be told, because of an event. Tells it once."""
        wanted, self._wants_abort = self._wants_abort, False
        return wanted and self.abort(None)

    def _end_within(self, seconds: float) -> None:
        end = self._clock() + seconds
        self._ends_at = end if self._ends_at is None else min(self._ends_at, end)

    # --- reading ---

    def _tell(self, kind: str, **about: Any) -> None:
        self._read(json.dumps({"type": "holdfast." + kind, "properties": about}).encode())

    def _read(self, line: bytes) -> None:
        try:
            payloads = self._reader.read(line)
        except Exception as error:
            # Nothing that an agent reports may end its run.
            payloads = self._reader.notice("warning", f"{error!r} while reading an event")
        for payload in payloads:
            self._entries.add(payload)


def _problem(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message, "hint": "check the model with holdfast model test, and prompt it again"}


def _timed_out(seconds: float) -> dict[str, str]:
    return {"code": "timed_out", "message": f"the run took longer than its timeout of {seconds:.0f} s"}
