"""The host of an interpreter in the server: gives it boxes, a thread and models, in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.access.keys import Caller
from holdfast.api.box.box import Box
from holdfast.api.box.network import Network
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors import Conflict, DiskFull, NotFound, Refused, Unavailable
from holdfast.api.errors.boxes import VolumeExists
from holdfast.api.errors.interpreters import CompletionFailed, InvalidInterpreter
from holdfast.boxes.rows import BoxFilter
from holdfast.egress.models import ModelError, ask
from holdfast.interpreter.host import AcquiredBox, Completion, Record
from holdfast.interpreter.record import PendingEntry, QueuedRecord
from holdfast.threads.access.credentials import DEFAULT_USER
from holdfast.threads.protocol.framing import SEPARATOR
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.store import AppendRequest, Keyed

if TYPE_CHECKING:
    from holdfast.api.progress import Progress
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.egress.models import ModelGateway, Models
    from holdfast.server.interpreter.template_builder import NetworkReady, ServerTemplates
    from holdfast.threads.service import Threads
    from holdfast.threads.store import StreamStore

_PAGE: Final = 1000


class ServerHost:
    """Owns the records that it opened."""

    def __init__(
        self,
        boxes: Boxes,
        network_ready: NetworkReady,
        store: StreamStore,
        threads: Threads,
        models: Models,
        gateway: ModelGateway,
        templates: ServerTemplates,
    ) -> None:
        self._boxes = boxes
        self._network_ready = network_ready
        self._gateway = gateway
        self._templates = templates
        self._store = store
        self._threads = threads
        self._models = models
        self._records: list[QueuedRecord] = []

    # --- boxes ---

    async def acquire(self, key: str, spec: BoxSpec, *, fresh: bool = False) -> AcquiredBox:
        """Acquire the box of a key: resume, restore or create it. `fresh` deletes the old one first."""
        if spec.network.mode is not Network.NONE:
            await self._network_ready()
        acquired = await self._boxes.acquire(key, spec, fresh=fresh, replaces=False)
        return AcquiredBox(await self._boxes.open(acquired.row.id), acquired.how, acquired.why)

    async def find(self, key: str) -> Box | None:
        """The existing box of a key, or None. The caller closes it."""
        for row in (await self._boxes.list(BoxFilter(key=key))).rows:
            return await self._boxes.open(row.id)
        return None

    async def fork(self, box: Box, key: str, *, idle_seconds: int | None = None) -> Box:
        """Create another box with the same files and this key. With `idle_seconds` it is deleted after
        that idle time."""
        return await self._boxes.open((await self._boxes.fork(box.id, key=key, idle_seconds=idle_seconds)).id)

    async def delete(self, box: Box) -> None:
        await self._boxes.delete(box.id)

    async def ensure_volume(self, name: str, provider: str) -> None:
        try:
            await self._boxes.create_volume(name, provider)
        except VolumeExists:
            return

    async def image_of(self, template: str, provider: str, progress: Progress | None = None) -> str:
        """The image of a template for a provider. Built first if it is missing or out of date."""
        return await self._templates.resolve(template, provider, progress)

    # --- thread and models ---

    async def record(self, thread: str | None, *, title: str, labels: Mapping[str, str]) -> Record:
        """Open the record on an existing or a new thread."""
        id = await self._thread(thread, title, labels)
        written = _Written(self._store, self._threads, id)
        opened = QueuedRecord(id, written.write, written.read, is_final=is_final)
        self._records.append(opened)
        return opened

    async def complete(self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float) -> Completion:
        """Ask a model by name (`NAME` or `NAME/MODEL`), or the only model."""
        try:
            choice = self._models.resolve(model)
            completion = await ask(self._gateway, choice, messages, run="interpreter", timeout=timeout)
        except ModelError as error:
            raise CompletionFailed(error.message, hint=error.hint) from error
        return Completion(
            completion.text, str(choice), completion.input_tokens, completion.output_tokens, completion.cost
        )

    async def check_model(self, model: str) -> None:
        """Raise `InvalidInterpreter` if there is no such model or it is not ready. Sends no request."""
        try:
            self._models.resolve(model)
        except ModelError as error:
            raise InvalidInterpreter(error.message, hint=error.hint) from None

    async def caller(self) -> Caller:
        """The server itself. Interpreters of a request are given the caller of that request."""
        return Caller(tenant=self._boxes.tenant, user=DEFAULT_USER)

    async def close(self) -> None:
        """Write the rest of the records. Closing twice does nothing."""
        records, self._records = self._records, []
        await asyncio.gather(*(each.close() for each in records))

    async def _thread(self, id: str | None, title: str, labels: Mapping[str, str]) -> str:
        if id is not None:
            try:
                return (await self._threads.get(id)).id
            except NotFound:
                pass
        try:
            return (await self._threads.create(id=id, title=title, labels=dict(labels))).id
        except Conflict:
            if id is None:
                raise
            return id  # another request created it first


class _Written:
    """Reads and writes a thread for a record."""

    def __init__(self, store: StreamStore, threads: Threads, thread: str) -> None:
        self._store = store
        self._threads = threads
        self._thread = thread

    async def write(self, entries: Sequence[PendingEntry]) -> None:
        keyed = tuple(Keyed(each.id, each.data + SEPARATOR) for each in entries)
        await self._store.append(THREADS + self._thread, AppendRequest(keyed=keyed))

    async def read(self, types: Sequence[str]) -> AsyncIterator[Mapping[str, Any]]:
        since, is_whole = 0, False
        while not is_whole:
            page = await self._threads.entries(self._thread, types=tuple(types), since=since, limit=_PAGE)
            for entry in page.entries:
                yield entry
            since, is_whole = page.position, page.up_to_date


def is_final(error: Exception) -> bool:
    """Returns whether another attempt to write would be refused too."""
    return isinstance(error, Refused) and not isinstance(error, Unavailable | DiskFull)
