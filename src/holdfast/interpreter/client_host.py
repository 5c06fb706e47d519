"""The host of an interpreter in a script or a notebook: a running server, by its client.

Where the server is of this machine and the box is local, ports and files of the box are reached without the server:
no byte of an execution goes through it, and executions go on while it is restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

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
from holdfast.interpreter.host import Completion, Given, Record
from holdfast.interpreter.record import Noted, QueuedRecord
from holdfast.providers.host.inotify import FileWatch

if TYPE_CHECKING:
    from holdfast.api.progress import Progress

_TEMPORARY: Final = (Unauthorized, TooManyRequests, DiskFull, ServerFailed, StaleEpoch)
"""Refusals that another attempt may not meet. A server that was started again knows the key no more, until found."""


class NoServer(InterpreterError):
    """There is no server, and none could be started."""

    code = "no_server"


class ClientHost:
    """Owns the records that it opened, and the client where it made that itself. Of one event loop."""

    def __init__(self, client: Client, *, home: Path | None = None, owns_client: bool = False) -> None:
        """`home` is that of the server, where it is of this machine."""
        self.client = client
        self.home = home
        self._owns_client = owns_client
        self._records: list[QueuedRecord] = []
        self._watch: FileWatch | None = None
        """Reports when a process in a `DirectBox` has printed something."""

    @classmethod
    async def default(cls, home: Path | None = None) -> Self:
        """The server of this home, started in the background where none runs. `holdfast down` stops it.

        Read from the environment, as by the command line: `HOLDFAST_URL` and `HOLDFAST_API_KEY` where no home is given,
        else `HOLDFAST_HOME`.
        """
        url = os.environ.get("HOLDFAST_URL")
        if home is None and url:
            return cls.of_url(url, api_key=os.environ.get("HOLDFAST_API_KEY"))
        place = home or default_home(os.environ, sys.platform, Path.home())
        return await cls.of_home(place)

    @classmethod
    def of_url(cls, url: str, *, api_key: str | None = None, retry_seconds: float = DEFAULT_RETRY_SECONDS) -> Self:
        """A server anywhere. Everything goes through it."""
        return cls(Client(url, api_key=api_key, retry_seconds=retry_seconds), owns_client=True)

    @classmethod
    async def of_home(cls, home: Path) -> Self:
        """The server of a home, started in the background where none runs."""
        try:
            running, _ = await asyncio.to_thread(find_or_start, home)
        except ServerNotStarted as error:
            raise NoServer(error.message, hint=error.hint) from None
        client = Client(running.url, api_key=running.api_key, find_again=HomeAddress(home))
        return cls(client, home=home, owns_client=True)

    # --- boxes ---

    async def acquire(self, key: str, spec: BoxSpec, *, fresh: bool = False) -> Given:
        """The box of a key: resumed, restored or made. `fresh`: its old one is deleted first."""
        made = await self.client.boxes.create(spec, key=key, fresh=fresh, replaces=False)
        return Given(self._open(made.box, spec), How(made.how), made.why)

    async def find(self, key: str) -> Box | None:
        """The box of a key as it is, if there is one. Closed by who asked."""
        async for record in self.client.boxes.list(key=key):
            return self.client.boxes.handle(record)
        return None

    async def fork(self, box: Box, key: str, *, idle_seconds: int | None = None) -> Box:
        """Another box with the same files, of that key. With `idle_seconds` it is reaped once it was idle for so
        long."""
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
        """The image of a template, for boxes of that provider. Built first, where there is none of what it says."""
        from holdfast.client.image_build import ServerWorkshop
        from holdfast.interpreter.workspace.templates import Templates

        home = self.home or default_home(os.environ, sys.platform, Path.home())
        templates = Templates.of_home(ServerWorkshop(self.client, provider), home, os.environ)
        return await templates.resolve(template, progress)

    def _open(self, record: BoxRecord, asked: BoxSpec) -> Box:
        # The server does not tell the values of its environment. Who asked for it knows them, for boxes like it.
        box = self.client.boxes.handle(record, env=asked.env)
        if self.home is not None and folder_of(record, self.home) is not None:
            self._watch = self._watch or FileWatch()
            return DirectBox(box, record, self.home, self._watch)
        return box

    # --- its thread, and models ---

    async def record(self, thread: str | None, *, title: str, labels: Mapping[str, str]) -> Record:
        """A thread that is there, or a new one. It is made with the first entry: nobody waits for it."""
        found = _Writing(self.client, thread or new_id("t"), title, labels)
        opened = QueuedRecord(found.id, found.write, found.read, is_final=is_final)
        self._records.append(opened)
        return opened

    async def complete(self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float) -> Completion:
        """Ask a model by its name (`NAME` or `NAME/MODEL`), or the only one there is."""
        try:
            said = await self.client.models.complete(messages, model=model, timeout=timeout)
        except HoldfastError as error:
            raise CompletionFailed(error.message, hint=error.hint) from error
        return Completion(said.text, said.model, said.input_tokens, said.output_tokens, said.cost)

    async def check_model(self, model: str) -> None:
        """Raises `InvalidInterpreter` where there is no such model, or it cannot be asked. Asks it nothing."""
        name, _, id = model.partition("/")
        try:
            found = await self.client.models.get(name)
        except NotFound as error:
            raise InvalidInterpreter(error.message, hint=error.hint or "holdfast model list") from None
        if not found.is_ready:
            raise InvalidInterpreter(f"model {name} has no key", hint=f"holdfast model add {name} --key-stdin < FILE")
        if not id and found.model is None:
            raise InvalidInterpreter(f"{name} has no default model", hint=f"say which: {name}/MODEL")

    async def close(self) -> None:
        """Write what is left of the records. Closing twice does nothing."""
        records, self._records = self._records, []
        await asyncio.gather(*(each.close() for each in records))
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        if self._owns_client:
            await self.client.aclose()


class _Writing:
    """A thread over the wire, as a record needs it."""

    def __init__(self, client: Client, id: str, title: str, labels: Mapping[str, str]) -> None:
        self.id = id
        self._client = client
        self._thread = client.thread(id)
        self._title = title
        self._labels = labels
        self._turn = asyncio.Lock()
        self._is_there = False

    async def write(self, noted: Sequence[Noted]) -> None:
        await self._ensure()
        await self._thread.append_encoded([each.data for each in noted])

    async def read(self, types: Sequence[str]) -> AsyncIterator[Mapping[str, Any]]:
        await self._ensure()
        async for entry in self._thread.entries(types=types):
            yield entry.to_json()

    async def _ensure(self) -> None:
        async with self._turn:
            if not self._is_there:
                with contextlib.suppress(Conflict):  # it is there already
                    await self._client.threads.create(id=self.id, title=self._title, labels=self._labels)
                self._is_there = True


def is_final(error: Exception) -> bool:
    """Whether the server says no, and will say so again."""
    return isinstance(error, Refused) and not isinstance(error, _TEMPORARY)
