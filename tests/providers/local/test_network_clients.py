"""The clients that people use get through the egress of a box with no set-up by the user."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.providers.local import rootfs
from tests.providers.local.networking import Net, networked, run, works
from tests.providers.local.registries import apt_site, cargo_site, npm_site, pip_site
from tests.providers.local.world import git_site

from holdfast.api.box.box import Box
from holdfast.api.box.network import Rule
from holdfast.api.box.spec import HostMount
from holdfast.egress import DefaultList, Source

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Net]:
    """Its default list is what this world's registries are."""
    async with networked(tmp_path_factory.mktemp("clients")) as net:
        net.world.serve("pypi.test", pip_site("harbour", "LIGHT = 'red'"))
        net.world.serve("npm.test", npm_site("lantern", "module.exports = 'lit'"))
        net.world.serve("apt.test", apt_site("beacon", "a light"))
        net.world.serve("cargo.test", cargo_site("anchor", "pub fn holds() -> bool { true }"))
        hosts = {"pip": "pypi.test", "npm": "npm.test", "apt": "apt.test", "cargo": "cargo.test", "git": "git.test"}
        environment = {
            "PIP_INDEX_URL": "https://pypi.test/simple/",
            "npm_config_registry": "https://npm.test/",
        }
        sources = tuple(Source(Rule.parse(host), client) for client, host in hosts.items())
        net.proxy.use(DefaultList(sources, environment))
        yield net


@pytest.fixture
async def box(net: Net) -> Box:
    return await net.box("default")


async def test_pip_installs_from_the_registry_of_the_machine(net: Net, box: Box) -> None:
    if (await run(box, "python3", "-m", "pip", "--version")).exit_code:
        pytest.skip("the python3 of this machine has no pip")
    pip = ("python3", "-m", "pip", "--disable-pip-version-check", "--retries", "0")
    await works(box, *pip, "install", "--target", "lib", "harbour")
    assert await works(box, "python3", "-c", "import harbour; print(harbour.LIGHT)", PYTHONPATH="lib") == "red\n"
    assert {each.host for each in await net.decisions(box)} == {"pypi.test"}


async def test_npm_installs_from_the_registry_of_the_machine(net: Net, box: Box) -> None:
    if (await run(box, "npm", "--version")).exit_code:
        pytest.skip("this machine has no npm where its boxes could see it")
    await works(box, "npm", "install", "--no-audit", "--no-fund", "--no-update-notifier", "lantern", timeout=60)
    assert await works(box, "node", "-p", "require('lantern')") == "lit\n"
    assert {each.host for each in await net.decisions(box)} == {"npm.test"}


async def test_git_clones_by_https(net: Net, box: Box, tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("this machine has no git")
    _make_repository(tmp_path)
    net.world.serve("git.test", git_site(tmp_path))
    await works(box, "git", "clone", "--quiet", "https://git.test/boat.git")
    assert await works(box, "cat", "boat/README") == "floats\n"
    denied = await run(box, "git", "clone", "https://elsewhere.test/boat.git", "another")
    assert denied.exit_code == 128
    assert [each.host for each in await net.denied(box)] == ["elsewhere.test"]


def _make_repository(folder: Path) -> None:
    source = folder / "source"
    source.mkdir()
    (source / "README").write_text("floats\n")
    identity = ("-c", "user.name=Tests", "-c", "user.email=tests@site.test", "-c", "commit.gpgsign=false")
    for command in (
        ("init", "--quiet", "--initial-branch", "main"),
        ("add", "README"),
        (*identity, "commit", "--quiet", "--message", "afloat"),
        ("clone", "--quiet", "--bare", ".", str(folder / "boat.git")),
    ):
        subprocess.run(["git", *command], cwd=source, check=True, timeout=240)


async def test_apt_updates_and_fetches_by_http(net: Net, box: Box) -> None:
    """Without an image there is no root in the box, and so no installing."""
    if (await run(box, "apt-get", "--version")).exit_code:
        pytest.skip("this machine has no apt")
    await box.files.write("apt/sources.list", b"deb [trusted=yes] http://apt.test/debian stable main\n")
    for folder in ("apt/lists/partial", "apt/cache/archives/partial", "apt/parts"):
        await box.files.mkdir(folder)
    await box.files.write("apt/status", b"")
    options = [
        f"Dir::Etc::{name}=/workspace/apt/{value}"
        for name, value in (("sourcelist", "sources.list"), ("sourceparts", "parts"))
    ]
    options += ["Dir::State::lists=/workspace/apt/lists", "Dir::State::status=/workspace/apt/status"]
    options += ["Dir::Cache=/workspace/apt/cache", "APT::Sandbox::User="]
    apt = ("apt-get", *(part for option in options for part in ("-o", option)))
    await works(box, *apt, "update")
    await works(box, *apt, "download", "beacon")
    assert "beacon_1.0_all.deb" in await works(box, "ls")
    hosts = {(each.host, each.method) for each in await net.decisions(box)}
    assert hosts == {("apt.test", "GET")}


@pytest.mark.skipif(not rootfs.has_debian(), reason="this machine has no dpkg to make a Debian of")
async def test_apt_installs_system_wide_in_an_image(net: Net, tmp_path: Path) -> None:
    await net.provider.images.import_archive("debian", rootfs.pieces(rootfs.debian(tmp_path / "debian.tar")))
    box = await net.box("default", image="debian")
    await box.files.write("/etc/apt/sources.list", b"deb [trusted=yes] http://apt.test/debian stable main\n")
    await works(box, "sh", "-c", "apt-get -q update && apt-get -qy install beacon", timeout=60)
    assert await works(box, "cat", "/usr/share/beacon") == "a light"
    assert {each.host for each in await net.decisions(box)} == {"apt.test"}


def _toolchain() -> str:
    asked = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, timeout=240, check=False)
    if asked.returncode:
        pytest.skip("this machine's cargo has no toolchain")
    return asked.stdout.strip()


def _knows_sparse_registries() -> bool:
    """Cargo has them since 1.68; Debian 12 has an older one."""
    asked = subprocess.run(["cargo", "--version"], capture_output=True, text=True, timeout=240, check=False)
    version = re.search(r"cargo (\d+)\.(\d+)", asked.stdout)
    return version is not None and (int(version[1]), int(version[2])) >= (1, 68)


async def test_cargo_fetches_from_a_sparse_registry(net: Net) -> None:
    if shutil.which("cargo") is None or not _knows_sparse_registries():
        pytest.skip("this machine has no cargo that knows sparse registries (1.68 or newer)")
    box = await net.box("default", mounts=(HostMount(_toolchain(), "/opt/rust"),))
    await box.files.write("Cargo.toml", b'[package]\nname = "ship"\nversion = "0.1.0"\n[dependencies]\nanchor = "1"\n')
    await box.files.write("src/main.rs", b"fn main() {}\n")
    index = 'registry = "sparse+https://cargo.test/index/"'
    replaced = f'[source.crates-io]\nreplace-with = "mirror"\n[source.mirror]\n{index}\n'
    await box.files.write(".cargo/config.toml", replaced.encode())
    path = await works(box, "sh", "-c", "printf %s $PATH")
    await works(box, "cargo", "fetch", PATH=f"/opt/rust/bin:{path}", timeout=60)
    assert "anchor-1.0.0" in await works(box, "sh", "-c", "ls /home/box/.cargo/registry/src/*")
    assert {each.host for each in await net.decisions(box)} == {"cargo.test"}
