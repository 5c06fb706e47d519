"""Which messages a stream already has, by deduplication key: those in memory, and those in the table of keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple

from holdfast.storage.sqlite.streams.reader import Reader
from holdfast.storage.sqlite.streams.record import StreamRecord
from holdfast.threads.store import MAX_SAFE_INTEGER, Keyed

_LOOK_UPS: Final = 3
"""How often keys are looked up again if some were filed in the meantime, before falling back to single look-ups."""

Filed = tuple[tuple[int, int | None], ...]
"""A stream and its ancestors, each with the position up to which it is filed, or None if it is not in memory."""


class LookedUp(NamedTuple):
    """The keys found in the table. Valid until more of the stream is filed."""

    keys: frozenset[str]
    filed: Filed


class MessageKeys:
    """Decides which messages of an append are new. The store owns it and uses it on its event loop."""

    def __init__(self, lookup: sqlite3.Connection, reader: Reader, records: Mapping[int, StreamRecord]) -> None:
        self._lookup = lookup
        self._reader = reader
        self._records = records

    async def look_up(self, record: StreamRecord, keyed: Sequence[Keyed]) -> LookedUp:
        """Look keys up in the table off the event loop, before the append is decided."""
        looked_up = await self._look_up_once(record, keyed)
        for _ in range(_LOOK_UPS - 1):
            if looked_up.filed == self._filed(record):
                break
            looked_up = await self._look_up_once(record, keyed)
        return looked_up

    async def _look_up_once(self, record: StreamRecord, keyed: Sequence[Keyed]) -> LookedUp:
        filed, greatest = self._filed(record), self._greatest(record)
        keys = [key for key, _, fresh in keyed if not fresh and key <= greatest]
        found: set[str] = set()
        if keys:
            high = MAX_SAFE_INTEGER
            for stream, begins in record.lineage:
                found.update(await self._reader.find_keys(stream, keys, up_to=high))
                high = min(high, begins)
        return LookedUp(frozenset(found), filed)

    def unseen(
        self, record: StreamRecord, keyed: Sequence[Keyed], looked_up: LookedUp | None = None
    ) -> tuple[bytes, list[tuple[str, int]]]:
        """Returns the messages that the stream does not have yet, and where each will end."""
        if looked_up is not None and looked_up.filed != self._filed(record):
            looked_up = None
        if looked_up is not None and self._are_new(record, keyed, looked_up):
            ends = accumulate((len(each.data) for each in keyed), initial=record.tail)
            keys = list(zip((each.key for each in keyed), islice(ends, 1, None), strict=True))
            return b"".join([each.data for each in keyed]), keys
        if len(keyed) == 1:
            return self._unseen_one(record, keyed[0], looked_up)
        end = record.tail
        taken: set[str] = set()
        pieces, keys = [], []
        for key, data, fresh in keyed:
            if not fresh and (key in taken or key in record.keys or self._has(record, key, looked_up)):
                continue
            taken.add(key)
            end += len(data)
            pieces.append(data)
            keys.append((key, end))
        return b"".join(pieces), keys

    def _unseen_one(
        self, record: StreamRecord, message: Keyed, looked_up: LookedUp | None
    ) -> tuple[bytes, list[tuple[str, int]]]:
        key, data, fresh = message
        if not fresh and (key in record.keys or self._has(record, key, looked_up)):
            return b"", []
        return data, [(key, record.tail + len(data))]

    def _are_new(self, record: StreamRecord, keyed: Sequence[Keyed], looked_up: LookedUp) -> bool:
        """Returns whether all of these keys are new. The fastest check for many messages."""
        names = {each.key for each in keyed}
        if len(names) < len(keyed) or not record.keys.isdisjoint(names) or not looked_up.keys.isdisjoint(names):
            return False
        owners = (self._records.get(stream) for stream, _ in record.lineage)
        return all(owner is None or owner.unfiled.keys.keys().isdisjoint(names) for owner in owners)

    def _has(self, record: StreamRecord, key: str, looked_up: LookedUp | None) -> bool:
        """Returns whether the stream has a durable message with this key.

        Most keys are derived from the time, so a new one is greater than all before it and needs no look-up.
        """
        if key > self._greatest(record):
            return False
        if looked_up is not None and key in looked_up.keys:
            return True
        high = record.tail
        for stream, begins in record.lineage:
            owner = self._records.get(stream)
            end = None if owner is None else owner.unfiled.keys.get(key)
            if end is None and looked_up is None:
                row = self._lookup.execute(
                    'SELECT "end" FROM message_keys WHERE stream = ? AND key = ?', (stream, key)
                ).fetchone()
                end = None if row is None else row[0]
            if end is not None and end <= high:
                return True
            high = min(high, begins)
        return False

    def _greatest(self, record: StreamRecord) -> str:
        """Returns the greatest key of the stream and its ancestors, or an empty string if they have none."""
        if record.greatest_key is not None:
            return record.greatest_key
        greatest = max(record.keys, default="")
        for stream, _ in record.lineage:
            owner = self._records.get(stream)
            unfiled = "" if owner is None else max(owner.unfiled.keys, default="")
            ((filed,),) = self._lookup.execute("SELECT max(key) FROM message_keys WHERE stream = ?", (stream,))
            greatest = max(greatest, unfiled, filed or "")
        record.greatest_key = greatest
        return greatest

    def _filed(self, record: StreamRecord) -> Filed:
        owners = ((stream, self._records.get(stream)) for stream, _ in record.lineage)
        return tuple((stream, None if owner is None else owner.unfiled.start) for stream, owner in owners)
