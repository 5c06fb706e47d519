"""Turns payloads into entries: numbered, dated, encoded as JSON. Live text is gathered for a moment, so that a model
that streams single words does not cause an entry for each.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

GATHER = 0.015
"""In seconds. The first word after a pause does not wait."""
_MAX_GATHERED = 32 << 10
_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode


class Entries:
    """Counts the entries of one run. `keep` receives each encoded entry. `wall` is UTC seconds and called once. From
    then on the monotonic clock is used, so that setting the machine's clock does not reorder entries.
    """

    def __init__(
        self,
        run: str,
        epoch: int,
        agent: str,
        keep: Callable[[bytes], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._run = run
        self._epoch = epoch
        self._agent = agent
        self._keep = keep
        self._clock = clock
        self._offset = wall() - clock()
        self._count = 0
        self._held: dict[str, Any] | None = None
        self._held_size = 0
        self._flushed_at = -1.0

    def add(self, payload: dict[str, Any]) -> None:
        if str(payload.get("type", "")).endswith(".delta"):
            self._hold(payload)
        else:
            self.flush()
            self._write(payload)

    def wait(self) -> float | None:
        """Returns the seconds until held text should be flushed, or None if there is none."""
        return None if self._held is None else max(0.0, self._flushed_at + GATHER - self._clock())

    def flush(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._flushed_at = self._clock()
            for name in ("text", "thinking"):
                if isinstance(held.get(name), list):
                    held[name] = "".join(held[name])
            self._write(held)

    def finish(self, payload: dict[str, Any]) -> None:
        """Add the end of the run. Its id is the same whichever process posts it."""
        self.flush()
        self._keep(self._encode("end-" + self._run, payload))

    def replace(self, entry: bytes, why: str) -> bytes:
        """Returns a replacement for an entry that the server refuses, with the same id, that tells what happened."""
        found = json.loads(entry)
        kind = found["payload"].get("type")
        if kind == "signal.run.finished":
            kept = {name: found["payload"].get(name) for name in ("type", "run", "status", "exit_code", "ms", "by")}
            return self._encode(found["id"], kept)
        text = "an entry (%s, %d bytes) was refused by the server and skipped: %s" % (kind, len(entry), why)
        return self._encode(found["id"], {"type": self._agent + ".notice", "level": "error", "text": text[:2000]})

    def _hold(self, payload: dict[str, Any]) -> None:
        held = self._held
        if (
            held is None
            or held["type"] != payload["type"]
            or held.get("message") != payload.get("message")
            or self._held_size > _MAX_GATHERED
        ):
            self.flush()
            held = self._held = {**payload}
            self._held_size = 0
            for name in ("text", "thinking"):
                if isinstance(payload.get(name), str):
                    held[name] = []
        for name in ("text", "thinking"):
            piece = payload.get(name)
            if isinstance(piece, str):
                pieces = held.setdefault(name, [])
                if isinstance(pieces, list):
                    pieces.append(piece)
                    self._held_size += len(piece)

    def _write(self, payload: dict[str, Any]) -> None:
        self._count += 1
        # Another runner of the same run has another epoch and also counts from one.
        self._keep(self._encode("%s-%d-%d" % (self._run, self._epoch, self._count), payload))

    def _encode(self, id: str, payload: dict[str, Any]) -> bytes:
        try:
            text = _write(payload)
        except (ValueError, TypeError, RecursionError):  # not a number, not JSON, or too deep
            text = _write(plain(payload))
        now = int((self._offset + self._clock()) * 1000)
        line = '{"id":"%s","ts":%d,"payload":%s}' % (id, now, text)
        try:
            return line.encode()
        except UnicodeEncodeError:  # a lone surrogate, which is not text
            return line.encode("utf-8", "replace")


def plain(value: Any, depth: int = 100) -> Any:
    """Returns the closest value that JSON can represent."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if depth == 0:
        return "…"
    if isinstance(value, dict):
        return {str(name): plain(each, depth - 1) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each, depth - 1) for each in value]
    return str(value)
