"""The service of sessions: creates, shows, prompts, hibernates, restores and terminates them.

A session is a thread, a box and runs on it. All its state is on the thread: after a crash, the next server
goes on.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors import Conflict, HoldfastError, NotFound
from holdfast.api.errors.boxes import BoxGone, BoxNotFound, SnapshotInUse, SnapshotNotFound
from holdfast.api.errors.runs import InvalidRun, TooManyWaiting
from holdfast.api.errors.sessions import AgentAway, AgentRefused, SessionBusy, SessionConflict, SessionLimit
from holdfast.api.ids import new_entry_id, new_id
from holdfast.api.run.info import CancelKind
from holdfast.api.session.sessions import (
    MAX_ATTACHMENTS,
    MOST_PROMPTS,
    AgentSettings,
    Attachment,
    PromptMode,
    SessionDiagnosis,
    SessionState,
    SessionStep,
)
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.checkpoint.rewinds import Rewinding
from holdfast.runs.launch.plan import Options, check_prompt, kept_context, key_of
from holdfast.runs.reconcile.sweep import DueThreads
from holdfast.runs.run_log import RunLog
from holdfast.runs.service import Runs
from holdfast.sessions.boot import SessionBoots, check_context
from holdfast.sessions.driver import SessionDriver
from holdfast.sessions.hub.questions import Question, Questions
from holdfast.sessions.hub.runners import Runners
from holdfast.sessions.hub.settings import ServerSettings
from holdfast.sessions.review import read_review, review_prompt
from holdfast.sessions.rules import is_wanted
from holdfast.sessions.session_log import SessionLog, conflict, session_of
from holdfast.sessions.sweep import SWEEP_SECONDS, SessionSweep
from holdfast.threads.projection import Projection
from holdfast.threads.rows import RowFilter, ThreadRow
from holdfast.threads.run_events import FINISHED, STARTED
from holdfast.threads.service import ThreadPage, Threads
from holdfast.threads.session_events import (
    EndedPrompt,
    QueuedPrompt,
    Session,
    created,
    fold_session,
    prompted,
    workspace_deleted,
    workspace_deleted_id,
)
from holdfast.threads.store import StreamStore

MOST_SESSIONS: Final = 100
"""Sessions that may have a box that runs, at once."""
_STOP_SECONDS: Final = 5.0
_MOST_ADMITTED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Opening:
    """What a new session is, apart from how its runs are carried out."""

    id: str | None = None
    title: str | None = None
    labels: dict[str, str] | None = None
    parent: str | None = None
    parent_run: str | None = None
    """The run of the parent that asks for it."""
    by: str | None = None
    prompt: str | None = None
    """Its first prompt, on disk together with the session."""
    prompt_author: str | None = None


class Sessions:
    """Owns its steps and its sweep from `start` to `close`. Sessions outlive it."""

    def __init__(
        self,
        store: StreamStore,
        threads: Threads,
        projection: Projection,
        boxes: Boxes,
        runs: Runs,
        run_log: RunLog,
        runners: Runners,
        questions: Questions,
        settings: ServerSettings,
        *,
        ticks: Callable[[], int],
        on_end: Callable[[str, Session], Awaitable[None]] | None = None,
        most: int = MOST_SESSIONS,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        """`most` sessions may have a box that runs. `ticks` returns the milliseconds of a monotonic clock. `on_end` is
        called with a session that has ended, at least once.
        """
        self._threads = threads
        self._projection = projection
        self._boxes = boxes
        self._runs = runs
        self._log = run_log
        self._runners = runners
        self._questions = questions
        self._settings = settings
        self._most = most
        self._sessions = SessionLog(run_log)
        self.tasks = BackgroundTasks()
        self._due = DueThreads()
        self._boots = SessionBoots(self._sessions, boxes, self.tasks, ticks)
        self._driver = SessionDriver(
            self._sessions,
            runs,
            boxes,
            projection,
            self.tasks,
            self._boots,
            most=most,
            on_due=self._due.add,
            on_end=on_end or _end_quietly,
            stop_runner=runners.stop,
            ticks=ticks,
        )
        self._sweep = SessionSweep(store, projection, self._driver, self._due, self.tasks, seconds=sweep_seconds)
        self._creating = asyncio.Lock()
        self.sweep = self._sweep.sweep
        self.settle = self._driver.settle
        self.box_of = self._driver.box_of

    async def start(self) -> None:
        """Take up the sessions that earlier servers left, and start the sweep."""
        await self._sweep.start()
        self.tasks.start(self._admit_runners(), name="runners of sessions")

    async def _admit_runners(self) -> None:
        """Let the runners that outlived their server reach this one, before the next prompt starts others."""
        wanted = RowFilter(session=(SessionState.RUNNING,), archived=None, limit=_MOST_ADMITTED)
        for row in await self._projection.rows(wanted):
            run = row.runs.latest
            if run is None or run.live or run.box is None:
                continue
            with suppress(HoldfastError):  # its agent is not there any more
                if self._runs.is_hosted(run.agent):
                    await self._runs.probe.open_guest_api(run.box)

    async def close(self) -> None:
        """Steps in progress are given up. The next server repeats them."""
        self._sweep.stop()
        self._driver.close()
        await self.tasks.close(_STOP_SECONDS)

    # --- creating and reading ---

    async def create(self, opening: Opening, options: Options) -> ThreadRow:
        """Create a session. Returns once it is on disk, before it has a box. Raises what a launch would raise."""
        check_context(options.context)
        if opening.prompt is not None:
            check_prompt(opening.prompt)
        checked = await self._runs.check(options)
        if checked.asks and not self._runs.is_hosted(checked.agent):
            raise InvalidRun(f"{checked.agent} cannot ask for permissions", hint="use an agent with a server: opencode")
        if checked.workspace is not None:
            self._runs.workspaces.check(checked.workspace)
        if opening.parent is not None:
            above = session_of(await self._sessions.find(opening.parent))
            if above.is_over:
                raise conflict(opening.parent, above.state, "have sessions of its own")
        id = opening.id or new_id("t")
        async with self._creating:
            if opening.id is not None and (same := await self._same(opening)) is not None:
                return same
            await self._check_room()
            about = {"title": opening.title, "parent": opening.parent, "labels": opening.labels or {}}
            made = created(
                agent=checked.agent,
                model=checked.model or "",
                options=checked.to_json() | kept_context(checked.context),
                parent=opening.parent,
                parent_run=opening.parent_run,
                by=opening.by,
            )
            entry = self._log.entry(made)
            if fold_session(None, entry.to_json(), 0) is None:
                raise InvalidRun("the settings of the session are too large", hint="give it a smaller environment")
            first = [self._log.entry({"type": "signal.thread.created", **about}), entry]
            if opening.prompt is not None:
                chat = prompted(opening.prompt, PromptMode.FOLLOWUP, 0)
                first.append(self._log.entry(chat, author=opening.prompt_author))
            new = await self._log.create(id, *first)
        if not new:
            raise Conflict(f"thread {id} already exists", hint="leave the id out, or use another one")
        self._due.add(id)
        return await self._sessions.find(id)

    async def _same(self, opening: Opening) -> ThreadRow | None:
        """Returns the session that an earlier request with the same id has created."""
        assert opening.id is not None
        row = await self._projection.row(opening.id)
        if row is None or row.runs.session is None:
            return None
        return row

    async def _check_room(self) -> None:
        if not await self._driver.room():
            raise SessionLimit(
                f"{self._most} sessions are awake, which is the limit",
                hint="hibernate or terminate one: holdfast session list --state running",
            )

    async def get(self, id: str) -> ThreadRow:
        """Returns a session, after looking at its box. Raises `SessionNotFound`."""
        row = await self._sessions.find(id)
        if self._driver.lock(id).locked() or session_of(row).is_over:
            return row
        return await self._driver.drive(id)

    async def diagnose(self, id: str) -> SessionDiagnosis:
        """Returns what became of each part of a session: its box, its files, the programs of its workstation."""
        row = await self.get(id)
        return await self._boots.diagnose(row, await self.box_of(id))

    async def programs(self, row: ThreadRow) -> tuple[SessionStep, ...]:
        """Returns what became of the programs of a session's workstation. Empty if it has none.

        Somebody looks at the session, and may have woken its box: then it need not wait for the next sweep.
        """
        if session_of(row).state is SessionState.HIBERNATED:
            self._due.add(row.id)
        return await self._boots.programs(session_of(row), await self.box_of(row.id))

    async def list(self, wanted: RowFilter) -> ThreadPage:
        """Returns sessions, most recently active first. `wanted` names the states."""
        return await self._threads.list(wanted)

    # --- prompts ---

    async def prompt(
        self,
        id: str,
        text: str,
        *,
        prompt_id: str | None = None,
        author: str | None = None,
        mode: PromptMode = PromptMode.FOLLOWUP,
        priority: int = 0,
        attachments: Sequence[Attachment] = (),
        channel: str | None = None,
    ) -> QueuedPrompt | EndedPrompt:
        """Queue a prompt. Returns once it is on disk. It wakes a session that sleeps.

        Each `channel` has a conversation of its own with the agent. None: the usual one.
        """
        check_prompt(text)
        session = session_of(await self._sessions.find(id))
        _check_attachments(attachments)
        if prompt_id is not None and (same := session.find(prompt_id)) is not None:
            return same
        if session.is_over:
            raise conflict(id, session.state, "take prompts")
        if len(session.queue) >= MOST_PROMPTS:
            raise TooManyWaiting(
                f"{MOST_PROMPTS} prompts already wait in session {id}", hint="wait until some of them have ended"
            )
        entry = self._log.entry(
            prompted(text, mode, priority, _plain(attachments), channel), id=prompt_id or new_entry_id(), author=author
        )
        await self._log.append(id, entry)
        found = session_of(await self._sessions.find(id)).find(entry.id)
        if found is None:
            raise Conflict(
                f"session {id} already has an entry {entry.id}, so the prompt was not queued: use another id"
            )
        self._due.add(id)
        return found

    async def has_prompt(self, id: str, prompt: str) -> bool:
        """Returns whether a session has this prompt, or had it lately."""
        return session_of(await self._sessions.find(id)).find(prompt) is not None

    # --- the agent ---

    async def abort(self, id: str, *, by: str | None = None) -> ThreadRow:
        """End the current work of the agent, also while it waits for a retry. The next prompt follows."""
        row = await self._sessions.find(id)
        if (run := row.runs.live) is not None:
            await self._runs.cancellation.request(id, run, CancelKind.CANCEL, by)
        return await self._sessions.find(id)

    async def command(
        self, id: str, command: str, args: str = "", *, prompt_id: str | None = None, author: str | None = None
    ) -> QueuedPrompt | EndedPrompt:
        """Queue a slash command of the agent."""
        return await self.prompt(id, f"/{command} {args}".rstrip(), prompt_id=prompt_id, author=author)

    async def review(
        self, id: str, base: str | None = None, *, prompt_id: str | None = None, author: str | None = None
    ) -> QueuedPrompt | EndedPrompt:
        """Queue a review of the changes in the workspace. `review_of` returns its findings."""
        return await self.prompt(id, review_prompt(base), prompt_id=prompt_id, author=author)

    async def review_of(self, id: str, prompt: str) -> dict[str, Any]:
        """Returns the findings of a review that has ended. Raises `AgentRefused` if the agent answered otherwise."""
        found = session_of(await self._sessions.find(id)).find(prompt)
        if found is None:
            raise NotFound(f"session {id} has no prompt {prompt}, or it ended long ago", hint=_prompts(id))
        if not isinstance(found, EndedPrompt):
            raise SessionBusy(f"the review {prompt} has not ended", hint=f"wait for it: holdfast attach {id}")
        answer, is_its = "", False
        async for entry in self._log.entries(id):
            payload = entry["payload"]
            if payload["type"] in (STARTED, FINISHED):
                is_its = payload["type"] == STARTED and payload.get("run") == found.run
            elif is_its and payload["type"].endswith(".assistant") and payload.get("text"):
                answer = str(payload["text"])
        review = read_review(answer)
        if review is None:
            raise AgentRefused(f"the agent of session {id} did not answer prompt {prompt} with a review")
        return review

    async def revert(self, id: str, prompt: str, *, key: str | None = None) -> ThreadRow:
        """Take a session back to where it was before a prompt: the conversation, and the files of its box. A request
        with the key of an earlier one changes nothing.
        """
        if (done := await self._runs.rewinds.done(id, key)) is not None:
            return done.row
        row = await self._rewindable(id)
        found = session_of(row).find(prompt)
        if found is None or found.run is None:
            raise NotFound(f"session {id} has no prompt {prompt} that a run worked on", hint=_prompts(id))
        turns, dropped, _ = await self._runs.turns.listed(id)
        if found.run in dropped:
            raise Conflict(
                f"prompt {prompt} of session {id} was reverted before",
                hint=f"bring it back: holdfast session revert {id} --undo",
            )
        # Numbers of turns go on after a rewind, so the turn with the number before may have been reverted.
        current = [each for each in turns if each.run.run not in dropped]
        first = next((at for at, each in enumerate(current) if prompt in each.run.prompts), None)
        if first is None:
            raise NotFound(f"the run of prompt {prompt} is not part of the conversation any more")
        if first == 0:
            raise Conflict(
                f"prompt {prompt} is the first of session {id}", hint="start another one: holdfast session new"
            )
        return (await self._rewind(id, str(current[first - 1].number), key)).row

    async def undo_revert(self, id: str, *, key: str | None = None) -> ThreadRow:
        """Undo the latest revert of a session. Raises `NothingToUndo`."""
        return (await self.undo_rewind(id, key=key)).row

    async def rewind(self, id: str, at: str | None = None, *, key: str | None = None) -> Rewinding:
        """Take a session back to the end of a turn, as `Rewinds.rewind` does for a thread."""
        if (done := await self._runs.rewinds.done(id, key)) is not None:
            return done
        await self._rewindable(id)
        return await self._rewind(id, at, key)

    async def undo_rewind(self, id: str, *, key: str | None = None) -> Rewinding:
        """Undo the latest rewind of a session: the conversation and the files are as they were before it."""
        if (done := await self._runs.rewinds.done(id, key)) is not None:
            return done
        row = await self._rewindable(id)
        if row.lineage.undo is not None:
            await self._runners.stop(id)
        return await self._runs.rewinds.undo(id, key=key)

    async def _rewind(self, id: str, at: str | None, key: str | None) -> Rewinding:
        await self._runs.turns.find(id, at)  # before anything is ended
        await self._runners.stop(id)
        return await self._runs.rewinds.rewind(id, at, key=key)

    async def _rewindable(self, id: str) -> ThreadRow:
        """Returns a session that has a box and whose agent does not work."""
        session = session_of(await self._sessions.find(id))
        if session.is_over:
            raise conflict(id, session.state, "go back to an earlier state")
        row = await self._driver.settle(id)  # it may be falling asleep
        if row.runs.live is not None:
            raise SessionBusy(
                f"the agent of session {id} works", hint=f"end its work first: holdfast session abort {id}"
            )
        if session_of(row).is_over:
            raise conflict(id, session_of(row).state, "go back to an earlier state")
        return row

    async def questions(self, id: str) -> Sequence[Question]:
        """Returns the questions that the agent waits for."""
        live = (await self._sessions.find(id)).runs.live
        self._questions.keep_only(id, None if live is None else live.run)
        return self._questions.of(id)

    async def asked_in(self, id: str) -> tuple[str, Sequence[Question]]:
        """Returns the channel that the agent works for, and what it asks there. An empty channel is the usual one."""
        questions = await self.questions(id)
        live = (await self._sessions.find(id)).runs.live
        return ("", ()) if live is None else (live.channel, questions)

    async def all_questions(self) -> Sequence[tuple[str, Question]]:
        """Returns the questions that agents wait for, each with its session."""
        for thread in {thread for thread, _ in self._questions.all()}:
            row = await self._projection.row(thread)
            live = None if row is None else row.runs.live
            self._questions.keep_only(thread, None if live is None else live.run)
        return self._questions.all()

    async def answer(self, id: str, question: str, answer: str) -> None:
        """Answer a question of the agent."""
        await self.questions(id)
        await self._questions.answer(id, question, answer)

    async def settings(self, id: str) -> AgentSettings:
        """Returns what the agent's server gets beside its model. Raises `AgentAway` if it has no server."""
        await self._hosted(id)
        return await self._settings.get(id) or AgentSettings()

    async def configure(self, id: str, settings: AgentSettings) -> None:
        """Give the agent's server other settings. It gets them between two prompts."""
        session = await self._hosted(id)
        if session.is_over:
            raise conflict(id, session.state, "get other settings")
        await self._settings.change(id, settings)

    async def models(self, id: str) -> Sequence[dict[str, Any]]:
        """Returns the models that the agent's server knows. Raises `AgentAway` if it does not run."""
        await self._hosted(id)
        return self._runners.models(id)

    async def _hosted(self, id: str) -> Session:
        """Returns a session whose agent has a server. Raises `AgentAway`."""
        session = session_of(await self._sessions.find(id))
        if not self._runs.is_hosted(session.agent):
            raise AgentAway(
                f"the agent of session {id}, {session.agent}, has no server",
                hint="only agents with a server have this: opencode",
            )
        return session

    # --- state ---

    async def hibernate(self, id: str, *, by: str | None = None) -> ThreadRow:
        """Save the files of a session and stop its box. Returns when that is done. Raises `SessionBusy` if its agent
        works.
        """
        async with self._driver.lock(id):
            row = await self._sessions.find(id)
            session, run = session_of(row), row.runs.live
            if session.state not in (SessionState.HIBERNATING, SessionState.HIBERNATED):
                if session.state is not SessionState.RUNNING:
                    raise conflict(id, session.state, "hibernate")
                if run is not None or is_wanted(row.runs) or self._runs.launches.is_launching(id):
                    raise SessionBusy(
                        f"the agent of session {id} works, or has prompts to work on",
                        hint=f"wait for it, or end its work: holdfast cancel {id}",
                    )
                if (box := await self.box_of(id)) is not None:
                    require(box.provider, self._boxes.provider(box.provider).capabilities, Capability.STOP)
                await self._sessions.move(id, SessionState.HIBERNATING, only_from=(SessionState.RUNNING,), by=by)
        return await self._driver.settle(id)

    async def restore(self, id: str, *, by: str | None = None) -> ThreadRow:
        """Wake a session, with its files as they were. Returns when it runs."""
        session = session_of(await self._sessions.find(id))
        if session.is_over:
            raise conflict(id, session.state, "be restored")
        await self._driver.settle(id)  # it may be falling asleep
        async with self._driver.lock(id):
            if session_of(await self._sessions.find(id)).state is SessionState.HIBERNATED:
                await self._check_room()
                await self._sessions.move(id, SessionState.RESTORING, by=by)
        return await self._driver.settle(id)

    async def terminate(self, id: str, *, by: str | None = None) -> ThreadRow:
        """Terminate a session, and the sessions and tasks below it. Its files stay until they are deleted."""
        return await self._driver.terminate(id, by=by)

    async def delete_workspace(self, id: str) -> int:
        """Delete the files of a terminated session: its box and its snapshots. Returns the bytes freed.

        Snapshots that forks of its thread start from stay.
        """
        row = await self._driver.settle(id)
        session = session_of(row)
        if session.state is not SessionState.TERMINATED:
            raise SessionConflict(
                f"session {id} is {session.state}, so its files are kept",
                hint=f"terminate it first: holdfast session terminate {id}",
            )
        if not session.released:
            raise SessionBusy(f"session {id} is being terminated", hint="try again in a moment")
        freed = 0
        if (box := await self.box_of(id)) is not None:
            with suppress(BoxGone, BoxNotFound):
                freed += (await self._boxes.delete(box.id)).freed
        needed = await self._projection.needed_snapshots()
        for each in await self._boxes.snapshots(key=key_of(id)):
            if each.id not in needed:
                with suppress(SnapshotNotFound, SnapshotInUse):
                    freed += await self._boxes.delete_snapshot(each.id)
        await self._log.append(id, self._log.entry(workspace_deleted(freed), id=workspace_deleted_id()))
        return freed


def _check_attachments(attachments: Sequence[Attachment]) -> None:
    """Raises `InvalidRun` for attachments that no agent can have."""
    size = sum(len(each.data) for each in attachments)
    if size > MAX_ATTACHMENTS:
        raise InvalidRun(f"the attachments have {size} characters in base64, and at most {MAX_ATTACHMENTS} fit")
    for number, each in enumerate(attachments, 1):
        if each.mime.startswith("audio/"):
            raise InvalidRun(
                "speech cannot be attached: this server has no model that understands it", hint="write it as text"
            )
        try:
            b64decode(each.data, validate=True)
        except ValueError as error:
            raise InvalidRun(f"attachment {number} is not in base64: {error}") from None


def _plain(attachments: Sequence[Attachment]) -> list[dict[str, str]]:
    return [
        {"mime": each.mime, "data": each.data, **({} if each.filename is None else {"filename": each.filename})}
        for each in attachments
    ]


async def _end_quietly(id: str, session: Session) -> None:
    """Nobody wants to know."""


def _prompts(id: str) -> str:
    return f"list the latest: holdfast session status {id}"
