"""What boxes may reach beside their own policies, and what was decided about what they asked for: `client.egress`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.boxes.network_policy import NetworkPolicy
from holdfast.client.connection import ServerConnection
from holdfast.client.resource import LONG_SECONDS, BoxConnection

_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class EnvironmentPolicy:
    """What boxes of an environment may reach, where they list nothing themselves."""

    environment: str
    network: NetworkPolicy

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EnvironmentPolicy:
        return cls(value["environment"], NetworkPolicy.from_json(value["network"]))

    def to_json(self) -> dict[str, Any]:
        return {"environment": self.environment, "network": self.network.to_json()}


@dataclass(frozen=True, slots=True)
class DefaultList:
    """What `default` stands for in a list of rules."""

    rules: tuple[tuple[str, str], ...]
    """Each with whose it is: pip, npm, apt, cargo, git."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> DefaultList:
        return cls(tuple((each["rule"], each["source"]) for each in value["rules"]))

    def to_json(self) -> dict[str, Any]:
        return {"rules": [{"rule": rule, "source": source} for rule, source in self.rules]}


@dataclass(frozen=True, slots=True)
class EgressDecision:
    """What was decided about one request of a box, or about several that are alike."""

    id: str
    at: int
    """UTC milliseconds."""
    host: str
    """Empty where it did not come to one."""
    port: int
    method: str
    """`CONNECT` for HTTPS."""
    allowed: bool
    why: str
    """The rule that allowed it, or what speaks against it."""
    count: int
    """How many this stands for."""
    sent: int
    """Bytes out of the box."""
    received: int
    milliseconds: int | None
    """None while it goes on."""
    failed: bool
    """It was allowed, and came to nothing: the name had no address, or nobody answered there."""
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EgressDecision:
        return cls(
            value["id"],
            value["at"],
            value["host"],
            value["port"],
            value["method"],
            value["allowed"],
            value["why"],
            value["count"],
            value["sent"],
            value["received"],
            value["milliseconds"],
            value.get("failed", False),
            value,
        )

    def to_json(self) -> dict[str, Any]:
        return dict(self.document)


@dataclass(frozen=True, slots=True)
class EgressDecisionPage:
    decisions: list[EgressDecision]
    """The newest first."""
    next_cursor: str | None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EgressDecisionPage:
        return cls([EgressDecision.from_json(each) for each in value["decisions"]], value["nextCursor"])


class Egress:
    """The egress of a server's boxes: `client.egress`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._egress = BoxConnection(connection, "/v1/egress")
        self._policies = BoxConnection(connection, "/v1/egress/policies")
        self._boxes = BoxConnection(connection, "/v1/boxes")

    async def set(self, environment: str, policy: NetworkPolicy) -> EnvironmentPolicy:
        """The policy of an environment, from now on, for its running boxes too."""
        answer = await self._policies.below(environment).ask("PUT", "", policy.to_json(), timeout=LONG_SECONDS)
        return answer.read(EnvironmentPolicy.from_json)

    async def get(self, environment: str) -> EnvironmentPolicy:
        """Raises `PolicyNotFound`."""
        return (await self._policies.below(environment).ask("GET")).read(EnvironmentPolicy.from_json)

    async def remove(self, environment: str) -> None:
        """Raises `PolicyNotFound`."""
        await self._policies.below(environment).ask("DELETE", repeatable=False)

    async def policies(self) -> list[EnvironmentPolicy]:
        """All of them, by name."""
        answer = await self._policies.ask("GET")
        return answer.read(lambda value: [EnvironmentPolicy.from_json(each) for each in value["policies"]])

    async def default(self) -> DefaultList:
        """What `default` stands for on the server's machine."""
        return (await self._egress.ask("GET", "/default", timeout=LONG_SECONDS)).read(DefaultList.from_json)

    async def page(
        self, box: str, *, denied_only: bool = False, cursor: str | None = None, limit: int = 50
    ) -> EgressDecisionPage:
        """Up to `limit` decisions about a box at once (200 at most), and where the next ones are."""
        parameters = [("limit", str(limit)), ("denied", str(denied_only).lower())]
        if cursor is not None:
            parameters.append(("cursor", cursor))
        answer = await self._boxes.below(box).ask("GET", "/egress", parameters=parameters)
        return answer.read(EgressDecisionPage.from_json)

    async def decisions(
        self, box: str, *, denied_only: bool = False, limit: int | None = None
    ) -> AsyncIterator[EgressDecision]:
        """What was decided about what a box asked for, the newest first: all that is kept, or `limit` of it."""
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
