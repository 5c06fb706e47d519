"""REST: the turns of a thread, forks, rewinds and comparisons."""

from __future__ import annotations

from fastapi import APIRouter

from holdfast.api.errors import InvalidRequest
from holdfast.api.limits import ThreadId
from holdfast.api.run.checkpoints import (
    Comparison,
    Forked,
    NewComparison,
    NewFork,
    Rewind,
    Rewound,
    TurnInfo,
    TurnList,
)
from holdfast.api.thread.threads import ForkSource
from holdfast.runs.checkpoint.turns import Turn
from holdfast.runs.launch.plan import Prompt
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import Use, UseRuns, UseSessions
from holdfast.threads.protocol.offsets import format_offset_text
from holdfast.threads.run_events import IMPORT

router = APIRouter(prefix="/v1/threads/{id}", tags=["forks"], responses=BOX_ERRORS)


@router.get("/turns")
async def list_turns(id: ThreadId, runs: UseRuns) -> TurnList:
    """List the turns of a thread, with those before it was forked, and which of them can be forked or rewound to."""
    found, rewound, there = await runs.turns.listed(id)
    return TurnList(turns=tuple(_turn(each, each.run.run in rewound, there) for each in found))


@router.post("/forks", status_code=201)
async def fork_thread(id: ThreadId, new: NewFork, runs: UseRuns) -> Forked:
    """Fork a thread at the end of a turn: its entries up to there, its files as they were, and a run if a prompt is
    given.
    """
    if new.prompt is None and (new.agent is not None or new.model is not None or new.fallbacks):
        raise InvalidRequest("an agent or a model needs a prompt", hint="add a prompt, or leave them out")
    prompt = None
    if new.prompt is not None:
        prompt = Prompt(new.prompt, new.prompt_id, new.author_id)
    fork, launched = await runs.fork(
        id,
        new.at,
        prompt,
        new_id=new.id,
        title=new.title,
        agent=new.agent,
        model=new.model,
        fallbacks=new.fallbacks,
    )
    source = fork.row.lineage.fork_of
    assert source is not None
    return Forked(
        thread=fork.row.id,
        fork_of=ForkSource(thread=source.thread, turn=source.turn),
        box=fork.box.id,
        run=None if launched is None else launched.run,
        next_offset=format_offset_text(source.offset),
        ms=fork.ms,
    )


@router.post("/rewind")
async def rewind_thread(id: ThreadId, rewind: Rewind, runs: UseRuns, sessions: UseSessions, services: Use) -> Rewound:
    """Take a thread back to the end of a turn, with its files, or undo that. What came after stays on the thread."""
    if rewind.undo and rewind.at is not None:
        raise InvalidRequest("an undo takes no turn", hint="leave out one of them")
    key = rewind.key
    if (await services.threads.get(id)).runs.session is not None:  # its agent may have a server that has to end first
        done = await (sessions.undo_rewind(id, key=key) if rewind.undo else sessions.rewind(id, rewind.at, key=key))
    else:
        rewinds = runs.rewinds
        done = await (rewinds.undo(id, key=key) if rewind.undo else rewinds.rewind(id, rewind.at, key=key))
    latest = done.row.runs.latest
    return Rewound(
        thread=id,
        turn=0 if latest is None else latest.turn,
        box=None if done.box is None else done.box.id,
        can_undo=done.row.lineage.undo is not None,
    )


@router.post("/compare")
async def compare_threads(id: ThreadId, wanted: NewComparison, runs: UseRuns) -> Comparison:
    """Compare a thread with another that has turns in common with it: what each changed and used since they parted."""
    return await runs.comparisons.compare(
        id, wanted.other, test=wanted.test, seconds=wanted.seconds, without_test=wanted.without_test
    )


def _turn(turn: Turn, rewound: bool, there: frozenset[str]) -> TurnInfo:
    run, checkpoint = turn.run, turn.run.checkpoint
    files = None if checkpoint is None else checkpoint.files
    kept = files is not None and files.snapshot in there
    why = None
    if not kept and not run.live:
        never = "it was imported" if run.ended_by == IMPORT else "checkpoints were off"
        why = never if checkpoint is None else checkpoint.why or "it was removed"
    return TurnInfo(
        turn=turn.number,
        thread=turn.thread,
        run=run.run,
        agent=run.agent,
        status=run.status,
        ended_at=run.ended_at,
        snapshot=files.snapshot if files is not None and kept else None,
        size=None if checkpoint is None else checkpoint.size,
        why=why,
        rewound=rewound,
    )
