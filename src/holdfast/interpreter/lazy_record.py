"""The record of an interpreter, which is opened with its first start: its parts have it from the beginning."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from holdfast.interpreter.host import Host, Record
from holdfast.interpreter.record import THREAD_LABEL


class LazyRecord:
    """Writes nothing until it is open. Branches share the record of the interpreter that they come from."""

    def __init__(self, interpreter: str, thread: str | None) -> None:
        """`thread` is the thread that it is on. Without one, it is named after the interpreter."""
        self._interpreter = interpreter
        self._wanted = thread or f"t-{interpreter}"
        self._record: Record | None = None

    @property
    def thread(self) -> str:
        return self._wanted if self._record is None else self._record.thread

    @property
    def is_open(self) -> bool:
        return self._record is not None

    async def open(self, host: Host) -> None:
        """Opening it again does nothing."""
        if self._record is None:
            title, labels = f"Interpreter {self._interpreter}", {THREAD_LABEL: self._interpreter}
            self._record = await host.record(self._wanted, title=title, labels=labels)

    def note(self, payload: Mapping[str, Any]) -> None:
        if self._record is not None:
            self._record.note(payload)

    async def flush(self) -> None:
        if self._record is not None:
            await self._record.flush()

    async def entries(self, types: Sequence[str] = ()) -> AsyncIterator[Mapping[str, Any]]:
        if self._record is not None:
            async for entry in self._record.entries(types):
                yield entry
