"""A system from packages of a repository, by the machine's own apt and dpkg-deb, installed in a real box."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.images.image_builds import APPLETS, ImageBuilds, Steps
from tests.images.packing import ARCHITECTURE, Entry, Key, Repository, TestPackage, folder, link
from tests.providers.local.rootfs import busybox_program

from holdfast.api.errors.boxes import CannotIsolate, HostileArchive
from holdfast.api.progress import Silent
from holdfast.images.debian import apt as apt_module
from holdfast.images.debian.apt import Apt, require_apt
from holdfast.images.debian.essential import essential_archive, in_pieces
from holdfast.images.debian.sources import Source, SourceFiles
from holdfast.images.debian.system import System, build_system, choose, is_current
from holdfast.images.errors import BadPackage, MirrorFailed, NoSources, NotVerified, StepFailed, Unresolvable
from holdfast.providers.local import LocalProvider

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="this machine has no apt: Debian and Ubuntu have it"),
]

DPKG = b"""#!/bin/sh
# As much of dpkg as a system of three packages needs.
info=/var/lib/dpkg/info
case "$*" in
"--force-depends --unpack "*)
    shift 2
    for file; do
        name=${file##*/*-}; name=${name%%_*}
        busybox dpkg-deb -e "$file" /tmp/control
        [ ! -e /tmp/control/preinst ] || DPKG_MAINTSCRIPT_PACKAGE=$name /tmp/control/preinst install || exit 1
        busybox ar -p "$file" data.tar.xz | busybox tar -xJ -C / || exit 1
        for script in /tmp/control/*; do cat "$script" > $info/$name.${script##*/}; done
        rm -r /tmp/control
    done ;;
"--configure -a")
    for script in $info/*.postinst; do
        [ -e "$script" ] || continue
        name=${script##*/}
        echo "Setting up ${name%.postinst} (1.0) ..."
        sh "$script" configure "" || exit 1
        rm "$script"
    done ;;
*) exit 9 ;;
esac
"""


def packages(postinst: bytes) -> list[TestPackage]:
    tools = [Entry("./bin/busybox", busybox_program(), mode=0o755), Entry("./bin/dpkg", DPKG, mode=0o755)]
    tools += [link(f"./bin/{name}", "busybox") for name in (*APPLETS, "ln")]
    return [
        TestPackage("base", [folder("./bin"), *tools], fields={"Essential": "yes", "Depends": "conf"}),
        TestPackage(
            "conf",
            [folder("./etc"), Entry("./etc/conf", b"as shipped\n")],
            scripts={
                "preinst": b'#!/bin/sh\n[ "$1" = install ] && echo $DPKG_MAINTSCRIPT_PACKAGE > /etc/before\n',
                "postinst": postinst,
                "conffiles": b"/etc/conf\n",
            },
        ),
        TestPackage("tool", [folder("./usr"), Entry("./usr/tool", b"tool")]),
        TestPackage("unwanted", [folder("./usr"), Entry("./usr/unwanted", b"")]),
    ]


@dataclass
class Foundry:
    """A repository in a folder, and an apt of its own."""

    repository: Repository
    apt: Apt
    sources: SourceFiles
    key: Key

    def publish(self, postinst: bytes = b"#!/bin/sh\nid -u > /etc/configured-by\n", extra: str = "") -> None:
        self.repository.clear()
        for package in packages(postinst):
            self.repository.add(package)
        self.repository.publish(self.key, extra=extra)

    async def choose(self, *wanted: str, sources: SourceFiles | None = None) -> System:
        return await choose(self.apt, sources or self.sources, wanted or ("tool",), {}, Silent())

    async def download(self, system: System) -> list[Path]:
        return await self.apt.download(system.wanted, system.packages, lambda _: None)


@pytest.fixture
def foundry(key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Foundry:
    # apt's own defaults: a machine may be set to believe releases that are too old.
    (tmp_path / "apt.conf").write_text('Dir::Etc::main "/dev/null";\nDir::Etc::parts "/dev/null";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    repository = Repository(tmp_path / "mirror")
    source = Source(repository.url, "test", ("main",), (str(key.armoured),))
    return Foundry(repository, Apt(tmp_path / "cache", ARCHITECTURE), SourceFiles((source,)), key)


@pytest.fixture
async def builds(tmp_path: Path) -> AsyncIterator[ImageBuilds]:
    try:
        async with LocalProvider(tmp_path / "home") as provider:
            yield ImageBuilds(provider, tmp_path)
            assert await provider.find() == [], "a build leaves no box behind"
            assert await provider.snapshots() == []
            assert await names(provider) in ([], ["test/base"])
    except CannotIsolate as error:
        pytest.skip(f"this machine makes no boxes: {error.message}")


async def names(provider: LocalProvider) -> list[str]:
    assert provider.images is not None
    return [image.name for image in await provider.images.list()]


async def test_packages_become_an_image(foundry: Foundry, builds: ImageBuilds) -> None:
    foundry.publish()
    system = await foundry.choose()
    assert sorted(package.name for package in system.packages) == ["base", "conf", "tool"]
    assert system.essential == {"base", "conf"}
    assert await is_current(builds.host, system, "test/base") is None
    steps = Steps()
    image = await build_system(builds.host, foundry.apt, system, "test/base", steps)
    assert steps.done == ["3 packages", "2 packages", "3 packages"]
    assert b"Setting up conf (1.0)" in steps.said
    told = await builds.run("test/base", "cat /etc/before /etc/conf /etc/configured-by /usr/tool; ls /usr /tmp")
    assert told.startswith("conf\nas shipped\n0\ntool")
    assert "unwanted" not in told
    assert "packages" not in told, "the files of packages are gone"
    assert image.config.env["LANG"] == "C.UTF-8"
    found = await is_current(builds.host, await foundry.choose(), "test/base")
    assert found is not None
    assert found.digest == image.digest
    foundry.publish(b"#!/bin/sh\ntrue # a new version\n")
    assert await is_current(builds.host, await foundry.choose(), "test/base") is None


async def test_a_system_that_does_not_configure_leaves_nothing(foundry: Foundry, builds: ImageBuilds) -> None:
    foundry.publish(b"#!/bin/sh\necho the disk is made of cheese >&2\nexit 4\n")
    with pytest.raises(StepFailed, match="dpkg ended with 1") as raised:
        await build_system(builds.host, foundry.apt, await foundry.choose(), "test/base", Silent())
    assert b"made of cheese" in raised.value.output
    assert await names(builds.provider) == []


# --- whom apt believes ---


async def test_a_release_that_is_not_signed_or_by_a_stranger_is_refused(foundry: Foundry, tmp_path: Path) -> None:
    foundry.publish()
    stranger = Key(tmp_path / "s")
    try:
        source = replace(foundry.sources.sources[0], signed_by=(str(stranger.keyring),))
        with pytest.raises(NotVerified, match="does not trust") as raised:
            await foundry.choose(sources=SourceFiles((source,)))
        assert "--insecure" in (raised.value.hint or "")
    finally:
        stranger.close()
    (foundry.repository.release / "InRelease").unlink()
    foundry.repository.publish(None)
    with pytest.raises(NotVerified):
        await foundry.choose()
    system = await foundry.choose(sources=replace(foundry.sources, insecure=True))
    assert len(system.packages) == 3, "where it is asked for, a mirror is believed"
    with pytest.raises(NotVerified):
        await foundry.choose()


async def test_a_release_that_was_changed_or_is_too_old_is_refused(foundry: Foundry) -> None:
    foundry.publish()
    path = foundry.repository.release / "InRelease"
    path.write_text(path.read_text().replace("Origin: Test", "Origin: Tset"))
    with pytest.raises(NotVerified):
        await foundry.choose()
    foundry.publish(extra="Date: Mon, 01 Jan 2024 00:00:00 UTC\nValid-Until: Tue, 02 Jan 2024 00:00:00 UTC\n")
    with pytest.raises(NotVerified):
        await foundry.choose()


async def test_packages_that_are_not_what_was_signed_are_refused(foundry: Foundry) -> None:
    foundry.publish()
    system = await foundry.choose()
    [path] = foundry.repository.root.glob("pool/tool_*.deb")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises((MirrorFailed, NotVerified)):
        await foundry.download(system)
    path.write_bytes(data)
    paths = {each.name.partition("_")[0]: each for each in await foundry.download(system)}
    paths["tool"].write_bytes(bytes(len(data)))
    await foundry.download(system)
    assert paths["tool"].read_bytes() == data, "one that was damaged here comes again"


async def test_what_nobody_used_for_months_is_forgotten(foundry: Foundry) -> None:
    foundry.publish()
    old, *others = await foundry.download(await foundry.choose())
    earlier = old.parent.parent / "ab" / "abcdef"
    earlier.parent.mkdir()
    earlier.touch()
    for path in (old, earlier):
        os.utime(path, (1, 1))
    foundry.apt.forget_old()
    assert [path.exists() for path in (old, earlier, *others)] == [False, False, True, True]


async def test_what_cannot_be_had_is_said(foundry: Foundry) -> None:
    foundry.publish()
    with pytest.raises(Unresolvable, match="there is no package toool") as raised:
        await foundry.choose("toool")
    assert raised.value.hint == "perhaps tool"
    for trick in ("tool-", "./tool.deb", "--purge", "?installed", "tool/test", "a b"):
        with pytest.raises(Unresolvable, match="there is no package"):
            await foundry.choose(trick)
    foundry.repository.add(TestPackage("needy", fields={"Depends": "nowhere-to-be-found"}))
    foundry.repository.publish(foundry.key)
    with pytest.raises(Unresolvable, match="cannot have these packages together"):
        await foundry.choose("needy")
    missing = replace(foundry.sources.sources[0], suite="missing")
    with pytest.raises((MirrorFailed, NotVerified)):
        await foundry.choose(sources=SourceFiles((missing,)))
    foreign = replace(foundry.sources.sources[0], architectures=("pdp11",))
    with pytest.raises(NoSources, match="no source has packages for amd64"):
        await foundry.choose(sources=SourceFiles((foreign,)))
    with pytest.raises(NoSources, match="not an architecture"):
        Apt(Path("x"), 'amd64"; Dir "/')
    with pytest.raises(NoSources, match="apt cannot work in"):
        Apt(Path("my home"))


async def test_the_machines_own_packages_are_left_alone(foundry: Foundry, tmp_path: Path) -> None:
    before = Path("/var/lib/dpkg/status").stat().st_mtime_ns
    foundry.publish()
    await foundry.download(await foundry.choose())
    settings = (tmp_path / "cache" / "apt.conf").read_text()
    assert "Post-Invoke" not in settings, "no hook of the machine runs"
    assert Path("/var/lib/dpkg/status").stat().st_mtime_ns == before


async def test_without_apt_an_image_can_still_be_pulled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoSources, match="this machine has no apt-get") as raised:
        require_apt()
    assert "holdfast image pull" in (raised.value.hint or "")


def test_proxies_and_logins_of_the_machine_are_kept_and_nothing_else() -> None:
    dump = (
        'APT::Update::Post-Invoke:: "rm -rf /";\nAcquire::http::Proxy "http://proxy.invalid:3142";\n'
        'Acquire::Languages:: "de";\nAcquire::IndexTargets::deb "";\nDir::Etc "etc";\nAcquire::Check-Valid-Until "0";\n'
    )
    assert apt_module._network_settings(dump) == [
        'Acquire::http::Proxy "http://proxy.invalid:3142";',
        'Acquire::Check-Valid-Until "0";',
    ]


# --- the first layer ---


def archive_of(tmp_path: Path, *packed: TestPackage) -> bytes:
    paths = []
    for package in packed:
        paths.append(tmp_path / f"{package.name}.deb")
        paths[-1].write_bytes(package.pack())
    return b"".join(essential_archive(paths, {"etc/extra": (0o600, b"extra")}))


async def imported(builds: ImageBuilds, data: bytes) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield data

    await builds.host.import_image("test/base", pieces())


async def test_bin_and_lib_are_one_with_those_of_usr(tmp_path: Path, builds: ImageBuilds) -> None:
    package = TestPackage(
        "a",
        [
            folder("./bin"), Entry("./bin/sh", b"1", mode=0o755), folder("./lib"), Entry("./lib/ld.so", b"2"),
            folder("./lib64"), link("./lib64/ld.so", "/lib/ld.so"), link("./sbin", "usr/sbin"),
            Entry("./bin/again", type=tarfile.LNKTYPE, link="./bin/sh"),
            folder("./usr/share/doc/a"), Entry("./usr/share/doc/a/README", b""),
        ],
    )  # fmt: skip
    data = archive_of(tmp_path, package)
    (tmp_path / "made.tar").write_bytes(data)
    with tarfile.open(tmp_path / "made.tar") as tar:
        links = {name: tar.getmember(name).linkname for name in ("bin", "sbin", "lib", "lib64", "usr/bin/again")}
        assert links == {
            "bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/again": "usr/bin/sh"
        }  # fmt: skip
        assert {"usr/bin/sh", "usr/lib64/ld.so", "usr/lib/ld.so", "etc/extra"} <= set(tar.getnames())
        assert not [name for name in tar.getnames() if "README" in name]
        assert tar.getnames().count("sbin") == 1
    await imported(builds, data)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([Entry("./../../etc/cron.d/x", b"x")], id="up and away"),
        pytest.param([Entry("./usr/../../x", b"x")], id="dots in the middle"),
        pytest.param([Entry("./srv/sda", type=tarfile.BLKTYPE)], id="a device"),
        pytest.param([Entry("./x", type=tarfile.LNKTYPE, link="etc/shadow")], id="a hard link to nowhere"),
        pytest.param([Entry("./x", type=tarfile.LNKTYPE, link="../../etc/shadow")], id="a hard link out"),
        pytest.param([link("./out", "/etc"), Entry("./out/passwd", b"x")], id="a way through a link"),
    ],
)
async def test_hostile_packages_are_refused(tmp_path: Path, builds: ImageBuilds, entries: list[Entry]) -> None:
    with pytest.raises(HostileArchive):
        await imported(builds, archive_of(tmp_path, TestPackage("evil", entries)))
    assert await names(builds.provider) == []


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", TestPackage("a", [Entry("./usr/a", b"x" * 9999)]).pack()[:-300]])
async def test_broken_packages_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.deb").write_bytes(data)
    with pytest.raises(BadPackage):
        b"".join(essential_archive([tmp_path / "a.deb"], {}))


async def test_pieces_are_the_same_bytes() -> None:
    parts = [b"a" * 10, b"", b"b" * 25, b"c"]
    assert list(in_pieces(parts, 20)) == [b"a" * 10 + b"b" * 25, b"c"]
