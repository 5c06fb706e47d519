"""Sessions that a session starts: spawn, prompt, read, forward and terminate them.

A child gets at most what its parent has: the same agent, model, network, budget and kind of box. A session sees the
sessions below it, and may send a prompt to the one that it belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

from holdfast.api.errors import Conflict, InvalidRequest
from holdfast.api.errors.tasks import DelegationLimit, NothingToShare
from holdfast.api.ids import new_entry_id
from holdfast.api.run.repositories import Source
from holdfast.api.run.tasks import DelegationLimits
from holdfast.api.session.sessions import PromptMode
from holdfast.runs.launch.plan import Options, session_options
from holdfast.runs.run_log import RunLog
from holdfast.sessions.service import Opening, Sessions
from holdfast.sessions.session_log import session_of
from holdfast.sessions.tools.caller import Caller, Handler, SessionTree, keyed_id
from holdfast.sessions.tools.conversation import read_messages
from holdfast.sessions.views import agent_state, joint_state, sandbox_state
from holdfast.threads.rows import ThreadRow

_MESSAGES: Final = 20
_LONGEST_TITLE: Final = 500


class Children:
    """One lock for each tree keeps requests at the same time within its limits."""

    def __init__(self, sessions: Sessions, tree: SessionTree, log: RunLog, limits: DelegationLimits) -> None:
        self._sessions = sessions
        self._tree = tree
        self._log = log
        self._limits = limits
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By the root of a tree."""

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "spawn_child": self.spawn,
            "session_message": self.message,
            "session_messages": self.messages,
            "forward_messages": self.forward,
            "session_status": self.status,
            "child_sessions": self.list,
            "terminate_child": self.terminate,
            "complete_session": self.complete,
        }

    async def spawn(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        id = caller.new_id("t", input)
        options = await self._options(caller, input)
        title = str(input.get("title") or input["workspace"])[:_LONGEST_TITLE]
        opening = Opening(
            id,
            title,
            labels=_labels(input),
            parent=caller.id,
            parent_run=caller.run,
            by=caller.name,
            prompt=str(input["task"]),
            prompt_author=caller.name,
        )
        async with self._locks.setdefault(caller.root, asyncio.Lock()):
            known = {each.id for each in await self._tree.children_of(caller.id)}
            if id not in known:
                await self._check_room(caller)
            made = await self._sessions.create(opening, options)
        if session_of(made).parent != caller.id:
            raise Conflict(f"thread {id}, which this key stands for, belongs to another session: use another key")
        return {"childSessionId": made.id}

    async def _check_room(self, caller: Caller) -> None:
        limits = self._limits
        if caller.depth + 1 > limits.depth:
            raise DelegationLimit(
                f"this session is {caller.depth} levels below the first, and the limit is {limits.depth}"
            )
        below = await self._tree.all_below(caller.root)
        if (
            sum(not session_of(each).is_over and session_of(each).parent == caller.id for each in below)
            >= limits.breadth
        ):
            raise DelegationLimit(
                f"this session has {limits.breadth} sessions of its own, which is the limit",
                hint="terminate one of them",
            )
        if sum(not session_of(each).is_over for each in below) >= limits.boxes:
            raise DelegationLimit(
                f"{limits.boxes} sessions below {caller.root} have not ended, which is the limit", hint="terminate one"
            )
        if len(below) >= limits.threads:
            raise DelegationLimit(f"there were {limits.threads} sessions below {caller.root}, which is the limit")

    async def _options(self, caller: Caller, input: Mapping[str, Any]) -> Options:
        """Returns the options of a child: those of its parent, in another box."""
        runs = caller.row.runs
        box = await self._sessions.box_of(caller.id)
        options = session_options(runs, box)
        source = None if runs.source is None else Source.from_json(runs.source)
        _check_repository(input, source)
        model = input.get("model")
        if model is not None and model not in (options.model, *options.fallbacks):
            models = ", ".join(each for each in (options.model, *options.fallbacks) if each)
            raise InvalidRequest(f"a session below this one can use {models}, not {model!r}")
        options = replace(
            options,
            model=model or options.model,
            fallbacks=options.fallbacks if model is None else (),
            fresh=False,
            shares=None,
            forks=None,
            workspace=runs.workspace,
            source=source,
        )
        if input.get("box") != "fork":
            return options
        if box is None:
            raise NothingToShare("this session has no box that could be copied", hint="leave out the box")
        return replace(options, forks=box.id, workspace=None)

    async def message(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        target, interrupts = str(input["sessionId"]), input.get("interrupt", False)
        if target == caller.session.parent and not interrupts:
            await self._tree.in_tree(caller, target)
        else:
            await self._tree.below(caller, target)
        prompt_id = keyed_id("e", caller.id, target, str(input["key"])) if "key" in input else new_entry_id()
        queued = await self._sessions.prompt(
            target,
            str(input["content"]),
            prompt_id=prompt_id,
            author=caller.name,
            mode=PromptMode.STEER if interrupts else PromptMode.FOLLOWUP,
        )
        return {"ok": True, "success": True, "messageId": queued.id}

    async def messages(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        row = await self._tree.below(caller, str(input["sessionId"]))
        found = await read_messages(self._log, row.id, input.get("limit", _MESSAGES), input.get("after"))
        return {"messages": [each.to_json() for each in found]}

    async def forward(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        row = await self._tree.below(caller, str(input["sessionId"]))
        found = await read_messages(self._log, row.id, input.get("limit", _MESSAGES), input.get("after"))
        entries = [
            self._log.entry(
                {"type": "chat", "role": "assistant", "text": each.content, "forwarded": row.id, "said": each.role},
                id=keyed_id("e", "forwarded", row.id, each.id),  # what was forwarded before is not written again
                author=row.id,
            )
            for each in found
        ]
        if entries:
            await self._log.append(caller.id, *entries)
        return {"count": len(entries), "sourceSessionId": row.id}

    async def status(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        return {"sessionStatus": _status(await self._tree.below(caller, str(input["sessionId"])))}

    async def list(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        return {"children": [_status(each) for each in await self._tree.children_of(caller.id)]}

    async def terminate(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        row = await self._tree.below(caller, str(input["sessionId"]))
        await self._sessions.terminate(row.id, by=caller.name)
        return {"success": True}

    async def complete(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        await self._sessions.terminate(caller.id, by=caller.name)
        return {"success": True}


def _status(row: ThreadRow) -> dict[str, Any]:
    session, busy = session_of(row), row.runs.live is not None
    return {
        "id": row.id,
        "title": row.title,
        "parent": session.parent,
        "state": session.state.value,
        "sandboxState": sandbox_state(session).value,
        "agentState": agent_state(session, busy=busy).value,
        "jointState": joint_state(session, busy=busy).value,
        "queued": len(session.queued),
        "processing": len(session.processing),
        "ended": session.ended_count,
        "error": None if session.error is None else session.error.get("message"),
        "createdAt": row.created_at,
        "lastActivityAt": row.last_activity_at,
    }


def _labels(input: Mapping[str, Any]) -> dict[str, str]:
    """Returns what a child is about, as labels of its thread."""
    names = ("sourceType", "sourcePrNumber", "sourceIssueNumber", "sourceRepoFullName")
    return {"workspace": str(input["workspace"]), **{name: str(input[name]) for name in names if name in input}}


def _check_repository(input: Mapping[str, Any], source: Source | None) -> None:
    """Raises if the child should start with other files than its parent. Whoever starts a session brings its files."""
    known = {
        "repoUrl": () if source is None else (source.repository,),
        "branch": () if source is None else (source.ref,),
        "ref": () if source is None else (source.commit, source.ref),
    }
    for name, values in known.items():
        if name in input and input[name] not in values:
            raise InvalidRequest(
                f"{name} {input[name]!r:.200} is not that of this session: a session below it starts with its files",
                hint="leave it out, and let the new session fetch what it needs over its own network",
            )
