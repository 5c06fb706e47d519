"""Any agent with the Agent Client Protocol, named by the command that starts it: `acp:opencode acp`.

The command and everything it needs have to be in the box. Environment variables tell the agent how to reach its model;
an agent that reads a configuration file refers to these variables there.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from holdfast.api.errors.agents import UnknownAgent
from holdfast.harnesses.acp.session import rebuild
from holdfast.harnesses.acp.transcript import NAME
from holdfast.harnesses.harness import AbortByLine, Api, Command, Harness, ModelAccess, Package, Rebuilt, Task
from holdfast.harnesses.tool_server import NAME as TOOLS


class Acp(Harness):
    name: ClassVar[str] = "acp"
    title: ClassVar[str] = "ACP agent"
    package: ClassVar[Package | None] = None
    apis: ClassVar[tuple[Api, ...]] = (Api.OPENAI_CHAT, Api.OPENAI_RESPONSES, Api.ANTHROPIC)

    def __init__(self, command: str) -> None:
        """Raises `UnknownAgent` if the command is not a valid command line."""
        self._command = command.strip()
        try:
            self.argv = tuple(shlex.split(command))
        except ValueError as error:
            hint = "for example: acp:'opencode acp'"
            raise UnknownAgent(f"{command!r} is not a valid command: {error}", hint=hint) from None
        if not self.argv:
            raise UnknownAgent("an ACP agent needs a command", hint="for example: acp:'opencode acp'")

    @property
    def agent(self) -> str:
        return f"{self.name}:{self._command}"

    def files(self, task: Task) -> Mapping[str, bytes]:
        return {}

    def command(self, task: Task) -> Command:
        place = task.place
        resumed = () if task.session is None else (f"--session={task.session}",)
        tools: tuple[str, ...] = ()
        if task.tools is not None:
            tools = ("--mcp", json.dumps([{"name": TOOLS, **task.tools.mcp_server(), "env": []}]))
        return Command(
            argv=("--workspace", place.workspace, "--state", place.state, *tools, *resumed, "--", *self.argv),
            env=_environment(task.model),
            stdin=json.dumps({"type": "prompt", "text": task.prompt}) + "\n",
            abort=AbortByLine('{"type":"abort"}'),
            driver=True,
        )

    def rebuild(self, entries: Iterable[Mapping[str, Any]], task: Task) -> Rebuilt | None:
        made = rebuild(entries)
        if made is None:
            return None
        session, transcript = made
        return Rebuilt(session, {f"{task.place.state}/{NAME}": transcript})


def _environment(model: ModelAccess) -> dict[str, str]:
    variables = {
        "HOLDFAST_MODEL": model.model,
        "HOLDFAST_MODEL_API": model.api.value,
        "HOLDFAST_MODEL_TOKEN": model.token,
        "HOLDFAST_MODEL_URL": model.url if model.api is Api.ANTHROPIC else f"{model.url}/v1",
    }
    if model.api is Api.ANTHROPIC:
        variables |= {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": model.token, "ANTHROPIC_MODEL": model.model}
    else:
        variables |= {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": model.token, "OPENAI_MODEL": model.model}
    return variables
