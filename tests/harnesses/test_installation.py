"""Agents are installed once per machine, by the real npm, at what their lock files pin."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents import InstalledAgents
from tests.harnesses.npm_world import Registry, native_agent, script_agent, tiny_agent

from holdfast.api.errors.agents import CannotInstall
from holdfast.harnesses import node, npm, registry
from holdfast.harnesses.installation import Progress, Tools, processor

pytestmark = pytest.mark.anyio
_SECONDS = 240.0
_OTHER_CPU = "arm64" if processor(platform.machine()) == "x64" else "x64"


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    """The registry that this user's npm is set to."""
    with Registry() as served:
        monkeypatch.setenv("npm_config_registry", served.url)
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
        monkeypatch.setenv("npm_config_fetch_retries", "0")
        yield served


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path / "home")


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout


def _left_behind(tools: Tools) -> list[str]:
    return [path.name for path in tools.folder.with_name("installing").iterdir() if path.suffix != ".lock"]


# --- installing ---


async def test_an_agent_comes_from_the_users_registry_and_only_once(
    mirror: Registry, tools: Tools, tmp_path: Path
) -> None:
    agent = script_agent(tmp_path / "tiny", mirror)
    assert tools.find(agent) is None
    told: list[Progress] = []
    installed = await tools.install(agent, on_progress=told.append)
    assert installed.folder.parent == tools.folder
    assert re.fullmatch(r"tiny-1\.2\.3-[0-9a-f]{10}", installed.folder.name)
    program = installed.folder / "node_modules" / ".bin" / "tiny"
    assert _output([str(installed.node), str(program), "a", "b"]) == "tiny a b\n"
    assert mirror.downloads == 1
    asked = len(mirror.asked)
    assert await tools.install(agent) == installed == tools.find(agent)
    assert len(mirror.asked) == asked
    assert [each.what for each in told if each.done] == ["node", "tiny 1.2.3"]
    assert told[0] == Progress("node", told[0].seconds, done=False)
    assert _left_behind(tools) == []


async def test_npm_leaves_nothing_in_the_home_of_the_user(
    mirror: Registry, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removes the home of Holdfast has removed all that it fetched."""
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.delenv("npm_config_cache")
    monkeypatch.delenv("NPM_CONFIG_CACHE", raising=False)
    await tools.install(script_agent(tmp_path / "tiny", mirror))
    assert list(user.iterdir()) == []
    assert (tools.folder.with_name("npm-cache") / "_cacache").is_dir()


async def test_no_script_of_a_package_runs(mirror: Registry, tools: Tools, tmp_path: Path) -> None:
    await tools.install(script_agent(tmp_path / "tiny", mirror))
    assert not (tmp_path / "tiny.ran").exists()


async def test_those_who_install_at_once_wait_for_one_of_them(mirror: Registry, tools: Tools, tmp_path: Path) -> None:
    agent = script_agent(tmp_path / "tiny", mirror)
    other = Tools(tmp_path / "home")
    first, second, third = await asyncio.gather(tools.install(agent), other.install(agent), tools.install(agent))
    assert first == second == third
    assert mirror.downloads == 1


async def test_everybody_may_read_it_whatever_the_server_keeps_to_itself(
    mirror: Registry, tools: Tools, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        await tools.install(script_agent(tmp_path / "tiny", mirror))
    finally:
        os.umask(before)
    for folder, _, names in os.walk(tools.folder):
        assert folder == str(tools.folder) or Path(folder).stat().st_mode & 0o777 == 0o755, folder
        assert all(Path(folder, name).stat().st_mode & 0o444 == 0o444 for name in names)


async def test_a_program_that_its_package_does_not_name_is_linked_to(
    mirror: Registry, tools: Tools, tmp_path: Path
) -> None:
    installed = await tools.install(native_agent(tmp_path / "tiny", mirror, processor(platform.machine())))
    link = installed.folder / "node_modules" / ".bin" / "tiny"
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.read_text() == "\x7fELF"
    assert os.access(link, os.X_OK)


async def test_an_agent_is_installed_for_the_processor_of_the_box(
    mirror: Registry, tools: Tools, tmp_path: Path
) -> None:
    agent = native_agent(tmp_path / "tiny", mirror, _OTHER_CPU)
    with pytest.raises(CannotInstall, match="not available for this processor"):
        await tools.install(agent)
    assert tools.find(agent) is None
    installed = await tools.install(agent, cpu=_OTHER_CPU)
    assert tools.find(agent, _OTHER_CPU) == installed
    assert _left_behind(tools) == []


async def test_another_lock_file_is_another_installation(mirror: Registry, tools: Tools, tmp_path: Path) -> None:
    first = await tools.install(script_agent(tmp_path / "one", mirror))
    changed = {"bin": {"tiny": "cli.js"}, "description": "changed"}
    second = await tools.install(tiny_agent(tmp_path / "two", mirror, changed, {"cli.js": ("#!x\n", 0o755)}))
    assert first.folder != second.folder
    assert first.folder.exists()


# --- what goes wrong ---


async def test_an_install_that_is_killed_leaves_nothing_that_counts(
    mirror: Registry, tools: Tools, tmp_path: Path
) -> None:
    agent = script_agent(tmp_path / "tiny", mirror)
    mirror.release.clear()
    program = (
        "import asyncio, importlib.util, sys\n"
        "from pathlib import Path\n"
        "from holdfast.harnesses.installation import Tools\n"
        "spec = importlib.util.spec_from_file_location('tiny', sys.argv[1])\n"
        "sys.modules['tiny'] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "asyncio.run(Tools(Path(sys.argv[2])).install(module.Tiny()))\n"
    )
    process = subprocess.Popen(  # noqa: ASYNC220 - a moment
        [sys.executable, "-c", program, str(tmp_path / "tiny" / "__init__.py"), str(tmp_path / "home")]
    )
    assert await asyncio.to_thread(mirror.held.wait, _SECONDS)
    assert tools.find(agent) is None
    assert _left_behind(tools) != []
    process.send_signal(signal.SIGKILL)
    process.wait(_SECONDS)
    mirror.release.set()
    assert tools.find(agent) is None
    installed = await tools.install(agent)
    assert (installed.folder / "node_modules" / ".bin" / "tiny").exists()
    assert _left_behind(tools) == []


async def test_an_install_that_is_cancelled_ends_npm_and_tidies_up(
    mirror: Registry, tools: Tools, tmp_path: Path
) -> None:
    agent = script_agent(tmp_path / "tiny", mirror)
    mirror.release.clear()
    task = asyncio.create_task(tools.install(agent))
    assert await asyncio.to_thread(mirror.held.wait, _SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert _left_behind(tools) == []
    assert tools.find(agent) is None
    work = os.fsencode(tools.folder.with_name("installing"))
    assert not [each for each in Path("/proc").glob("[0-9]*/cwd") if work in _target(each)]


def _target(link: Path) -> bytes:
    try:
        return os.fsencode(link.readlink())
    except OSError:
        return b""


async def test_what_is_not_what_the_lock_file_pins_is_refused(mirror: Registry, tools: Tools, tmp_path: Path) -> None:
    agent = script_agent(tmp_path / "tiny", mirror)
    script_agent(tmp_path / "else", other := Registry())
    mirror.sent = other._packages["tiny-agent"][1] + b"more"
    other._server.server_close()
    with pytest.raises(CannotInstall) as caught:
        await tools.install(agent)
    assert "npm did not fetch tiny-agent" in caught.value.message
    assert "npm's registry" in (caught.value.hint or "")
    assert tools.find(agent) is None


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_registry_that_does_not_give_it_is_named_in_the_hint(
    mirror: Registry, tools: Tools, tmp_path: Path, status: int
) -> None:
    agent = script_agent(tmp_path / "tiny", mirror)
    (tmp_path / "tiny" / "package.json").write_text('{"private": true, "dependencies": {"tiny-agent": "1.2.3"}}')
    lock = json.loads((tmp_path / "tiny" / "package-lock.json").read_text())
    lock["packages"][""] = {"dependencies": {"tiny-agent": "1.2.3"}}
    del lock["packages"]["node_modules/tiny-agent"]["optional"]
    (tmp_path / "tiny" / "package-lock.json").write_text(json.dumps(lock))
    mirror.status = status
    with pytest.raises(CannotInstall) as caught:
        await tools.install(agent)
    assert f"E{status}" in caught.value.message
    assert "npm's registry" in (caught.value.hint or "")
    assert tools.find(agent) is None


async def test_a_home_that_cannot_be_written_says_so(mirror: Registry, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(CannotInstall) as caught:
        await Tools(tmp_path / "home").install(script_agent(tmp_path / "tiny", mirror))
    assert str(tmp_path / "home") in caught.value.message


@pytest.mark.parametrize(
    ("output", "message", "hint"),
    [
        ("npm error code ENOTFOUND\nnpm error network request to x failed\n", "ENOTFOUND: network request to x failed",
         "npm ping"),
        ("npm ERR! code EINTEGRITY\nnpm ERR! sha512-x integrity checksum failed\n",
         "EINTEGRITY: sha512-x integrity checksum failed", "lock file"),
        ("npm error code ENOSPC\nnpm error nospc no space left\n", "ENOSPC: nospc no space left", "disk space"),
        ("npm error code SELF_SIGNED_CERT_IN_CHAIN\nnpm error errno x\n", "SELF_SIGNED_CERT_IN_CHAIN: errno x",
         "certificates"),
        ("npm error code E500\nnpm error 500 - GET http://user:pass@mirror/x\n",
         "E500: 500 - GET http://…@mirror/x", "try again"),
        ("Killed\n", "Killed", "try again"),
        ("", "npm printed nothing", "try again"),
    ],
)  # fmt: skip
def test_what_npm_complains_of_is_told_with_what_to_do(output: str, message: str, hint: str) -> None:
    told, next_step = npm.explain(output)
    assert told == message
    assert hint in next_step


# --- node ---


async def test_without_node_the_hint_is_the_extra_that_brings_it(tmp_path: Path) -> None:
    with pytest.raises(CannotInstall) as caught:
        await node.find_node(tmp_path)
    assert "holdfast[agents]" in (caught.value.hint or "")


async def test_node_is_fetched_by_the_program_beside_python(tmp_path: Path) -> None:
    here = await node.find_node()
    (tmp_path / "bin").mkdir()
    fetcher = tmp_path / "bin" / "holdfast-node"
    fetcher.write_text(f"#!/bin/sh\necho setting up >&2\necho {here.program.parent.parent}\n")
    fetcher.chmod(0o755)
    assert await node.find_node(tmp_path) == here
    fetcher.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    with pytest.raises(CannotInstall, match="no network"):
        await node.find_node(tmp_path)


@pytest.mark.parametrize(
    ("version", "fits"),
    [("v24.1.0", True), ("v22.19.0\n", True), ("v22.18.9", False), ("v20.20.2", False), ("none", False), ("", False)],
)
def test_which_node_agents_run_on(version: str, fits: bool) -> None:
    assert node.fits(version) is fits


# --- the real ones ---


@pytest.mark.parametrize("name", registry.names())
def test_the_agents_that_we_ship_are_pinned_and_work(name: str, installed_agents: InstalledAgents) -> None:
    harness = registry.find(name)
    assert harness.package is not None
    folder = Path(registry.__file__).parent / name
    lock = (folder / "package-lock.json").read_text()
    assert harness.package.version in (folder / "package.json").read_text()
    assert "resolved" not in lock
    packages = [each for path, each in json.loads(lock)["packages"].items() if path]
    assert all(each["integrity"].startswith("sha512-") for each in packages)
    installed = installed_agents.install(name)
    program = installed.folder / "node_modules" / ".bin" / harness.package.command
    command = [str(program)] if program.read_bytes()[:4] == b"\x7fELF" else [str(installed.node), str(program)]
    assert harness.package.version in _output([*command, "--version"])
