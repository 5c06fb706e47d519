"""The server's seal: proves that the server itself wrote an entry, and for which thread.

Keys, tokens and runners all write to a thread. The server later reads back from the same thread what it acts on: which
agent to launch, with which network, and in which box to signal a process. So it seals such entries with a key that
never leaves it, and acts on none without a seal. A copy of a sealed entry on another thread, as in a fork, still names
the thread it was written for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

import orjson

from holdfast.api.thread.entries import Entry

SEAL: Final = "seal"
"""The payload field with the seal: `<thread>.<mac>`."""
_MAC_BYTES: Final = 16
_LONGEST: Final = 256


class Origin(StrEnum):
    """What is known about the writer of an entry."""

    HERE = "here"
    """This server, for this thread."""
    FORK = "fork"
    """This server, for the thread that this one was forked from."""
    UNPROVEN = "unproven"
    """Unknown: a client, or a server from before seals existed."""


class Seals:
    """Seals entries, and checks seals."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, thread: str, entry: Entry) -> Entry:
        """Returns the entry with a seal for that thread, replacing any other. Raises ValueError if it is nested too
        deeply.
        """
        payload = {name: value for name, value in entry.payload.items() if name != SEAL}
        mac = self._mac(thread, entry.id, entry.ts, entry.author_id, payload)
        return replace(entry, payload={**payload, SEAL: f"{thread}.{mac}"})

    def origin(self, thread: str, entry: Mapping[str, Any]) -> Origin:
        """Returns the origin of an entry on this thread."""
        payload = entry["payload"]
        seal = payload.get(SEAL)
        if not isinstance(seal, str) or len(seal) > _LONGEST:
            return Origin.UNPROVEN
        written_for, _, mac = seal.rpartition(".")
        bare = {name: value for name, value in payload.items() if name != SEAL}
        try:
            expected = self._mac(written_for, entry["id"], entry["ts"], entry.get("authorId"), bare)
        except ValueError:
            return Origin.UNPROVEN
        if not hmac.compare_digest(mac.encode(), expected.encode()):
            return Origin.UNPROVEN
        return Origin.HERE if written_for == thread else Origin.FORK

    def _mac(self, thread: str, id: str, ts: int, author: str | None, payload: Mapping[str, Any]) -> str:
        try:
            sealed = orjson.dumps([thread, id, ts, author, payload], option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError as error:
            raise ValueError(f"the entry cannot be encoded: {error}") from None
        mac = hmac.digest(self._key, sealed, hashlib.sha256)[:_MAC_BYTES]
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")
