"""What the server of a session's agent gets beside its model: tools, and files for it. Kept on the thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.api.session.sessions import AgentSettings
from holdfast.threads.access.seals import Seals
from holdfast.threads.sealed_records import SealedRecords
from holdfast.threads.session_events import AGENT_SETTINGS
from holdfast.threads.store import StreamStore


def open_settings(store: StreamStore, seals: Seals, clock: Callable[[], int]) -> SealedRecords[AgentSettings]:
    return SealedRecords[AgentSettings](
        store, seals, clock, prefix=AGENT_SETTINGS, begin=lambda life: AgentSettings(), fold=_fold
    )


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
