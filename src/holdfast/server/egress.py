"""The egress of a server: the proxy, what it records, and the policies of environments, put together.

Opened in the background, so that the start does not wait. Which registries this machine uses is found out when the
first box has a network, and saved for the next start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.api.box.box import Box
from holdfast.api.box.network import NetworkPolicy, Rule
from holdfast.api.errors.boxes import BoxError, InvalidSpec, PolicyNotFound
from holdfast.boxes.network_policy import NoSecrets, PolicySecrets
from holdfast.egress import (
    Connector,
    DecisionLog,
    DefaultList,
    EgressProxy,
    EnvironmentPolicies,
    GuestApi,
    Limits,
    Private,
    Resolver,
    Source,
    SystemConnector,
    SystemResolver,
    UpstreamProxy,
    git_hosts,
)
from holdfast.egress.bound import ServerSecrets
from holdfast.egress.bound.tls import verifying
from holdfast.egress.models.upstream import LoopbackUpstream, NetworkUpstream, Upstream
from holdfast.egress.packages import PackageCache, PackageMirror
from holdfast.server.lazy import load_in_thread
from holdfast.storage import Storage
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from holdfast.egress.package_registries import Machine

log = logging.getLogger(__name__)

_FIND_SECONDS: Final = 60.0
_READY_SECONDS: Final = 15.0
_SAVED: Final = "egress-default.json"
PACKAGES: Final = "cache/package-files"
"""In a home."""


@dataclass(frozen=True, slots=True)
class Outside:
    """The network outside the boxes, as the proxy reaches it."""

    resolver: Resolver
    connector: Connector
    find_defaults: Callable[[], Awaitable[DefaultList]]
    """Finds out which registries the clients on this machine use, which takes a moment."""
    make_upstream: Callable[[], Upstream] = LoopbackUpstream
    """How the model gateway reaches providers; by default only on this machine."""
    private: Private | None = None
    """Private addresses that boxes may reach."""
    proxy: UpstreamProxy | None = None
    """The proxy of this network, for the traffic of boxes."""
    trust: ssl.SSLContext | None = None
    """By what servers are verified that get secrets. By default, the certificates of this machine."""


class ServerEgress:
    """Owns the proxy, its records and the search for registries, from `open` to `close`."""

    def __init__(
        self,
        storage: Storage,
        home: Path,
        outside: Outside,
        *,
        limits: Limits | None = None,
        guest_api: GuestApi | None = None,
        secrets: ServerSecrets | None = None,
        package_cache: int = 0,
    ) -> None:
        """`package_cache` is the most bytes of packages that are kept for boxes."""
        limits = limits or Limits()
        self.make_upstream = outside.make_upstream
        self.records = DecisionLog(storage.egress_decisions, kept=limits.decisions)
        self.policies = EnvironmentPolicies(storage.egress_policies)
        self._saved = home / _SAVED
        self._outside = outside
        self._known = asyncio.Event()
        self._finding: asyncio.Task[None] | None = None
        self._opened = AsyncExitStack()
        self._cache = PackageCache(home / PACKAGES, package_cache) if package_cache else None
        self.proxy = EgressProxy(
            outside.resolver,
            outside.connector,
            self.records,
            defaults=git_hosts(),
            policies=self.policies,
            limits=limits,
            guest_api=guest_api,
            private=outside.private,
            upstream=outside.proxy,
            secrets=secrets,
            packages=None if self._cache is None else PackageMirror(self._cache, lambda: verifying(outside.trust)),
        )
        self.secrets: PolicySecrets = _BoxFiles(secrets or NoSecrets(), self.proxy)

    async def open(self) -> None:
        if self._cache is not None:
            await self._cache.open()
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self.records)
            await opening.enter_async_context(self.policies)
            await opening.enter_async_context(self.proxy)
            self._opened = opening.pop_all()
        saved = await asyncio.to_thread(_load, self._saved)
        if saved is not None:
            self.proxy.use(saved)
            self._known.set()
        self._finding = asyncio.create_task(self._find_defaults(), name="egress default list")

    async def close(self) -> None:
        """Closing twice does nothing."""
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        await self._opened.aclose()

    # --- the default list ---

    async def ready(self) -> None:
        """Wait until there is a default list for a box with a network, perhaps the saved one.

        The wait is short, because a later list reaches running boxes too.
        """
        self.proxy.defaults_wanted.set()
        with suppress(TimeoutError):
            async with time_limit(_READY_SECONDS):
                await self._known.wait()

    async def defaults(self) -> DefaultList:
        """Return the default list, after the search for registries has ended."""
        self.proxy.defaults_wanted.set()
        if self._finding is not None:
            await asyncio.shield(self._finding)
        return self.proxy.defaults

    async def _find_defaults(self) -> None:
        await self.proxy.defaults_wanted.wait()
        try:
            async with time_limit(_FIND_SECONDS):
                found = await self._outside.find_defaults()
            self.proxy.use(found)
            await asyncio.to_thread(_save, self._saved, found)
        except Exception as error:  # without it, boxes reach git hosts and what their policies allow
            log.warning("cannot find out the package registries of this machine: %s", error)
        finally:
            self._known.set()

    # --- the policies of environments ---

    def policy(self, environment: str) -> NetworkPolicy:
        """Raises `PolicyNotFound`."""
        found = self.policies(environment)
        if found is None:
            raise PolicyNotFound(
                f"environment {environment} has no network policy of its own",
                hint=f"set one: holdfast egress set {environment} --allow HOST",
            )
        return found

    async def set_policy(self, environment: str, policy: NetworkPolicy) -> None:
        """Set the policy. Running boxes get it at once. Raises `InvalidSpec`."""
        if policy.secrets:
            raise InvalidSpec(
                "secrets are given to boxes, not to the policy of an environment",
                hint="give --secret to the box or run",
            )
        await self.policies.put(environment, policy)
        self.proxy.refresh(environment)

    async def remove_policy(self, environment: str) -> None:
        """Raises `PolicyNotFound`."""
        self.policy(environment)
        await self.policies.remove(environment)
        self.proxy.refresh(environment)


class _BoxFiles:
    """`PolicySecrets` that also writes the settings by which clients in a box find the package cache."""

    def __init__(self, secrets: PolicySecrets, proxy: EgressProxy) -> None:
        self._secrets = secrets
        self._proxy = proxy

    def check(self, policy: NetworkPolicy) -> None:
        self._secrets.check(policy)

    def needs_files(self, policy: NetworkPolicy) -> bool:
        return self._secrets.needs_files(policy) or self._proxy.mirrors(policy)

    async def place(self, box: Box, thread: str | None, policy: NetworkPolicy) -> None:
        if self._secrets.needs_files(policy):
            await self._secrets.place(box, thread, policy)
        if self._proxy.mirrors(policy):
            try:
                await asyncio.gather(*(box.files.write(path, text) for path, text in PackageMirror.files().items()))
            except BoxError as error:  # without them, its clients ask the registries themselves
                log.warning("box %s does not use the package cache: %s", box.id, error)

    def exposed(self, policy: NetworkPolicy) -> tuple[str, ...]:
        return self._secrets.exposed(policy)


def this_machine(
    environment: Mapping[str, str],
    *,
    allow_private: Sequence[str] = (),
    proxy: str | None = None,
    public_only: bool = False,
) -> Outside:
    """The network of this machine, whose clients use the variables in `environment`. Raises ValueError.

    `allow_private` are hosts and networks that boxes may reach, `proxy` is the proxy for their traffic. With
    `public_only`, the server itself reaches only public addresses, whatever base URL a model has.
    """

    async def find_defaults() -> DefaultList:
        machine, find = await load_in_thread(_load_registries)
        return await find(machine(environment))

    return Outside(
        SystemResolver(),
        SystemConnector(),
        find_defaults,
        lambda: NetworkUpstream(environment, public_only=public_only),
        Private.parse(allow_private),
        UpstreamProxy.of(proxy, environment),
    )


def _load_registries() -> tuple[type[Machine], Callable[[Machine], Awaitable[DefaultList]]]:
    from holdfast.egress.package_registries import Machine, find_defaults

    return Machine, find_defaults


def _save(path: Path, found: DefaultList) -> None:
    sources = [[str(each.rule), each.why] for each in found.sources]
    temporary = path.with_name(f".{path.name}")
    document = {
        "sources": sources,
        "environment": dict(found.environment),
        "registries": found.registries,
        "indexes": dict(found.indexes),
    }
    temporary.write_text(json.dumps(document))
    temporary.replace(path)


def _load(path: Path) -> DefaultList | None:
    """Load the saved list, or return None if it cannot be read."""
    try:
        document = json.loads(path.read_text())
        sources = tuple(Source(Rule.parse(rule), str(why)) for rule, why in document["sources"])
        environment = {str(name): str(value) for name, value in document["environment"].items()}
        registries = tuple(map(str, document["registries"]))
        indexes = {str(name): str(url) for name, url in document["indexes"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidSpec):
        return None
    return DefaultList(sources, environment, registries, indexes)
