"""pi, driven in its RPC mode.

This mode prints the same events as the JSON mode, and takes the prompt as a field of a line, so that a prompt cannot be
mistaken for an option or a file. A line can abort the agent, which then ends its tools and reports their results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from holdfast.harnesses.harness import AbortByLine, Api, Command, Harness, Package, Rebuilt, Task
from holdfast.harnesses.imports import ImportedSession
from holdfast.harnesses.pi.imports import read_session
from holdfast.harnesses.pi.session import rebuild

_PROVIDER: Final = "holdfast"
_APIS: Final = {
    Api.OPENAI_CHAT: "openai-completions",
    Api.OPENAI_RESPONSES: "openai-responses",
    Api.ANTHROPIC: "anthropic-messages",
}
_RETRIES: Final = 5
_EXTENSION: Final = Path(__file__).with_name("delegate_extension.js")
"""pi has no MCP: its tools are an extension."""


class Pi(Harness):
    name: ClassVar[str] = "pi"
    title: ClassVar[str] = "pi"
    package: ClassVar[Package | None] = Package("@earendil-works/pi-coding-agent", "0.87.1", "pi")
    apis: ClassVar[tuple[Api, ...]] = (Api.ANTHROPIC, Api.OPENAI_RESPONSES, Api.OPENAI_CHAT)

    def __init__(self, retry_delay_ms: int = 2000) -> None:
        self._retry_delay_ms = retry_delay_ms

    def files(self, task: Task) -> Mapping[str, bytes]:
        model = task.model
        models = {
            "providers": {
                _PROVIDER: {
                    "baseUrl": model.url if model.api is Api.ANTHROPIC else f"{model.url}/v1",
                    "api": _APIS[model.api],
                    "apiKey": model.token,
                    "models": [
                        {
                            "id": model.model,
                            "contextWindow": model.context_window,
                            "maxTokens": model.max_tokens,
                            # The gateway may lead to any server with this API, so use only what all of them support.
                            "compat": {"supportsStore": False, "supportsDeveloperRole": False},
                        }
                    ],
                }
            }
        }
        settings = {
            "defaultProvider": _PROVIDER,
            "defaultModel": model.model,
            "defaultProjectTrust": "never",
            "cacheWarming": "off",
            "enableInstallTelemetry": False,
            "compaction": {
                "enabled": True,
                "reserveTokens": min(16384, model.context_window // 4),
                "keepRecentTokens": kept_tokens(model.context_window),
            },
            "retry": {"enabled": True, "maxRetries": _RETRIES, "baseDelayMs": self._retry_delay_ms},
        }
        files = {
            f"{task.place.state}/models.json": json.dumps(models).encode(),
            f"{task.place.state}/settings.json": json.dumps(settings).encode(),
        }
        if task.tools is not None:
            files[_extension(task)] = _EXTENSION.read_bytes()
        return files

    def command(self, task: Task) -> Command:
        place = task.place
        resumed = () if task.session is None else ("--session", task.session)
        tools = () if task.tools is None else ("--extension", _extension(task))
        where = {} if task.tools is None else {"HOLDFAST_TOOLS": task.tools.configuration}
        return Command(
            argv=(
                place.node,
                f"{place.program}/node_modules/.bin/pi",
                "--mode",
                "rpc",
                "--provider",
                _PROVIDER,
                "--model",
                task.model.model,
                "--session-dir",
                _sessions(task),
                "--no-approve",
                *tools,
                *resumed,
            ),
            env={"PI_CODING_AGENT_DIR": place.state, "PI_OFFLINE": "1", "PI_TELEMETRY": "0", **where},
            stdin="".join(
                json.dumps(line) + "\n"
                for line in (
                    {"id": "state", "type": "get_state"},
                    {"id": "prompt", "type": "prompt", "message": task.prompt},
                )
            ),
            abort=AbortByLine('{"id":"abort","type":"abort"}'),
        )

    def read_session(self, data: bytes) -> ImportedSession:
        return read_session(data)

    def rebuild(self, entries: Iterable[Mapping[str, Any]], task: Task) -> Rebuilt | None:
        made = rebuild(entries, task.place.workspace, kept_tokens(task.model.context_window))
        if made is None:
            return None
        session, data = made
        return Rebuilt(session, {f"{_sessions(task)}/rebuilt_{session}.jsonl": data})


def kept_tokens(context_window: int) -> int:
    """Returns how many tokens at the end of a conversation a compaction keeps unchanged."""
    return min(20_000, context_window // 4)


def _sessions(task: Task) -> str:
    return f"{task.place.state}/sessions"


def _extension(task: Task) -> str:
    return f"{task.place.state}/tools/delegate_extension.js"
