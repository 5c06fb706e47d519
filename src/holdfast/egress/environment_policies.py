"""The policies of environments: what boxes of an environment may reach, where they list nothing themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from holdfast.boxes.errors import InvalidSpec
from holdfast.boxes.network_policy import NetworkPolicy
from holdfast.storage.sqlite.database import Database
from holdfast.threads.ids import now_ms

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST: Final = 10_000


class SqlitePolicies:
    """Of one tenant, kept in a database file and at hand in memory. Owned by who made it; `async with` opens it."""

    def __init__(self, path: Path, *, tenant: str = "default") -> None:
        self._database = Database(path, "egress-policies")
        self._tenant = tenant
        self._known: dict[str, NetworkPolicy] = {}

    async def __aenter__(self) -> Self:
        query = "SELECT environment, policy FROM egress_policies WHERE tenant = ?"
        found = await self._database.read(lambda connection: connection.execute(query, (self._tenant,)).fetchall())
        self._known = {environment: NetworkPolicy.from_json(json.loads(policy)) for environment, policy in found}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._database.close()

    def __call__(self, environment: str) -> NetworkPolicy | None:
        return self._known.get(environment)

    def all(self) -> Mapping[str, NetworkPolicy]:
        return MappingProxyType(dict(sorted(self._known.items())))

    async def put(self, environment: str, policy: NetworkPolicy) -> None:
        """Also tell the proxy (`EgressProxy.refresh`): boxes that run go by it at once then."""
        if not _NAME.fullmatch(environment):
            raise InvalidSpec(f"{environment!r} is no name of an environment", hint="letters, digits, dots and dashes")
        if environment not in self._known and len(self._known) >= _MOST:
            raise InvalidSpec(f"there are {_MOST} policies already", hint="remove those of environments that are gone")
        policy.check()
        statement = (
            "INSERT INTO egress_policies (tenant, environment, policy, changed_at) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (tenant, environment) DO UPDATE SET policy = excluded.policy, changed_at = excluded.changed_at"
        )
        values = (self._tenant, environment, json.dumps(policy.to_json()), now_ms())
        await self._database.change(lambda connection: connection.execute(statement, values))
        self._known[environment] = policy

    async def remove(self, environment: str) -> bool:
        """Whether there was one."""
        statement = "DELETE FROM egress_policies WHERE tenant = ? AND environment = ?"
        values = (self._tenant, environment)
        removed = await self._database.change(lambda connection: connection.execute(statement, values).rowcount == 1)
        self._known.pop(environment, None)
        return removed
