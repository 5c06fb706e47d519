"""Carries out the steps of workflows in a session: a prompt, a command in its box, or a tool.

A prompt and a tool have ids that follow from the execution and the step, so both can be repeated without a second
effect. A command is a process of the box, which outlives the server: the next server waits for the same process. If a
server dies between starting it and writing that down, the command is started again, unless the step says otherwise.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process
from holdfast.api.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.api.errors.boxes import ProcessLost, ProcessNotFound
from holdfast.api.session.sessions import PromptStatus
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.delegate.reports import last_message
from holdfast.runs.run_log import RunLog
from holdfast.runs.service import Runs
from holdfast.sessions.service import Sessions
from holdfast.sessions.session_log import session_of
from holdfast.sessions.workflows.definition import (
    COMMAND_SECONDS,
    MAX_OUTPUT,
    Step,
    environment_of,
    fill,
)
from holdfast.sessions.workflows.execution import Execution, StepRecord
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.session_events import EndedPrompt
from holdfast.threads.store import StreamStore
from holdfast.time_limit import time_limit

_LOOK_SECONDS: Final = 5.0
_KEPT_BYTES: Final = 2 * MAX_OUTPUT

CallTool = Callable[[str, str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Calls an operation as a session: `(session, tool, input)`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    output: str = ""
    error: str | None = None
    """Why it failed."""


class LostStep(Exception):
    """A step was begun, and nobody knows whether it was carried out."""


class StepRunner:
    """Keeps nothing: what a step has reached is on the thread of its execution, and in its session."""

    def __init__(
        self, store: StreamStore, log: RunLog, sessions: Sessions, runs: Runs, boxes: Boxes, call: CallTool
    ) -> None:
        self._store = store
        self._log = log
        self._sessions = sessions
        self._runs = runs
        self._boxes = boxes
        self._call = call

    # --- prompts ---

    async def prompt(self, id: str, execution: Execution, step: Step) -> Outcome:
        """Queue the prompt of a step, once, and wait for its end."""
        try:
            text = fill(step.settings["prompt"], execution.variables, execution.outputs)
        except InvalidRequest as error:
            return Outcome(error=error.message)
        prompt_id = f"workflow-{id}-{step.id}"
        changed = asyncio.Event()
        stop = self._store.watch(THREADS + execution.session, lambda _: changed.set())
        try:
            await self._sessions.prompt(execution.session, text, prompt_id=prompt_id, author=id)
            while True:
                changed.clear()
                found = session_of(await self._sessions.get(execution.session)).find(prompt_id)
                if found is None:
                    return Outcome(error="its prompt ended long ago, and its end is no longer known")
                if isinstance(found, EndedPrompt):
                    return await self._ended(execution.session, found)
                with suppress(TimeoutError):
                    async with time_limit(_LOOK_SECONDS):
                        await changed.wait()
        finally:
            stop()

    async def _ended(self, session: str, prompt: EndedPrompt) -> Outcome:
        output = ""
        if prompt.run is not None:
            with suppress(NotFound):
                output = await last_message(self._log, session, (await self._runs.get(prompt.run)).run)
        if prompt.status is PromptStatus.COMPLETED:
            return Outcome(output[:MAX_OUTPUT])
        return Outcome(output[:MAX_OUTPUT], f"the prompt was {prompt.status.value}")

    # --- commands ---

    async def command(
        self,
        execution: Execution,
        step: Step,
        record: StepRecord,
        is_new: bool,
        on_spawn: Callable[[], None],
        note: Callable[[str], Awaitable[None]],
    ) -> Outcome:
        """Start the command of a step, or find its process again, and wait for its end. `on_spawn` is called right
        before it is started, and `note` writes the id of its process on the thread. Raises `LostStep`.
        """
        row = await self._sessions.restore(execution.session)
        box_row = await self._sessions.box_of(row.id)
        if box_row is None:
            return Outcome(error=f"session {row.id} has no box")
        with self._boxes.working(box_row.id):
            async with await self._boxes.open(box_row.id) as box:
                if record.process is not None:
                    try:
                        process = await box.process(record.process)
                    except ProcessNotFound:
                        raise LostStep from None
                elif is_new:
                    on_spawn()
                    process = await box.spawn(
                        ["sh", "-c", step.settings["command"]],
                        env=environment_of(execution.variables, execution.outputs),
                        cwd=box.spec.workdir,
                        tree=True,
                    )
                    await note(process.id)
                else:
                    raise LostStep
                return await _wait(box, process, step.settings.get("timeoutSeconds", COMMAND_SECONDS))

    # --- tools ---

    async def tool(self, id: str, execution: Execution, step: Step) -> Outcome:
        try:
            given = fill(step.settings.get("input", {}), execution.variables, execution.outputs)
            answer = await self._call_with_key(execution.session, step.settings["tool"], given, f"{id}-{step.id}")
        except HoldfastError as error:
            return Outcome(error=error.message)
        return Outcome(json.dumps(answer, ensure_ascii=False)[:MAX_OUTPUT])

    async def _call_with_key(self, session: str, tool: str, given: Mapping[str, Any], key: str) -> dict[str, Any]:
        from holdfast.api.tools.catalogue import BY_NAME

        takes_key = any(each.name == "key" for each in BY_NAME[tool].fields)
        return await self._call(session, tool, {**given, "key": key} if takes_key else given)


async def _wait(box: Box, process: Process, seconds: int) -> Outcome:
    try:
        code = await process.wait(timeout=seconds)
    except TimeoutError:
        await process.kill()
        return Outcome(await _output(process), f"it took longer than {seconds} s")
    except ProcessLost:
        raise LostStep from None
    output = await _output(process)
    return Outcome(output) if code == 0 else Outcome(output, f"exit code {code}")


async def _output(process: Process) -> str:
    """Returns the end of what a process has written."""
    parts = []
    for stream in ("stdout", "stderr"):
        kept, offset = b"", 0
        async for chunk in process.output(stream, offset):
            kept = (kept + chunk.data)[-_KEPT_BYTES:]
        parts.append(kept.decode("utf-8", "replace").replace("\0", "�"))
    text = "".join(parts)
    return text if len(text) <= MAX_OUTPUT else f"…{text[-MAX_OUTPUT + 1 :]}"
