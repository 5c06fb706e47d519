"""Puts an exported thread onto a new thread, whole, at once. The next run continues it in a box.

What was said and done is there again: prompts, and all entries of the agents. The starts and ends of its runs are
written anew, with the seal of this server, because the server acts on them; nothing else that only another server
could know is believed. So a file can claim any history, as a session file can, but names no box, no files, no options
and no prompt to launch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.api.errors import Conflict
from holdfast.api.errors.runs import InvalidRun
from holdfast.api.ids import new_id
from holdfast.api.run.imports import Imported, NewImport
from holdfast.api.run.info import RunStatus
from holdfast.api.thread.entries import Entry
from holdfast.exports.thread_file import ThreadFile, read_thread_file
from holdfast.harnesses.placement import Agents
from holdfast.runs.launch.plan import Options
from holdfast.runs.run_log import RunLog
from holdfast.runs.session_import import AlreadyImported
from holdfast.threads.run_events import (
    ENDED,
    FINISHED,
    IMPORT,
    STARTED,
    ThreadRuns,
    end_id,
    finished,
    start_id,
    started,
)
from holdfast.threads.service import Threads

IMPORTED: Final = "signal.thread.imported"
_MOST_PROMPTS: Final = 100
_MOST_MS: Final = 10**12
_MOST_TEXT: Final = 4096


async def import_thread(log: RunLog, threads: Threads, agents: Agents, wanted: NewImport, session: bytes) -> Imported:
    """Create a thread with the entries of an exported one. Raises `InvalidRun`, and creates nothing then."""
    now = log.clock()
    file = await asyncio.to_thread(read_thread_file, session, now)
    check_agents(file, agents)
    title = wanted.title or file.title
    try:
        thread = (await threads.create(id=wanted.new_thread, title=title)).id
    except Conflict:
        if wanted.new_thread is None:
            raise
        thread = wanted.new_thread  # a retry of this request

    def compose(epoch: int, runs: ThreadRuns) -> list[Entry]:
        if runs.latest is not None:
            raise AlreadyImported(runs.latest.run, runs.latest.ended_by == IMPORT)
        return compose_entries(file, wanted, epoch, now, lambda: new_id("r"))

    try:
        await log.claim(thread, compose)
    except AlreadyImported as known:
        if not known.imported:
            raise Conflict(f"thread {thread} already has runs: import into a new one") from None
    run = (await log.runs(thread)).latest
    assert run is not None
    return Imported(thread=thread, run=run.run, entries=len(file.entries))


def check_agents(file: ThreadFile, agents: Agents) -> None:
    """Raises `InvalidRun` if there is no run to continue, or one of an agent that is not a name alone."""
    names = {entry.payload.get("agent") for entry in file.entries if entry.type == STARTED}
    if not names:
        raise InvalidRun("the exported thread has no run of an agent: there is nothing to continue")
    for name in names:
        if not isinstance(name, str) or ":" in name:
            raise InvalidRun(
                f"the exported thread has a run of {str(name)[:80]!r}, which names a command: it cannot be imported"
            )
        agents.find(name)


def compose_entries(
    file: ThreadFile, wanted: NewImport, epoch: int, now: int, new_run: Callable[[], str]
) -> list[Entry]:
    """Returns the entries of the new thread. Pure, but for the ids of runs. Each run that starts also ends."""
    origin = {"from": file.thread, "entries": len(file.entries), "rewound": file.rewound}
    made = [Entry(f"imported-{new_run()}", now, {"type": IMPORTED, **origin})]
    run = ""

    def end(ts: int, payload: Mapping[str, Any]) -> Entry:
        status = payload.get("status")
        ms = payload.get("ms")
        error = payload.get("error")
        told = finished(
            run=run,
            epoch=epoch,
            status=RunStatus(status) if status in [each.value for each in ENDED] else RunStatus.ORPHANED,
            ms=ms if type(ms) is int and 0 <= ms <= _MOST_MS else 0,
            by=IMPORT,
            error=_texts(error) if isinstance(error, dict) else None,
        )
        usage = payload.get("usage")
        return Entry(end_id(run), ts, told if not isinstance(usage, dict) else {**told, "usage": usage})

    for entry in file.entries:
        if entry.type == STARTED:
            if run:
                made.append(end(entry.ts, {}))
            run = new_run()
            made.append(_start(run, entry, wanted, epoch))
        elif entry.type == FINISHED:
            if run:
                made.append(end(entry.ts, entry.payload))
            run = ""
        else:
            made.append(entry)
    if run:
        made.append(end(now, {}))
    return made


def _start(run: str, entry: Entry, wanted: NewImport, epoch: int) -> Entry:
    agent = str(entry.payload["agent"])
    prompts = entry.payload.get("prompts")
    options = Options(agent, None, None, wanted.workspace, source=wanted.source)
    payload = started(
        run=run,
        epoch=epoch,
        agent=agent,
        model="",  # those of another server have other names
        provider=options.box.provider,
        prompts=tuple(each for each in prompts if isinstance(each, str))[:_MOST_PROMPTS]
        if isinstance(prompts, list)
        else (),
        resumes=None,
        options=options.to_json(),
    )
    return Entry(start_id(run), entry.ts, payload)


def _texts(value: Mapping[str, Any]) -> dict[str, str]:
    return {name: value[name][:_MOST_TEXT] for name in ("code", "message", "hint") if isinstance(value.get(name), str)}
