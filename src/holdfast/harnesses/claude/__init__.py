"""Claude Code, driven by lines of JSON on its standard input.

A prompt therefore cannot be mistaken for an option, and a line can interrupt the agent, which then ends its tools and
reports that. All its models, including the small one for side tasks, are set to the model of the run.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from holdfast.harnesses.claude.imports import read_session
from holdfast.harnesses.claude.session import rebuild
from holdfast.harnesses.harness import AbortByLine, Api, Command, Harness, Package, Rebuilt, Task
from holdfast.harnesses.imports import ImportedSession
from holdfast.harnesses.tool_server import CALL_SECONDS, NAME, STARTUP_SECONDS

_MODELS: Final = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_FABLE_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
_SETTINGS: Final = "holdfast.json"
_TOKEN: Final = "model-token"
_MCP: Final = "mcp.json"


class Claude(Harness):
    name: ClassVar[str] = "claude"
    title: ClassVar[str] = "Claude Code"
    package: ClassVar[Package | None] = Package("@anthropic-ai/claude-code", "2.1.325", "claude")
    apis: ClassVar[tuple[Api, ...]] = (Api.ANTHROPIC,)

    def __init__(self, retries: int = 7) -> None:
        self._retries = retries

    def files(self, task: Task) -> Mapping[str, bytes]:
        state = task.place.state
        settings = {
            # The token comes from a file, so that the environment of tools does not show it.
            "apiKeyHelper": f"cat {shlex.quote(f'{state}/{_TOKEN}')}",
            # Repeats the environment, because settings of a repository override that, but not these.
            "env": self._environment(task),
        }
        files = {
            f"{state}/{_SETTINGS}": json.dumps(settings).encode(),
            f"{state}/{_TOKEN}": task.model.token.encode(),
        }
        if task.tools is not None:
            servers = {"mcpServers": {NAME: {"type": "stdio", **task.tools.mcp_server()}}}
            files[f"{state}/{_MCP}"] = json.dumps(servers).encode()
        return files

    def command(self, task: Task) -> Command:
        place = task.place
        resumed = () if task.session is None else ("--resume", task.session)
        tools = () if task.tools is None else ("--mcp-config", f"{place.state}/{_MCP}")
        return Command(
            argv=(
                f"{place.program}/node_modules/.bin/claude",
                "-p",
                "--input-format",
                "stream-json",
                "--output-format",
                "stream-json",
                "--verbose",
                "--include-partial-messages",
                "--replay-user-messages",
                "--dangerously-skip-permissions",
                "--settings",
                f"{place.state}/{_SETTINGS}",
                *tools,
                *resumed,
            ),
            env=self._environment(task),
            stdin=json.dumps({"type": "user", "message": {"role": "user", "content": task.prompt}}) + "\n",
            abort=AbortByLine('{"type":"control_request","request_id":"abort","request":{"subtype":"interrupt"}}'),
        )

    def read_session(self, data: bytes) -> ImportedSession:
        return read_session(data)

    def rebuild(self, entries: Iterable[Mapping[str, Any]], task: Task) -> Rebuilt | None:
        made = rebuild(entries, task.place.workspace)
        if made is None:
            return None
        session, data = made
        folder = re.sub(r"[^a-zA-Z0-9]", "-", task.place.workspace)
        return Rebuilt(session, {f"{task.place.state}/projects/{folder}/{session}.jsonl": data})

    def _environment(self, task: Task) -> dict[str, str]:
        model = task.model
        # Its tools are there from the first request on, and not looked up by another tool.
        tools = (
            {}
            if task.tools is None
            else {
                "ENABLE_TOOL_SEARCH": "false",
                "MCP_CONNECTION_NONBLOCKING": "0",
                "MCP_TIMEOUT": str(STARTUP_SECONDS * 1000),
                "MCP_TOOL_TIMEOUT": str(CALL_SECONDS * 1000),
            }
        )
        return {
            **tools,
            **dict.fromkeys(_MODELS, model.model),
            "ANTHROPIC_BASE_URL": model.url,
            "CLAUDE_CONFIG_DIR": task.place.state,
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(model.context_window),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(model.max_tokens),
            "CLAUDE_CODE_MAX_RETRIES": str(self._retries),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
            "CLAUDE_CODE_DISABLE_CRON": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "IS_SANDBOX": "1",
        }
