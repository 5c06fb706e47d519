"""What the server of a session's agent gets beside its model: tools, and files for it. Kept on the thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.api.session.sessions import AgentSettings
from holdfast.runs.run_log import RunLog
from holdfast.sessions.hub.connection import RunnerConnection
from holdfast.sessions.hub.runners import Runners
from holdfast.threads.access.seals import Seals
from holdfast.threads.sealed_records import SealedRecords
from holdfast.threads.session_events import AGENT_SETTINGS
from holdfast.threads.store import StreamStore


class ServerSettings:
    """Keeps them on threads, and sends them to runners."""

    def __init__(self, store: StreamStore, seals: Seals, run_log: RunLog, runners: Runners) -> None:
        self._log = run_log
        self._runners = runners
        self._records = SealedRecords[AgentSettings](
            store, seals, run_log.clock, prefix=AGENT_SETTINGS, begin=lambda life: AgentSettings(), fold=_fold
        )

    async def get(self, thread: str) -> AgentSettings | None:
        """Returns the settings of a session, or None if it has got none."""
        session = (await self._log.row(thread)).runs.session
        if session is None or not session.configured:
            return None  # without reading the whole thread
        return await self._records.read(thread)

    async def change(self, thread: str, settings: AgentSettings) -> None:
        """Keep other settings. A runner that is connected gets them now, and others when they connect."""
        await self._records.change(thread, lambda before: settings_entry(settings))
        connection = self._runners.find(thread)
        if connection is not None and connection.greeted.is_set():
            await self.send(connection)

    async def send(self, connection: RunnerConnection) -> None:
        settings = await self.get(connection.thread)
        if settings is not None:
            await connection.send("plugin-content", plugin_content(settings))
            await connection.send("opencode-config", agent_config(settings))


def _fold(settings: AgentSettings, entry: Mapping[str, Any]) -> AgentSettings:
    try:
        return AgentSettings.from_json(entry["payload"]["settings"])
    except (KeyError, TypeError, ValueError):
        return settings  # written by another version


def settings_entry(settings: AgentSettings) -> dict[str, Any]:
    return {"type": AGENT_SETTINGS, "settings": settings.to_request()}


def plugin_content(settings: AgentSettings) -> dict[str, Any]:
    """Returns the message with the files for the agent's server. Personas are context files of the session."""
    return {
        "personas": [],
        "skills": [{"name": each.name, "text": each.text} for each in settings.skills],
        "tools": [{"name": each.name, "text": each.text} for each in settings.custom_tools],
        "allowRepoContent": True,
    }


def agent_config(settings: AgentSettings) -> dict[str, Any]:
    """Returns the message with the configuration of the agent's server, which applies it together with the files."""
    return {"config": {"tools": dict(settings.tools)} if settings.tools else {}}
