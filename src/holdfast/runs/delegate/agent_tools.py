"""The tools by which the agent of a run delegates. Its requests come from a box, so every argument is checked here.

A task gets at most what its parent has: the same model, network and kind of box. An agent sees the tasks of its own
thread, and no other thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from holdfast.api.errors import Forbidden, HoldfastError, InvalidRequest, Refused
from holdfast.api.limits import MAX_PROMPT
from holdfast.api.run.tasks import MAX_WAIT, TOOLS, BoxMode, NewTask
from holdfast.runs.delegate.delegations import Delegations
from holdfast.runs.run_log import RunLog
from holdfast.threads.delegation import task_refused

log = logging.getLogger(__name__)

_WAIT: Final = 30.0
_LONGEST_TITLE: Final = 500
_LONGEST_NAME: Final = 128
_LONGEST_AGENT: Final = 1024
_REMEMBERED: Final = 1_000
_MAX_MESSAGE: Final = 500
_ARGUMENTS: Final = {each.name: frozenset(each.input_schema["properties"]) for each in TOOLS}


class AgentTools:
    """Remembers which refusals are on the thread: a run that repeats a refused call does not fill it."""

    def __init__(self, delegations: Delegations, run_log: RunLog) -> None:
        self._delegations = delegations
        self._log = run_log
        self._refused: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def call(self, thread: str, run: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool for the agent of a run. The caller has made sure that the run is in progress."""
        try:
            return await self._call(thread, run, tool, arguments)
        except HoldfastError as error:
            await self._record(thread, run, error)
            raise

    async def _call(self, thread: str, run: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        known = _ARGUMENTS.get(tool)
        if known is None:
            raise InvalidRequest(f"there is no tool {tool[:_LONGEST_NAME]!r}: use one of {', '.join(_ARGUMENTS)}")
        if unknown := [str(name)[:_LONGEST_NAME] for name in arguments if name not in known]:
            raise InvalidRequest(f"{tool} takes no {', '.join(unknown)}: it takes {', '.join(sorted(known))}")
        latest = (await self._log.runs(thread)).latest
        if latest is None or latest.run != run or latest.options.get("delegates") is not True:
            raise Forbidden("this run may not delegate", hint="start it with --delegate")
        if tool == "delegate_task":
            info = await self._delegations.delegate(thread, _new_task(arguments), run=run)
            return {"task": info.id, "status": info.status.value}
        task = _text(arguments, "task", _LONGEST_NAME)
        if task is None:
            raise InvalidRequest(f"{tool} needs the id of a task: task")
        if tool == "task_status":
            info = await self._delegations.get(task, parent=thread)
            return {"task": info.id, "title": info.title, "status": info.status.value, "openTasks": info.open_tasks}
        if tool == "task_cancel":
            info = await self._delegations.cancel(task, by=thread, parent=thread)
            return {"task": info.id, "status": info.status.value}
        found = await self._delegations.result(task, wait=_seconds(arguments), parent=thread)
        answer = {"task": found.id, "status": found.status.value, "result": found.result}
        return answer if found.error is None else {**answer, "error": found.error.message}

    async def _record(self, thread: str, run: str, error: HoldfastError) -> None:
        """Write on the thread why the agent could not delegate, once for each reason."""
        if (run, error.code) in self._refused:
            return
        self._refused[run, error.code] = None
        while len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        signal = task_refused(run, error.code, error.message[:_MAX_MESSAGE])
        try:
            await self._log.append(thread, self._log.entry(signal))
        except Refused as trouble:  # the agent still gets its answer
            log.warning("cannot write on thread %s why a task was refused: %s", thread, trouble)


def _new_task(arguments: Mapping[str, Any]) -> NewTask:
    prompt = _text(arguments, "prompt", MAX_PROMPT)
    if prompt is None:
        raise InvalidRequest("delegate_task needs a prompt")
    agent = _text(arguments, "agent", _LONGEST_AGENT)
    box = _text(arguments, "box", _LONGEST_NAME) or BoxMode.OWN.value
    if box not in {each.value for each in BoxMode}:
        raise InvalidRequest(f"there is no box {box!r}: use own, fork or same")
    wake = arguments.get("wake", False)
    if not isinstance(wake, bool):
        raise InvalidRequest(f"wake must be true or false, not {wake!r:.100}")
    key = _text(arguments, "key", _LONGEST_NAME)
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidRequest("key must be printable ASCII without spaces")
    return NewTask(
        prompt=prompt,
        title=_text(arguments, "title", _LONGEST_TITLE),
        agent=agent,
        box=BoxMode(box),
        wake=wake,
        key=key,
    )


def _text(arguments: Mapping[str, Any], name: str, longest: int) -> str | None:
    value = arguments.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or "\0" in value:
        raise InvalidRequest(f"{name} must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} must be valid UTF-8") from None
    if len(value) > longest:
        raise InvalidRequest(f"{name} has {len(value)} characters, more than {longest}")
    return value


def _seconds(arguments: Mapping[str, Any]) -> float:
    wait = arguments.get("wait")
    if wait is None:
        return _WAIT
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= MAX_WAIT:
        raise InvalidRequest(f"wait must be a number of seconds from 0 to {MAX_WAIT}, not {wait!r:.100}")
    return float(wait)
