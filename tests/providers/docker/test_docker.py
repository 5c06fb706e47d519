"""What is Docker's own: what died halfway, images that bring nothing, archives that would take over, daemons."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import secrets
import ssl
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.providers.docker.engine import BUSYBOX_IMAGE, PYTHON_IMAGE, DockerEngine, busybox_files

from holdfast.api.box.box import Box, Liveness, Power
from holdfast.api.box.spec import BoxSpec, VolumeMount
from holdfast.api.errors.boxes import (
    BadArchive,
    BoxGone,
    CannotIsolate,
    HostileArchive,
    ImageNotFound,
    InvalidSpec,
    SnapshotNotFound,
    Unsupported,
)
from holdfast.boxes.capabilities import Capability
from holdfast.providers.docker import DockerHost, DockerProvider, runtime
from holdfast.providers.docker.descriptor import DOCKER
from holdfast.providers.docker.engine import EngineProblem
from holdfast.providers.docker.namespace import namespace_of
from holdfast.providers.docker.objects import BOX, MAKER, RECORD, BoxRecord, Kind, Maker, Names, is_abandoned
from holdfast.providers.docker.snapshots import DEEPEST

pytestmark = pytest.mark.anyio
SPEC = BoxSpec(provider="docker", image=PYTHON_IMAGE)


@pytest.fixture
async def provider(engine: DockerEngine) -> AsyncIterator[DockerProvider]:
    async with DockerProvider(DockerHost(engine.url), namespace=secrets.token_hex(4)) as provider:
        yield provider
        for info in await provider.find():
            await provider.remove(info.id)
        for snapshot in await provider.snapshots():
            await provider.delete_snapshot(snapshot.id)
        await provider.sweep()


async def text(box: Box, script: str) -> str:
    done = await box.exec(["sh", "-c", script], timeout=30)
    assert done.ok, done
    return done.text.strip()


def dead_maker() -> Maker:
    """A process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return replace(Maker.this(), pid=process.pid, began=1)


async def half_made(provider: DockerProvider, id: str, maker: Maker) -> None:
    """A container as a create leaves it that was cut short."""
    names = provider.names
    record = BoxRecord(id, SPEC, {}, 1)
    labels = names.labels(Kind.BOX, **{BOX: id, RECORD: record.to_text(), MAKER: str(maker)})
    config = {"Image": PYTHON_IMAGE, "Cmd": ["true"], "Labels": labels, "HostConfig": {"NetworkMode": "none"}}
    await provider.engine.create_container(names.box(id), config)


# --- what died halfway ---


async def test_a_box_whose_maker_died_is_swept_away(provider: DockerProvider) -> None:
    await half_made(provider, "b-half", dead_maker())
    assert await provider.probe("b-half") is Liveness.GONE
    assert await provider.find() == []
    swept = await provider.sweep()
    assert [line for line in swept.removed if "b-half" in line]
    await half_made(provider, "b-half", Maker.this())  # the name is free again


async def test_a_box_that_somebody_is_making_is_left_alone(provider: DockerProvider) -> None:
    elsewhere = replace(Maker.this(), machine="another", at=int(time.time()))
    await half_made(provider, "b-here", Maker.this())
    await half_made(provider, "b-there", elsewhere)
    assert (await provider.sweep(keep=[])).removed == ()
    for id in ("b-here", "b-there"):
        await provider.engine.container(provider.names.box(id))
        await provider.remove(id)


def test_a_maker_is_taken_for_gone_when_its_process_is_or_after_long_silence() -> None:
    me = Maker.this()
    now = float(me.at)
    assert not is_abandoned(str(me), me, now)
    assert not is_abandoned(str(me), me, now + 1_000_000)
    assert is_abandoned(str(replace(me, began=me.began + 1)), me, now)
    elsewhere = str(replace(me, machine="another"))
    assert not is_abandoned(elsewhere, me, now + 100)
    assert is_abandoned(elsewhere, me, now + 1000)
    for nonsense in (None, "", "a/b", "a/b/c/d"):
        assert is_abandoned(nonsense, me, now)


async def test_what_stood_by_a_box_that_is_gone_is_swept_away(provider: DockerProvider) -> None:
    names, engine = provider.names, provider.engine
    await engine.create_volume(names.change("b-gone", 1), names.labels(Kind.CHANGE, **{BOX: "b-gone"}))
    labels = names.labels(Kind.PART, **{BOX: "b-gone", MAKER: str(dead_maker())})
    await engine.create_volume(names.part("b-gone", 0), labels)
    helper = names.labels(Kind.HELPER, **{MAKER: str(dead_maker())})
    await engine.create_container(names.helper("x"), {"Image": PYTHON_IMAGE, "Cmd": ["true"], "Labels": helper})
    assert len((await provider.sweep()).removed) == 3
    assert await engine.volumes(names.labels(Kind.CHANGE)) == []
    assert await engine.volumes(names.labels(Kind.PART)) == []
    assert await engine.containers(names.labels(Kind.HELPER)) == []


async def test_namespaces_at_one_daemon_do_not_know_each_other(provider: DockerProvider, engine: DockerEngine) -> None:
    box = await provider.create(SPEC, id="b-same")
    snapshot = await box.snapshot()
    async with DockerProvider(DockerHost(engine.url), namespace=secrets.token_hex(4)) as other:
        assert await other.find() == []
        assert await other.snapshots() == []
        assert await other.probe("b-same") is Liveness.GONE
        await other.sweep(keep=[])
        with pytest.raises(SnapshotNotFound):
            await other.restore(snapshot.id, SPEC, id="b-theirs")
        with pytest.raises(ImageNotFound):  # nor by the name of the image that it is
            await other.create(replace(SPEC, image=provider.names.snapshot(snapshot.id)), id="b-theirs")
    assert await text(box, "echo on") == "on"


async def test_a_delete_leaves_nothing_at_the_daemon(provider: DockerProvider) -> None:
    names, engine = provider.names, provider.engine
    await provider.create_volume("shared")
    box = await provider.create(replace(SPEC, volumes=(VolumeMount("shared", "/mnt/a", "some/where"),)), id="b-one")
    fork = await box.fork(id="b-two")
    await box.delete()
    assert await text(fork, "ls -d /mnt/a") == "/mnt/a"
    await fork.delete()
    await provider.delete_volume("shared")
    for kind in (Kind.BOX, Kind.HELPER):
        assert await engine.containers(names.labels(kind)) == []
    for kind in (Kind.PART, Kind.CHANGE, Kind.VOLUME):
        assert await engine.volumes(names.labels(kind)) == []
    assert await engine.images(names.labels(Kind.FORK)) == []


async def test_a_box_that_was_removed_behind_our_back_is_gone(provider: DockerProvider, engine: DockerEngine) -> None:
    box = await provider.create(SPEC, id="b-behind")
    await provider.engine.remove_container(provider.names.box("b-behind"))
    with pytest.raises(BoxGone):
        await box.exec(["true"])
    assert await provider.probe("b-behind") is Liveness.GONE


async def test_a_guest_that_somebody_removed_is_put_there_again(engine: DockerEngine) -> None:
    async with DockerProvider(DockerHost(engine.url), namespace=secrets.token_hex(4)) as provider:
        made = await provider.runtime()
        other = await runtime.prepare(provider.engine)
        assert made == other
        for name in (made.volume.rpartition(".")[0], made.volume):
            await _forced(provider, name)
        box = await provider.create(SPEC, id="b-again")
        assert await text(box, "echo works") == "works"
        assert (await provider.runtime()).volume != made.volume
        await box.delete()


async def _forced(provider: DockerProvider, volume: str) -> None:
    try:
        await provider.engine.remove_volume(volume)
    except EngineProblem:
        pytest.skip("a box of another test has it")


async def test_a_guest_that_was_never_complete_is_swept_away(provider: DockerProvider) -> None:
    labels = {**Names("common").labels(Kind.GUEST), MAKER: str(dead_maker())}
    await provider.engine.create_volume("holdfast-guest-0000.half", labels)
    await provider.engine.create_volume("holdfast-guest-1111.half", {**labels, MAKER: str(Maker.this())})
    removed = (await provider.sweep()).removed
    assert [line for line in removed if "0000.half" in line]
    await provider.engine.volume((await provider.runtime()).volume)
    assert await provider.engine.remove_volume("holdfast-guest-1111.half")


# --- images ---


async def test_an_image_without_python_or_a_c_library_makes_a_whole_box(provider: DockerProvider) -> None:
    box = await provider.create(replace(SPEC, image=BUSYBOX_IMAGE), id="b-busybox")
    assert await text(box, "ls /lib /usr/lib 2>/dev/null; which python3 || echo none") == "none"
    await box.files.write("notes/a", b"1")
    process = await box.spawn(["sh", "-c", "cat; exit 3"], stdin=True)
    await process.write(b"hello")
    await process.close_stdin()
    assert await process.wait(240) == 3
    assert await process.read() == b"hello"
    await box.stop()
    assert await box.power() is Power.STOPPED
    await box.start()
    assert await box.files.read("notes/a") == b"1"


async def test_a_root_of_a_box_cannot_reach_into_the_guest_by_its_own_files(provider: DockerProvider) -> None:
    """A loader reads names of libraries from /etc: a box's root can write there, and process 1 does not listen."""
    box = await provider.create(replace(SPEC, image=BUSYBOX_IMAGE), id="b-preload")
    await text(box, "echo /tmp/evil.so > /etc/ld.so.preload; echo x > /tmp/evil.so; echo x > /etc/ld.so.cache")
    await box.stop()
    await box.start()
    assert await text(box, "echo works") == "works"
    assert not (await box.exec(["sh", "-c", "echo x > /.python/guest/init.py"])).ok


def saved(layer: bytes, *, tags: list[str]) -> bytes:
    """What docker save would write."""
    manifest = [{"Config": "c.json", "RepoTags": tags, "Layers": ["one/layer.tar"]}]
    settings = json.dumps(settings_of(hashlib.sha256(layer).hexdigest())).encode()
    return archive({"c.json": settings, "manifest.json": json.dumps(manifest).encode(), "one/layer.tar": layer})


def settings_of(layer: str) -> dict[str, object]:
    files = {"type": "layers", "diff_ids": [f"sha256:{layer}"]}
    return {"architecture": "amd64", "os": "linux", "config": {"Env": ["WORD=given"]}, "rootfs": files}


def laid_out(layer: bytes) -> bytes:
    """An OCI layout."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data), "mediaType": "application/octet-stream"}

    settings = blob(json.dumps(settings_of(hashlib.sha256(layer).hexdigest())).encode())
    manifest = blob(json.dumps({"schemaVersion": 2, "config": settings, "layers": [blob(layer)]}).encode())
    index = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
    return archive({"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index, **blobs})


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1 << 18):
        yield data[start : start + (1 << 18)]


@pytest.mark.parametrize("form", ["saved", "laid out"])
async def test_an_image_of_another_tool_is_taken_in_with_its_settings(provider: DockerProvider, form: str) -> None:
    layer = busybox_files()
    data = saved(layer, tags=["else/where:1"]) if form == "saved" else laid_out(layer)
    name = f"taken-{secrets.token_hex(4)}:1"
    image = await provider.images.import_archive(name, pieces(data))
    assert (image.name, dict(image.config.env)) == (name, {"WORD": "given"})
    box = await provider.create(replace(SPEC, image=name), id="b-taken")
    assert await text(box, "echo $WORD") == "given"
    await box.delete()
    await provider.images.remove(name)


async def test_an_archive_does_not_take_over_the_names_of_other_images(provider: DockerProvider) -> None:
    before = (await provider.images.get(PYTHON_IMAGE)).digest
    name = f"modest-{secrets.token_hex(4)}:1"
    await provider.images.import_archive(name, pieces(saved(busybox_files(), tags=[PYTHON_IMAGE])))
    assert (await provider.images.get(PYTHON_IMAGE)).digest == before
    await provider.images.remove(name)


async def test_an_archive_of_an_image_that_leads_elsewhere_is_refused(provider: DockerProvider) -> None:
    manifest = json.dumps([{"Config": "c", "Layers": ["../../etc/passwd"]}]).encode()
    hostile = archive({"manifest.json": manifest, "c": b"{}"})
    for wrong in (hostile, archive({"manifest.json": b"[]"}), archive({"oci-layout": b"{}", "index.json": b"{}"})):
        with pytest.raises((BadArchive, HostileArchive)):
            await provider.images.import_archive("wrong:1", pieces(wrong))
    assert "wrong:1" not in [image.name for image in await provider.images.list()]


async def test_an_image_that_the_daemon_neither_has_nor_gets_is_not_found(provider: DockerProvider) -> None:
    for name in ("nothing/here:1", f"sha256:{'0' * 64}"):
        with pytest.raises(ImageNotFound) as caught:
            await provider.create(replace(SPEC, image=name), id="b-nothing")
        assert caught.value.hint
    for name in ("UPPER", "a b", "../x"):
        with pytest.raises(InvalidSpec):
            await provider.create(replace(SPEC, image=name), id="b-nothing")
    with pytest.raises(InvalidSpec):
        await provider.create(replace(SPEC, image=None), id="b-nothing")


# --- snapshots ---


async def test_a_chain_of_snapshots_is_flattened_before_docker_refuses_it(
    provider: DockerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DEEPEST < 125
    monkeypatch.setattr("holdfast.providers.docker.snapshots.DEEPEST", 2)
    box = await provider.create(replace(SPEC, image=BUSYBOX_IMAGE), id="b-deep")
    for number in range(3):
        await text(box, f"echo {number} > n{number}")
        box = await provider.restore((await box.snapshot()).id, box.spec, id=f"b-deep-{number}")
    assert box.info.snapshot is not None
    layers = (await provider.engine.image(provider.names.snapshot(box.info.snapshot)))["RootFS"]["Layers"]
    assert len(layers) <= 3
    assert await text(box, "cat n0 n1 n2") == "0\n1\n2"


# --- daemons ---


async def test_a_daemon_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    for address in (f"unix://{tmp_path}/none.sock", "tcp://127.0.0.1:1"):
        provider = DockerProvider(DockerHost(address), namespace="nowhere1")
        with pytest.raises(CannotIsolate) as caught:
            await provider.open()
        assert address.removeprefix("unix://") in caught.value.message
        assert caught.value.hint
    with pytest.raises(InvalidSpec):
        DockerProvider(DockerHost("ftp://example"), namespace="nowhere1")


async def test_a_runtime_that_the_daemon_does_not_know_is_refused_and_one_that_it_knows_is_used(
    engine: DockerEngine,
) -> None:
    with pytest.raises(CannotIsolate, match="runsc"):
        await DockerProvider(DockerHost(engine.url), namespace="runtimes", runtime="runsc").open()
    async with DockerProvider(DockerHost(engine.url), namespace="runtimes", runtime="runc") as provider:
        box = await provider.create(SPEC, id="b-runtime")
        found = await provider.engine.container(provider.names.box("b-runtime"))
        assert found["HostConfig"]["Runtime"] == "runc"
        await box.delete()


async def test_a_box_at_docker_has_no_network_and_no_privileges(provider: DockerProvider) -> None:
    box = await provider.create(replace(SPEC, memory=256 << 20, cpu=0.5, pids=50), id="b-small")
    host = (await provider.engine.container(provider.names.box("b-small")))["HostConfig"]
    assert (host["NetworkMode"], host["Privileged"], host["NanoCpus"]) == ("none", False, 500_000_000)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    capabilities = int(await text(box, "sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status"), 16)
    for number in (13, 19, 21, 27, 29):  # net_raw, sys_ptrace, sys_admin, mknod, audit_write
        assert not capabilities & 1 << number
    with pytest.raises(Unsupported, match="disk-limit"):
        await provider.create(replace(SPEC, disk=64 << 20), id="b-disk")


async def test_a_stream_that_is_lost_is_dialled_again_and_processes_go_on(provider: DockerProvider) -> None:
    box = await provider.create(SPEC, id="b-lost")
    process = await box.spawn(["sh", "-c", "until [ -e go ]; do sleep 0.05; done; echo end; exit 4"])
    await provider.lifecycle.guest("b-lost").close()
    await box.files.write("go", b"")
    assert await process.wait(240) == 4
    assert await process.read() == b"end\n"


def test_a_home_has_one_ground(tmp_path: Path) -> None:
    assert namespace_of(tmp_path) == namespace_of(tmp_path)
    assert namespace_of(tmp_path) != namespace_of(tmp_path / "other")


async def test_a_machine_without_docker_is_told_so_only_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.providers.docker.descriptor._SOCKET", str(tmp_path / "none.sock"))
    provider = DOCKER.make(tmp_path, None, DOCKER.values({}))
    await provider.open()
    assert await provider.find() == []
    assert await provider.probe("b-any") is Liveness.UNKNOWN
    with pytest.raises(CannotIsolate, match="no Docker daemon"):
        await provider.create(SPEC, id="b-any")
    assert not (await provider.diagnose())[0].ok
    assert not (tmp_path / "docker").exists()
    await asyncio.sleep(0)


# --- a daemon elsewhere ---


async def test_a_daemon_elsewhere_is_reached_by_tls_and_asks_who_we_are(engine: DockerEngine, tmp_path: Path) -> None:
    """The daemon of the tests has no network: something before it speaks TLS, and passes on what comes."""
    write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inward, outward = await asyncio.open_unix_connection(engine.socket)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    target.write(data)
                    await target.drain()
            target.close()

        await asyncio.gather(copy(reader, outward), copy(inward, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        host = DockerHost(f"https://localhost:{port}", tmp_path)
        async with DockerProvider(host, namespace=secrets.token_hex(4)) as provider:
            assert Capability.HOST_MOUNTS not in provider.capabilities
            box = await provider.create(SPEC, id="b-far")
            data = secrets.token_bytes(3_000_000)
            await box.files.write("large", data)
            assert await box.files.read("large") == data
            await box.delete()
        strangers = DockerProvider(DockerHost(f"https://localhost:{port}"), namespace="strangers")
        with pytest.raises(CannotIsolate):
            await strangers.open()


def write_certificates(folder: Path) -> None:
    """An authority that vouches for itself, as server and as client."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "ca.pem").write_bytes(pem)
    (folder / "cert.pem").write_bytes(pem)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
