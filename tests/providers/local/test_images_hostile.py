"""Archives that mean harm: each is refused, by name, and nothing of it is left; nothing outside is touched."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.providers.local.rootfs import Tar, busybox, docker_archive, oci_layout, pieces, sha256

from holdfast.api.errors.boxes import BadArchive, HostileArchive, NoSpace
from holdfast.providers.local import LocalProvider
from holdfast.providers.local.images import LocalImages
from holdfast.providers.local.images.archive import layer_name
from holdfast.providers.local.images.limits import ArchiveLimits

pytestmark = pytest.mark.anyio
SMALL = ArchiveLimits(
    entries=200, unpacked=4 << 20, archive=8 << 20, unsuspicious=1 << 20, ratio=50, depth=16, layers=4, document=4096,
    spare=0,
)  # fmt: skip


@pytest.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path_factory.mktemp("home")) as provider:
        yield provider


@pytest.fixture
def images(provider: LocalProvider) -> LocalImages:
    return LocalImages(provider.data_dir, provider.snapshot_store.collect, SMALL)


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            about = Path(at, name).lstat()
            found[f"{at}/{name}"] = (about.st_mode, about.st_size)
    return found


async def refused(
    provider: LocalProvider, images: LocalImages, archive: bytes, kind: Any = HostileArchive, match: str | None = None
) -> None:
    before = everything(provider.data_dir.path)
    with pytest.raises(kind, match=match):
        await images.import_archive("hostile", pieces(archive))
    assert everything(provider.data_dir.path) == before
    assert not [each for each in await images.list() if each.name == "hostile"]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", program, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def header(name: bytes = b"x", kind: bytes = b"0", size: bytes = b"00000000000\0") -> bytes:
    """One block by hand, for what no program writes."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108], block[124:136], block[136:148] = b"0000644\0", size, b"00000000000\0"
    block[148:156], block[156:157], block[257:265] = b" " * 8, kind, b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


END = bytes(1024)
SLIPS: dict[str, Callable[[], Tar]] = {
    "a name that climbs": lambda: Tar().file("../evil", b"x"),
    "a name that climbs later": lambda: Tar().file("a/b/../../../evil", b"x"),
    "an absolute name": lambda: Tar().add("/evil", tarfile.REGTYPE, data=b"x"),
    "through a link out": lambda: Tar().link("out", "/tmp").file("out/evil", b"x"),
    "through a relative link": lambda: Tar().link("out", "../../../../..").file("out/evil", b"x"),
    "through a link in a folder": lambda: Tar().folder("a").link("a/b", "/").file("a/b/evil", b"x"),
    "through a chain of links": lambda: Tar().link("a", "b").link("b", "/tmp").file("a/evil", b"x"),
    "a folder through a link": lambda: Tar().link("out", "/tmp").folder("out/evil"),
    "a hard link out": lambda: Tar().hard_link("passwd", "../../../../../../etc/passwd"),
    "an absolute hard link": lambda: Tar().hard_link("passwd", "/etc/passwd"),
    "a hard link through a link": lambda: Tar().link("etc", "/etc").hard_link("passwd", "etc/passwd"),
    "a hard link to nothing": lambda: Tar().hard_link("a", "b"),
    "a hard link to itself": lambda: Tar().hard_link("a", "a"),
    "a hard link to a folder": lambda: Tar().folder("d").hard_link("a", "d"),
    "a hard link through dots": lambda: Tar().file("b").hard_link("a", "x/../b"),
    "a mark that climbs": lambda: Tar().file(".wh..."),
    "a mark of its own folder": lambda: Tar().file("d/.wh.."),
    "a mark of nothing": lambda: Tar().file("d/.wh."),
    "a mark through a link": lambda: Tar().link("out", "/tmp").file("out/.wh.evil"),
    "an opaque mark through a link": lambda: Tar().link("out", "/tmp").file("out/.wh..wh..opq"),
    "a mark with content": lambda: Tar().file(".wh.x", b"content"),
    "a mark that is a link": lambda: Tar().link(".wh.x", "/etc"),
    "a mark that is a folder": lambda: Tar().folder(".wh.x").file(".wh.x/evil"),
    "a hard link to a mark": lambda: Tar().file(".wh.x").hard_link("y", ".wh.x"),
    "a block device": lambda: Tar().add("disk", tarfile.BLKTYPE, devmajor=8, devminor=0),
    "a character device": lambda: Tar().add("etc/mem", tarfile.CHRTYPE, devmajor=1, devminor=1),
    "a device that is a mark": lambda: Tar().add("bin", tarfile.CHRTYPE, devmajor=0, devminor=0),
    "a pipe": lambda: Tar().add("etc/pipe", tarfile.FIFOTYPE),
    "a file over a folder": lambda: Tar().folder("d").file("d", b"x"),
    "a folder over a file": lambda: Tar().file("d", b"x").folder("d"),
    "a folder over a link": lambda: Tar().link("d", "/tmp").folder("d"),
    "a link at a place of ours": lambda: Tar().link("proc", "/etc"),
    "a link at the guest's place": lambda: Tar().link(".holdfast", "/tmp"),
    "a file at the interpreter's place": lambda: Tar().file(".python", b"x"),
    "a link for etc": lambda: Tar().link("etc", "/usr/etc"),
    "too deep": lambda: Tar().file("d/" * 20 + "x"),
    "a name too long": lambda: Tar().file("n" * 300),
    "attributes without end": lambda: Tar().file("x", pax_headers={f"SCHILY.xattr.user.{n}": "v" for n in range(100)}),
}  # fmt: skip


@pytest.mark.parametrize("name", SLIPS)
async def test_what_leads_astray_is_refused(provider: LocalProvider, images: LocalImages, name: str) -> None:
    evil = SLIPS[name]().done()
    await refused(provider, images, evil)
    await refused(provider, images, oci_layout([evil]))
    assert not Path("/tmp/evil").exists()
    assert not Path("/evil").exists()


async def test_links_are_data_and_never_followed(provider: LocalProvider, images: LocalImages, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    tar = Tar().link("a", str(victim)).file("a", b"evil").link("b", "../" * 30 + str(victim)[1:]).link("c", "c")
    tar.link("var/d", str(tmp_path)).hard_link("e", "b").file("e", b"evil")
    image = await images.import_archive("links", pieces(tar.done()))
    files = provider.data_dir.layers / layer_name(image.layers[0]) / "files"
    assert victim.read_text() == "untouched"
    assert (files / "a").read_text() == "evil"
    assert (files / "b").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim"]
    await images.remove("links")


async def test_a_link_of_a_layer_below_is_not_followed_from_above(
    provider: LocalProvider, images: LocalImages, tmp_path: Path
) -> None:
    layers = [Tar().link("out", str(tmp_path)).done(), Tar().file("out/evil", b"x").file("out/.wh.gone").done()]
    await images.import_archive("above", pieces(oci_layout(layers)))
    assert list(tmp_path.iterdir()) == []
    await images.remove("above")


async def test_attributes_that_an_overlay_obeys_are_not_taken(provider: LocalProvider, images: LocalImages) -> None:
    names = ("user.overlay.opaque", "user.overlay.redirect", "user.overlay.metacopy",
             "user.overlay.origin", "trusted.overlay.redirect", "security.capability", "security.selinux",
             "system.posix_acl_access")  # fmt: skip
    headers = {f"SCHILY.xattr.{name}": "/etc" for name in names}
    image = await images.import_archive("marked", pieces(Tar().file("x", b"", pax_headers=headers).done()))
    assert os.listxattr(provider.data_dir.layers / layer_name(image.layers[0]) / "files" / "x") == []
    await images.remove("marked")


async def test_names_that_differ_by_case_or_form_are_different_files(images: LocalImages) -> None:
    names = ["readme", "README", "caf\u00e9", "cafe\u0301", "a\u202eb", "a b", "\u2024\u2024", "con", "a\\..\\b"]
    tar = Tar()
    for name in names:
        tar.file(name, name.encode())
    image = await images.import_archive("unicode", pieces(tar.done()))
    files = images._data_dir.layers / layer_name(image.layers[0]) / "files"
    assert sorted(path.name for path in files.iterdir()) == sorted(names)
    assert all((files / name).read_text() == name for name in names)
    await images.remove("unicode")


# --- bombs ------------------------------------------------------------------------------------------------------------


async def test_bombs_are_refused_by_count_size_and_ratio(provider: LocalProvider, images: LocalImages) -> None:
    many = Tar()
    for number in range(300):
        many.file(f"f{number}")
    await refused(provider, images, many.done(), match="entries")
    layers = [Tar() for _ in range(3)]
    for number in range(240):
        layers[number % 3].file(f"f{number}")
    await refused(provider, images, oci_layout([each.done() for each in layers]), match="entries")
    large = Tar().file("zeros", bytes(6 << 20)).done()
    await refused(provider, images, large, match="a size of")
    for compress in (gzip.compress, lzma.compress):
        await refused(provider, images, compress(Tar().file("zeros", bytes(3 << 20)).done()), match="times as long")
        await refused(provider, images, oci_layout([large], packed=[compress(large)]), match="a size of|times as long")
    await refused(provider, images, oci_layout([Tar().file(str(n)).done() for n in range(5)]), match="5 layers")
    await refused(provider, images, header(size=b"77777777777\0") + END, match="a size of|bytes")
    negative = b"\xff" * 12
    await refused(provider, images, header(size=negative) + END, match="a size of")


async def test_headers_without_end_are_refused(provider: LocalProvider, images: LocalImages) -> None:
    longest = header(b"h", b"x", b"%011o\0" % (1 << 30))
    await refused(provider, images, longest + bytes(4096), match="header")
    again = (header(b"h", b"L", b"%011o\0" % 4) + b"name".ljust(512, b"\0")) * 20
    await refused(provider, images, again + header() + END, match="headers")


async def test_a_stream_within_a_stream_is_not_looked_through_twice(
    provider: LocalProvider, images: LocalImages
) -> None:
    await refused(provider, images, gzip.compress(gzip.compress(busybox().done())), BadArchive)


async def test_a_decompressor_that_asks_for_much_memory_is_refused(provider: LocalProvider) -> None:
    small = LocalImages(provider.data_dir, provider.snapshot_store.collect, ArchiveLimits(memory=1 << 20))
    packed = lzma.compress(Tar().file("x").done(), preset=9)
    await refused(provider, small, packed, (BadArchive, HostileArchive))


async def test_the_last_of_the_disk_is_left_alone(provider: LocalProvider) -> None:
    greedy = LocalImages(provider.data_dir, provider.snapshot_store.collect, ArchiveLimits(spare=1 << 60))
    await refused(provider, greedy, Tar().file("x", b"x").done(), NoSpace)
    await refused(provider, greedy, oci_layout([Tar().file("x", b"x").done()]), NoSpace)


async def test_memory_does_not_grow_with_the_archive(provider: LocalProvider) -> None:
    """In a process of its own: 400 MB go through it."""
    program = """
import anyio, io, resource, sys, tarfile
from pathlib import Path
from holdfast.providers.local import LocalProvider
async def archive():
    for number in range(100):
        entry = tarfile.TarInfo(f"f{number}")
        entry.size = 4 << 20
        yield entry.tobuf() + bytes(4 << 20)
    yield bytes(1024)
async def main():
    async with LocalProvider(Path(sys.argv[1])) as provider:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await provider.images.import_archive("large", archive())
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
        await provider.images.remove("large")
anyio.run(main)
"""
    home = str(provider.data_dir.path.parent / "large")
    done = await asyncio.to_thread(run, program, home)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64


# --- lies -------------------------------------------------------------------------------------------------------------


async def test_documents_that_lie_are_refused(provider: LocalProvider, images: LocalImages) -> None:
    layer, other = busybox_free(), Tar().file("other").done()
    await refused(provider, images, oci_layout([layer], lies={"descriptor": {"digest": sha256(b"x")}}))
    await refused(provider, images, oci_layout([layer], lies={"descriptor": {"size": 1}}), match="bytes long")
    await refused(provider, images, oci_layout([layer], lies={"blob": sha256(other)[7:]}))
    diff = {"config": {"rootfs": {"diff_ids": [sha256(other)]}}}
    await refused(provider, images, oci_layout([layer], lies=diff), match="the image declares")
    none: dict[str, Any] = {"config": {"rootfs": {"diff_ids": []}}}
    await refused(provider, images, oci_layout([layer], lies=none), match="layers")
    wrong: tuple[Any, ...] = (None, [], "x", {"diff_ids": {}}, {"diff_ids": [1]}, {"diff_ids": ["sha256:../../../x"]})
    for each in wrong:
        await refused(provider, images, oci_layout([layer], lies={"config": {"rootfs": each}}))
    for path in ("../../etc/passwd", "/etc/passwd", "blobs/sha256/../../index.json"):
        saved = json.dumps([{"Config": path, "Layers": [path]}]).encode()
        await refused(provider, images, Tar().file("manifest.json", saved).done())


async def test_a_digest_of_somebody_elses_layer_is_no_way_to_its_files(
    provider: LocalProvider, images: LocalImages
) -> None:
    secret = Tar().file("secret", b"of another").done()
    await images.import_archive("private", pieces(secret))
    claimed = {"config": {"rootfs": {"diff_ids": [sha256(secret)]}}}
    await refused(provider, images, oci_layout([busybox_free()], lies=claimed), match="the image declares")
    await images.remove("private")


async def test_indexes_that_go_round_are_refused(provider: LocalProvider, images: LocalImages) -> None:
    layer = busybox_free()
    wrong: tuple[Any, ...] = ([1], [], "x", {}, [{"digest": 1}], [{"digest": "sha256:" + "0" * 64, "size": 1}],
                              [{"digest": "sha512:" + "0" * 128, "size": 1}])  # fmt: skip
    for index in (*({"manifests": each} for each in wrong), *wrong):
        await refused(provider, images, oci_layout([layer], index=index), (HostileArchive, BadArchive))
    deep = b"[" * 100_000
    await refused(provider, images, Tar().file("index.json", deep[:4000]).file("oci-layout").done())
    await refused(provider, images, Tar().file("index.json", deep).file("oci-layout").done(), match="bytes long")
    await refused(provider, images, Tar().file("manifest.json", b"{}").done())
    await refused(
        provider, images, Tar().file("manifest.json", b"[]").file("manifest.json", b"[]").done(), match="twice"
    )
    round_and_round = Tar().link("manifest.json", "index.json2").link("index.json2", "manifest.json")
    await refused(provider, images, round_and_round.done(), BadArchive)


async def test_an_image_of_another_machine_is_refused_with_what_to_do(
    provider: LocalProvider, images: LocalImages
) -> None:
    for lie in ({"architecture": "s390x"}, {"os": "windows"}):
        await refused(provider, images, oci_layout([busybox_free()], lies={"config": lie}), BadArchive, "image for")


async def test_an_image_for_a_user_that_it_does_not_have_is_refused(
    provider: LocalProvider, images: LocalImages
) -> None:
    await refused(provider, images, oci_layout([busybox_free()], {"User": "nobody-here"}), match="no such user")
    await refused(provider, images, oci_layout([busybox_free()], {"User": "99999999999"}), match="no such user")


async def test_what_is_no_archive_or_is_cut_short_is_refused(provider: LocalProvider, images: LocalImages) -> None:
    whole = Tar().file("x", b"x" * 5000).done()
    broken = [b"", b"no archive", bytes(512), bytes(10240), b"\x1f\x8b" + b"x" * 100, b"BZh9" + b"x" * 50,
              b"\xfd7zXZ\0" + b"x" * 50, whole[:3000], gzip.compress(whole)[:-20], lzma.compress(whole)[:-20],
              whole[:500] + b"x" + whole[501:], docker_archive([whole])[:-20_000]]  # fmt: skip
    for archive in broken:
        await refused(provider, images, archive, (BadArchive, HostileArchive))
    await refused(provider, images, whole + b"more", match="follows")


async def test_rubbish_of_every_kind_is_refused_and_nothing_else_happens(
    provider: LocalProvider, images: LocalImages
) -> None:
    """Each byte of the headers of an archive turned over: what is left is an image, or refused."""
    whole = bytearray(Tar().file("x", b"x", pax_headers={"SCHILY.xattr.user.a": "b"}).link("l", "x").done())
    before = everything(provider.data_dir.path)
    for at in range(0, 3072, 7):
        broken = bytearray(whole)
        broken[at] ^= 0xFF
        try:
            await images.import_archive("rubbish", pieces(bytes(broken)))
            await images.remove("rubbish")
        except (BadArchive, HostileArchive):
            pass
    assert everything(provider.data_dir.path) == before


# --- cut short --------------------------------------------------------------------------------------------------------


async def test_an_import_that_is_killed_leaves_nothing_that_a_sweep_does_not_remove(provider: LocalProvider) -> None:
    program = """
import anyio, os, sys, tarfile
from pathlib import Path
from holdfast.providers.local import LocalProvider
async def archive():
    entry = tarfile.TarInfo("big")
    entry.size = 64 << 20
    yield entry.tobuf()
    for _ in range(32):
        yield bytes(1 << 20)
    hidden = [path for path in Path(sys.argv[1], "local", "layers").iterdir() if path.name.startswith(".")]
    while not any((path / "files" / "big").exists() for path in hidden):
        await anyio.sleep(0.01)
    print("half", flush=True)
    os.kill(os.getpid(), 9)
    yield b""
async def main():
    async with LocalProvider(Path(sys.argv[1])) as provider:
        await provider.images.import_archive("half", archive())
anyio.run(main)
"""
    home = provider.data_dir.path.parent
    done = await asyncio.to_thread(run, program, str(home))
    assert (done.returncode, done.stdout) == (-9, "half\n"), done.stderr
    layers = provider.data_dir.layers
    assert [path for path in layers.iterdir() if path.name.startswith(".")]
    swept = await provider.sweep()
    assert swept.freed >= 16 << 20
    assert not [path for path in layers.iterdir() if path.name.startswith(".")]
    assert list(provider.data_dir.images.iterdir()) == []


async def test_a_sweep_leaves_an_import_alone_that_goes_on(provider: LocalProvider, images: LocalImages) -> None:
    whole = Tar().file("x", b"x" * 300_000).done()

    async def slowly() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), 100_000):
            await provider.sweep()
            yield whole[start : start + 100_000]

    image = await images.import_archive("slow", slowly())
    assert (provider.data_dir.layers / layer_name(image.layers[0]) / "files" / "x").stat().st_size == 300_000
    await images.remove("slow")


async def test_a_sender_that_leaves_halfway_leaves_nothing(provider: LocalProvider, images: LocalImages) -> None:
    whole = Tar().file("x", b"x" * 300_000).done()
    before = everything(provider.data_dir.path)

    async def halfway() -> AsyncIterator[bytes]:
        yield whole[:100_000]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await images.import_archive("half", halfway())
    assert everything(provider.data_dir.path) == before


def busybox_free() -> bytes:
    """A layer of nothing much."""
    return Tar().file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n").done()


def test_the_bombs_are_bombs() -> None:
    """Outside, the same archives unpack to what they say."""
    with tarfile.open(fileobj=io.BytesIO(SLIPS["a name that climbs"]().done())) as archive:
        assert archive.getnames() == ["../evil"]
