"""Packages of registries, fetched once over TLS and kept for other boxes; and what a box tries against that."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.egress.bound_world import OUTSIDE, trusting
from tests.egress.conftest import Client, World, make_world

from holdfast.api.box.network import Network
from holdfast.egress import DefaultList
from holdfast.egress.packages import PackageCache, PackageMirror
from holdfast.egress.packages.cache import Digest

pytestmark = pytest.mark.anyio

PYPI, FILES, NPM = "pypi.example.org", "files.example.org", "npm.example.org"
WHEEL = b"a wheel" * 50_000
TARBALL = b"a tarball" * 1000
WHEEL_PATH = "/ab/cd/demo-1.0-py3-none-any.whl"
DEFAULTS = DefaultList(
    registries=(f"https://{PYPI}/simple", f"https://{FILES}/", f"https://{NPM}/"),
    indexes={"pip": f"https://{PYPI}/simple", "npm": f"https://{NPM}/"},
)
MOST = 4_000_000

Answer = tuple[int, dict[str, str], bytes]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Registry:
    """Servers of an index and of files, which count what they are asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.heads: list[bytes] = []
        self.answers: dict[str, Callable[[bytes], Answer]] = {}
        self.wheel = WHEEL
        tarball = {
            "tarball": f"https://{NPM}/demo/-/demo-1.0.0.tgz",
            "integrity": "sha512-" + base64.b64encode(hashlib.sha512(TARBALL).digest()).decode(),
        }
        package = {"name": "demo", "versions": {"1.0.0": {"name": "demo", "version": "1.0.0", "dist": tarball}}}
        page = f'<a href="https://{FILES}{WHEEL_PATH}#sha256={sha256(WHEEL)}">demo</a> <a href="/x/y.whl">y</a>'
        self.put(f"{PYPI}/simple/demo/", page.encode(), "text/html")
        self.put(f"{NPM}/demo", json.dumps(package).encode(), "application/json")
        self.put(f"{NPM}/demo/-/demo-1.0.0.tgz", TARBALL)
        self.answers[FILES + WHEEL_PATH] = lambda head: (200, {"Content-Type": "application/zip"}, self.wheel)

    def put(self, where: str, body: bytes, kind: str = "application/octet-stream", **headers: str) -> None:
        self.answers[where] = lambda head: (200, {"Content-Type": kind, **headers}, body)

    def count(self, text: str) -> int:
        return sum(text in each for each in self.asked)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            host = next(line.partition(": ")[2] for line in lines if line.lower().startswith("host:"))
            path = lines[0].split(" ")[1]
            for line in lines:
                if line.lower().startswith("content-length:"):
                    await reader.readexactly(int(line.partition(":")[2]))
            self.asked.append(f"{lines[0].split(' ')[0]} {host}{path}")
            self.heads.append(head)
            answer = self.answers.get(host + path)
            status, headers, body = (404, {}, b"nothing") if answer is None else answer(head)
            fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode() + body)
            await writer.drain()


class Packages:
    def __init__(self, world: World, registry: Registry, mirror: PackageMirror) -> None:
        self.world, self.registry, self.mirror = world, registry, mirror

    async def ask(self, request: str, box: str = "b-1") -> tuple[int, dict[str, str], bytes]:
        client = await self.world.client(box)
        await client.send(request.encode())
        return await answer_of(client)

    async def path(self, path: str, box: str = "b-1", more: str = "") -> tuple[int, dict[str, str], bytes]:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n{more}\r\n", box)

    async def name(self, path: str, box: str = "b-1", more: str = "") -> tuple[int, dict[str, str], bytes]:
        host = "npm.packages.internal"
        return await self.ask(f"GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n", box)


async def answer_of(client: Client) -> tuple[int, dict[str, str], bytes]:
    head = (await client.head()).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = b""
    async with asyncio.timeout(240):
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await client.reader.readline(), 16):
                body += await client.reader.readexactly(size)
                await client.reader.readexactly(2)
            await client.reader.readexactly(2)
        else:
            body = await client.reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split(" ")[1]), headers, body


@pytest.fixture
async def packages(tmp_path: Path) -> AsyncIterator[Packages]:
    cache = PackageCache(tmp_path / "cache", MOST)
    await cache.open()
    mirror = PackageMirror(cache, lambda: trusting(OUTSIDE))
    async with make_world(tmp_path, defaults=DEFAULTS, packages=mirror) as world:
        registry = Registry()
        for number, host in enumerate((PYPI, FILES, NPM, "other.example.org"), 1):
            await world.serve(registry.serve, host, 443, f"93.184.215.{number}", tls=OUTSIDE.context(host))
        for box in ("b-1", "b-2"):
            world.box(PYPI, FILES, NPM, id=box)
        yield Packages(world, registry, mirror)


WHEEL_URL = f"/packages/{FILES}{WHEEL_PATH}"


async def test_a_second_box_gets_a_wheel_without_a_second_download(packages: Packages) -> None:
    status, _, page = await packages.path("/packages/pip/demo/")
    assert status == 200
    assert f'href="{WHEEL_URL}#sha256={sha256(WHEEL)}"'.encode() in page
    assert f'href="/packages/{PYPI}/x/y.whl"'.encode() in page, "a link without a host is one of the registry"
    assert (await packages.path(WHEEL_URL))[2] == WHEEL
    status, headers, wheel = await packages.path(WHEEL_URL, "b-2")
    assert (status, wheel, headers["x-holdfast-cache"]) == (200, WHEEL, "hit")
    assert packages.registry.count(".whl") == 1
    record = await packages.world.decision("b-2")
    assert (record.host, record.port, record.allowed) == (FILES, 443, True)
    assert "package cache" in record.why
    assert record.received >= len(WHEEL), "it counts as received"


async def test_a_tarball_of_npm_is_kept_by_a_name_of_its_registry(packages: Packages) -> None:
    status, _, document = await packages.name("/demo")
    assert (status, json.loads(document)["versions"]["1.0.0"]["dist"]["tarball"]) == (
        200, f"https://{NPM}/demo/-/demo-1.0.0.tgz",
    ), "lock files get the real URL"  # fmt: skip
    for box in ("b-1", "b-2"):
        assert (await packages.name("/demo/-/demo-1.0.0.tgz", box))[2] == TARBALL
    assert packages.registry.count(".tgz") == 1


async def test_pages_are_asked_for_anew_and_read_when_they_are_compressed(packages: Packages) -> None:
    page = json.dumps({"files": [{"url": f"https://{FILES}{WHEEL_PATH}", "hashes": {"sha256": sha256(WHEEL)}}]})
    kind = "application/vnd.pypi.simple.v1+json"
    packages.registry.put(
        f"{PYPI}/simple/demo/", gzip.compress(page.encode()), kind, **{"Content-Encoding": "gzip", "ETag": '"1"'}
    )
    for _ in range(2):
        _, headers, body = await packages.path("/packages/pip/demo/")
        assert json.loads(body)["files"][0]["url"] == WHEEL_URL
        assert "content-encoding" not in headers
        assert "etag" not in headers
    assert packages.registry.count("/simple/demo/") == 2


async def test_other_requests_pass_without_being_kept(packages: Packages) -> None:
    packages.registry.put(f"{NPM}/-/audit", b"[]", "application/json")
    head = "POST http://npm.packages.internal/-/audit HTTP/1.1\r\nHost: npm.packages.internal\r\n"
    assert (await packages.ask(f"{head}Content-Length: 2\r\n\r\n{{}}"))[0] == 200
    await packages.path("/packages/pip/demo/")
    for more in ("Authorization: Bearer mine\r\n", "Cookie: a=b\r\n", "Range: bytes=0-1\r\n"):
        assert (await packages.path(WHEEL_URL, more=more))[0] == 200
        assert more.encode() in packages.registry.heads[-1]
    assert (await packages.path(f"{WHEEL_URL}?x=1"))[0] == 404
    assert packages.mirror.cache.size == 0


# --- attacks ---


async def test_a_box_needs_a_rule_for_what_another_box_has_fetched(packages: Packages) -> None:
    await packages.path("/packages/pip/demo/")
    await packages.path(WHEEL_URL)
    packages.world.box(PYPI, id="b-3")
    assert (await packages.path(WHEEL_URL, "b-3"))[0] == 403
    assert (await packages.world.decision("b-3")).host == FILES
    packages.world.box("GET " + FILES, id="b-4")
    assert (await packages.path(WHEEL_URL, "b-4"))[0] == 200, "here, rules with methods hold for HTTPS"
    packages.world.box(id="b-5", mode=Network.NONE)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await packages.path(WHEEL_URL, "b-5")


async def test_only_registries_of_this_machine_are_served(packages: Packages) -> None:
    packages.world.box("*.example.org", "127.0.0.1", id="b-6")
    for path in ("other.example.org/x.whl", "127.0.0.1/x.whl", f"{FILES}:8443/x.whl", "a@b/x", f"{FILES}@evil/x", "/"):
        assert (await packages.path(f"/packages/{path}", "b-6"))[0] == 403, path
    name = "other.example.org.packages.internal"
    assert (await packages.ask(f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n", "b-6"))[0] == 403
    assert packages.registry.asked == []


async def test_nothing_that_a_box_sends_changes_what_others_get(packages: Packages) -> None:
    await packages.path("/packages/pip/demo/")
    evil = "".join(
        f"{name}: {value}\r\n"
        for name, value in {
            "X-Forwarded-Host": "evil.example.org", "X-Original-URL": "/evil", "Accept": "text/evil",
            "Accept-Encoding": "gzip", "User-Agent": "evil", "X-HTTP-Method-Override": "PUT", "Forwarded": "host=evil",
        }.items()
    )  # fmt: skip
    await packages.path(WHEEL_URL, more=evil)
    assert b"evil" not in packages.registry.heads[-1].lower()
    assert (await packages.path(WHEEL_URL, "b-2"))[2] == WHEEL
    refused = await packages.ask(
        f"GET {WHEEL_URL} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert refused[0] == 400
    for method in ("PUT", "DELETE", "POST", "PURGE"):
        await packages.ask(f"{method} {WHEEL_URL} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nevil")
    assert (await packages.path(WHEEL_URL, "b-2"))[2] == WHEEL


async def test_what_is_not_what_the_index_says_is_never_kept(packages: Packages) -> None:
    await packages.path("/packages/pip/demo/")
    packages.registry.wheel = b"evil"
    assert (await packages.path(WHEEL_URL))[2] == b"evil", "the client compares it by itself"
    assert packages.mirror.cache.size == 0
    packages.registry.wheel = WHEEL
    await packages.path(WHEEL_URL)
    assert (await packages.path(WHEEL_URL, "b-2"))[1]["x-holdfast-cache"] == "hit"
    packages.mirror.learn({f"https://{FILES}{WHEEL_PATH}": Digest("sha256", sha256(b"new"))})
    packages.registry.wheel = b"new"
    assert (await packages.path(WHEEL_URL, "b-2"))[2] == b"new", "a registry may replace a file"
    assert (await packages.path(WHEEL_URL))[1]["x-holdfast-cache"] == "hit"


@pytest.mark.parametrize(
    "headers",
    [
        {"Cache-Control": "private"},
        {"Cache-Control": "max-age=1, no-store"},
        {"Set-Cookie": "a=b"},
        {"Content-Encoding": "gzip"},
    ],
)
async def test_an_answer_that_is_for_one_client_is_not_kept(packages: Packages, headers: dict[str, str]) -> None:
    packages.registry.put(f"{NPM}/demo/-/demo-1.0.0.tgz", TARBALL, **headers)
    for _ in range(2):
        await packages.name("/demo/-/demo-1.0.0.tgz")
    assert packages.registry.count(".tgz") == 2


async def test_a_file_without_a_digest_is_not_kept_and_redirects_lead_to_the_registry(packages: Packages) -> None:
    packages.registry.put(f"{FILES}/latest.tar.gz", b"changes")
    await packages.path(f"/packages/{FILES}/latest.tar.gz")
    packages.registry.answers[f"{FILES}/moved.whl"] = lambda head: (302, {"Location": "/ab/x.whl"}, b"")
    assert (await packages.path(f"/packages/{FILES}/moved.whl"))[1]["location"] == f"/packages/{FILES}/ab/x.whl"
    packages.registry.answers[f"{FILES}/away.whl"] = lambda head: (302, {"Location": "https://evil.example/x"}, b"")
    assert (await packages.path(f"/packages/{FILES}/away.whl"))[1]["location"] == "https://evil.example/x"
    assert packages.mirror.cache.size == 0


async def test_a_registry_that_cannot_prove_its_name_gets_no_request(packages: Packages) -> None:
    await packages.world.serve(packages.registry.serve, FILES, 443, "93.184.215.9", tls=OUTSIDE.context("evil.example"))
    assert (await packages.path(WHEEL_URL))[0] == 502
    assert packages.registry.asked == []


async def test_a_name_that_leads_to_a_private_address_is_not_reached(packages: Packages) -> None:
    packages.world.names.names[FILES] = ["169.254.169.254"]
    assert (await packages.path(WHEEL_URL))[0] == 403
    packages.world.names.names[FILES] = ["127.0.0.1"]
    assert (await packages.path(WHEEL_URL))[0] == 403


async def test_a_connection_for_packages_is_for_nothing_else(packages: Packages) -> None:
    client = await packages.world.client()
    await client.send(f"GET {WHEEL_URL} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (await answer_of(client))[0] == 200
    await client.send(b"GET /v1/runs HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await answer_of(client))[0] == 403


async def test_a_download_that_is_cut_leaves_nothing(packages: Packages, tmp_path: Path) -> None:
    packages.registry.wheel = WHEEL * 8
    packages.mirror.learn({f"https://{FILES}{WHEEL_PATH}": Digest("sha256", sha256(WHEEL * 8))})
    client = await packages.world.client()
    await client.send(f"GET {WHEEL_URL} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await client.head()
    client.writer.transport.abort()
    await packages.world.until_ended()
    assert list((tmp_path / "cache" / "partial").iterdir()) == []
    assert packages.mirror.cache.size == 0


async def test_the_file_used_longest_ago_makes_room_also_after_a_restart(packages: Packages, tmp_path: Path) -> None:
    size = MOST // 4
    for name in "abcd":
        packages.registry.put(f"{NPM}/p/-/{name}.tgz", name.encode() * size)
    for name in "abc":
        await packages.name(f"/p/-/{name}.tgz")
    await packages.name("/p/-/a.tgz")  # so b was used longest ago
    entries = tmp_path / "cache" / "urls"
    for number, name in enumerate("bca"):  # clocks of file systems are coarse
        os.utime(entries / sha256(f"https://{NPM}/p/-/{name}.tgz".encode()), (number, number))
    again = PackageCache(tmp_path / "cache", MOST - 1)
    await again.open()
    packages.mirror.cache = again
    await packages.name("/p/-/d.tgz")
    before = packages.registry.count(".tgz")
    for name in "acd":
        assert (await packages.name(f"/p/-/{name}.tgz"))[2] == name.encode() * size
    assert packages.registry.count(".tgz") == before
    assert again.size == 3 * size
    await packages.name("/p/-/b.tgz")
    assert packages.registry.count(".tgz") == before + 1
    packages.registry.put(f"{NPM}/p/-/huge.tgz", b"x" * MOST)
    await packages.name("/p/-/huge.tgz")
    assert again.size <= MOST - 1, "what does not fit is not kept"


async def test_a_damaged_file_is_cut_off_and_fetched_again(packages: Packages, tmp_path: Path) -> None:
    await packages.path("/packages/pip/demo/")
    await packages.path(WHEEL_URL)
    [kept] = (tmp_path / "cache" / "files").iterdir()
    kept.write_bytes(b"b" + WHEEL[1:])
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await packages.path(WHEEL_URL, "b-2")
    assert (await packages.path(WHEEL_URL, "b-2"))[2] == WHEEL


def test_what_this_machine_configures_is_mapped_except_for_uv() -> None:
    mirror = PackageMirror(PackageCache(Path("/nowhere"), 1), lambda: trusting(OUTSIDE))
    environment = {
        "PIP_INDEX_URL": f"https://{PYPI}/simple", "UV_DEFAULT_INDEX": f"https://{PYPI}/simple",
        "npm_config_registry": f"https://{NPM}/", "npm_config_@corp:registry": "https://elsewhere.example/",
    }  # fmt: skip
    mirror.use(DefaultList(environment=environment, registries=DEFAULTS.registries))
    assert mirror.environment() == {
        "PIP_INDEX_URL": f"http://127.0.0.1:3128/packages/{PYPI}/simple",
        "npm_config_registry": f"http://{NPM}.packages.internal/",
        "npm_config_replace_registry_host": NPM,
    }, "uv would write another index into lock files"
