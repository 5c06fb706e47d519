"""The network policies of environments in SQLite."""

from __future__ import annotations

import json

from holdfast.api.box.network import NetworkPolicy
from holdfast.storage.sqlite.database import Database


class SqlitePolicies:
    """`PolicyStore` on a database file, for one tenant."""

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def load_all(self) -> dict[str, NetworkPolicy]:
        query = "SELECT environment, policy FROM egress_policies WHERE tenant = ?"
        found = await self._database.read(lambda connection: connection.execute(query, (self._tenant,)).fetchall())
        return {environment: NetworkPolicy.from_json(json.loads(policy)) for environment, policy in found}

    async def put(self, environment: str, policy: NetworkPolicy, now: int) -> None:
        statement = (
            "INSERT INTO egress_policies (tenant, environment, policy, changed_at) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (tenant, environment) DO UPDATE SET policy = excluded.policy, changed_at = excluded.changed_at"
        )
        values = (self._tenant, environment, json.dumps(policy.to_json()), now)
        await self._database.change(lambda connection: connection.execute(statement, values))

    async def remove(self, environment: str) -> bool:
        statement = "DELETE FROM egress_policies WHERE tenant = ? AND environment = ?"
        values = (self._tenant, environment)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount == 1)
