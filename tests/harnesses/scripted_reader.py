"""The reader of a scripted agent: a program that prints one JSON object a line, each saying which entry it is.

For tests of the runner and of runs, where a real agent would be slower and less exact. Packed into the runner like any
other: `runner_archive.pack((), (("holdfast.harnesses.scripted.reader", Path(scripted_reader.__file__)),))`.
"""

from __future__ import annotations

from holdfast.guest.agent_reader import Reader as Base
from holdfast.guest.agent_reader import usage_of
from holdfast.harnesses.outcomes import completed, exit_error, failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Reader(Base):
    """`{"session": id}`, `{"delta": text, "message": id}`, `{"text": text, "message": id}`, `{"call": id, "name": …}`,
    `{"result": text, "call": id}`, `{"done": true}`, `{"failed": why}`; anything else is an event.
    `{"raise": why}` and `{"breaks": "close"}` are for what no reader should do."""

    agent = "scripted"

    def __init__(self) -> None:
        super().__init__()
        self._done = False
        self._why: str | None = None
        self._breaks = ""

    def take(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        if "session" in record:
            return self.begin_session(record["session"], record)
        if "delta" in record:
            return self.stream(record["message"], record["delta"])
        if "text" in record:
            usage = usage_of(record.get("input", 1), record.get("output", 1))
            return self.end_message(record["message"], record["text"], usage=usage, record=record)
        if "name" in record:
            return self.begin_call(record["call"], record["name"], record.get("arguments"))
        if "result" in record:
            return self.end_call(record["call"], record["result"], "ok", record)
        if "raise" in record:
            raise OSError(record["raise"])
        if "breaks" in record:
            self._breaks = record["breaks"]
            return []
        if "done" in record:
            self._done = self.ended = True
            return []
        if "failed" in record:
            self._why = record["failed"]
            return []
        return self.event(record)

    def close(self) -> list[dict[str, Any]]:
        if self._breaks == "close":
            raise OSError("a reader that breaks")
        return super().close()

    def outcome(self, exit_code: int | None) -> dict[str, Any]:
        if self._breaks == "outcome":
            raise OSError("a reader that breaks")
        if self._why is not None:
            return failed({"code": "scripted", "message": self._why}, self.usage)
        if self._done or exit_code == 0:
            return completed(self.usage)
        return failed(exit_error(exit_code), self.usage)
