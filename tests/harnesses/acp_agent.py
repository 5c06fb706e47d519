"""An agent that speaks the Agent Client Protocol by its published library, and does what its prompt says.

A line of the prompt is a command: `say TEXT`, `think TEXT`, `run NAME RESULT`, `ask` (for permission), `read PATH`,
`write PATH TEXT`, `begin NAME` (a tool that does not end), `wait` (until cancelled), `fail TEXT`, `stop REASON`, `die`.
Sessions are kept in the folder that it is given; with `--forgetful` it cannot load them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import acp
from acp.schema import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ToolCallUpdate,
    Usage,
)


class Agent:
    def __init__(self, folder: Path, *, loads: bool) -> None:
        self._folder = folder
        self._loads = loads
        self._cancelled = asyncio.Event()
        self._client: Any = None

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=protocol_version,
            agent_capabilities=AgentCapabilities(load_session=self._loads),
            agent_info=Implementation(name="obedient", version="7.0"),
        )

    async def new_session(self, cwd: str, mcp_servers: Any = (), **_: Any) -> NewSessionResponse:
        told = [each.model_dump(mode="json", by_alias=True) for each in mcp_servers or ()]
        (self._folder.parent / "mcp.json").write_text(json.dumps(told))
        session = f"s-{len(list(self._folder.iterdir())) + 1}"
        (self._folder / session).write_text("[]")
        return NewSessionResponse(session_id=session)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> LoadSessionResponse:
        if not (self._folder / session_id).exists():
            raise acp.RequestError.invalid_params({"details": "no such session"})
        for prompt in json.loads((self._folder / session_id).read_text()):
            await self._client.session_update(session_id, acp.update_user_message_text(prompt))
            await self._client.session_update(session_id, acp.update_agent_message_text("said before"))
        return LoadSessionResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        self._cancelled.set()

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> PromptResponse:
        text = "".join(block.text for block in prompt)
        kept = self._folder / session_id
        kept.write_text(json.dumps([*json.loads(kept.read_text()), text]))
        reason: Any = "end_turn"
        for line in text.rpartition("</transcript>")[2].strip().splitlines():
            reason = await self._obey(session_id, *line.partition(" ")[::2]) or reason
        usage = Usage(input_tokens=11, output_tokens=7, total_tokens=18)
        return PromptResponse(stop_reason=reason, usage=usage)

    async def _obey(self, session: str, order: str, rest: str) -> str | None:
        tell = self._client.session_update
        if order == "say":
            for word in rest.split(" "):
                await tell(session, acp.update_agent_message_text(f"{word} "))
        elif order == "think":
            await tell(session, acp.update_agent_thought_text(rest))
        elif order == "run":
            name, _, result = rest.partition(" ")
            await tell(session, acp.start_tool_call("c-1", name, kind="execute", status="pending"))
            await tell(session, acp.update_tool_call("c-1", status="in_progress", raw_input={"of": name}))
            content = [acp.tool_content(acp.text_block(result))]
            await tell(session, acp.update_tool_call("c-1", title="It ran", status="completed", content=content))
        elif order == "begin":
            await tell(session, acp.start_tool_call("c-2", rest, status="in_progress", raw_input={"of": rest}))
        elif order == "ask":
            options = [
                PermissionOption(option_id="no", name="No", kind="reject_once"),
                PermissionOption(option_id="always", name="Always", kind="allow_always"),
                PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
            ]
            answer = await self._client.request_permission(
                options=options, session_id=session, tool_call=ToolCallUpdate(tool_call_id="c-3")
            )
            chosen = getattr(answer.outcome, "option_id", "cancelled")
            await tell(session, acp.update_agent_message_text(f"chosen: {chosen}"))
        elif order == "read":
            try:
                read = await self._client.read_text_file(path=rest, session_id=session)
                await tell(session, acp.update_agent_message_text(read.content))
            except acp.RequestError as error:
                await tell(session, acp.update_agent_message_text(f"refused: {error}"))
        elif order == "write":
            path, _, written = rest.partition(" ")
            await self._client.write_text_file(content=written, path=path, session_id=session)
        elif order == "wait":
            await tell(session, acp.update_agent_message_text("waiting"))
            await self._cancelled.wait()
            return "cancelled"
        elif order == "fail":
            raise acp.RequestError(-32603, rest)
        elif order == "stop":
            return rest
        elif order == "die":
            os._exit(9)
        return None


if __name__ == "__main__":
    agent: Any = Agent(Path(sys.argv[1]), loads="--forgetful" not in sys.argv)
    asyncio.run(acp.run_agent(agent))
