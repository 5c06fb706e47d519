"""The secrets of a server. They are decrypted late, one by one, and only here."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Final, Protocol, Self

from holdfast.api.errors import Refused
from holdfast.api.errors.secrets import InvalidSecret, SecretMissing, SecretNotFound
from holdfast.api.ids import now_ms
from holdfast.api.secrets import MOST_SECRETS, Binding, Exposure, SecretAction, SecretEvent, SecretRecord
from holdfast.boxes.shielded import to_the_end
from holdfast.encryption import CannotDecrypt, Cipher
from holdfast.environments.secrets.checks import check_bindings, check_name, check_value
from holdfast.environments.secrets.rows import NamedSecretStore, SecretRow

_MOST_PENDING: Final = 1000
"""Events that wait to be written. Further ones are dropped, with a log message."""
_MOST_SEEN: Final = 100_000
_BATCH: Final = 100

log = logging.getLogger(__name__)


class SecretNames(Protocol):
    """What can be asked about secrets without seeing one."""

    def exists(self, name: str) -> bool: ...

    def missing(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns those names that there is no secret for, in their order."""
        ...


class Secrets:
    """All secrets, in a store and in memory. `async with` loads them, and writes pending events at the end.

    Values are encrypted in both. One is decrypted only while a request or a new process needs it.
    """

    def __init__(self, store: NamedSecretStore, secret: bytes, *, clock: Callable[[], int] = now_ms) -> None:
        """`secret` has 32 bytes and is used only for this."""
        self._store = store
        self._cipher = Cipher(secret)
        self._clock = clock
        self._rows: dict[str, SecretRow] = {}
        self._records: dict[str, SecretRecord] = {}
        self._changing = asyncio.Lock()
        self._seen: set[tuple[object, ...]] = set()
        self._pending: deque[tuple[str, SecretEvent]] = deque()
        self._arrived = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        for row in await self._store.load_all():
            self._keep(row)
        self._writer = asyncio.create_task(self._write_events(), name="events of secrets")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does not close the store, which its owner closes."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await self._flush()

    # --- looking ---

    def all(self) -> list[SecretRecord]:
        return sorted(self._records.values(), key=lambda each: each.name)

    def exists(self, name: str) -> bool:
        return name in self._rows

    def missing(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in dict.fromkeys(names) if name not in self._rows)

    def find(self, name: str) -> SecretRecord | None:
        return self._records.get(name)

    def get(self, name: str) -> SecretRecord:
        """Raises `SecretNotFound`."""
        found = self._records.get(name)
        if found is None:
            raise SecretNotFound(f"there is no secret {name[:80]!r}", hint="list them with holdfast secret list")
        return found

    def reveal(self, name: str) -> str:
        """Returns the value of a secret. Raises `SecretMissing`. Nothing else returns values."""
        row = self._rows.get(name)
        hint = f"give it: holdfast secret set {name}"
        if row is None:
            raise SecretMissing(f"there is no secret {name[:80]!r}", hint=hint)
        try:
            return self._cipher.decrypt(row.value, row.purpose)
        except CannotDecrypt as error:
            raise SecretMissing(f"the secret {name} cannot be read: {error}", hint=hint) from None

    async def events(self, name: str, limit: int = 100) -> list[SecretEvent]:
        """Returns what happened to a secret, newest first, also if it was removed. Raises `SecretNotFound`."""
        await self._flush()
        found = await self._store.events(name, limit)
        if not found:
            self.get(name)
        return found

    # --- changing ---

    async def set(
        self,
        name: str,
        value: str,
        bindings: Iterable[Binding] = (),
        *,
        expose: Exposure | None = None,
        placeholder: str | None = None,
        by: str,
    ) -> SecretRecord:
        """Store a secret in place of the one of that name. The earlier value is gone. Raises `InvalidSecret`."""
        bound = check_bindings(check_name(name), bindings, expose)
        check_value(name, value, bound, expose)
        shown = check_placeholder(placeholder, value) if placeholder else f"holdfast-placeholder-{name}"
        async with self._changing:
            before = self._rows.get(name)
            if before is None and len(self._rows) >= MOST_SECRETS:
                raise InvalidSecret(
                    f"there are {MOST_SECRETS} secrets already", hint="remove those that are not needed"
                )
            now = self._clock()
            row = SecretRow(
                name=name,
                bindings=json.dumps([each.to_json() for each in bound]),
                expose=None if expose is None else expose.value,
                placeholder=shown,
                version=1 if before is None else before.version + 1,
                created_at=now if before is None else before.created_at,
                changed_at=now,
                changed_by=by,
                value=b"",
            )
            return await self._put(row, value, SecretAction.SET, by)

    async def rotate(self, name: str, value: str, *, by: str) -> SecretRecord:
        """Give a secret a new value. Its bindings stay. Raises `SecretNotFound` or `InvalidSecret`."""
        async with self._changing:
            record, before = self.get(name), self._rows[name]
            check_value(name, value, record.bindings, record.expose)
            row = SecretRow(
                name=name,
                bindings=before.bindings,
                expose=before.expose,
                placeholder=before.placeholder,
                version=before.version + 1,
                created_at=before.created_at,
                changed_at=self._clock(),
                changed_by=by,
                value=b"",
            )
            return await self._put(row, value, SecretAction.ROTATED, by)

    async def remove(self, name: str, *, by: str) -> None:
        """Remove a secret. Boxes can no longer use it. Raises `SecretNotFound`."""
        async with self._changing:
            record = self.get(name)
            event = SecretEvent(at=self._clock(), action=SecretAction.REMOVED, version=record.version, by=by)
            await self._store.remove(name, event)
            self._rows.pop(name, None)
            self._records.pop(name, None)

    async def _put(self, row: SecretRow, value: str, action: SecretAction, by: str) -> SecretRecord:
        sealed = replace(row, value=self._cipher.encrypt(value, row.purpose))
        await self._store.put(sealed, SecretEvent(at=row.changed_at, action=action, version=row.version, by=by))
        return self._keep(sealed)

    def _keep(self, row: SecretRow) -> SecretRecord:
        self._rows[row.name] = row
        self._records[row.name] = record = row.record
        return record

    # --- what boxes did ---

    def note(
        self, name: str, action: SecretAction, *, box: str, thread: str | None = None, host: str = "", detail: str = ""
    ) -> None:
        """Record what a box did with a secret. The same thing is recorded once while the server runs. Never blocks."""
        record = self._records.get(name)
        version = 0 if record is None else record.version
        same = (name, action, version, box, host, detail)
        if same in self._seen:
            return
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(same)
        event = SecretEvent(
            at=self._clock(), action=action, version=version, box=box, thread=thread or "", host=host, detail=detail
        )
        if len(self._pending) >= _MOST_PENDING:
            log.warning("too many events of secrets at once: %s of %s by box %s is not recorded", action, name, box)
            return
        self._pending.append((name, event))
        self._arrived.set()

    async def _write_events(self) -> None:
        while True:
            await self._arrived.wait()
            await self._flush()

    async def _flush(self) -> None:
        """Write what was noted so far, in its order. What another call is writing is written when this returns."""
        async with self._flushing:
            self._arrived.clear()
            while self._pending:
                batch = [self._pending.popleft() for _ in range(min(len(self._pending), _BATCH))]
                await to_the_end(self._write(batch))

    async def _write(self, events: list[tuple[str, SecretEvent]]) -> None:
        try:
            await self._store.add_events(events)
        except (Refused, OSError) as problem:
            log.error("cannot write %d events of secrets: %s", len(events), problem)


def check_placeholder(text: str, value: str) -> str:
    """Raises `InvalidSecret` for a placeholder that shows the value, or that a variable cannot have."""
    if not text.isascii() or not text.isprintable() or len(text) > 300:
        raise InvalidSecret(f"{text[:80]!r} is not a placeholder", hint="use up to 300 visible ASCII characters")
    if value in text or text in value:
        raise InvalidSecret("the placeholder must not be part of the value, or contain it", hint="make one up")
    return text
