"""A proxy with secrets, a server outside that says what it got, and programs in boxes that speak TLS to it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.egress.conftest import WAIT, Client, Serve, World, make_world
from tests.stores import open_secrets

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.secrets import Binding, Placement
from holdfast.boxes.provider import Provider
from holdfast.egress.bound import ServerSecrets
from holdfast.egress.bound.certificates import BoxAuthority
from holdfast.environments.secrets import Secrets

VALUE = "sk-live-0123456789/abcdef+ghij"
HOST = "api.example.com"
GIT = "git.example.com"
ROOT = bytes(range(32))
OUTSIDE = BoxAuthority(b"outside", "the authority of the world outside")
"""Signs the certificates of servers."""


def trusting(*authorities: BoxAuthority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for each in authorities:
        context.load_verify_locations(cadata=each.certificate().decode())
    return context


Answer = Callable[[bytes, bytes], bytes]
"""Returns what a server sends for the head and the body of a request."""


def reflect(head: bytes, body: bytes) -> bytes:
    """An answer that contains all of the request."""
    whole = head + body
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(whole), whole)


class Outside:
    """A server that keeps what it gets."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.answer: Answer = reflect

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            lines = head.lower().split(b"\r\n")
            if b"expect: 100-continue" in lines:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = b""
            if b"transfer-encoding: chunked" in lines:
                while size := int(await reader.readline(), 16):
                    body += await reader.readexactly(size)
                    await reader.readexactly(2)
                await reader.readexactly(2)
            for line in lines:
                if line.startswith(b"content-length:"):
                    body = await reader.readexactly(int(line.split(b":")[1]))
            self.bodies.append(body)
            writer.write(self.answer(head, body))
            await writer.drain()

    def header(self, name: bytes, of: int = -1) -> list[bytes]:
        lines = self.heads[of].split(b"\r\n")
        return [line.partition(b": ")[2] for line in lines if line.lower().startswith(name.lower() + b":")]


class BoundWorld:
    def __init__(self, world: World, secrets: Secrets, server: ServerSecrets) -> None:
        self.world = world
        self.secrets = secrets
        self.server = server
        self.outside = Outside()
        self._servers = 0

    async def serve(
        self,
        host: str = HOST,
        *,
        port: int = 443,
        serve: Serve | None = None,
        of: BoxAuthority = OUTSIDE,
        certified: str | None = None,
    ) -> None:
        """A server at an address of its own. At another port than 443, it speaks plain HTTP."""
        self._servers += 1
        tls = of.context(certified or host) if port == 443 else None
        await self.world.serve(serve or self.outside.serve, host, port, f"93.184.215.{self._servers}", tls=tls)

    async def connect(self, host: str = HOST, box: str = "b-1") -> Client:
        client = await self.world.client(box)
        await client.send(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
        assert (await client.head()).startswith(b"HTTP/1.1 200 Connection established\r\n")
        return client

    async def inside(
        self, host: str = HOST, box: str = "b-1", *, sni: str | None = None, context: ssl.SSLContext | None = None
    ) -> Client:
        """A client in TLS, which trusts only the authority of its box."""
        client = await self.connect(host, box)
        context = context or trusting(self.server.authority(box))
        async with asyncio.timeout(WAIT):
            await client.writer.start_tls(context, server_hostname=sni or host)
        return client

    async def get(self, path: str = "/", host: str = HOST, box: str = "b-1", more: str = "") -> tuple[int, bytes]:
        client = await self.inside(host, box)
        await client.send(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode())
        return await client.response()


@asynccontextmanager
async def bound_world(folder: Path) -> AsyncIterator[BoundWorld]:
    """TOKEN is bound to a header of HOST, and GIT_TOKEN to two repositories at GIT. Box b-1 may use both."""
    async with open_secrets(folder / "secrets.db", ROOT) as secrets:
        await secrets.set("TOKEN", VALUE, [Binding(host=HOST, format="Bearer {}")], by="alice")
        git = Binding(host=GIT, placement=Placement.GIT, repositories=("acme/app", "acme/lib"))
        await secrets.set("REPOS", VALUE, [git], by="alice")
        server = ServerSecrets(secrets, b"certificates", trusting(OUTSIDE))
        async with make_world(folder, secrets=server) as world:
            bound = BoundWorld(world, secrets, server)
            await bound.serve()
            await bound.serve(GIT)
            world.box("other.example.com", secrets=("TOKEN", "REPOS"))
            yield bound


async def check_secret(bound: BoundWorld, provider: Provider, spec: BoxSpec) -> None:
    """A program in a box of a provider uses a secret that the box does not have."""
    policy = NetworkPolicy(Network.ALLOW, ("other.example.com",), secrets=("TOKEN",))
    box = await provider.create(replace(spec, network=policy), id="b-secret")
    try:
        await bound.server.place(box, None, policy)
        program = f"import urllib.request; print(urllib.request.urlopen('https://{HOST}/').read().decode())"
        done = await box.exec(["python3", "-c", program], timeout=60)
        assert done.exit_code == 0, done.stderr
        assert b"Authorization: Bearer " + b"*" * len(VALUE) in done.stdout
        assert bound.outside.header(b"authorization") == [b"Bearer " + VALUE.encode()]
        environment = (await box.exec(["env"])).text
        assert "TOKEN=holdfast-placeholder-TOKEN" in environment
        assert VALUE not in environment
    finally:
        await provider.remove(box.id)
