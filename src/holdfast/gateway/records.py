"""Reads and writes what threads say about the gateways of their sessions."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.gateway.record import PREFIX, GatewayRecord, fold, without_expired
from holdfast.threads.access.seals import Seals
from holdfast.threads.sealed_records import SealedRecords
from holdfast.threads.store import StreamStore


class Records(SealedRecords[GatewayRecord]):
    """The states of the gateways of sessions, by thread."""

    def __init__(self, store: StreamStore, seals: Seals, clock: Callable[[], int]) -> None:
        super().__init__(
            store,
            seals,
            clock,
            prefix=PREFIX,
            begin=lambda life: GatewayRecord(life=life),
            fold=lambda record, entry: fold(record, entry["payload"]),
            tidy=lambda record, now: without_expired(record, now / 1000),
        )
