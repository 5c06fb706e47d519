"""Memories: notes that sessions write and later sessions find. They belong to a tenant, and name who wrote them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.api.errors import Conflict, NotFound
from holdfast.api.ids import now_ms
from holdfast.api.tools.memories import MOST_MEMORIES
from holdfast.sessions.tools.caller import Caller, Handler
from holdfast.sessions.tools.memory_rows import MemoryRow, MemoryStore

_USUAL: Final = 20


class Memories:
    """Every session with this group reads all of them. It deletes those of its own tree, and people delete any."""

    def __init__(self, store: MemoryStore, clock: Callable[[], int] = now_ms, *, most: int = MOST_MEMORIES) -> None:
        self._store = store
        self._clock = clock
        self._most = most

    @property
    def handlers(self) -> dict[str, Handler]:
        return {"memory_read": self.read, "memory_write": self.write, "memory_delete": self.delete}

    async def read(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        found = await self._store.find(input.get("query"), input.get("category"), input.get("limit", _USUAL))
        return {"memories": [each.to_json() for each in found]}

    async def write(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        id = caller.new_id("m", input)
        row = MemoryRow(id, str(input["category"]), str(input["content"]), caller.id, caller.root, self._clock())
        if not await self._store.add(row, self._most):
            raise Conflict(f"there are {self._most} memories, which is the limit", hint="delete some of them first")
        written = await self._store.get(id)
        return {"memory": (written or row).to_json(), "success": True}

    async def delete(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        id = str(input["id"])
        if not await self._store.remove(id, None if caller.person is not None else caller.root):
            raise NotFound(f"there is no memory {id} of this tree of sessions")
        return {"success": True}
