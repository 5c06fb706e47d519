"""A system from packages of a mirror on loopback, configured by its own scripts in a real box."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.images.conftest import Mirror
from tests.images.kitchen import APPLETS, Kitchen, Steps
from tests.images.packing import ARCHITECTURE, Entry, Key, Repository, TestPackage, folder, link
from tests.providers.local.rootfs import busybox_program

from holdfast.boxes.errors import CannotIsolate
from holdfast.images.debian.bootstrap import Signed, System, build_system, choose, is_current
from holdfast.images.debian.download import Downloads
from holdfast.images.debian.sources import Source
from holdfast.images.errors import StepFailed
from holdfast.images.progress import Silent
from holdfast.providers.local import LocalProvider

DPKG = b"""#!/bin/sh
# As much of dpkg as a system of three packages needs.
[ "$*" = "--configure -a" ] || exit 9
grep -q 'Status: install ok unpacked' /var/lib/dpkg/status || exit 8
for script in /var/lib/dpkg/info/*.postinst; do
    name=${script##*/}
    echo "Setting up ${name%.postinst} (1.0) ..."
    "$script" configure "" || exit 1
done
"""


def packages(postinst: bytes) -> list[TestPackage]:
    tools = [Entry("./bin/busybox", busybox_program(), mode=0o755), Entry("./bin/dpkg", DPKG, mode=0o755)]
    tools += [link(f"./bin/{name}", "busybox") for name in APPLETS]
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
        TestPackage("unwanted", [Entry("./usr/unwanted", b"")]),
    ]


@dataclass
class Foundry:
    kitchen: Kitchen
    downloads: Downloads
    mirror: Mirror
    key: Key

    def publish(self, postinst: bytes = b"#!/bin/sh\nid -u > /etc/configured-by\n", suite: str = "test") -> None:
        repository = Repository(self.mirror.root, suite)
        for package in packages(postinst):
            repository.add(package)
        repository.publish(self.key)

    async def choose(self, suite: str = "test") -> System:
        return await choose(
            self.downloads,
            [Source(self.mirror.url, suite, ("main",), (str(self.key.armoured),))],
            ["tool"],
            trust=Signed([]),
            architecture=ARCHITECTURE,
            progress=Silent(),
        )


async def names(provider: LocalProvider) -> list[str]:
    assert provider.images is not None
    return [image.name for image in await provider.images.list()]


@pytest.fixture
async def foundry(mirror: Mirror, key: Key, tmp_path: Path) -> AsyncIterator[Foundry]:
    try:
        async with (
            LocalProvider(tmp_path / "home") as provider,
            httpx.AsyncClient(trust_env=False) as client,
        ):
            downloads = Downloads(client, tmp_path / "cache")
            yield Foundry(Kitchen(provider, tmp_path), downloads, mirror, key)
            assert await provider.find() == [], "a build leaves no box behind"
            assert await provider.snapshots() == []
            assert await names(provider) in ([], ["test/base"])
    except CannotIsolate as error:
        pytest.skip(f"this machine makes no boxes: {error.message}")


@pytest.mark.anyio
async def test_packages_become_an_image(foundry: Foundry) -> None:
    foundry.publish()
    system = await foundry.choose()
    assert [package.name for package in system.packages] == ["base", "conf", "tool"]
    workshop = foundry.kitchen.workshop
    assert await is_current(workshop, system, "test/base") is None
    steps = Steps()
    image = await build_system(workshop, foundry.downloads, system, "test/base", steps)
    assert steps.done == ["3 packages"] * 3
    assert b"Setting up conf (1.0)" in steps.said
    told = await foundry.kitchen.run("test/base", "cat /etc/before /etc/conf /etc/configured-by /usr/tool; ls /usr")
    assert told.startswith("conf\nas shipped\n0\ntool")
    assert "unwanted" not in told
    assert image.config.env["LANG"] == "C.UTF-8"
    sources = await foundry.kitchen.run(
        "test/base", "cat /etc/apt/sources.list.d/holdfast.sources; ls /etc/apt/keyrings"
    )
    assert f"URIs: {foundry.mirror.url}\nSuites: test\nComponents: main\n" in sources
    assert sources.endswith("Signed-By: /etc/apt/keyrings/holdfast-1.gpg\nholdfast-1.gpg\n")


@pytest.mark.anyio
async def test_the_same_packages_are_not_built_twice(foundry: Foundry) -> None:
    foundry.publish()
    system = await foundry.choose()
    made = await build_system(foundry.kitchen.workshop, foundry.downloads, system, "test/base", Silent())
    found = await is_current(foundry.kitchen.workshop, await foundry.choose(), "test/base")
    assert found is not None
    assert found.digest == made.digest
    foundry.publish(b"#!/bin/sh\ntrue # a new version\n")
    assert await is_current(foundry.kitchen.workshop, await foundry.choose(), "test/base") is None


@pytest.mark.anyio
async def test_a_system_that_does_not_configure_leaves_nothing(foundry: Foundry) -> None:
    foundry.publish(b"#!/bin/sh\necho the disk is made of cheese >&2\nexit 4\n")
    with pytest.raises(StepFailed, match="dpkg ended with 1") as raised:
        await build_system(foundry.kitchen.workshop, foundry.downloads, await foundry.choose(), "test/base", Silent())
    assert b"made of cheese" in raised.value.output
    assert await names(foundry.kitchen.provider) == []
