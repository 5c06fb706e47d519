"""The tools by which an agent asks Holdfast for something: the MCP server in its box, and the file with its settings.

Returns files and a command, and the run carries them out. The token is in a file that only the box's user can read,
so that neither the arguments nor the environment of a process show it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.api.run.tasks import ToolDefinition
from holdfast.boxes.guest_archive import find_source

NAME: Final = "holdfast"
"""The name of the MCP server. Most agents make it part of the names of the tools."""
STARTUP_SECONDS: Final = 60
CALL_SECONDS: Final = 240
"""Longer than the server itself waits for an answer, so that the agent hears why there is none."""
_MODULE: Final = "holdfast.guest.mcp_server"


@dataclass(frozen=True, slots=True)
class ToolAccess:
    """How an agent reaches its tools."""

    command: tuple[str, ...]
    """Starts the MCP server."""
    configuration: str
    """The path of the file with the URL, the token and the tools."""

    def mcp_server(self) -> dict[str, Any]:
        """Returns the server as most agents configure it."""
        return {"command": self.command[0], "args": list(self.command[1:])}


def tool_access(state: str, python: Sequence[str]) -> ToolAccess:
    """`state` is the folder of the agent in its box. `python` starts Python there."""
    configuration = f"{state}/tools/tools.json"
    return ToolAccess((*python, "-I", "-S", f"{state}/tools/mcp_server.py", configuration), configuration)


def tool_files(state: str, url: str, token: str, tools: Sequence[ToolDefinition]) -> dict[str, bytes]:
    """Returns the files that `tool_access` refers to. `url` is the guest API as seen from the box."""
    document = {"url": url, "token": token, "tools": [each.to_json() for each in tools]}
    return {
        f"{state}/tools/mcp_server.py": _source(),
        f"{state}/tools/tools.json": json.dumps(document).encode(),
    }


@functools.cache
def _source() -> bytes:
    path: Path | None = find_source(_MODULE)
    assert path is not None
    return path.read_bytes()
