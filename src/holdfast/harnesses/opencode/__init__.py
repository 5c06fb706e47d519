"""OpenCode, driven by `opencode serve` and its event stream.

Its own `run --format json` quotes prompts with spaces and cannot be aborted. So the driver (`driver.py`) talks to the
server, and prints its events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from holdfast.harnesses.harness import AbortByLine, Api, Command, Harness, Package, Rebuilt, Task
from holdfast.harnesses.imports import ImportedSession
from holdfast.harnesses.opencode.imports import read_session
from holdfast.harnesses.opencode.session import rebuild
from holdfast.harnesses.tool_server import CALL_SECONDS, NAME

_PROVIDER: Final = "holdfast"
_TOKEN: Final = "HOLDFAST_MODEL_TOKEN"
_CLIENTS: Final = {Api.OPENAI_CHAT: "@ai-sdk/openai-compatible", Api.ANTHROPIC: "@ai-sdk/anthropic"}
"""The libraries for the APIs of models. They are part of the program, so nothing is downloaded."""

_PERMISSION: Final = {"*": "allow", "question": "deny"}
"""There is no user who could be asked."""


class OpenCode(Harness):
    name: ClassVar[str] = "opencode"
    title: ClassVar[str] = "OpenCode"
    package: ClassVar[Package | None] = Package("opencode-ai", "1.18.33", "opencode")
    apis: ClassVar[tuple[Api, ...]] = (Api.ANTHROPIC, Api.OPENAI_CHAT)
    hosted: ClassVar[bool] = True

    def __init__(self, retries: int = 6) -> None:
        self._retries = retries

    def files(self, task: Task) -> Mapping[str, bytes]:
        model = task.model
        name = f"{_PROVIDER}/{model.model}"
        configuration: dict[str, Any] = {
            "autoupdate": False,
            "share": "disabled",
            "snapshot": False,
            "model": name,
            "small_model": name,
            "permission": _PERMISSION,
            "enabled_providers": [_PROVIDER],
            "provider": {
                _PROVIDER: {
                    "name": "Holdfast",
                    "npm": _CLIENTS[model.api],
                    "options": {"baseURL": f"{model.url}/v1", "apiKey": f"{{env:{_TOKEN}}}"},
                    "models": {
                        model.model: {
                            "name": model.model,
                            "tool_call": True,
                            "limit": {"context": model.context_window, "output": model.max_tokens},
                        }
                    },
                }
            },
        }
        if task.tools is not None:
            server = {"type": "local", "command": list(task.tools.command), "enabled": True}
            configuration["mcp"] = {NAME: {**server, "timeout": CALL_SECONDS * 1000}}
        return {_configuration(task): json.dumps(configuration).encode(), _catalog(task): b"{}"}

    def command(self, task: Task) -> Command:
        place = task.place
        resumed = () if task.session is None else ("--session", task.session)
        # Also sent with the prompt, because the repository's configuration may name another model.
        model = {"providerID": _PROVIDER, "modelID": task.model.model}
        return Command(
            argv=("--program", _program(task), "--retries", str(self._retries), *resumed),
            env={
                _TOKEN: task.model.token,
                "OPENCODE_CONFIG": _configuration(task),
                "XDG_CONFIG_HOME": f"{place.state}/config",
                "XDG_DATA_HOME": f"{place.state}/data",
                "XDG_STATE_HOME": f"{place.state}/state",
                "XDG_CACHE_HOME": f"{place.state}/cache",
                # This overrides the repository's configuration.
                "OPENCODE_PERMISSION": json.dumps(_PERMISSION),
                # The list of all known models takes a third of the time until the first request.
                "OPENCODE_MODELS_PATH": _catalog(task),
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
                "OPENCODE_DISABLE_EMBEDDED_WEB_UI": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_SHARE": "1",
                "OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER": "1",
            },
            stdin=json.dumps({"type": "prompt", "text": task.prompt, "model": model}) + "\n",
            abort=AbortByLine('{"type":"abort"}'),
            driver=True,
        )

    def host(self, task: Task) -> Mapping[str, Any]:
        files, command = self.files(task), self.command(task)
        configuration = json.loads(files[_configuration(task)])
        # Without this, OpenCode would keep images from the model, which knows best whether it can see them.
        configuration["provider"][_PROVIDER]["models"][task.model.model].update(
            attachment=True, modalities={"input": ["text", "image", "pdf"], "output": ["text"]}
        )
        permissions = _permissions(task.asks)
        return {
            "program": _program(task),
            "folder": task.place.workspace,
            "file": _configuration(task),
            "configuration": {**configuration, "permission": permissions},
            "env": {**command.env, "OPENCODE_PERMISSION": json.dumps(permissions)},
        }

    def model_name(self, task: Task) -> str:
        return f"{_PROVIDER}/{task.model.model}"

    def read_session(self, data: bytes) -> ImportedSession:
        return read_session(data)

    def rebuild(self, entries: Iterable[Mapping[str, Any]], task: Task) -> Rebuilt | None:
        made = rebuild(entries, task.place.workspace, _PROVIDER, task.model.model)
        if made is None:
            return None
        session, data = made
        file = f"{task.place.state}/rebuilt.json"
        return Rebuilt(session, {file: data}, commands=((_program(task), "import", file),))


def _permissions(asks: tuple[str, ...]) -> dict[str, str]:
    """Returns OpenCode's rules for a session. Of several that match, the last one counts."""
    if "all" in asks:
        return {"*": "ask", "question": "allow", "todowrite": "allow"}
    return {"*": "allow", **dict.fromkeys(asks, "ask")}


def _configuration(task: Task) -> str:
    return f"{task.place.state}/opencode.json"


def _catalog(task: Task) -> str:
    return f"{task.place.state}/models.json"


def _program(task: Task) -> str:
    return f"{task.place.program}/node_modules/.bin/opencode"
