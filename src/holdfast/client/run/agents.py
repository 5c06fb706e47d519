"""The agents of a server, and the models each of them supports. Needs an API key."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.api.run.agents import AgentList, AgentRecord
from holdfast.client.connection import ServerConnection


class AgentStore:
    """All agents of one server: `client.agents`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def list(self) -> list[AgentRecord]:
        answer = await self._connection.ask("GET", "/v1/agents")
        return list(answer.read(AgentList.from_json).agents)

    async def get(self, name: str) -> AgentRecord:
        return (await self._connection.ask("GET", f"/v1/agents/{quote(name, safe='')}")).read(AgentRecord.from_json)
