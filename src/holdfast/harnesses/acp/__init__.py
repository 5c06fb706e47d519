"""Any agent that speaks the Agent Client Protocol, by the command that starts it: `acp:opencode acp`.

The command, and all that it needs, is in the box. How the agent reaches its model is told by its environment; an agent
that wants it in a file of its own names these variables there.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from holdfast.harnesses.acp.session import rebuild
from holdfast.harnesses.acp.transcript import NAME
from holdfast.harnesses.errors import UnknownAgent
from holdfast.harnesses.harness import AbortByLine, Api, Command, Harness, ModelAccess, Package, Rebuilt, Task


class Acp(Harness):
    name: ClassVar[str] = "acp"
    title: ClassVar[str] = "ACP agent"
    package: ClassVar[Package | None] = None
    apis: ClassVar[tuple[Api, ...]] = (Api.OPENAI_CHAT, Api.OPENAI_RESPONSES, Api.ANTHROPIC)

    def __init__(self, command: str) -> None:
        """Raises `UnknownAgent` for what is no command line."""
        self._command = command.strip()
        try:
            self.argv = tuple(shlex.split(command))
        except ValueError as error:
            raise UnknownAgent(f"{command!r} is no command: {error}", hint="use say acp:'opencode acp'") from None
        if not self.argv:
            raise UnknownAgent("an ACP agent is named by its command", hint="use say acp:'opencode acp'")

    @property
    def agent(self) -> str:
        return f"{self.name}:{self._command}"

    def files(self, task: Task) -> Mapping[str, bytes]:
        return {}

    def command(self, task: Task) -> Command:
        place = task.place
        resumed = () if task.session is None else (f"--session={task.session}",)
        return Command(
            argv=("--workspace", place.workspace, "--state", place.state, *resumed, "--", *self.argv),
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
    told = {
        "HOLDFAST_MODEL": model.model,
        "HOLDFAST_MODEL_API": model.api.value,
        "HOLDFAST_MODEL_TOKEN": model.token,
        "HOLDFAST_MODEL_URL": model.url if model.api is Api.ANTHROPIC else f"{model.url}/v1",
    }
    if model.api is Api.ANTHROPIC:
        told |= {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": model.token, "ANTHROPIC_MODEL": model.model}
    else:
        told |= {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": model.token, "OPENAI_MODEL": model.model}
    return told
