"""Drives executions of workflows, one task for each. All state is on their threads: after a crash, the next server goes
on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from holdfast.api.errors import Conflict, Forbidden, HoldfastError, InvalidRequest, NotFound, TooManyRequests
from holdfast.api.errors.sessions import SessionNotFound
from holdfast.api.thread.entries import Entry
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.run_log import RunLog
from holdfast.sessions.session_log import SessionLog, session_of
from holdfast.sessions.tools.caller import keyed_id
from holdfast.sessions.workflows import execution as events
from holdfast.sessions.workflows.definition import MAX_ASKED, Definition, Step, StepType, fill
from holdfast.sessions.workflows.execution import (
    MOST_ATTEMPTS,
    Begin,
    End,
    Execution,
    ExecutionStatus,
    GoOn,
    Nothing,
    StepRecord,
    StepStatus,
    decide,
    step_json,
    waiting_step,
)
from holdfast.sessions.workflows.library import Library, definition_of
from holdfast.sessions.workflows.rows import WorkflowKind, WorkflowRow, WorkflowStore
from holdfast.sessions.workflows.signatures import WorkflowKeys, digest_of, is_token
from holdfast.sessions.workflows.steps import LostStep, Outcome, StepRunner
from holdfast.threads.access.seals import Seals
from holdfast.threads.sealed_records import SealedRecords
from holdfast.threads.store import StreamStore

log = logging.getLogger(__name__)

MOST_OPEN: Final = 200
"""Executions in progress on one server."""
MOST_OPEN_OF_SESSION: Final = 20
SWEEP_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 5.0
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0

Notify = Callable[[str, str, str, str], Any]
"""Tells a person about an approval: `await notify(session, person, text, key)`."""


class Executions:
    """Owns its tasks from `start` to `close`. Executions outlive it."""

    def __init__(
        self,
        store: StreamStore,
        seals: Seals,
        log: RunLog,
        rows: WorkflowStore,
        library: Library,
        keys: WorkflowKeys,
        steps: StepRunner,
        notify: Notify,
        *,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self._seals = seals
        self._log = log
        self._sessions = SessionLog(log)
        self._rows = rows
        self._library = library
        self._keys = keys
        self._steps = steps
        self._notify = notify
        self._sweep_seconds = sweep_seconds
        self._records = SealedRecords[Execution | None](
            store, seals, log.clock, prefix=events.PREFIX, begin=lambda life: None, fold=events.fold
        )
        self._tasks = BackgroundTasks()
        self._driving: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        """Executions to look at once more, because something has changed while they were looked at."""
        self._starting = asyncio.Lock()
        self._deciding = asyncio.Lock()

    async def start(self) -> None:
        """Take up the executions that earlier servers left, and watch the schedules."""
        await self.take_up()
        self._tasks.start(self._keep_sweeping(), name="workflow sweep")

    async def close(self) -> None:
        await self._tasks.close(_STOP_SECONDS)

    async def take_up(self) -> None:
        for row in await self._rows.list(WorkflowKind.EXECUTION, only_open=True, limit=MOST_OPEN):
            self._drive_soon(row.id)

    # --- starting ---

    async def run(
        self,
        id: str,
        workflow: WorkflowRow,
        session: str,
        variables: Mapping[str, Any],
        *,
        by: str,
        trigger: str | None = None,
    ) -> dict[str, Any]:
        """Start an execution in a session. One with the same id is not started again. Returns it."""
        definition = definition_of(workflow)
        values = definition.with_defaults(variables)
        above = session_of(await self._sessions.find(session))
        async with self._starting:
            if await self._rows.get(WorkflowKind.EXECUTION, id) is None:
                if above.is_over:
                    raise Conflict(f"session {session} is {above.state}, so no workflow can run in it")
                await self._check_room(session)
                document = {"session": session, "workflow": workflow.id}
                now = self._log.clock()
                # The row first: it says that there may be a thread to look at.
                await self._rows.put(WorkflowRow(WorkflowKind.EXECUTION, id, workflow.id, document, now, True))
            await self._create(id, workflow, session, definition, values, by, trigger)
        self._drive_soon(id)
        return await self.get(id)

    async def _check_room(self, session: str) -> None:
        live = await self._rows.list(WorkflowKind.EXECUTION, only_open=True, limit=MOST_OPEN)
        mine = sum(each.document["session"] == session for each in live)
        if len(live) >= MOST_OPEN or mine >= MOST_OPEN_OF_SESSION:
            raise TooManyRequests(
                f"{mine} executions are in progress in session {session}, and {len(live)} on this server:"
                f" the limits are {MOST_OPEN_OF_SESSION} and {MOST_OPEN}"
            )

    async def _create(
        self,
        id: str,
        workflow: WorkflowRow,
        session: str,
        definition: Definition,
        variables: Mapping[str, str],
        by: str,
        trigger: str | None,
    ) -> None:
        name = str(workflow.document["name"])
        created = {
            "type": "signal.thread.created",
            "title": name,
            "parent": session,
            "labels": {"workflow": workflow.id},
        }
        started = {
            "type": events.STARTED,
            "workflow": workflow.id,
            "name": name,
            "hash": definition.hash,
            "session": session,
            "definition": definition.json,
            "variables": dict(variables),
            "by": by,
            **({} if trigger is None else {"trigger": trigger}),
        }
        await self._log.create(
            id, self._log.entry(created), self._sealed(id, self._log.entry(started, id="workflow-started"))
        )

    # --- reading ---

    async def find(self, id: str) -> Execution:
        """Raises `NotFound`."""
        try:
            found = await self._records.read(id)
        except NotFound:
            found = None
        if found is None:
            raise NotFound(f"there is no execution {id[:128]!r}", hint="list them: holdfast workflow list SESSION")
        return found

    async def get(self, id: str, *, with_token: bool = False) -> dict[str, Any]:
        """Returns an execution as people and agents see it. Only people are shown the resume token."""
        found = await self.find(id)
        shown: dict[str, Any] = {
            "executionId": id,
            "workflowId": found.workflow,
            "name": found.name,
            "sessionId": found.session,
            "status": found.status.value,
            "ok": found.status is ExecutionStatus.OK,
            "variables": dict(found.variables),
            "startedAt": found.started_at,
            "completedAt": found.ended_at,
            "startedBy": found.by,
            "triggerId": found.trigger,
            "error": found.error,
        }
        waiting = waiting_step(found)
        if waiting is not None:
            step, _ = waiting
            token = {"resumeToken": self._keys.resume_token(id, step.id)} if with_token else {}
            shown["requiresApproval"] = {
                "stepId": step.id,
                "prompt": _asked(found, step),
                "items": list(step.settings.get("items", [])),
                **token,
            }
        return shown

    async def steps(self, id: str) -> list[dict[str, Any]]:
        found = await self.find(id)
        return [step_json(each, found.steps.get(each.id)) for each in found.definition.steps]

    async def list(self, workflow: str | None, limit: int) -> list[WorkflowRow]:
        return await self._rows.list(WorkflowKind.EXECUTION, group=workflow, limit=limit)

    async def waiting(self) -> Sequence[dict[str, Any]]:
        """Returns the executions that wait for approval, latest first. Without their resume tokens."""
        found = []
        for row in await self._rows.list(WorkflowKind.EXECUTION, only_open=True, limit=MOST_OPEN):
            with suppress(NotFound):  # deleted meanwhile
                if (asked := waiting_step(await self.find(row.id))) is not None:
                    found.append({**await self.get(row.id), "askedAt": asked[1].started_at})
        return found

    # --- deciding ---

    async def approve(self, id: str, approve: bool, token: str, *, reason: str | None, by: str) -> dict[str, Any]:
        """Approve or deny the step that waits. Needs its resume token, which works once."""
        async with self._deciding:
            await self._decide(id, approve, token, reason, by)
        self._drive_soon(id)
        return await self.get(id)

    async def _decide(self, id: str, approve: bool, token: str, reason: str | None, by: str) -> None:
        found = await self.find(id)
        waiting = waiting_step(found)
        known = {each.digest for each in found.steps.values() if each.digest is not None}
        if waiting is None or not is_token(token, waiting[1].digest):
            if any(is_token(token, each) for each in known):
                raise Conflict("this resume token was used already")
            raise Forbidden("this is not the resume token of a step that waits for approval")
        step, _ = waiting
        payload = {"type": events.DECIDED, "step": step.id, "approve": approve, "by": by}
        if reason is not None:
            payload["reason"] = reason
        await self._append(id, payload, f"workflow-decided-{step.id}")

    async def cancel(self, id: str, *, reason: str | None, by: str) -> dict[str, Any]:
        """Cancel an execution. What its current step has started in the session goes on, and its result is ignored."""
        found = await self.find(id)
        if not found.is_over:
            why = f"cancelled by {by}" if reason is None else f"cancelled by {by}: {reason}"
            await self._finish(id, End(ExecutionStatus.CANCELLED, why))
            if (task := self._driving.get(id)) is not None:
                task.cancel()
        return await self.get(id)

    # --- driving ---

    def _drive_soon(self, id: str) -> None:
        if id in self._driving:
            self._again.add(id)
        else:
            task = self._tasks.start(self._drive(id), name=f"workflow {id}")
            self._driving[id] = task
            task.add_done_callback(lambda _: self._driving.pop(id, None))

    async def settle(self, id: str) -> Execution:
        """Wait until an execution has ended or waits for a decision, and return it."""
        while (task := self._driving.get(id)) is not None:
            await asyncio.wait((task,))
        return await self.find(id)

    async def _drive(self, id: str) -> None:
        pause, fresh = _FIRST_PAUSE, set[tuple[str, int]]()
        while True:
            try:
                self._again.discard(id)
                if not await self._act(id, fresh) and id not in self._again:
                    return
                pause = _FIRST_PAUSE
            except (NotFound, SessionNotFound) as error:
                await self._give_up(id, error)
                return
            except HoldfastError as error:
                log.warning("execution %s cannot go on now: %s", id, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            except Exception:
                log.exception("execution %s cannot go on now", id)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _act(self, id: str, fresh: set[tuple[str, int]]) -> bool:
        """Take one action. Returns whether there is more to do. `fresh` are the attempts that this server has begun."""
        execution = await self.find(id)
        match decide(execution):
            case Nothing():
                if execution.is_over:
                    await self._close_row(id)
                return False
            case End() as end:
                await self._finish(id, end)
                return True
            case Begin(step, attempt):
                await self._begin(id, step, attempt, fresh)
                return True
            case GoOn(step, record):
                await self._go_on(id, execution, step, record, fresh)
                return True

    async def _begin(self, id: str, step: Step, attempt: int, fresh: set[tuple[str, int]]) -> None:
        payload = {"type": events.STEP_STARTED, "step": step.id, "attempt": attempt}
        await self._append(id, payload, f"workflow-step-{step.id}-{attempt}-started")
        fresh.add((step.id, attempt))

    async def _go_on(
        self,
        id: str,
        execution: Execution,
        step: Step,
        record: StepRecord,
        fresh: set[tuple[str, int]],
    ) -> None:
        try:
            if step.type is StepType.APPROVAL:
                outcome = await self._ask(id, execution, step)
                if outcome is None:
                    return
            else:
                outcome = await self._carry_out(id, execution, step, record, fresh)
        except LostStep:
            fresh.discard((step.id, record.attempt))
            if step.settings.get("repeat", True) and record.attempt < MOST_ATTEMPTS:
                await self._begin(id, step, record.attempt + 1, fresh)
                return
            outcome = Outcome(error="the server or the box died meanwhile, and nobody knows whether it was carried out")
        payload: dict[str, Any] = {
            "type": events.STEP_ENDED,
            "step": step.id,
            "status": (StepStatus.OK if outcome.error is None else StepStatus.FAILED).value,
            "output": outcome.output,
        }
        if outcome.error is not None:
            payload["error"] = outcome.error
        await self._append(id, payload, f"workflow-step-{step.id}-ended")

    async def _carry_out(
        self, id: str, execution: Execution, step: Step, record: StepRecord, fresh: set[tuple[str, int]]
    ) -> Outcome:
        is_new = (step.id, record.attempt) in fresh
        if session_of(await self._sessions.find(execution.session)).is_over:
            return Outcome(error=f"session {execution.session} has ended")
        if step.type is StepType.AGENT:
            return await self._steps.prompt(id, execution, step)
        if step.type is StepType.TOOL:
            return await self._steps.tool(id, execution, step)

        def forget() -> None:
            fresh.discard((step.id, record.attempt))

        async def note(process: str) -> None:
            payload = {"type": events.STEP_PROCESS, "step": step.id, "attempt": record.attempt, "process": process}
            await self._append(id, payload, f"workflow-step-{step.id}-{record.attempt}-process")

        try:
            return await self._steps.command(execution, step, record, is_new, forget, note)
        except InvalidRequest as error:
            return Outcome(error=error.message)

    async def _ask(self, id: str, execution: Execution, step: Step) -> Outcome | None:
        """Write that a step waits for approval, and tell whom the step names. Returns why nobody can be asked."""
        try:
            prompt = fill(step.settings["prompt"], execution.variables, execution.outputs, MAX_ASKED)
        except InvalidRequest as error:
            return Outcome(error=error.message)
        digest = digest_of(self._keys.resume_token(id, step.id))
        if (person := step.settings.get("notify")) is not None:
            text = f"Execution {id} of workflow {execution.name} waits for approval: {prompt}"
            with suppress(HoldfastError):  # the execution waits all the same
                await self._notify(execution.session, person, text, f"{id}-{step.id}")
        await self._append(
            id, {"type": events.APPROVAL, "step": step.id, "digest": digest}, f"workflow-step-{step.id}-asked"
        )
        return None

    async def _finish(self, id: str, end: End) -> None:
        payload: dict[str, Any] = {"type": events.FINISHED, "status": end.status.value}
        if end.error is not None:
            payload["error"] = end.error
        await self._append(id, payload, "workflow-finished")
        await self._close_row(id)

    async def _close_row(self, id: str) -> None:
        row = await self._rows.get(WorkflowKind.EXECUTION, id)
        if row is not None and row.is_open:
            await self._rows.put(WorkflowRow(row.kind, row.id, row.group, row.document, row.created_at))

    async def _give_up(self, id: str, error: HoldfastError) -> None:
        """Its thread or its session was deleted."""
        async with self._starting:  # its thread may be about to be created
            try:
                await self.find(id)
            except NotFound:
                await self._rows.remove(WorkflowKind.EXECUTION, id)
                return
        await self._finish(id, End(ExecutionStatus.FAILED, error.message))

    async def _append(self, id: str, payload: dict[str, Any], entry_id: str) -> None:
        await self._log.append(id, self._sealed(id, self._log.entry(payload, id=entry_id)))

    def _sealed(self, id: str, entry: Entry) -> Entry:
        return self._seals.seal(id, entry)

    # --- triggers ---

    async def fire(
        self, trigger: WorkflowRow, occasion: str, variables: Mapping[str, Any], *, by: str
    ) -> dict[str, Any]:
        """Start an execution for a trigger, once for each occasion. Raises if its workflow or session is gone."""
        workflow = await self._library.find_workflow(trigger.group)
        if workflow is None:
            raise NotFound(f"the workflow of trigger {trigger.id} was deleted")
        session = str(trigger.document["session"])
        id = keyed_id("t", trigger.id, occasion)
        return await self.run(id, workflow, session, variables, by=by, trigger=trigger.id)

    async def sweep(self) -> None:
        """Fire the triggers whose time has come. If several times were missed, it fires once."""
        now = self._log.clock()
        for row in await self._library.due_triggers(now):
            try:
                await self.fire(row, str(row.document["next"]), {}, by=row.id)
            except TooManyRequests as error:
                log.warning("trigger %s is tried again: %s", row.id, error)
                continue
            except HoldfastError as error:
                log.warning("trigger %s is disabled: %s", row.id, error)
                await self._library.disable_trigger(row, error.message)
                continue
            await self._library.set_next(row, now)

    async def _keep_sweeping(self) -> None:
        while True:
            try:
                await self.sweep()
                await self.take_up()
            except Exception as error:  # for example, the store is full or locked
                log.warning("cannot look after workflows, the next sweep tries again: %s", error)
            await asyncio.sleep(self._sweep_seconds)


def _asked(execution: Execution, step: Step) -> str:
    """Returns what people are asked. Earlier servers also asked what is too long: its text is shown without values."""
    prompt = step.settings["prompt"]
    try:
        return str(fill(prompt, execution.variables, execution.outputs, MAX_ASKED))
    except InvalidRequest:
        return str(prompt)
