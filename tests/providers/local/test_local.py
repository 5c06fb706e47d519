"""What is the local provider's own: installs that stay, many layers, its guest's Python, what a box finds in itself."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.box.box import Power
from holdfast.api.errors.boxes import BoxError, CannotIsolate
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes import Box, BoxSpec, ProcessState
from holdfast.boxes.labels import POOL
from holdfast.providers.host.disk import disk_guard, layers
from holdfast.providers.local import LocalProvider, runtime
from holdfast.providers.local.bubblewrap import Files, Machine, Mount, arguments

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path_factory.mktemp("home")) as provider:
        yield provider
        for box in await provider.find():
            await provider.remove(box.id)


@pytest.fixture
async def box(provider: LocalProvider) -> AsyncIterator[Box]:
    box = await provider.create(BoxSpec(), id=new_id("b"))
    yield box
    await box.delete()


async def sh(box: Box, command: str) -> str:
    done = await box.exec(["sh", "-c", command], timeout=60)
    assert done.ok, done.stderr.decode()
    return done.text


def make_wheel(folder: Path) -> Path:
    """A package that pip can install without asking anybody."""
    wheel = folder / "tide-1.0-py3-none-any.whl"
    info = "tide-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tide.py", "def main():\n    print('high tide')\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tide\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntide = tide:main\n")
        archive.writestr(f"{info}/RECORD", f"tide.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return wheel


@pytest.mark.skipif(shutil.which("pip", path="/usr/bin") is None, reason="this machine's /usr has no pip")
async def test_what_pip_installs_works_and_stays(box: Box, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    await box.files.upload(wheel, wheel.name)
    await sh(box, f"pip install --quiet --no-index ./{wheel.name}")
    assert await sh(box, "tide") == "high tide\n"
    await box.stop()
    await box.start()
    assert await sh(box, "tide") == "high tide\n"


@pytest.mark.skipif(shutil.which("npm", path="/usr/bin") is None, reason="this machine's /usr has no npm")
async def test_what_npm_installs_works_and_stays(box: Box) -> None:
    await box.files.write("tide/package.json", b'{"name": "tide", "version": "1.0.0", "bin": {"tide": "tide.js"}}')
    await box.files.write("tide/tide.js", b"#!/usr/bin/env node\nconsole.log('low tide')\n", mode=0o755)
    await sh(box, "cd tide && npm pack --silent && npm install --global --offline --silent ./tide-1.0.0.tgz")
    assert await sh(box, "tide") == "low tide\n"
    await box.stop()
    await box.start()
    assert await sh(box, "tide") == "low tide\n"


async def test_what_is_written_anywhere_but_in_programs_stays(box: Box) -> None:
    places = ["/home/box/a", "/workspace/a", "/tmp/a", "/var/lib/a", "/opt/a", "/srv/a"]
    for place in places:
        await sh(box, f"echo kept > {place}")
    await box.stop()
    await box.start()
    for place in places:
        assert await sh(box, f"cat {place}") == "kept\n"
    assert not (await box.exec(["sh", "-c", "echo x > /usr/bin/x || echo x > /etc/x"])).ok


async def test_a_file_that_cannot_be_written_is_named_as_the_caller_named_it(box: Box) -> None:
    with pytest.raises(BoxError) as refused:
        await box.files.write("/usr/new", b"")
    assert "/usr/new" in str(refused.value)
    assert ".holdfast-" not in str(refused.value)


async def test_a_box_is_a_machine_with_a_name_and_a_user(box: Box) -> None:
    assert await sh(box, "hostname") == f"{box.id}\n"
    assert await sh(box, "id -un; id -u; echo $HOME") == "box\n1000\n/home/box\n"
    assert await sh(box, "getent hosts localhost | head -1") != ""


async def test_more_snapshots_than_layers_can_be_mounted_are_merged(provider: LocalProvider, box: Box) -> None:
    snapshots = []
    for number in range(layers.DEEPEST + 3):
        await sh(box, f"echo {number} > count; echo {number} > only-{number}; rm -f only-{number - 2}")
        snapshots.append(await box.snapshot())
    assert len(provider.data_dir.read(box.id).layers) <= layers.DEEPEST
    last = layers.DEEPEST + 2
    assert await sh(box, "cat count; ls only-*") == f"{last}\nonly-{last - 1}\nonly-{last}\n"
    early = await provider.restore(snapshots[3].id, BoxSpec(), id=new_id("b"))
    assert await sh(early, "cat count; ls only-*") == "3\nonly-2\nonly-3\n"
    await early.delete()
    for snapshot in snapshots:
        await provider.delete_snapshot(snapshot.id)
    assert await sh(box, "cat count") == f"{last}\n"


async def test_a_box_full_of_vforks_holds_still_for_a_snapshot(box: Box) -> None:
    process = await box.spawn(["sh", "-c", "while :; do true > a; /bin/true; done"])  # sh starts programs by vfork
    for _ in range(5):
        async with asyncio.timeout(240):
            await box.snapshot()
    assert (await process.info()).state is ProcessState.RUNNING
    await process.kill()


async def test_without_a_python_in_usr_the_guest_runs_on_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_probe", lambda python: None)
    async with LocalProvider(tmp_path / "home") as provider:
        assert provider.sandbox.mounted.python_prefix == Path(sys.base_prefix)
        box = await provider.create(BoxSpec(), id=new_id("b"))
        assert (await box.exec(["echo", "up"])).text == "up\n"
        await box.files.mkdir("folder")
        assert [each.name for each in await box.files.list()] == ["folder"]
        await box.delete()


async def test_a_home_with_a_long_path_works(tmp_path: Path) -> None:
    home = tmp_path / ("deep-" * 12) / ("deeper-" * 9)
    home.mkdir(parents=True)
    async with LocalProvider(home) as provider:
        box = await provider.create(BoxSpec(), id=new_id("b"))
        assert (await box.exec(["echo", "up"])).text == "up\n"
        await box.delete()


async def test_a_home_that_boxes_would_see_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.seen_by_boxes(Path("/usr/share/holdfast")) == "/usr"
    assert runtime.seen_by_boxes(Path("/lib/holdfast")) is not None
    assert runtime.seen_by_boxes(tmp_path) is None
    monkeypatch.setattr(runtime, "_PROGRAM_FOLDERS", (str(tmp_path).lstrip("/"),))
    with pytest.raises(CannotIsolate, match="which every box sees"):
        await LocalProvider(tmp_path / "home").open()


# --- decisions --------------------------------------------------------------------------------------------------------


def test_the_sandbox_is_built_from_the_bottom_up() -> None:
    machine = Machine((("/usr", "/usr"),), ("keys",), ("acpi",), "/etc-of-boxes", "/guest", "/usr/bin/python3")
    made = arguments(machine, Files(("/one", "/two"), "/upper", "/work"), "b-1", [Mount(5, "/data", True)], 4, 9)
    command = made[made.index("--") + 1 :]
    assert command[0] == "/usr/bin/python3"
    assert command[-1] == "processes=9"
    overlay = made.index("--overlay")
    assert made[overlay - 4 : overlay + 4] == [
        "--overlay-src", "/one", "--overlay-src", "/two", "--overlay", "/upper", "/work", "/",
    ]  # fmt: skip
    assert made.index("--ro-bind") > overlay  # what is read-only lies on top of what is not
    assert made[made.index("--ro-bind-fd") + 1 :][:2] == ["5", "/data"]
    for namespace in ("user", "ipc", "pid", "net", "uts"):
        assert f"--unshare-{namespace}" in made


@pytest.mark.parametrize(
    ("limits", "used", "free", "stopped"),
    [
        ({"a": None}, {}, 100, []),
        ({"a": 10}, {"a": 10}, 100, []),
        ({"a": 10}, {"a": 11}, 100, ["a"]),
        ({"a": 10, "b": 10}, {"a": 11, "b": 12}, 100, ["a", "b"]),
        ({"a": None, "b": None}, {"a": 11, "b": 12}, 4, ["b"]),
        ({"a": 10, "b": None}, {"a": 11, "b": 99}, 4, ["a"]),
        ({}, {}, 0, []),
    ],
)
def test_who_is_stopped_from_writing(
    limits: dict[str, int | None], used: dict[str, int], free: int, stopped: list[str]
) -> None:
    assert [verdict.id for verdict in disk_guard.judge(limits, used, free, reserve=5)] == stopped


@pytest.mark.parametrize(
    ("uid_map", "wanted"),
    [
        ("0 0 4294967295", range(1_879_048_192, 1_879_113_728)),
        ("0 100000 65536", range(60_000, 61_000)),
        ("0 1000 1", range(65_534, 65_535)),
    ],
)
def test_a_root_server_chooses_a_user_that_is_there(uid_map: str, wanted: range) -> None:
    assert runtime._free_user("/some/home", uid_map) in wanted
    assert runtime._free_user("/some/home", uid_map) == runtime._free_user("/some/home", uid_map)


async def test_what_shows_when_a_box_was_made_shows_when_it_was_handed_over(provider: LocalProvider, box: Box) -> None:
    """The folder that all boxes begin with is as old in one of the pool as in any: nothing of it is copied."""
    spec = BoxSpec()
    ahead = await provider.create(spec, id=new_id("b"), labels={POOL: spec.hash})
    handed_at = now_ms() + 86_400_000
    warm = await provider.hand_over(ahead.id, spec, labels={}, created_at=handed_at)
    try:
        dates = (await sh(warm, "stat -c %Y /run /dev/shm")).split()
        assert dates == [str(handed_at // 1000)] * 2
        assert await sh(warm, "stat -c %y /workspace") == await sh(box, "stat -c %y /workspace")
        assert await sh(await provider.attach(warm.id), "touch /run/x; stat -c %Y /run") < dates[0]
    finally:
        await warm.delete()


async def test_a_box_that_somebody_else_stopped_and_started_is_seen_as_it_is(provider: LocalProvider, box: Box) -> None:
    async with LocalProvider(provider.data_dir.path.parent) as other:
        theirs = await other.attach(box.id)
        assert await box.power() is await theirs.power() is Power.RUNNING
        await theirs.stop()
        assert await box.power() is await theirs.power() is Power.STOPPED
        await theirs.start()
        assert await box.power() is await theirs.power() is Power.RUNNING
    assert await sh(box, "echo works") == "works\n"


async def test_commands_ignore_no_signal_that_the_server_ignores(tmp_path: Path) -> None:
    """As a server does that was started with nohup, or in the background of a script."""
    ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        async with LocalProvider(tmp_path) as provider:
            box = await provider.create(BoxSpec(), id="box")
            for number in ignored:
                done = await box.exec(["sh", "-c", f"kill -{number.value} $$"])
                assert done.exit_code == 128 + number, number
            await box.delete()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
