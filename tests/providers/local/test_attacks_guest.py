"""A guest that somebody took over, kept busy, or stands in for: the host believes nothing, and waits for nobody."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.providers.local.attacking import PATIENCE, PRELUDE, Scene, no_descriptor_is_left, open_descriptors

from holdfast.api.box.box import Box, Power
from holdfast.api.errors.boxes import BoxError, BoxUnreachable, FileProblem, HostileArchive
from holdfast.guest.init import codec
from holdfast.providers.host import guest_client
from holdfast.providers.host import process as local_process
from holdfast.providers.host.box import LocalBox
from holdfast.providers.host.ports import SocketConnection

pytestmark = pytest.mark.anyio


def says(value: Any, **more: Any) -> dict[str, Any]:
    return {"bytes": codec.frame(value).hex(), **more}


@asynccontextmanager
async def taken_over(box: Box, scene: Scene, **answers: Any) -> AsyncIterator[None]:
    """A stopped box, with a liar where its guest would listen."""
    script = Path(__file__).with_name("fake_guest.py")
    folder = scene.provider.data_dir.box(box.id)
    answers = {name.replace("every", "*"): answer for name, answer in answers.items()}
    with subprocess.Popen(  # noqa: ASYNC220 - starts at once
        [sys.executable, "-I", script, folder, json.dumps(answers)], stdout=subprocess.PIPE
    ) as liar:
        try:
            assert liar.stdout is not None
            assert await asyncio.to_thread(liar.stdout.readline) == b"ready\n"
            yield
        finally:
            liar.kill()


@pytest.fixture(scope="module")
async def stopped(scene: Scene) -> AsyncIterator[Box]:
    async with scene.another() as box:
        await box.stop()
        yield box


async def given_by(box: Box) -> socket.socket:
    """What a guest hands out for a connection, as it is: no check would make it another."""
    assert isinstance(box, LocalBox)
    _, (descriptor,) = await box.guest.ask_descriptors({"op": "connect", "port": 80, "ipv6": False})
    return socket.socket(fileno=descriptor)


async def nothing() -> AsyncIterator[bytes]:
    yield b"data"


async def all_of(stream: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in stream])


async def through_a_channel(box: Box) -> None:
    async with await box.channel(["cat"]) as channel:
        await channel.read()


async def through_a_process(box: Box) -> None:
    process = await box.spawn(["cat"], stdin=True)
    with suppress(BoxError):
        await process.write(b"data")
    with suppress(BoxError):
        await process.signal(9)
    await process.info()


async def through_a_port(box: Box) -> None:
    connection = await box.connect(80)
    try:
        await connection.write(b"x")
    finally:
        await connection.close()


OPERATIONS: dict[str, Callable[[Box], Awaitable[Any]]] = {
    "exec": lambda box: box.exec(["true"], timeout=5),
    "exec with input": lambda box: box.exec(["cat"], stdin=b"x" * 100_000, timeout=5),
    "channel": through_a_channel,
    "process": through_a_process,
    "port": through_a_port,
    "metrics": lambda box: box.metrics(),
    "ping": lambda box: box.ping(),
    "read": lambda box: box.files.read("file"),
    "stream": lambda box: all_of(box.files.stream("file")),
    "write": lambda box: box.files.write("file", b"data"),
    "stat": lambda box: box.files.stat("file"),
    "list": lambda box: box.files.list("."),
    "find": lambda box: box.files.find("."),
    "search": lambda box: box.files.search("x"),
    "replace": lambda box: box.files.replace("x", "y", ["file"]),
    "move": lambda box: box.files.move("a", "b"),
    "delete": lambda box: box.files.delete("a", recursive=True),
    "chmod": lambda box: box.files.chmod("a", 0o644),
    "mkdir": lambda box: box.files.mkdir("a"),
    "upload": lambda box: box.files.upload_tar(nothing(), "a"),
    "download": lambda box: all_of(box.files.download_tar("a")),
}

LIES: dict[str, dict[str, Any]] = {
    "nothing at all": {},
    "garbage": {"bytes": (b"\x00\x00\x00\x08" + b"\xff" * 8).hex()},
    "half a length": {"bytes": "0000"},
    "half a message": {"bytes": "0000ffff30"},
    "a huge length": {"bytes": "ffffffff" + "00" * 64},
    "a flood": {"bytes": "00" * 60000, "times": 40},
    "no dictionary": says([1, 2, 3]),
    "a bomb of lists": {"bytes": (len(b"0:l" * 5000).to_bytes(4, "big") + b"0:l" * 5000).hex()},
    "an error without a number": says({"error": "x", "about": 7}),
    "an error beyond all numbers": says({"error": 10**19, "about": "x"}),
    "a negative error": says({"error": -(10**18), "about": "x"}),
    "an error of zero": says({"error": 0, "about": ""}),
    "a refusal of nothing": says({"refused": "X", "about": []}),
    "an empty answer": says({}),
    "the wrong types": says(
        {"code": "0", "file": 7, "files": [[1], None], "matches": {"a": 1}, "replaced": [[]], "processes": None}
    ),
    "senseless files": says({"file": ["f", "file", -1, 10**18, -1, None], "files": [["f", "no kind", 1, 1, 1, None]]}),
    "a number beyond all": says({"code": 10**19, "processes": 10**19, "connections": -1, "idle": 10**19}),
    "a folder": says({"file": ["f", "file", 1, 0o644, 1, None], "code": 0}, descriptors=["folder"]),
    "a device": says({"file": ["f", "file", 1, 0o644, 1, None], "code": 0}, descriptors=["device"]),
    "a pipe": says({"file": ["f", "file", 1, 0o644, 1, None], "code": 0}, descriptors=["pipe"]),
    "a socket": says({"file": ["f", "file", 1, 0o644, 1, None], "code": 0}, descriptors=["socket"]),
    "a file that is not to be written": says({"code": 0}, descriptors=["file"]),
    "more descriptors than asked for": says(
        {"code": 0, "file": ["f", "file", 1, 1, 1, None]}, descriptors=["folder"] * 4
    ),
    "far more descriptors": says({"code": 0}, descriptors=["folder"] * 200),
    "descriptors again and again": {"bytes": "00", "times": 3, "descriptors": ["folder"] * 3},
    "an error with descriptors": says({"error": 2, "about": "x"}, descriptors=["folder"] * 3),
}


@pytest.mark.parametrize("kind", ["full pipe", "full terminal"])
async def test_a_stdin_that_is_made_to_block_makes_nobody_else_wait(scene: Scene, stopped: Box, kind: str) -> None:
    async with taken_over(stopped, scene, every=says({}), stdin=says({}, descriptors=[kind])):
        process = await stopped.spawn(["cat"], stdin=True)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await process.write(b"x" * 100_000)
        await scene.still_fine()


async def test_a_connection_that_is_made_to_block_makes_nobody_else_wait(scene: Scene, stopped: Box) -> None:
    async with taken_over(stopped, scene, connect=says({}, descriptors=["full socket"])):
        connection = SocketConnection(await given_by(stopped))
        for use in (connection.read(), connection.write(b"x" * 1_000_000)):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await use
        async with asyncio.timeout(PATIENCE):
            await connection.close()
        await scene.still_fine()


@pytest.mark.parametrize("lie", LIES)
async def test_whatever_a_guest_says_the_host_answers_with_an_error_of_its_own(
    scene: Scene, stopped: Box, lie: str
) -> None:
    before = open_descriptors()
    async with taken_over(stopped, scene, every=LIES[lie]):
        assert await stopped.power() is Power.RUNNING
        for operation in OPERATIONS.values():
            async with asyncio.timeout(PATIENCE):
                with suppress(BoxError):  # nothing else
                    await operation(stopped)
    assert await stopped.power() is Power.STOPPED  # which lets go of what is known of one that lives
    # The socketpair of the liar itself is in its own process: all that is left here would be leaked.
    await no_descriptor_is_left(before)
    await scene.still_fine()


async def test_a_guest_that_never_answers_is_not_waited_for(
    scene: Scene, stopped: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in (guest_client.GuestClient.ask, guest_client.GuestClient.ask_descriptors):
        defaults = method.__kwdefaults__ or {}
        assert defaults["seconds"] == guest_client.DEFAULT_SECONDS
        monkeypatch.setitem(defaults, "seconds", 0.1)
    monkeypatch.setattr(guest_client, "DEFAULT_SECONDS", 0.1)
    monkeypatch.setattr(local_process, "DEFAULT_SECONDS", 0.1)
    before = open_descriptors()
    quick = ("channel", "process", "port", "metrics", "read", "stream", "write", "stat", "list", "chmod", "mkdir")
    async with taken_over(stopped, scene, every={"hold": True}):
        for name in quick:
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(BoxUnreachable):
                    await OPERATIONS[name](stopped)
        async with asyncio.timeout(PATIENCE):
            assert not all(step.ok for step in await stopped.ping())
        with pytest.raises(TimeoutError):  # what may take long ends when its caller has waited long enough
            async with asyncio.timeout(0.2):
                await stopped.files.find(".")
    assert await stopped.power() is Power.STOPPED
    await no_descriptor_is_left(before)


async def test_a_box_whose_guest_never_answers_is_stopped_and_deleted(scene: Scene) -> None:
    async with scene.another() as box:
        await box.stop()
        async with taken_over(box, scene, every={"hold": True}), asyncio.timeout(PATIENCE):
            await box.stop()
        assert await box.power() is Power.STOPPED
        await box.start()
        assert (await box.exec(["true"])).ok


async def test_a_lying_guest_gets_no_archive_past_the_host(scene: Scene, stopped: Box, tmp_path: Path) -> None:
    def tar(*entries: tuple[str, bytes, str]) -> str:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as made:
            for name, kind, target in entries:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = kind, target
                made.addfile(entry)
        return out.getvalue().hex()

    file, link_, hard, device, fifo, folder = (
        tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE,
    )  # fmt: skip
    outer = tmp_path / "outer"
    outer.mkdir()
    target = tmp_path / "inner" / "got"
    target.parent.mkdir()
    stat = says({"file": ["a", "folder", 0, 0o755, 0, None]})
    for evil in (
        tar(("../outer/evil", file, "")),
        tar((f"{outer}/evil", file, "")),
        tar(("way", link_, str(outer)), ("way/evil", file, "")),
        tar(("way", link_, "../../outer")),
        tar(("a", folder, ""), ("a/way", link_, ".."), ("a/way/way", link_, "../../outer")),
        tar(("evil", hard, "../../outer/x")),
        tar(("evil", device, "")),
        tar(("evil", fifo, "")),
        tar(("a", folder, ""), ("a", file, "")),
        b"\xff".hex() * 2000,
        "",
    ):
        async with taken_over(stopped, scene, stat=stat, pack={**says({}), "pipe": evil}), asyncio.timeout(PATIENCE):
            with pytest.raises(FileProblem):
                await stopped.files.download("a", target)
        assert list(outer.iterdir()) == []
        assert list(target.parent.iterdir()) == []
    async with taken_over(stopped, scene, stat=stat, pack={**says({}), "pipe": tar(("../evil", file, ""))}):
        with pytest.raises(HostileArchive):
            await stopped.files.download("a", target)


# --- in its place -----------------------------------------------------------------------------------------------------


async def test_nothing_that_a_box_leaves_behind_is_loaded_by_its_next_guest(scene: Scene) -> None:
    """Preloaded libraries, Python's start files, modules in its way: none is looked for where a box can write."""
    plant = r"""
mark='import os; os.system("touch /workspace/impersonated")'
site="$HOME/.local/lib/python3.11/site-packages"
for place in / /workspace "$HOME" /tmp "$site" /home /var /opt /srv /root /lib32 /.python; do
    mkdir -p "$place" 2>/dev/null
    for name in sitecustomize usercustomize codec search tree shutil os posix select encodings init; do
        printf '%s\n' "$mark" > "$place/$name.py" 2>/dev/null
    done
    printf 'import os\n' > "$place/evil.pth" 2>/dev/null
    printf 'home = /workspace\n' > "$place/pyvenv.cfg" 2>/dev/null
done
printf 'LD_PRELOAD=/workspace/evil.so\nPYTHONSTARTUP=/workspace/os.py\n' > "$HOME/.profile"
cp "$HOME/.profile" "$HOME/.pam_environment"
echo /workspace/evil.so > /etc/ld.so.preload 2>/dev/null && exit 9
ln -sf /workspace/os.py /.holdfast/init.pyc 2>/dev/null && exit 9
mv /lib /lib.old 2>/dev/null && exit 9
mv /bin /bin.old 2>/dev/null && exit 9
rm -rf /etc 2>/dev/null && exit 9
exit 0
"""
    environment = {"LD_PRELOAD": "/workspace/evil.so", "PYTHONPATH": "/workspace", "PYTHONHOME": "/workspace"}
    async with scene.another(env=environment) as box:
        done = await box.exec(["sh", "-c", plant], env={"LD_PRELOAD": ""}, timeout=PATIENCE)
        assert done.exit_code == 0, done.stderr
        # It would work for a Python of the box itself: the plant is a good one.
        await box.exec(["/usr/bin/python3", "-c", "pass"], env={"LD_PRELOAD": "", "PYTHONHOME": ""}, timeout=PATIENCE)
        listed = await box.files.list("/workspace")
        assert "/workspace/impersonated" in {each.path for each in listed}
        await box.files.delete("/workspace/impersonated")
        await box.stop()
        await box.start()
        # Every kind of work of the guest that loads something.
        await box.files.list("/workspace")
        await box.files.find("/workspace", "*.py")
        await all_of(box.files.download_tar("/workspace"))
        await box.files.mkdir("/workspace/new")
        await box.files.delete("/workspace/new", recursive=True)
        listed = await box.files.list("/workspace")
        assert "/workspace/impersonated" not in {each.path for each in listed}


async def test_the_guest_s_socket_is_nowhere_in_the_box(scene: Scene) -> None:
    told = await scene.attack(
        """
lines = open("/proc/net/unix").read().splitlines()[1:]
tell([line for line in lines if "guest" in line])
"""
    )
    assert told == []


async def test_whoever_calls_itself_the_box_s_sandbox_is_not_taken_for_it(scene: Scene) -> None:
    assert isinstance(scene.neighbour, LocalBox)
    pid = scene.neighbour.guest.pid()
    process = await scene.box.spawn(["bash", "-c", "exec -a 'holdfast-box neighbour' sleep 1000"])
    assert scene.neighbour.guest.pid() == pid
    await process.kill()
    await scene.still_fine()


# --- busy -------------------------------------------------------------------------------------------------------------


async def test_a_storm_of_orphans_is_reaped_while_the_guest_answers(scene: Scene) -> None:
    storm = """
import time
deadline = time.monotonic() + 1.5
while time.monotonic() < deadline:
    if os.fork() == 0:
        for _ in range(20):
            if os.fork() == 0:
                os._exit(0)
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
tell(None)
"""
    async with scene.another() as box:
        attack = asyncio.create_task(scene.attack(storm, box=box))
        while not attack.done():
            async with asyncio.timeout(PATIENCE):
                assert (await box.exec(["echo", "here"])).text == "here\n"
        await attack
        left = await scene.attack(
            """
import time
def zombies():
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            count += ") Z " in open(f"/proc/{pid}/stat").read()
        except OSError:
            pass
    return count
deadline = time.monotonic() + 20
while zombies() and time.monotonic() < deadline:
    time.sleep(0.02)
tell(zombies())
""",
            box=box,
        )
        assert left == 0
        await scene.still_fine()


async def test_thousands_of_zombies_are_their_parent_s_matter(scene: Scene) -> None:
    zombies = (
        "for _ in range(2000):\n    if os.fork() == 0:\n        os._exit(0)\nprint('made', flush=True)\nsignal.pause()"
    )
    async with scene.another() as box:
        process = await box.spawn(["python3", "-c", PRELUDE + zombies])
        async for chunk in process.output():
            assert chunk.data == b"made\n"
            break
        assert (await box.exec(["echo", "here"], timeout=PATIENCE)).text == "here\n"
        await process.kill()
        await scene.still_fine()


async def test_a_flood_on_a_terminal_keeps_nobody_waiting(scene: Scene) -> None:
    async with scene.another(disk=64 << 20) as box:
        floods = [await box.spawn(["sh", "-c", "exec yes flood"], pty=True) for _ in range(3)]
        for _ in range(5):
            async with asyncio.timeout(PATIENCE):
                assert (await box.exec(["echo", "here"])).text == "here\n"
        await scene.still_fine()
        for process in floods:
            await process.kill()


async def test_a_terminal_that_is_written_to_after_its_process_ended_does_not_hold_the_guest(scene: Scene) -> None:
    flood = """
import time
terminal = os.ttyname(0)
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            file = os.open(terminal, os.O_WRONLY | os.O_NOCTTY)
            while time.monotonic() < deadline:
                os.write(file, b"x" * 4096)
        except OSError:
            pass
    os._exit(0)
time.sleep(0.2)
"""
    async with scene.another() as box:
        process = await box.spawn(["python3", "-c", PRELUDE + flood], pty=True)
        assert await process.wait(PATIENCE) == 0
        assert (await box.exec(["echo", "here"], timeout=4)).text == "here\n"


async def test_who_goes_on_printing_after_a_command_ended_does_not_hold_its_caller(scene: Scene) -> None:
    taken = 0

    async def take(data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        await asyncio.sleep(0.02)  # so slow that there is always more

    async with scene.another() as box, asyncio.timeout(PATIENCE):
        assert (await box.exec(["sh", "-c", "yes & sleep 0.1"], on_stdout=take)).ok
    assert taken > 0


async def test_descriptors_that_nobody_takes_do_not_keep_others_from_getting_theirs(scene: Scene) -> None:
    """Descriptors on their way are counted by user, and all boxes are one user's: others are held to that sum, too."""
    flood = """
import array
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
null, kept, count = os.open("/dev/null", os.O_RDONLY), [], 0
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 253))]
try:
    while True:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        kept += pair
        pair[0].setblocking(False)
        try:
            while True:
                pair[0].sendmsg([b"x"], rights)
                count += 253
        except BlockingIOError:
            pass
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
signal.pause()
"""
    async with scene.another() as box, asyncio.timeout(PATIENCE):
        process = await box.spawn(["python3", "-c", PRELUDE + flood])
        async for chunk in process.output():
            assert chunk.data == b"ETOOMANYREFS\n"
            break
        assert (await scene.neighbour.exec(["echo", "here"])).text == "here\n"
        # The guests cannot send descriptors now: the host takes them out of their hands.
        for each in (scene.neighbour, box):
            await each.files.write("x", b"y")
            assert await each.files.read("x") == b"y"
    await scene.still_fine()
