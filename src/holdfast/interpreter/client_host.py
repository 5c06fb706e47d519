"""The host of an interpreter in a script or a notebook: a server, through its client.

If the server and the box are on this machine, ports and files of the box are reached directly. Executions then do not
pass through the server, and continue while it restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from holdfast.api.access.keys import Caller
from holdfast.api.box.box import Box
from holdfast.api.box.records import BoxRecord
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors import NotFound, TooManyRequests, Unauthorized
from holdfast.api.errors.boxes import VolumeExists
from holdfast.api.errors.interpreters import CompletionFailed, InterpreterError, InvalidInterpreter
from holdfast.api.ids import new_id
from holdfast.boxes.service.acquire_rules import How
from holdfast.client import Client, Conflict, DiskFull, HoldfastError, Refused, ServerFailed, StaleEpoch
from holdfast.client.connection import DEFAULT_RETRY_SECONDS
from holdfast.client.local_server import HomeAddress, ServerNotStarted, default_home, find_or_start
from holdfast.interpreter.direct_box import DirectBox, folder_of
from holdfast.interpreter.host import AcquiredBox, Completion, Record
from holdfast.interpreter.record import PendingEntry, QueuedRecord
from holdfast.providers.host.inotify import FileWatch

if TYPE_CHECKING:
    from holdfast.api.progress import Progress

_TEMPORARY: Final = (Unauthorized, TooManyRequests, DiskFull, ServerFailed, StaleEpoch)
"""Refusals after which a retry may succeed. A restarted server has another key until the client finds it again."""


class NoServer(InterpreterError):
    """No server is running, and none could be started."""

    code = "no_server"


class ClientHost:
    """Owns the records that it opened, and the client if it created it. Belongs to one event loop."""

    def __init__(self, client: Client, *, home: Path | None = None, owns_client: bool = False) -> None:
        """`home` is the home of the server, if the server is on this machine."""
        self.client = client
        self.home = home
        self._owns_client = owns_client
        self._records: list[QueuedRecord] = []
        self._watch: FileWatch | None = None
        """Reports when a process in a `DirectBox` has printed something."""

    @classmethod
    async def default(cls, home: Path | None = None) -> Self:
        """Connect to the server of a home, and start it in the background if it is not running. `holdfast down` stops
        it.

        Without `home`, the environment decides, as for the command line: `HOLDFAST_URL` with `HOLDFAST_API_KEY`, or
        else `HOLDFAST_HOME`.
        """
        url = os.environ.get("HOLDFAST_URL")
        if home is None and url:
            return cls.of_url(url, api_key=os.environ.get("HOLDFAST_API_KEY"))
        place = home or default_home(os.environ, sys.platform, Path.home())
        return await cls.of_home(place)

    @classmethod
    def of_url(cls, url: str, *, api_key: str | None = None, retry_seconds: float = DEFAULT_RETRY_SECONDS) -> Self:
        """Connect to a server on any machine. Everything passes through it."""
        return cls(Client(url, api_key=api_key, retry_seconds=retry_seconds), owns_client=True)

    @classmethod
    async def of_home(cls, home: Path) -> Self:
        """Connect to the server of a home, and start it in the background if it is not running."""
        try:
            running, _ = await asyncio.to_thread(find_or_start, home)
        except ServerNotStarted as error:
            raise NoServer(error.message, hint=error.hint) from None
        client = Client(running.url, api_key=running.api_key, find_again=HomeAddress(home))
        return cls(client, home=home, owns_client=True)

    # --- boxes ---

    async def acquire(self, key: str, spec: BoxSpec, *, fresh: bool = False) -> AcquiredBox:
        made = await self.client.boxes.create(spec, key=key, fresh=fresh, replaces=False)
        return AcquiredBox(self._open(made.box, spec), How(made.how), made.why)

    async def find(self, key: str) -> Box | None:
        async for record in self.client.boxes.list(key=key):
            return self.client.boxes.handle(record)
        return None

    async def fork(self, box: Box, key: str, *, idle_seconds: int | None = None) -> Box:
        forked = await self.client.boxes.fork(box.id, key=key, idle_seconds=idle_seconds)
        return self._open(forked, box.spec)

    async def delete(self, box: Box) -> None:
        await self.client.boxes.delete(box.id)

    async def ensure_volume(self, name: str, provider: str) -> None:
        try:
            await self.client.boxes.volumes.create(name, provider=provider)
        except VolumeExists:
            return

    async def image_of(self, template: str, provider: str, progress: Progress | None = None) -> str:
        from holdfast.client.image_build import ServerBuildHost
        from holdfast.interpreter.workspace.templates import Templates

        home = self.home or default_home(os.environ, sys.platform, Path.home())
        templates = Templates.of_home(ServerBuildHost(self.client, provider), home, os.environ)
        return await templates.resolve(template, progress)

    def _open(self, record: BoxRecord, spec: BoxSpec) -> Box:
        # The server does not return the values of environment variables; the spec of the caller has them.
        box = self.client.boxes.handle(record, env=spec.env)
        if self.home is not None and folder_of(record, self.home) is not None:
            self._watch = self._watch or FileWatch()
            return DirectBox(box, record, self.home, self._watch)
        return box

    # --- the thread, and models ---

    async def record(self, thread: str | None, *, title: str, labels: Mapping[str, str]) -> Record:
        """Open a thread, or create it. It is created with the first entry, so that no caller waits for it."""
        found = _RemoteThread(self.client, thread or new_id("t"), title, labels)
        opened = QueuedRecord(found.id, found.write, found.read, is_final=is_final)
        self._records.append(opened)
        return opened

    async def complete(self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float) -> Completion:
        try:
            answer = await self.client.models.complete(messages, model=model, timeout=timeout)
        except HoldfastError as error:
            raise CompletionFailed(error.message, hint=error.hint) from error
        return Completion(answer.text, answer.model, answer.input_tokens, answer.output_tokens, answer.cost)

    async def check_model(self, model: str) -> None:
        name, _, id = model.partition("/")
        try:
            found = await self.client.models.get(name)
        except NotFound as error:
            raise InvalidInterpreter(error.message, hint=error.hint or "holdfast model list") from None
        if not found.is_ready:
            raise InvalidInterpreter(f"model {name} has no key", hint=f"holdfast model add {name} --key-stdin < FILE")
        if not id and found.model is None:
            raise InvalidInterpreter(f"{name} has no default model", hint=f"name one: {name}/MODEL")

    async def caller(self) -> Caller:
        return await self.client.keys.caller()

    async def close(self) -> None:
        """Write what the records have queued, and close. Closing twice does nothing."""
        records, self._records = self._records, []
        await asyncio.gather(*(each.close() for each in records))
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        if self._owns_client:
            await self.client.aclose()


class _RemoteThread:
    """Writes and reads a thread through the client."""

    def __init__(self, client: Client, id: str, title: str, labels: Mapping[str, str]) -> None:
        self.id = id
        self._client = client
        self._thread = client.thread(id)
        self._title = title
        self._labels = labels
        self._creating = asyncio.Lock()
        self._exists = False

    async def write(self, entries: Sequence[PendingEntry]) -> None:
        await self._ensure()
        await self._thread.append_encoded([each.data for each in entries])

    async def read(self, types: Sequence[str]) -> AsyncIterator[Mapping[str, Any]]:
        await self._ensure()
        async for entry in self._thread.entries(types=types):
            yield entry.to_json()

    async def _ensure(self) -> None:
        async with self._creating:
            if not self._exists:
                with contextlib.suppress(Conflict):  # it exists already
                    await self._client.threads.create(id=self.id, title=self._title, labels=self._labels)
                self._exists = True


def is_final(error: Exception) -> bool:
    """Returns whether the server refused the request, and would refuse it again."""
    return isinstance(error, Refused) and not isinstance(error, _TEMPORARY)
