"""Agents are where boxes can run them: seen from their machine, read-only, or copied into them once."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agents import InstalledAgents
from tests.harnesses.npm_world import Registry, native_agent, script_agent, tree_of
from tests.providers.local import rootfs
from tests.providers.local.attacking import PRELUDE
from tests.providers.stream.over_pipes import PipesProvider

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec, HostMount
from holdfast.api.errors.agents import CannotInstall
from holdfast.api.ids import new_id
from holdfast.harnesses import registry
from holdfast.harnesses.acp import Acp
from holdfast.harnesses.installation import Tools, processor
from holdfast.harnesses.placement import Placed, ensure
from holdfast.providers.local import LocalProvider
from holdfast.providers.process import ProcessProvider

pytestmark = pytest.mark.anyio
_OPEN = BoxSpec(provider="pipes", network=NetworkPolicy(Network.OPEN))


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    with Registry() as served:
        monkeypatch.setenv("npm_config_registry", served.url)
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
        yield served


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
async def provider(home: Path) -> AsyncIterator[LocalProvider]:
    home.mkdir(mode=0o700)
    async with LocalProvider(home) as provider:
        yield provider
        for info in await provider.find():
            await provider.remove(info.id)


async def _says(box: Box, placed: Placed) -> str:
    done = await box.exec([placed.node, f"{placed.program}/node_modules/.bin/tiny", "it", "runs"])
    assert done.ok, done.stderr
    return done.text


# --- seen ---


async def test_a_local_box_sees_an_agent_that_is_installed_while_it_runs(
    provider: LocalProvider, mirror: Registry, home: Path, tmp_path: Path
) -> None:
    box = await provider.create(BoxSpec(), id=new_id("b"))
    placed = await ensure(box, script_agent(tmp_path / "tiny", mirror), Tools(home))
    assert placed.program.startswith("/opt/holdfast/tiny-1.2.3-")
    assert placed.version == "1.2.3"
    assert await _says(box, placed) == "tiny it runs\n"
    assert not await box.files.exists("/home/box/.holdfast")


async def test_seeing_it_leaves_nothing_in_the_files_of_a_box(provider: LocalProvider, home: Path) -> None:
    box = await provider.create(BoxSpec(), id=new_id("b"))
    assert list((home / "local" / "boxes" / box.id / "upper").iterdir()) == []


async def test_a_box_that_is_restarted_or_forked_or_restored_sees_it_too(
    provider: LocalProvider, mirror: Registry, home: Path, tmp_path: Path
) -> None:
    agent, tools = script_agent(tmp_path / "tiny", mirror), Tools(home)
    box = await provider.create(BoxSpec(), id=new_id("b"))
    await box.stop()
    await box.start()
    snapshot = await box.snapshot()
    others = [await box.fork(), await provider.restore(snapshot.id, BoxSpec(), id=new_id("b"))]
    for each in (box, *others):
        placed = await ensure(each, agent, tools)
        assert placed.program.startswith("/opt/holdfast/")
        assert await _says(each, placed) == "tiny it runs\n"


_ATTACK = (
    PRELUDE
    + """
import fcntl, shutil
tools = "/opt/holdfast"
agent = tools + "/" + [each for each in os.listdir(tools) if each.startswith("tiny")][0]
cli = os.path.realpath(agent + "/node_modules/.bin/tiny")
node = tools + "/" + [each for each in os.listdir(tools) if each.startswith("node")][0] + "/bin/node"
came = {}
for path in (cli, node, agent + "/installed.json"):
    came["write " + path] = attempt(os.open, path, os.O_WRONLY)
    came["append " + path] = attempt(os.open, path, os.O_WRONLY | os.O_APPEND)
    came["unlink " + path] = attempt(os.unlink, path)
    came["chmod " + path] = attempt(os.chmod, path, 0o777)
    came["chown " + path] = attempt(os.chown, path, os.getuid(), os.getgid())
    came["truncate " + path] = attempt(os.truncate, path, 0)
    came["utime " + path] = attempt(os.utime, path)
    came["rename " + path] = attempt(os.rename, path, path + ".old")
    came["replace " + path] = attempt(os.rename, "/etc/hostname", path)
    came["link " + path] = attempt(os.link, path, "/workspace/linked-" + str(len(came)))
    came["xattr " + path] = attempt(os.setxattr, path, "user.x", b"x")
    read = os.open(path, os.O_RDONLY)
    came["through proc " + path] = attempt(os.open, "/proc/self/fd/%d" % read, os.O_RDWR)
    came["fchmod " + path] = attempt(os.fchmod, read, 0o777)
for path in (tools + "/new", agent + "/new"):
    came["make " + path] = attempt(os.open, path, os.O_WRONLY | os.O_CREAT)
    came["mkdir " + path] = attempt(os.mkdir, path)
    came["symlink " + path] = attempt(os.symlink, "/etc", path)
came["rmdir"] = attempt(os.rmdir, tools)
came["move away"] = attempt(os.rename, tools, "/opt/mine")
came["move parent"] = attempt(os.rename, "/opt", "/mine")
for name, flags in (("remount", 0x20 | 0x1000), ("plain remount", 0x20), ("bind over", 0x1000)):
    came[name] = call(libc.mount, b"/workspace", b"/opt/holdfast", None, flags, None)
came["umount"] = call(libc.umount2, b"/opt/holdfast", 2)
tell(came)
"""
)


async def test_nothing_in_a_box_can_change_the_agents(
    provider: LocalProvider, mirror: Registry, home: Path, tmp_path: Path
) -> None:
    agent, tools = script_agent(tmp_path / "tiny", mirror), Tools(home)
    box = await provider.create(BoxSpec(), id=new_id("b"))
    placed = await ensure(box, agent, tools)
    before = tree_of(home / "tools")
    done = await box.exec(["python3", "-c", _ATTACK])
    assert done.ok, done.stderr.decode()
    came = json.loads(done.stdout)
    assert len(came) > 40
    assert {what: result for what, result in came.items() if result not in _REFUSALS} == {}
    assert tree_of(home / "tools") == before
    assert await _says(box, placed) == "tiny it runs\n"


_REFUSALS = frozenset({"EROFS", "EPERM", "EACCES", "EXDEV", "EBUSY", "ENOSYS"})


async def test_the_root_of_an_image_cannot_change_them_either(
    provider: LocalProvider, mirror: Registry, home: Path, tmp_path: Path
) -> None:
    await provider.images.import_archive("small", rootfs.pieces(rootfs.busybox().done()))
    agent, tools = script_agent(tmp_path / "tiny", mirror), Tools(home)
    await tools.install(agent)
    before = tree_of(home / "tools")
    box = await provider.create(BoxSpec(image="small"), id=new_id("b"))
    attack = "id -u; cd /opt/holdfast && ls | sort; mkdir new; touch new; mv /opt /mine;"
    attack += "for f in $(find . -type f); do echo x >> $f; rm -f $f; chmod 777 $f; done;"
    attack += "mount -o remount,rw /opt/holdfast; umount /opt/holdfast"
    done = await box.exec(["sh", "-c", attack])
    assert done.text.splitlines() == ["0", *sorted(each.name for each in tools.folder.iterdir())]
    assert tree_of(home / "tools") == before
    with pytest.raises(CannotInstall, match="does not run in this box"):  # it has no library that node needs
        await ensure(box, agent, tools)
    native = await ensure(box, native_agent(tmp_path / "native", mirror, processor(platform.machine())), tools)
    assert native.program.startswith("/opt/holdfast/")


async def test_a_box_whose_start_the_links_in_it_would_lead_astray_does_without_them(
    provider: LocalProvider, home: Path
) -> None:
    box = await provider.create(BoxSpec(), id=new_id("b"))
    await box.stop()
    upper = home / "local" / "boxes" / box.id / "upper"
    (upper / "opt").symlink_to("/etc")
    await box.start()
    assert (await box.exec(["readlink", "/opt"])).text == "/etc\n"
    assert not await box.files.exists("/opt/holdfast")
    await box.stop()
    (upper / "opt").unlink()
    (upper / "opt").write_text("a file")
    await box.start()
    assert (await box.exec(["cat", "/opt"])).text == "a file"


async def test_a_mount_of_the_users_in_their_place_stands_and_the_agent_is_copied(
    provider: LocalProvider, mirror: Registry, home: Path, tmp_path: Path
) -> None:
    agent, tools = script_agent(tmp_path / "tiny", mirror), Tools(home)
    mine = tmp_path / "mine"
    mine.mkdir()
    for place in ("/opt", "/opt/holdfast", "/opt/holdfast/deep"):
        box = await provider.create(BoxSpec(mounts=(HostMount(str(mine), place),)), id=new_id("b"))
        (mine / "token").write_text(place)
        assert (await box.exec(["cat", f"{place}/token"])).text == place
        placed = await ensure(box, agent, tools)
        assert placed.program.startswith("/home/box/.holdfast/tools/tiny-1.2.3-")
        assert await _says(box, placed) == "tiny it runs\n"


async def test_a_folder_of_agents_that_somebody_removed_does_not_keep_boxes_from_starting(
    provider: LocalProvider, mirror: Registry, home: Path, tmp_path: Path
) -> None:
    (home / "tools").rmdir()
    box = await provider.create(BoxSpec(), id=new_id("b"))
    placed = await ensure(box, script_agent(tmp_path / "tiny", mirror), Tools(home))
    assert await _says(box, placed) == "tiny it runs\n"


async def test_a_box_without_isolation_runs_it_from_where_it_is(mirror: Registry, home: Path, tmp_path: Path) -> None:
    async with ProcessProvider(home / "process", tools=home / "tools") as provider:
        box = await provider.create(BoxSpec(provider="process", network=NetworkPolicy(Network.OPEN)), id=new_id("b"))
        placed = await ensure(box, script_agent(tmp_path / "tiny", mirror), Tools(home))
        assert placed.program.startswith(f"{home}/tools/tiny-1.2.3-")
        assert await _says(box, placed) == "tiny it runs\n"
        await box.delete()


@pytest.mark.parametrize("name", registry.names())
async def test_every_agent_that_we_ship_runs_in_a_local_box(
    home: Path, installed_agents: InstalledAgents, name: str
) -> None:
    harness = registry.find(name)
    assert harness.package is not None
    installed_agents.install(name)
    installed_agents.share_with(home)
    async with LocalProvider(home) as provider:
        box = await provider.create(BoxSpec(), id=new_id("b"))
        placed = await ensure(box, harness, Tools(home))
        program = f"{placed.program}/node_modules/.bin/{harness.package.command}"
        script = (await box.files.read(program, length=2)) == b"#!"
        done = await box.exec([*([placed.node] if script else []), program, "--version"], timeout=60)
        assert harness.package.version in done.text
        await box.delete()


# --- copied ---


@pytest.fixture
async def pipes(home: Path) -> AsyncIterator[PipesProvider]:
    """Boxes at the end of a stream, as Docker's are: they see nothing of this machine's folders by themselves."""
    async with PipesProvider(home / "pipes") as provider:
        yield provider
        for info in await provider.find():
            await provider.remove(info.id)


async def _paths(box: Box) -> list[str]:
    folder = (await box.exec(["sh", "-c", "echo $HOME/.holdfast/tools"])).text.strip()
    return [each.name for each in await box.files.list(folder)]


async def test_another_box_gets_a_copy_once(
    pipes: PipesProvider, mirror: Registry, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, tools = script_agent(tmp_path / "tiny", mirror), Tools(home)
    # As in an image without node; else the box's own does, and none is copied.
    (no_node := tmp_path / "bin").mkdir()
    for program in ("sh", "uname"):
        (no_node / program).symlink_to(f"/usr/bin/{program}")
    box = await pipes.create(replace(_OPEN, env={"PATH": str(no_node)}), id=new_id("b"))
    placed = await ensure(box, agent, tools)
    assert placed.node.endswith("/bin/node")
    assert placed.node != "node"
    assert await _says(box, placed) == "tiny it runs\n"
    assert sorted(name.partition("-")[0] for name in await _paths(box)) == ["node", "tiny"]
    monkeypatch.setattr(type(box.files), "upload", None)  # nothing is sent again
    assert await ensure(box, agent, tools) == placed


async def test_those_who_copy_at_once_do_no_harm(
    pipes: PipesProvider, mirror: Registry, home: Path, tmp_path: Path
) -> None:
    agent, tools = script_agent(tmp_path / "tiny", mirror), Tools(home)
    box = await pipes.create(_OPEN, id=new_id("b"))
    placed = await asyncio.gather(*(ensure(box, agent, tools) for _ in range(4)))
    assert len(set(placed)) == 1
    assert [name.count(".") for name in await _paths(box) if name.startswith("tiny")] == [2]


async def test_a_copy_that_was_cut_short_is_made_again(
    pipes: PipesProvider, mirror: Registry, home: Path, tmp_path: Path
) -> None:
    agent, tools = script_agent(tmp_path / "tiny", mirror), Tools(home)
    installed = await tools.install(agent)
    with (installed.folder / "large").open("wb") as large:
        large.truncate(1 << 30)  # so that it takes a while
    box = await pipes.create(_OPEN, id=new_id("b"))
    task = asyncio.create_task(ensure(box, agent, tools))
    while not any(name.startswith(f"{installed.folder.name}.") for name in await _paths_or_none(box)):
        assert not task.done()
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(name.startswith("tiny") for name in await _paths(box))
    (installed.folder / "large").unlink()
    placed = await ensure(box, agent, tools)
    assert installed.folder.name in await _paths(box)
    assert (await box.exec(["ls", f"{placed.program}/node_modules/.bin"])).text == "tiny\n"


async def _paths_or_none(box: Box) -> list[str]:
    try:
        return await _paths(box)
    except Exception:
        return []


async def test_an_agent_of_its_own_needs_no_node(
    pipes: PipesProvider, mirror: Registry, home: Path, tmp_path: Path
) -> None:
    agent = native_agent(tmp_path / "tiny", mirror, processor(platform.machine()))
    box = await pipes.create(_OPEN, id=new_id("b"))
    placed = await ensure(box, agent, Tools(home))
    assert placed.node == "node"
    assert [name.partition("-")[0] for name in await _paths(box)] == ["tiny"]
    assert (await box.files.stat(f"{placed.program}/node_modules/tiny-agent/bin/tiny")).mode & 0o111


async def test_a_box_without_room_or_place_for_it_says_so(
    pipes: PipesProvider, mirror: Registry, home: Path, tmp_path: Path
) -> None:
    box = await pipes.create(_OPEN, id=new_id("b"))
    await box.exec(["sh", "-c", "echo x > $HOME/.holdfast"])
    with pytest.raises(CannotInstall, match="cannot copy the agent"):
        await ensure(box, script_agent(tmp_path / "tiny", mirror), Tools(home))


async def test_an_agent_by_command_is_the_boxs_own(pipes: PipesProvider, home: Path) -> None:
    box = await pipes.create(_OPEN, id=new_id("b"))
    assert await ensure(box, Acp("some agent"), Tools(home)) == Placed("", "node", None)
    assert not os.path.lexists(home / "tools")
