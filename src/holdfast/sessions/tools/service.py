"""Carries out operations for sessions. Their input comes from boxes, so it is checked here, whichever way it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.api.errors import Forbidden, InvalidRequest
from holdfast.api.tools.catalogue import BY_NAME
from holdfast.api.tools.operation import Operation
from holdfast.change_limit import ChangeLimit, Rate
from holdfast.runs.launch.plan import tools_in
from holdfast.sessions.tools.caller import Handler, SessionTree

RATE: Final = Rate(at_once=60, seconds_each=1)
_SHOWN: Final = 100


class SessionTools:
    """A table of handlers. Each is `async (caller, input) -> result`."""

    def __init__(self, tree: SessionTree, handlers: Sequence[Mapping[str, Handler]], limit: ChangeLimit) -> None:
        self._tree = tree
        self._handlers = {name: each for table in handlers for name, each in table.items()}
        self._limit = limit

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Those that this server can carry out."""
        return tuple(each for name, each in BY_NAME.items() if name in self._handlers)

    async def call(
        self, session: str, name: str, given: Mapping[str, Any], *, person: str | None = None, from_text: bool = False
    ) -> dict[str, Any]:
        """Call an operation for a session. Raises an error with a code.

        A session may call the operations of the groups that it was created with. `person` is somebody with an API key,
        who may call all of them. With `from_text`, the values are texts, as in a query.
        """
        operation, handler = BY_NAME.get(name), self._handlers.get(name)
        if operation is None or handler is None:
            raise InvalidRequest(f"there is no tool {name[:_SHOWN]!r}: use one of {', '.join(self._handlers)}")
        caller = await self._tree.caller(session, person)
        if person is None:
            if operation.people_only:
                raise Forbidden(f"{name} is for people: holdfast session call {session} {name}")
            if operation.group not in tools_in(caller.session.options):
                raise Forbidden(
                    f"session {session} may not use {name}",
                    hint=f"create it with holdfast session new --tools {operation.group}",
                )
            if operation.changes:
                self._limit.spend(session)
        return await handler(caller, operation.check(given, from_text=from_text))
