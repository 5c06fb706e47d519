"""What the gateway asks about sessions. This is all that it knows of them: `server` provides the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from holdfast.api.box.box import Box
from holdfast.api.session.gateway import DESKTOP_PORT, EDITOR_PORT

SERVICES: Final[Mapping[str, int]] = MappingProxyType({"vscode": EDITOR_PORT, "vnc": DESKTOP_PORT})
"""The programs of a workstation that have a path of their own, and the ports in the box that they listen on."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as the gateway sees it."""

    id: str
    """Such as `s-…`. It is part of host names: lower-case letters, digits and single hyphens, at most 40 characters."""
    thread: str
    """The thread that has its entries. The gateway writes tunnels, members and revocations there."""
    state: str
    """One word for people, such as `running`, `restoring` or `hibernated`."""
    box: str | None = None
    """The box that it has now. None while there is none to connect to."""
    starting: tuple[str, ...] = ()
    """What has not started yet, in words for people, such as `code-server (4 s)`."""
    services: Mapping[str, int] = field(default_factory=lambda: SERVICES)
    """The ports of its programs, by name."""


@dataclass(frozen=True, slots=True)
class ProgramView:
    """A program of a session's workstation, as its box tells of it."""

    name: str
    """Such as `editor`."""
    title: str
    state: str
    """One word, such as `running` or `starting`."""
    detail: str = ""
    path: str | None = None
    """The page that leads to it, if there is one."""


class Sessions(Protocol):
    """The sessions of a server."""

    async def find(self, id: str) -> SessionView | None:
        """Returns the session with this id, or None. Called for every request, so it should be cheap."""
        ...

    async def programs(self, session: SessionView) -> Sequence[ProgramView]:
        """Returns the programs of a session's workstation, which are shown to people. Empty if it has none."""
        ...

    def open_box(self, session: SessionView) -> AbstractAsyncContextManager[Box]:
        """Open the box of a session. It counts as in use meanwhile. Raises `BoxError` if that fails."""
        ...

    async def of_box(self, box: str) -> SessionView | None:
        """Returns the session that a box belongs to, for requests from inside the box. None if it has none."""
        ...
