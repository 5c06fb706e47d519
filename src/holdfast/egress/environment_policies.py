"""The network policies of environments. They apply to boxes whose own policy lists no hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Final, Protocol, Self

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.api.ids import now_ms

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST: Final = 10_000


class PolicyStore(Protocol):
    """The contract of a store of policies. Changes are on disk when `put` and `remove` return."""

    async def load_all(self) -> dict[str, NetworkPolicy]:
        """Returns the policies by the name of their environment."""
        ...

    async def put(self, environment: str, policy: NetworkPolicy, now: int) -> None:
        """Set the policy of an environment. `now` is UTC milliseconds."""

    async def remove(self, environment: str) -> bool:
        """Remove a policy. Returns whether there was one."""
        ...


class EnvironmentPolicies:
    """All policies, kept in a store and in memory. `async with` loads them."""

    def __init__(self, store: PolicyStore) -> None:
        self._store = store
        self._known: dict[str, NetworkPolicy] = {}

    async def __aenter__(self) -> Self:
        self._known = await self._store.load_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does not close the store, which belongs to its owner."""

    def __call__(self, environment: str) -> NetworkPolicy | None:
        return self._known.get(environment)

    def all(self) -> Mapping[str, NetworkPolicy]:
        return MappingProxyType(dict(sorted(self._known.items())))

    async def put(self, environment: str, policy: NetworkPolicy) -> None:
        """Set a policy. Call `EgressProxy.refresh` afterwards to apply it to running boxes."""
        if not _NAME.fullmatch(environment):
            raise InvalidSpec(
                f"{environment!r} is not a valid name of an environment", hint="use letters, digits, dots and dashes"
            )
        if environment not in self._known and len(self._known) >= _MOST:
            raise InvalidSpec(
                f"there are {_MOST} policies already", hint="remove those of environments that no longer exist"
            )
        policy.check()
        await self._store.put(environment, policy, now_ms())
        self._known[environment] = policy

    async def remove(self, environment: str) -> bool:
        """Remove a policy. Returns whether there was one."""
        removed = await self._store.remove(environment)
        self._known.pop(environment, None)
        return removed
