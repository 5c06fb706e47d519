"""Codex, driven by `codex exec --json`.

Its output lacks the arguments and results of tools as the model saw them. So the driver (`driver.py`) also follows the
session file that Codex writes, and messages and calls are read from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from holdfast.harnesses.codex.imports import read_session
from holdfast.harnesses.codex.session import rebuild
from holdfast.harnesses.harness import AbortByLine, Api, Command, Harness, Package, Rebuilt, Task
from holdfast.harnesses.imports import ImportedSession
from holdfast.harnesses.tool_server import CALL_SECONDS, NAME, STARTUP_SECONDS

_PROVIDER: Final = "holdfast"
_TOKEN: Final = "HOLDFAST_MODEL_TOKEN"


class Codex(Harness):
    name: ClassVar[str] = "codex"
    title: ClassVar[str] = "Codex"
    package: ClassVar[Package | None] = Package("@openai/codex", "0.166.0", "codex")
    apis: ClassVar[tuple[Api, ...]] = (Api.OPENAI_RESPONSES,)

    def __init__(self, retries: int = 5) -> None:
        self._retries = retries

    def files(self, task: Task) -> Mapping[str, bytes]:
        model = task.model
        lines: tuple[str, ...] = (
            f"model = {_toml(model.model)}",
            f'model_provider = "{_PROVIDER}"',
            f"model_context_window = {model.context_window}",
            "check_for_update_on_startup = false",
            # A search at the provider would bypass the network policy of the box.
            'web_search = "disabled"',
            "[features]",
            "plugins = false",  # with plugins, Codex exits five seconds later
            "[analytics]",
            "enabled = false",
            "[history]",
            'persistence = "none"',
            "[shell_environment_policy]",
            f'exclude = ["{_TOKEN}"]',
            f"[model_providers.{_PROVIDER}]",
            'name = "Holdfast"',
            f"base_url = {_toml(f'{model.url}/v1')}",
            'wire_api = "responses"',
            f'env_key = "{_TOKEN}"',
            f"request_max_retries = {self._retries}",
            f"stream_max_retries = {self._retries}",
        )
        if task.tools is not None:
            first, *others = task.tools.command
            lines += (
                f"[mcp_servers.{NAME}]",
                f"command = {_toml(first)}",
                f"args = [{', '.join(map(_toml, others))}]",
                f"startup_timeout_sec = {STARTUP_SECONDS}",
                f"tool_timeout_sec = {CALL_SECONDS}",
            )
        return {f"{task.place.state}/config.toml": ("\n".join(lines) + "\n").encode()}

    def command(self, task: Task) -> Command:
        place = task.place
        resumed = () if task.session is None else ("--session", task.session)
        return Command(
            argv=("--home", place.state, "--program", place.program, "--node", place.node, *resumed),
            env={"CODEX_HOME": place.state, _TOKEN: task.model.token},
            stdin=json.dumps({"type": "prompt", "text": task.prompt}) + "\n",
            abort=AbortByLine('{"type":"abort"}'),
            driver=True,
        )

    def read_session(self, data: bytes) -> ImportedSession:
        return read_session(data)

    def rebuild(self, entries: Iterable[Mapping[str, Any]], task: Task) -> Rebuilt | None:
        made = rebuild(entries, task.place.workspace)
        if made is None:
            return None
        session, data = made
        # Codex finds the file by the id in its name, and ignores the time and date in its path.
        name = f"rollout-2000-01-01T00-00-00-{session}.jsonl"
        return Rebuilt(session, {f"{task.place.state}/sessions/2000/01/01/{name}": data})


def _toml(text: str) -> str:
    """Returns a basic string of TOML. It is like a string of JSON, except for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
