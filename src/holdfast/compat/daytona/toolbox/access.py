"""How routes of the toolbox get at a sandbox and its box."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from holdfast.api.box.box import Box
from holdfast.compat.daytona.sandbox_record import Sandbox
from holdfast.compat.daytona.service import Parts, daytona_of


@dataclass(frozen=True, slots=True)
class Opened:
    """A started sandbox, for one request."""

    parts: Parts
    sandbox: Sandbox
    box: Box

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of a process: the sandbox's, and those of the request."""
        return {**self.sandbox.details.variables, **(more or {})}


@contextlib.asynccontextmanager
async def opened(connection: HTTPConnection, *, signed: str | None = None) -> AsyncIterator[Opened]:
    """The sandbox that a path names, for a caller with an API key. With `signed`, a method, a signature will do."""
    daytona = daytona_of(connection)
    if signed is not None and connection.query_params.get("signature"):
        parts = await daytona.parts()
        sandbox = await parts.sandboxes.find(connection.path_params["sandbox"])
        daytona.check_signature(sandbox, signed, connection)
    else:
        parts, sandbox = await daytona.sandbox(connection)
    async with parts.sandboxes.opened(sandbox) as box:
        yield Opened(parts, sandbox, box)
