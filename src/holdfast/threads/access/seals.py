"""The server's seal: how an entry shows that the server itself wrote it, and for which thread.

A thread is written by many: keys, tokens, runners. What the server acts on later (which agent to launch, in which
network, in which box a process is to be signalled) it reads back from the same thread. So it seals such entries when it
writes them, with a key that never leaves it, and acts on none without a seal. A copy of a sealed entry on another
thread, as in a fork, still names the thread that it was written for.
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

from holdfast.api.entries import Entry

SEAL: Final = "seal"
"""The field of a payload that has it: `<thread>.<mac>`."""
_MAC_BYTES: Final = 16
_LONGEST: Final = 256


class Origin(StrEnum):
    """What is known of who wrote an entry."""

    HERE = "here"
    """This server, for this very thread."""
    FORK = "fork"
    """This server, for the thread that this one was forked from."""
    UNPROVEN = "unproven"
    """Nobody can say: a client, or a server before there were seals."""


class Seals:
    """Seals entries, and tells sealed ones from others."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, thread: str, entry: Entry) -> Entry:
        """The entry with the seal for that thread, in place of any that it has. ValueError: it is nested too deep."""
        payload = {name: value for name, value in entry.payload.items() if name != SEAL}
        mac = self._mac(thread, entry.id, entry.ts, entry.author_id, payload)
        return replace(entry, payload={**payload, SEAL: f"{thread}.{mac}"})

    def origin(self, thread: str, entry: Mapping[str, Any]) -> Origin:
        """Where an entry comes from that was found on this thread."""
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
            raise ValueError(f"the entry cannot be written: {error}") from None
        mac = hmac.digest(self._key, sealed, hashlib.sha256)[:_MAC_BYTES]
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")
