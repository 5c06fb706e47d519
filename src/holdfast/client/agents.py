"""The agents of a server, and which models each of them can be used with. Needs an API key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.client.connection import ServerConnection
from holdfast.model_apis import Api


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model that an agent can be used with."""

    name: str
    model: str | None
    """Which of its models is meant where nobody says."""
    api: Api
    """What the two speak."""
    is_ready: bool
    """It has a key, or wants none."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> OfferedModel:
        return cls(value["name"], value["model"], Api(value["api"]), value["isReady"])

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "model": self.model, "api": self.api.value, "isReady": self.is_ready}


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent that runs can be launched with."""

    name: str
    title: str
    version: str | None
    """That is installed with its first run; None of one that has to be in the box."""
    apis: tuple[Api, ...]
    """That it speaks, the best first."""
    models: tuple[OfferedModel, ...]
    """Those that can be used first."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> AgentRecord:
        return cls(
            value["name"],
            value["title"],
            value["version"],
            tuple(Api(each) for each in value["apis"]),
            tuple(OfferedModel.from_json(each) for each in value["models"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "version": self.version,
            "apis": [each.value for each in self.apis],
            "models": [each.to_json() for each in self.models],
        }


class AgentStore:
    """All agents of one server: `client.agents`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def list(self) -> list[AgentRecord]:
        answer = await self._connection.ask("GET", "/v1/agents")
        return answer.read(lambda value: [AgentRecord.from_json(each) for each in value["agents"]])

    async def get(self, name: str) -> AgentRecord:
        return (await self._connection.ask("GET", f"/v1/agents/{quote(name, safe='')}")).read(AgentRecord.from_json)
