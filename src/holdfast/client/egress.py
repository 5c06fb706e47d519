"""Egress policies of environments, and the decisions about the requests of boxes: `client.egress`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.egress import (
    DefaultList,
    EgressDecision,
    EgressDecisionPage,
    EnvironmentPolicy,
    EnvironmentPolicyList,
)
from holdfast.client.connection import ServerConnection
from holdfast.client.resource import LONG_SECONDS, Resource

_PAGE: Final = 200


class Egress:
    """The egress of a server's boxes: `client.egress`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._egress = Resource(connection, "/v1/egress")
        self._policies = Resource(connection, "/v1/egress/policies")
        self._boxes = Resource(connection, "/v1/boxes")

    async def set(self, environment: str, policy: NetworkPolicy) -> EnvironmentPolicy:
        """Set the policy of an environment. It also applies to running boxes."""
        answer = await self._policies.below(environment).ask("PUT", "", policy.to_json(), timeout=LONG_SECONDS)
        return answer.read(EnvironmentPolicy.from_json)

    async def get(self, environment: str) -> EnvironmentPolicy:
        """Raises `PolicyNotFound`."""
        return (await self._policies.below(environment).ask("GET")).read(EnvironmentPolicy.from_json)

    async def remove(self, environment: str) -> None:
        """Raises `PolicyNotFound`."""
        await self._policies.below(environment).ask("DELETE", repeatable=False)

    async def policies(self) -> list[EnvironmentPolicy]:
        """Returns all policies, sorted by name."""
        answer = await self._policies.ask("GET")
        return list(answer.read(EnvironmentPolicyList.from_json).policies)

    async def default(self) -> DefaultList:
        """Returns what `default` stands for on the server's machine."""
        return (await self._egress.ask("GET", "/default", timeout=LONG_SECONDS)).read(DefaultList.from_json)

    async def page(
        self, box: str, *, denied_only: bool = False, cursor: str | None = None, limit: int = 50
    ) -> EgressDecisionPage:
        """Returns up to `limit` decisions about a box (200 at most) and the cursor of the next page."""
        parameters = [("limit", str(limit)), ("denied", str(denied_only).lower())]
        if cursor is not None:
            parameters.append(("cursor", cursor))
        answer = await self._boxes.below(box).ask("GET", "/egress", parameters=parameters)
        return answer.read(EgressDecisionPage.from_json)

    async def decisions(
        self, box: str, *, denied_only: bool = False, limit: int | None = None
    ) -> AsyncIterator[EgressDecision]:
        """Yields the decisions about a box's requests, newest first: all that are kept, or at most `limit`."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = await self.page(box, denied_only=denied_only, cursor=cursor, limit=size)
            for each in page.decisions:
                yield each
            left = None if left is None else left - len(page.decisions)
            cursor = page.next_cursor
            if cursor is None:
                return
