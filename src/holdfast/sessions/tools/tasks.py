"""The list of tasks of a tree of sessions. It is on the thread of the topmost session, so it lives as long as that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.runs.run_log import RunLog
from holdfast.sessions.tools.board import CHANGED, CREATED, PREFIX, Board, apply, fold
from holdfast.sessions.tools.caller import Caller, Handler, SessionTree
from holdfast.threads.access.seals import Seals
from holdfast.threads.sealed_records import SealedRecords
from holdfast.threads.store import StreamStore

_USUAL: Final = 200


class Tasks:
    def __init__(self, store: StreamStore, seals: Seals, log: RunLog, tree: SessionTree) -> None:
        self._tree = tree
        self._log = log
        self._boards = SealedRecords[Board](
            store, seals, log.clock, prefix=PREFIX, begin=lambda life: Board(), fold=fold
        )

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "create_task": self.create,
            "list_tasks": self.list,
            "update_task": self.update,
            "my_tasks": self.mine,
        }

    async def create(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        await self._check_session(caller, input)
        id = caller.new_id("k", input)
        payload = {"type": CREATED, "task": id, "by": caller.name, **_kept(input)}
        if "parentTaskId" in input:
            payload["parent"] = input["parentTaskId"]

        def compose(board: Board) -> dict[str, Any] | None:
            if id in board.tasks:
                return None  # the call was repeated
            _try(board, payload, self._log.clock())
            return payload

        board = await self._boards.change(caller.root, compose)
        return {"task": board.shown(board.get(id))}

    async def update(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        await self._check_session(caller, input)
        id = str(input["id"])
        payload = {"type": CHANGED, "task": id, "by": caller.name, **_kept(input)}

        def compose(board: Board) -> dict[str, Any] | None:
            if _try(board, payload, board.get(id).changed_at) == board:
                return None
            return payload

        board = await self._boards.change(caller.root, compose)
        return {"task": board.shown(board.get(id))}

    async def list(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        return await self._found(caller, input, input.get("limit", _USUAL))

    async def mine(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        return await self._found(caller, input, _USUAL, session=caller.id)

    async def _found(
        self, caller: Caller, input: Mapping[str, Any], limit: int, session: str | None = None
    ) -> dict[str, Any]:
        board = await self._boards.get(caller.root)
        found = [
            board.shown(each)
            for each in board.tasks.values()
            if input.get("status") in (None, each.status) and session in (None, each.session)
        ]
        return {"tasks": found[:limit]}

    async def _check_session(self, caller: Caller, input: Mapping[str, Any]) -> None:
        if "sessionId" in input:
            await self._tree.in_tree(caller, str(input["sessionId"]))


def _kept(input: Mapping[str, Any]) -> dict[str, Any]:
    names = {"title": "title", "description": "description", "status": "status", "result": "result"}
    named = {**names, "sessionId": "session", "blockedBy": "blockedBy"}
    return {named[name]: value for name, value in input.items() if name in named}


def _try(board: Board, payload: dict[str, Any], at: int) -> Board:
    """Returns the board after an entry. Raises what is wrong with the entry."""
    return apply(board, {"ts": at, "payload": payload})
