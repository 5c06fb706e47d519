"""Images pulled from a real registry on loopback, into a real provider."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from tests.images.image_builds import ImageBuilds, Steps
from tests.images.registry import (
    ARCHITECTURE,
    PASSWORD,
    USER,
    Pushed,
    RegistryProcess,
    Tokens,
    htpasswd,
    index_of,
    small_image,
)
from tests.providers.local.rootfs import Tar, busybox

from holdfast.api.errors.boxes import BadArchive, CannotIsolate, ImageNotFound, NoSpace, Unsupported
from holdfast.api.errors.images import NotInRegistry, RegistryFailed, RegistryRefused
from holdfast.boxes.images import ImageStore
from holdfast.egress.models.upstream import LoopbackUpstream
from holdfast.images.registry import blobs
from holdfast.images.registry.authentication import Credentials
from holdfast.images.registry.pull import Puller
from holdfast.providers.local import LocalProvider

LOGIN = Credentials(USER, PASSWORD)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    registry = RegistryProcess(tmp_path_factory.mktemp("registry") / "r")
    yield registry
    registry.close()


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    try:
        async with LocalProvider(tmp_path / "home") as provider:
            yield provider
    except CannotIsolate as error:
        pytest.skip(f"this machine makes no boxes: {error.message}")


@pytest.fixture
def images(provider: LocalProvider) -> ImageStore:
    assert provider.images is not None
    return provider.images


class Noting(LoopbackUpstream):
    """Notes what is asked for."""

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self._asked = asked

    async def send(self, request: httpx.Request) -> httpx.Response:
        response = await super().send(request)
        self._asked.append(f"{request.method} {request.url.path}")
        return response


@pytest.fixture
def asked() -> list[str]:
    """What registries were asked for, and answered."""
    return []


@pytest.fixture
def puller(tmp_path: Path, asked: list[str]) -> Puller:
    return Puller(tmp_path / "cache", lambda: Noting(asked))


def greeting(text: bytes) -> Pushed:
    """Two layers: busybox, and a file on top."""
    config = {"Env": ["GREETING=hello"], "WorkingDir": "/etc", "User": "sailor"}
    return Pushed([busybox().done(), Tar().file("etc/greeting", text).done()], config)


@pytest.mark.anyio
async def test_an_image_comes_by_name_and_boxes_begin_with_it(
    registry: RegistryProcess, provider: LocalProvider, images: ImageStore, puller: Puller, tmp_path: Path
) -> None:
    digest = registry.push("team/greeting", "1", greeting(b"ahoy\n"))
    name = f"{registry.host}/team/greeting:1"
    steps = Steps()
    image = await puller.pull(images, name, progress=steps)
    assert (image.name, image.pulled, len(image.layers)) == (name, digest, 2)
    assert steps.done == [f"{name}, 2 layers", "2 layers"]
    told = await ImageBuilds(provider, tmp_path).run(name, "cat greeting; echo $GREETING; id -u")
    assert told == "ahoy\nhello\n1234\n"
    assert [each.pulled for each in await images.list()] == [digest]


@pytest.mark.anyio
async def test_pulling_again_costs_one_request_until_something_changes(
    registry: RegistryProcess, images: ImageStore, puller: Puller, asked: list[str]
) -> None:
    name = f"{registry.host}/team/again"
    first = registry.push("team/again", "latest", small_image("a", "b"))
    await puller.pull(images, name)
    asked.clear()
    steps = Steps()
    assert (await puller.pull(images, name, progress=steps)).pulled == first
    assert asked == ["HEAD /v2/team/again/manifests/latest"]
    assert steps.skipped == [f"{name} is up to date"]
    assert (await puller.pull(images, f"{name}@{first}")).pulled == first
    asked.clear()
    assert (await puller.pull(images, f"{name}@{first}")).name == f"{name}:{first.replace(':', '-')}"
    assert asked == [], "what a digest names does not change"
    second = registry.push("team/again", "latest", small_image("a", "c"))
    asked.clear()
    assert (await puller.pull(images, name)).pulled == second
    fetched = [line for line in asked if "/blobs/" in line]
    assert len(fetched) == 2, "the new layer and the configuration: the other layer is here"
    assert (await images.get(f"{name}@{first}")).pulled == first, "by its digest the first one stays"


@pytest.mark.anyio
async def test_of_a_list_the_image_for_this_machine_comes(
    registry: RegistryProcess, images: ImageStore, puller: Puller
) -> None:
    image, other = small_image("a"), small_image("b")
    registry.push("team/many", "one", image)
    registry.push("team/many", "other", other)
    listed = registry.push_index(
        "team/many", "all", index_of(("linux", "s390x", other.data), ("linux", ARCHITECTURE, image.data))
    )
    found = await puller.pull(images, f"{registry.host}/team/many:all", save_as="mine")
    assert (found.name, found.pulled) == ("mine", listed)
    registry.push_index("team/many", "foreign", index_of(("linux", "s390x", other.data)))
    with pytest.raises(BadArchive, match="only for linux/s390x"):
        await puller.pull(images, f"{registry.host}/team/many:foreign")


@pytest.mark.anyio
async def test_what_a_registry_does_not_have_is_said(
    registry: RegistryProcess, images: ImageStore, puller: Puller
) -> None:
    with pytest.raises(NotInRegistry, match=r"has no .*team/nothing:1"):
        await puller.pull(images, f"{registry.host}/team/nothing:1")
    with pytest.raises(ImageNotFound):
        await images.get(f"{registry.host}/team/nothing:1")
    with pytest.raises(RegistryFailed, match="does not answer"):
        await puller.pull(images, "127.0.0.1:1/team/nothing")


@pytest.mark.anyio
async def test_beyond_loopback_plain_http_wants_to_be_asked_for(images: ImageStore, puller: Puller) -> None:
    with pytest.raises(RegistryFailed, match="out of reach") as raised:
        await puller.pull(images, "registry.example/app")
    assert "--insecure" in (raised.value.hint or "")


@pytest.mark.anyio
async def test_layers_in_zstd_come_where_python_reads_it(
    registry: RegistryProcess, images: ImageStore, puller: Puller
) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("this machine has no zstd to compress with: apt install zstd")

    def pack(data: bytes) -> bytes:
        return subprocess.run(["zstd", "-q", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout

    layer_type = "application/vnd.oci.image.layer.v1.tar+zstd"
    registry.push("team/zstd", "1", Pushed([Tar().file("a").done()], pack=pack, layer_type=layer_type))
    speaks = any(_importable(name) for name in ("compression.zstd", "backports.zstd"))
    if speaks:
        assert (await puller.pull(images, f"{registry.host}/team/zstd:1")).layers
    else:
        with pytest.raises(Unsupported, match="zstd"):
            await puller.pull(images, f"{registry.host}/team/zstd:1")


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.anyio
async def test_a_registry_with_a_password_wants_it(tmp_path: Path, images: ImageStore, puller: Puller) -> None:
    registry = RegistryProcess(tmp_path / "r", htpasswd(tmp_path))
    try:
        registry.push("private/app", "1", small_image(), headers={"Authorization": LOGIN.basic})
        name = f"{registry.host}/private/app:1"
        with pytest.raises(RegistryRefused, match="requires a user and a password") as raised:
            await puller.pull(images, name)
        assert "--username" in (raised.value.hint or "")
        with pytest.raises(RegistryRefused) as raised:
            await puller.pull(images, name, credentials=Credentials(USER, "wrong"))
        assert "wrong" not in str(raised.value)
        assert (await puller.pull(images, name, credentials=LOGIN)).name == name
    finally:
        registry.close()


@pytest.mark.anyio
async def test_a_registry_with_tokens_gets_one_for_pulling_this_image_alone(
    tmp_path: Path, images: ImageStore, puller: Puller
) -> None:
    tokens = Tokens(tmp_path)
    registry = RegistryProcess(tmp_path / "r", tokens.configuration)
    try:
        for repository in ("public/app", "private/app"):
            writer = {"Authorization": f"Bearer {tokens.token(repository, 'pull', 'push')}"}
            registry.push(repository, "1", small_image(), headers=writer)
        await puller.pull(images, f"{registry.host}/public/app:1")
        assert tokens.asked == [(None, "repository:public/app:pull")], "one token for the whole pull"
        private = f"{registry.host}/private/app:1"
        with pytest.raises(RegistryRefused, match="no token"):
            await puller.pull(images, private)
        await puller.pull(images, private, credentials=LOGIN)
        assert tokens.asked[-1] == (LOGIN.basic, "repository:private/app:pull")
    finally:
        registry.close()
        tokens.web.close()


@pytest.mark.anyio
async def test_mirrors_are_asked_before_docker_hub(
    registry: RegistryProcess, images: ImageStore, tmp_path: Path
) -> None:
    registry.push("library/tiny", "1", small_image())
    puller = Puller(tmp_path / "cache", LoopbackUpstream, ("http://127.0.0.1:1", registry.url))
    assert (await puller.pull(images, "tiny:1", credentials=LOGIN)).name == "tiny:1"
    assert (await images.get("docker.io/library/tiny:1")).name == "tiny:1"
    with pytest.raises(RegistryFailed, match=r"registry-1\.docker\.io"):
        await puller.pull(images, "tiny:2")


@pytest.mark.anyio
async def test_a_disk_that_is_too_small_is_said_before_anything_comes(
    registry: RegistryProcess, images: ImageStore, puller: Puller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry.push("team/large", "1", small_image())
    monkeypatch.setattr(blobs, "_SPARE", 1 << 60)
    with pytest.raises(NoSpace, match="to fetch and as much again"):
        await puller.pull(images, f"{registry.host}/team/large:1")
    assert not [*(tmp_path / "cache").glob("*/*")]


@pytest.mark.anyio
async def test_a_provider_that_pulls_by_itself_is_left_to_it(puller: Puller, images: ImageStore) -> None:
    class ByItself(type(images)):  # type: ignore[misc]
        takes_pulled = False

    other = object.__new__(ByItself)
    with pytest.raises(Unsupported, match="pulls images itself"):
        await puller.pull(other, "debian:12")
