"""Puts an imported session onto a new thread, as one run that has ended. The next run rebuilds the session in a box."""

from __future__ import annotations

import asyncio

from holdfast.api.errors import Conflict
from holdfast.api.errors.runs import InvalidRun
from holdfast.api.errors.threads import InvalidEntry
from holdfast.api.ids import new_id
from holdfast.api.run.imports import Imported, NewImport
from holdfast.api.run.info import RunStatus
from holdfast.api.thread.entries import Entry
from holdfast.harnesses.harness import Harness
from holdfast.harnesses.imports import ImportedSession
from holdfast.harnesses.placement import Agents
from holdfast.runs.launch.plan import Options
from holdfast.runs.run_log import RunLog
from holdfast.threads.entries import check_storable
from holdfast.threads.run_events import IMPORT, ThreadRuns, end_id, finished, start_id, started
from holdfast.threads.service import Threads


async def import_session(log: RunLog, threads: Threads, agents: Agents, wanted: NewImport, session: bytes) -> Imported:
    """Create a thread with a session. All its entries are written at once, so there is never a part of it. Raises
    `InvalidRun`, and creates nothing then.
    """
    harness = agents.find(wanted.agent)
    read = await asyncio.to_thread(_read, harness, session)
    try:
        thread = (await threads.create(id=wanted.new_thread, title=wanted.title or read.title)).id
    except Conflict:
        if wanted.new_thread is None:
            raise
        thread = wanted.new_thread  # a retry of this request
    options = Options(harness.agent, None, None, wanted.workspace, source=wanted.source)
    run = new_id("r")

    def compose(epoch: int, runs: ThreadRuns) -> list[Entry]:
        if runs.latest is not None:
            raise AlreadyImported(runs.latest.run, runs.latest.ended_by == IMPORT)
        begin = started(
            run=run,
            epoch=epoch,
            agent=harness.agent,
            model="",
            provider=options.box.provider,
            prompts=(),
            resumes=None,
            options=options.to_json(),
        )
        end = finished(run=run, epoch=epoch, status=RunStatus.COMPLETED, ms=0, by=IMPORT)
        return [
            log.entry(begin, id=start_id(run)),
            *(Entry(f"{run}-0-{number}", ts, payload) for number, (ts, payload) in enumerate(read.entries)),
            log.entry(end, id=end_id(run)),
        ]

    try:
        await log.claim(thread, compose)
    except AlreadyImported as known:
        if not known.imported:
            raise Conflict(f"thread {thread} already has runs: import into a new one") from None
        return Imported(thread=thread, run=known.run, entries=len(read.entries))
    return Imported(thread=thread, run=run, entries=len(read.entries))


def _read(harness: Harness, data: bytes) -> ImportedSession:
    read = harness.read_session(data)
    title = (0, {"type": "title", "title": read.title})
    for number, (ts, payload) in enumerate((title, *read.entries)):
        try:
            check_storable(Entry("-", ts, payload))
        except InvalidEntry as error:
            where = f"entry {number}" if number else "the title"
            raise InvalidRun(f"the session cannot be imported: {where}: {error.message}") from None
    return read


class AlreadyImported(Exception):
    """The thread has a run: of an earlier import, or another one."""

    def __init__(self, run: str, imported: bool) -> None:
        super().__init__(run)
        self.run = run
        self.imported = imported
