"""What the tests of egress share: a world on loopback, a proxy into it, and boxes that have it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.providers.local.attacking import PATIENCE, PRELUDE
from tests.providers.local.world import World, plain_site
from tests.stores import open_policies, open_records

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.process import Completed
from holdfast.api.box.spec import BoxSpec
from holdfast.api.ids import new_id
from holdfast.egress import Decision, DecisionLog, EgressProxy, EnvironmentPolicies, Limits
from holdfast.providers.local import LocalProvider

CA: Final = "/workspace/ca.pem"
_CLIENTS: Final = (
    "CURL_CA_BUNDLE", "SSL_CERT_FILE", "GIT_SSL_CAINFO", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO",
)  # fmt: skip
TRUST: Final = dict.fromkeys(_CLIENTS, CA)
"""What makes each client believe the certificates of this world."""


@dataclass(frozen=True, slots=True)
class Net:
    home: Path
    world: World
    records: DecisionLog
    policies: EnvironmentPolicies
    proxy: EgressProxy
    provider: LocalProvider

    async def box(
        self, *allow: str, mode: Network = Network.ALLOW, labels: Mapping[str, str] | None = None, **spec: Any
    ) -> Box:
        policy = NetworkPolicy(mode, allow)
        box = await self.provider.create(BoxSpec(network=policy, **spec), id=new_id("b"), labels=labels)
        await box.files.write("ca.pem", self.world.authority.pem)
        return box

    async def decisions(self, box: Box) -> list[Decision]:
        """The oldest first."""
        return list(reversed((await self.records.page(box.id, limit=1000)).decisions))

    async def denied(self, box: Box) -> list[Decision]:
        return [each for each in await self.decisions(box) if not each.allowed]


@asynccontextmanager
async def networked(folder: Path, limits: Limits | None = None) -> AsyncIterator[Net]:
    """Its boxes are deleted in the end."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        world = stack.enter_context(World(folder))
        world.serve("site.test", plain_site)
        world.serve("other.test", plain_site)
        records = await stack.enter_async_context(open_records(home / "data.db"))
        policies = await stack.enter_async_context(open_policies(home / "data.db"))
        proxy = EgressProxy(world, world, records, policies=policies, limits=limits)
        await stack.enter_async_context(proxy)
        provider = await stack.enter_async_context(LocalProvider(home, egress=proxy))
        yield Net(home, world, records, policies, proxy, provider)
        for info in await provider.find():
            await provider.remove(info.id)


async def run(box: Box, *argv: str, timeout: float = PATIENCE, **env: str) -> Completed:
    return await box.exec(argv, env={**TRUST, **env}, timeout=timeout)


async def works(box: Box, *argv: str, timeout: float = PATIENCE, **env: str) -> str:
    done = await run(box, *argv, timeout=timeout, **env)
    assert done.exit_code == 0, (done.stdout + done.stderr).decode()
    return done.text


async def curl(box: Box, *arguments: str) -> Completed:
    return await run(box, "curl", "--silent", "--show-error", "--max-time", "20", *arguments)


async def attack(box: Box, program: str, *arguments: str, timeout: float = PATIENCE) -> Any:
    """Run a program inside; what it told."""
    done = await box.exec(["python3", "-c", PRELUDE + program, *arguments], timeout=timeout)
    assert done.exit_code == 0, done.stderr.decode()
    return json.loads(done.stdout)
