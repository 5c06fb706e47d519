"""The runs of a server: launch, wait for, steer, cancel and resume them: `client.runs`."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

from holdfast.api.ids import new_entry_id, new_id
from holdfast.api.model.budgets import Budget
from holdfast.api.run.imports import Imported, NewImport
from holdfast.api.run.info import RUN_FINISHED, RunInfo
from holdfast.api.run.repositories import ClonedRepository, Source
from holdfast.api.run.runs import (
    Cancel,
    Changes,
    CheckedRun,
    Diagnosis,
    Launched,
    NewRun,
    Resume,
    RunPage,
    Steer,
    Steered,
    WantedRun,
    Workspace,
)
from holdfast.client.connection import ServerConnection
from holdfast.client.host_git import is_configuration, without_credentials
from holdfast.client.resource import LONG_SECONDS, Resource
from holdfast.client.thread.tail import Tail
from holdfast.client.thread.thread import NOW
from holdfast.time_limit import time_limit

_PAGE: Final = 200
_PIECE: Final = 256 * 1024
_MOST_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes of a session that is sent in one request. In JSON it may be several times as long."""
_LONGEST_PAUSE: Final = 2.0


class Runs:
    """All runs of one server: `client.runs`. A run is named by its id, or by its thread, which means its latest run."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._runs = Resource(connection, "/v1/runs")
        self._workspaces = Resource(connection, "/v1/workspaces")
        self._imports = Resource(connection, "/v1/imports")

    async def upload(self, folder: Path, *, leave_out: Callable[[Path], bool] = lambda path: False) -> str:
        """Upload a folder for workspaces to start with. Returns its digest. `leave_out` is called for each path."""
        with tempfile.TemporaryFile() as spool:
            await asyncio.to_thread(_pack, folder, spool, leave_out)

            async def pieces() -> AsyncIterator[bytes]:
                while piece := await asyncio.to_thread(spool.read, _PIECE):
                    yield piece

            return await self.upload_tar(pieces())

    async def upload_tar(self, archive: AsyncIterator[bytes]) -> str:
        """Like `upload`, for files that are already a tar archive."""
        async with self._workspaces.exchange("POST", "", body=archive, silence=LONG_SECONDS) as response:
            return Workspace.from_json(json.loads(await response.aread())).digest

    async def check(
        self,
        *,
        agent: str | None = None,
        model: str | None = None,
        thread: str | None = None,
        box: Mapping[str, Any] | None = None,
        environment: str | None = None,
        environment_file: str | None = None,
        environment_place: str | None = None,
        fallbacks: Sequence[str] = (),
        budget: Budget | None = None,
    ) -> str:
        """Returns the model (`NAME/MODEL`) that a run would use. Raises what `launch` would raise. Starts nothing."""
        wanted = WantedRun(
            agent=agent,
            model=model,
            thread=thread,
            fallbacks=tuple(fallbacks),
            budget=budget,
            environment=environment,
            environment_file=environment_file,
            environment_place=environment_place,
        ).to_request() | _box(box)
        return (await self._runs.ask("POST", "/check", wanted)).read(CheckedRun.from_json).model

    async def launch(
        self,
        prompt: str,
        *,
        agent: str | None = None,
        model: str | None = None,
        thread: str | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        workspace: str | None = None,
        source: Source | None = None,
        box: Mapping[str, Any] | None = None,
        timeout: int | None = None,
        checkpoints: str | None = None,
        delegate: bool = False,
        author_id: str | None = None,
        environment: str | None = None,
        environment_file: str | None = None,
        environment_place: str | None = None,
        repositories: Sequence[ClonedRepository] = (),
        fallbacks: Sequence[str] = (),
        budget: Budget | None = None,
    ) -> Launched:
        """Start a run on an existing thread or a new one. Returns once its prompt is on the server's disk.

        `workspace` is a digest that `upload` returned, and `source` where these files came from. `box` configures the
        box with the fields of the API: provider, image, cpu, memory, disk, pids, network, workdir, idleSeconds. The run
        is ended after `timeout` seconds, even if no client is connected any more. With `delegate`,
        the agent gets tools to delegate tasks to other agents. `fallbacks` are models to use if `model` gives no
        answer, in order. `checkpoints` is `every`, `off`, or `every` with limits: when the files of the box are saved.

        `environment` is `NAME` or `NAME@VERSION`, for the fields that are left out; `environment_file` is the text of a
        `holdfast.toml` instead, and `environment_place` the folder or repository where that is. `repositories` are the
        further repositories of the environment, which the workspace has to have. `agent` is required unless the
        environment names one. Raises `SecretMissing`, `EnvironmentNotAllowed` or
        `EnvironmentIncomplete` if the server lacks what it requires.
        """
        new = NewRun(
            prompt=prompt,
            # With ids chosen here, a retry finds what the first attempt started.
            prompt_id=new_entry_id(),
            agent=agent,
            model=model,
            thread=thread,
            new_thread=new_id("t") if thread is None else None,
            title=title,
            labels=dict(labels or {}),
            workspace=workspace,
            source=source,
            timeout=timeout,
            checkpoints=checkpoints,
            delegate=delegate,
            author_id=author_id,
            environment=environment,
            environment_file=environment_file,
            environment_place=environment_place,
            repositories=tuple(repositories),
            fallbacks=tuple(fallbacks),
            budget=budget,
        )
        answer = await self._runs.ask("POST", "", new.to_request() | _box(box), timeout=LONG_SECONDS)
        return answer.read(Launched.from_json)

    async def import_session(
        self,
        session: str,
        *,
        agent: str,
        title: str | None = None,
        workspace: str | None = None,
        source: Source | None = None,
    ) -> Imported:
        """Create a thread with a session that an agent wrote on this machine. `resume` continues it in a box.

        `session` is the content of the session file; for OpenCode, what `opencode export` prints. With the agent
        `holdfast` it is a thread, as `holdfast export` writes it. A large one is uploaded first.
        """
        data = session.encode("utf-8", "replace")
        is_large = len(data) > _MOST_AT_ONCE
        new = NewImport(
            agent=agent,
            session=None if is_large else session,
            upload=await self.upload_tar(_pieces(data)) if is_large else None,
            new_thread=new_id("t"),
            title=title,
            workspace=workspace,
            source=source,
        )
        answer = await self._imports.ask("POST", "", new.to_request(), timeout=LONG_SECONDS)
        return answer.read(Imported.from_json)

    async def resume(
        self,
        id: str,
        prompt: str | None = None,
        *,
        agent: str | None = None,
        model: str | None = None,
        fresh: bool = False,
        box: Mapping[str, Any] | None = None,
        provider: str | None = None,
        network: Mapping[str, Any] | None = None,
        memory: int | None = None,
        disk: int | None = None,
        timeout: int | None = None,
        checkpoints: str | None = None,
        author_id: str | None = None,
        fallbacks: Sequence[str] = (),
        budget: Budget | None = None,
    ) -> Launched:
        """Continue a thread: as before, or with another agent, in a new box, or with another network or limits.

        With `provider`, its box is moved there first, with the files of its workspace. `memory` and `disk` are in
        bytes. `timeout` is in seconds; 0 means no limit.
        """
        wanted = Resume(
            prompt=prompt,
            prompt_id=None if prompt is None else new_entry_id(),
            agent=agent,
            model=model,
            fresh=fresh,
            provider=provider,
            memory=memory,
            disk=disk,
            timeout=timeout,
            checkpoints=checkpoints,
            author_id=author_id,
            fallbacks=tuple(fallbacks),
            budget=budget,
        )
        given = wanted.to_request() | _box(box) | ({"network": dict(network)} if network else {})
        answer = await self._runs.below(id).ask(
            "POST", "/resume", given, repeatable=prompt is not None, timeout=LONG_SECONDS
        )
        return answer.read(Launched.from_json)

    async def steer(self, id: str, prompt: str, *, interrupt: bool = False, author_id: str | None = None) -> Steered:
        """Send a prompt to a run in progress. It waits for the run to end, or interrupts it. Returns in `how` what
        happened.
        """
        wanted = Steer(prompt=prompt, prompt_id=new_entry_id(), interrupt=interrupt, author_id=author_id)
        return (await self._runs.below(id).ask("POST", "/steer", wanted.to_request())).read(Steered.from_json)

    async def cancel(self, id: str, *, by: str | None = None) -> RunInfo:
        """End a run. A run that has already ended stays as it is."""
        return (await self._runs.below(id).ask("POST", "/cancel", Cancel(by=by).to_request())).read(RunInfo.from_json)

    async def get(self, id: str) -> RunInfo:
        return (await self._runs.below(id).ask("GET")).read(RunInfo.from_json)

    async def wait(self, id: str) -> RunInfo:
        """Wait until a run has ended, and return it. To watch it work, follow its thread."""
        run = await self.get(id)
        if not run.live:
            return run
        async with Tail(self._connection, f"/v1/stream/threads/{quote(run.thread, safe='')}", since=NOW) as tail:
            while (run := await self.get(run.id)).live:
                # The thread reports the end at once. Asking now and then makes the server check on the run.
                with suppress(TimeoutError):
                    async with time_limit(_LONGEST_PAUSE):
                        await _end_of(run.id, tail)
        return run

    async def diagnose(self, id: str) -> Diagnosis:
        """Returns how far a run got, what is wrong with it, and what to do."""
        return (await self._runs.below(id).ask("GET", "/diagnose")).read(Diagnosis.from_json)

    async def changes(self, id: str) -> Changes:
        """Compare the workspace of a thread with its initial state."""
        return (await self._runs.below(id).ask("GET", "/diff", timeout=LONG_SECONDS)).read(Changes.from_json)

    async def patch(self, id: str) -> AsyncIterator[bytes]:
        """Yields a patch for `git apply` that turns the initial workspace into the current one."""
        async with self._runs.below(id).exchange("GET", "/patch", silence=LONG_SECONDS) as response:
            async for piece in response.aiter_bytes():
                yield piece

    async def changed_files(self, id: str) -> AsyncIterator[bytes]:
        """Yields a tar archive with both versions of every changed file: `holdfast.repositories.changes` reads it."""
        async with self._runs.below(id).exchange("GET", "/changed-files", silence=LONG_SECONDS) as response:
            async for piece in response.aiter_bytes():
                yield piece

    async def page(
        self,
        *,
        thread: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> RunPage:
        """Returns up to `limit` runs (200 at most) and the cursor of the next page."""
        wanted = {"thread": thread, "status": status, "agent": agent, "cursor": cursor, "limit": str(limit)}
        parameters = [(name, value) for name, value in wanted.items() if value is not None]
        return (await self._runs.ask("GET", parameters=parameters)).read(RunPage.from_json)

    async def list(
        self,
        *,
        thread: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[RunInfo]:
        """Yields matching runs, newest first, at most `limit`."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = await self.page(thread=thread, status=status, agent=agent, cursor=cursor, limit=size)
            for each in page.runs:
                yield each
            left = None if left is None else left - len(page.runs)
            cursor = page.next_cursor
            if cursor is None:
                return


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


async def _end_of(run: str, tail: Tail) -> None:
    """Wait until the thread reports the end of a run."""
    async for entry in tail:
        if entry.type == RUN_FINISHED and entry.payload.get("run") == run:
            return


def _box(box: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the `box` field of a request."""
    return {"box": dict(box)} if box else {}


def _pack(folder: Path, spool: IO[bytes], leave_out: Callable[[Path], bool]) -> None:
    """Pack links as links, and leave out credentials in git configurations."""
    with tarfile.open(fileobj=spool, mode="w") as archive:
        _add(archive, folder.resolve(), Path(), leave_out)
    spool.seek(0)


def _add(archive: tarfile.TarFile, folder: Path, name: Path, leave_out: Callable[[Path], bool]) -> None:
    path = folder / name
    member = archive.gettarinfo(path, str(name))
    if member is None or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return  # sockets, pipes and devices are not project files
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.issym() or member.isdir():
        archive.addfile(member)
    else:
        # Pack a hard link by content, because its other name may be left out.
        member.type, member.linkname = tarfile.REGTYPE, ""
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if is_configuration(name.as_posix()):
                content = without_credentials(file.read())
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.size = os.fstat(file.fileno()).st_size
                archive.addfile(member, file)
    if member.isdir():
        for each in sorted(path.iterdir()):
            inner = name / each.name
            if not leave_out(inner):
                _add(archive, folder, inner, leave_out)
