"""Registries that lie, stall, break off, and send people elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.images.registry import CONFIG, LyingRegistry, Web, index_of, lying, send, sha256, small_image

from holdfast.api.errors.boxes import BoxError, CannotIsolate, HostileArchive
from holdfast.api.errors.images import RegistryFailed, RegistryRefused
from holdfast.boxes.images import ImageStore
from holdfast.egress.models.upstream import LoopbackUpstream, NetworkUpstream
from holdfast.images.registry import blobs, client
from holdfast.images.registry.authentication import Credentials
from holdfast.images.registry.pull import Puller
from holdfast.providers.local import LocalProvider

pytestmark = pytest.mark.anyio

LOGIN = Credentials("sailor", "s3cret")
Answer = Callable[[BaseHTTPRequestHandler], bool]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.0, 0.0, 0.0))


@pytest.fixture
def registry() -> Iterator[LyingRegistry]:
    with lying(small_image("etc/a", "etc/b")) as registry:
        yield registry


@pytest.fixture
async def images(tmp_path: Path) -> AsyncIterator[ImageStore]:
    try:
        async with LocalProvider(tmp_path / "home") as provider:
            assert provider.images is not None
            yield provider.images
    except CannotIsolate as error:
        pytest.skip(f"this machine makes no boxes: {error.message}")


@pytest.fixture
def puller(tmp_path: Path) -> Puller:
    return Puller(tmp_path / "cache", LoopbackUpstream)


async def refused(
    puller: Puller, images: ImageStore, registry: LyingRegistry, kind: type[BoxError], words: str, **options: Any
) -> None:
    """The pull fails in these words, and leaves no image."""
    with pytest.raises(kind, match=words):
        await puller.pull(images, f"{registry.host}/app:1", **options)
    assert await images.list() == []


def on(part: str, answer: Callable[[BaseHTTPRequestHandler], None], *, times: int = 1 << 30) -> Answer:
    """Answers requests whose path has this part, so many times."""
    left = [times]

    def decide(request: BaseHTTPRequestHandler) -> bool:
        if part not in request.path or not left[0]:
            return False
        left[0] -= 1
        answer(request)
        return True

    return decide


async def test_the_honest_image_comes(puller: Puller, images: ImageStore, registry: LyingRegistry) -> None:
    image = await puller.pull(images, f"{registry.host}/app:1")
    assert image.pulled == sha256(registry.image.data)


async def test_a_blob_that_is_another_one_is_refused(
    puller: Puller, images: ImageStore, registry: LyingRegistry, tmp_path: Path
) -> None:
    digest = sha256(registry.image.packed[1])
    registry.blobs[digest] = b"!" + registry.blobs[digest][1:]
    await refused(puller, images, registry, HostileArchive, "another digest or size")
    assert not [path for path in tmp_path.glob("cache/*/*") if path.name == digest.removeprefix("sha256:")]


async def test_a_manifest_that_is_another_one_is_refused(
    puller: Puller, images: ImageStore, registry: LyingRegistry
) -> None:
    with pytest.raises(HostileArchive, match="another manifest"):
        await puller.pull(images, f"{registry.host}/app@sha256:{'0' * 64}")
    inner = registry.manifest
    registry.manifest = index_of(("linux", "amd64", b"something else"), ("linux", "arm64", b"something else"))
    registry.answer = on("/manifests/sha256:", lambda request: send(request, 200, inner))
    await refused(puller, images, registry, HostileArchive, "another manifest")


async def test_sizes_that_are_not_so_are_refused(puller: Puller, images: ImageStore, registry: LyingRegistry) -> None:
    for change in (-1, 1):
        document = json.loads(registry.image.data)
        document["layers"][0]["size"] += change
        registry.manifest = json.dumps(document).encode()
        await refused(puller, images, registry, HostileArchive, "sends more for|another digest or size")


async def test_a_configuration_that_lies_about_layers_is_refused(
    puller: Puller, images: ImageStore, registry: LyingRegistry
) -> None:
    config = json.loads(registry.image.config_data)
    config["rootfs"]["diff_ids"].reverse()
    data = json.dumps(config).encode()
    document = json.loads(registry.image.data)
    document["config"] = {"mediaType": CONFIG, "digest": sha256(data), "size": len(data)}
    registry.manifest = json.dumps(document).encode()
    registry.blobs[sha256(data)] = data
    await refused(puller, images, registry, HostileArchive, "but the image declares")


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    for _ in range(10_000):
        request.wfile.write(b"10000\r\n" + b" " * 65536 + b"\r\n")


async def test_answers_without_end_are_cut_off(puller: Puller, images: ImageStore, registry: LyingRegistry) -> None:
    registry.answer = on("/manifests/", endless)
    await refused(puller, images, registry, RegistryFailed, "a manifest of more than")
    registry.answer = on("/blobs/", endless)
    await refused(puller, images, registry, HostileArchive, "sends more for")
    challenge = on("/v2/", lambda request: _challenge(request, f"{registry.web.url}/token"))
    token = on("/token", endless)
    registry.answer = lambda request: token(request) or challenge(request)
    await refused(puller, images, registry, RegistryFailed, "a token of more than")


def _challenge(request: BaseHTTPRequestHandler, realm: str) -> None:
    send(request, 401, b"{}", WWW_Authenticate=f'Bearer realm="{realm}",service="x",scope="repository:other:push"')


async def test_a_download_that_breaks_off_goes_on_where_it_stopped(
    puller: Puller, images: ImageStore, registry: LyingRegistry
) -> None:
    digest = sha256(registry.image.packed[0])
    data = registry.blobs[digest]

    def half(request: BaseHTTPRequestHandler) -> None:
        start = int((request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        request.send_response(206 if start else 200)
        request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        request.wfile.write(data[start : start + 20])
        request.close_connection = True

    registry.answer = on(digest, half, times=5)
    await puller.pull(images, f"{registry.host}/app:1")
    ranges = [headers.get("range") for path, headers in registry.asked if path.endswith(digest)]
    assert ranges == [None, *(f"bytes={20 * number}-" for number in range(1, 6))]


async def test_attempts_for_a_manifest_have_an_end(puller: Puller, images: ImageStore, registry: LyingRegistry) -> None:
    registry.answer = on("/v2/", lambda request: send(request, 503, b"tomorrow"))
    await refused(puller, images, registry, RegistryFailed, "answers 503: tomorrow")
    assert len(registry.asked) == 4


async def test_attempts_for_a_blob_without_progress_have_an_end(
    puller: Puller, images: ImageStore, registry: LyingRegistry
) -> None:
    registry.answer = on("/blobs/", lambda request: send(request, 429))
    await refused(puller, images, registry, RegistryFailed, "too many requests")
    assert most_requests_for_one_blob(registry) == 4


async def test_attempts_for_a_blob_with_little_progress_have_an_end(
    puller: Puller, images: ImageStore, registry: LyingRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(206)
        request.send_header("Content-Range", f"{request.headers.get('Range', 'bytes=0-').replace('=', ' ')}9/10")
        request.send_header("Content-Length", "9999")
        request.end_headers()
        request.wfile.write(b"x")
        request.close_connection = True

    monkeypatch.setattr(blobs, "_MOST_ATTEMPTS", 6)
    registry.answer = on("/blobs/", drip)
    await refused(puller, images, registry, BoxError, "does not answer")
    assert most_requests_for_one_blob(registry) <= 6


def most_requests_for_one_blob(registry: LyingRegistry) -> int:
    return max(sum(path.endswith(digest) for path, _ in registry.asked) for digest in registry.blobs)


async def test_a_stumble_is_forgiven(puller: Puller, images: ImageStore, registry: LyingRegistry) -> None:
    registry.answer = on("/v2/", lambda request: send(request, 502), times=3)
    image = await puller.pull(images, f"{registry.host}/app:1")
    assert image.pulled == sha256(registry.image.data)


# --- sent elsewhere ---


async def test_a_redirect_to_another_host_carries_no_credentials(
    puller: Puller, images: ImageStore, registry: LyingRegistry
) -> None:
    seen: list[str | None] = []

    def store(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.headers.get("Authorization"))
        send(request, 200, registry.blobs[request.path.rpartition("/")[2]])

    web = Web(store)
    try:

        def protected(request: BaseHTTPRequestHandler) -> bool:
            if request.headers.get("Authorization") != LOGIN.basic:
                send(request, 401, b"", WWW_Authenticate='Basic realm="x"')
            elif "/blobs/" in request.path:
                send(request, 307, b"", Location=f"{web.url}/{request.path.rpartition('/')[2]}")
            else:
                return False
            return True

        registry.answer = protected
        await puller.pull(images, f"{registry.host}/app:1", credentials=LOGIN)
        assert seen == [None] * 3
    finally:
        web.close()


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x", "http://user:pass@127.0.0.1/", ""],
)
async def test_redirects_to_strange_places_are_refused(
    puller: Puller, images: ImageStore, registry: LyingRegistry, location: str
) -> None:
    registry.answer = on("/blobs/", lambda request: send(request, 302, b"", Location=location))
    await refused(puller, images, registry, RegistryFailed, "only https is followed|redirects without end")


async def test_redirects_in_a_circle_end(puller: Puller, images: ImageStore, registry: LyingRegistry) -> None:
    registry.answer = on("/manifests/", lambda request: send(request, 301, b"", Location=request.path))
    await refused(puller, images, registry, RegistryFailed, "redirects without end")
    assert len(registry.asked) == 6


class Faraway:
    """A registry beyond this machine: its answers come from a table, and it notes what it is asked for."""

    def __init__(self, answers: dict[str, httpx.Response]) -> None:
        self.answers = answers
        self.asked: list[httpx.Request] = []

    async def send(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self.answers.get(str(request.url), httpx.Response(404, stream=httpx.ByteStream(b"")))

    async def close(self) -> None:
        return None


def faraway(location: str) -> Faraway:
    answer = httpx.Response(307, headers={"Location": location}, stream=httpx.ByteStream(b""))
    return Faraway({"https://registry.example/v2/app/manifests/latest": answer})


@pytest.mark.parametrize(
    "place",
    [
        "http://cdn.example/x",
        "https://127.0.0.1/x",
        "https://localhost/x",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/x",
        "https://[::1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://metadata/x",
        "https://printer.local/x",
        "https://user:pass@cdn.example/x",
    ],
)
async def test_a_registry_far_away_leads_neither_out_of_tls_nor_into_our_network(
    images: ImageStore, tmp_path: Path, place: str
) -> None:
    for answers in (faraway(place), _realm(place)):
        puller = Puller(tmp_path / "cache", lambda answers=answers: answers)  # type: ignore[misc]
        with pytest.raises(RegistryFailed, match=r"only https is followed|own network"):
            await puller.pull(images, "registry.example/app", credentials=LOGIN)
        assert [request.url.host for request in answers.asked] == ["registry.example"], "nothing else was asked"
        assert answers.asked[0].url.scheme == "https"


def _realm(place: str) -> Faraway:
    challenge = httpx.Response(
        401, headers={"WWW-Authenticate": f'Bearer realm="{place}"'}, stream=httpx.ByteStream(b"")
    )
    return Faraway({"https://registry.example/v2/app/manifests/latest": challenge})


async def test_a_realm_elsewhere_is_asked_for_this_image_alone_and_its_token_goes_to_the_registry(
    images: ImageStore, tmp_path: Path
) -> None:
    realm = "https://auth.example/token?scope=repository%3Aapp%3Apull&service=s&account=sailor"
    answers = _realm("https://auth.example/token")
    answers.answers["https://registry.example/v2/app/manifests/latest"].headers["WWW-Authenticate"] = (
        'Bearer realm="https://auth.example/token",service="s",scope="registry:catalog:* repository:other:push,delete"'
    )
    answers.answers[realm] = httpx.Response(200, stream=httpx.ByteStream(b'{"token":"t0ken"}'))
    with pytest.raises(RegistryRefused):
        await Puller(tmp_path, lambda: answers).pull(images, "registry.example/app", credentials=LOGIN)
    first, asked, second = answers.asked
    assert (first.headers.get("authorization"), second.headers.get("authorization")) == (None, "Bearer t0ken")
    assert (str(asked.url), asked.headers.get("authorization")) == (realm, LOGIN.basic)


async def test_tls_is_never_left_for_a_registry_far_away(images: ImageStore, tmp_path: Path) -> None:
    class Broken(Faraway):
        async def send(self, request: httpx.Request) -> httpx.Response:
            self.asked.append(request)
            raise httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number")

    broken = Broken({})
    with pytest.raises(RegistryFailed, match="does not answer"):
        await Puller(tmp_path, lambda: broken).pull(images, "registry.example/app")
    assert {request.url.scheme for request in broken.asked} == {"https"}
    with pytest.raises(RegistryFailed):
        await Puller(tmp_path, lambda: broken).pull(images, "registry.example/app", insecure=True)
    assert {request.url.scheme for request in broken.asked} == {"https", "http"}


async def test_a_proxy_of_the_network_is_used_and_not_for_loopback(images: ImageStore, tmp_path: Path) -> None:
    asked: list[str] = []

    def proxy(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        send(request, 404, b"{}")

    web = Web(proxy)
    try:
        environment = {"http_proxy": web.url, "https_proxy": "http://127.0.0.1:1"}
        puller = Puller(tmp_path, lambda: NetworkUpstream(environment))
        with pytest.raises(BoxError, match=r"has no registry\.example/app:latest"):
            await puller.pull(images, "registry.example/app", insecure=True)
        assert asked == ["http://registry.example/v2/app/manifests/latest"]
    finally:
        web.close()


# --- what is kept ---


async def test_what_is_kept_is_checked_and_forgotten_in_time(tmp_path: Path, registry: LyingRegistry) -> None:
    from holdfast.images.registry.blobs import Blobs
    from holdfast.images.registry.client import Registry
    from holdfast.images.registry.manifest import Blob
    from holdfast.images.registry.reference import parse_reference

    data = registry.image.packed[0]
    blob = Blob(sha256(data), len(data))
    upstream = LoopbackUpstream()
    kept = Blobs(tmp_path / "cache")
    try:
        source = Registry(upstream, parse_reference(f"{registry.host}/app"))
        moved: list[int] = []
        path = await kept.fetch(source, blob, moved.append)
        path.write_bytes(bytes(len(data)))
        assert (await kept.fetch(source, blob, moved.append)).read_bytes() == data, "a damaged one comes again"
        await kept.fetch(source, blob, moved.append)
        assert sum(moved) == 3 * len(data)
        assert len(registry.asked) == 2
        part = path.with_name(f"{path.name}.part")
        path.rename(part)
        part.write_bytes(b"?" * 10)
        assert (await kept.fetch(source, blob)).read_bytes() == data, "what was kept of another one is found out"
        kept.forget_old(path.stat().st_mtime + 6 * 86400)
        assert path.exists()
        kept.forget_old(path.stat().st_mtime + 8 * 86400)
        assert not path.exists()
        assert hashlib.sha256(data).hexdigest() == path.name
    finally:
        await upstream.close()
