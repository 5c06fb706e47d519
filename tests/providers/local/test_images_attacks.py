"""From inside a box of an image: its root gains nothing over the user of any other box."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.providers.local.attacking import PATIENCE, PRELUDE, Scene, outside
from tests.providers.local.rootfs import busybox, pieces
from tests.providers.local.test_attacks import CONNECT, READ, SYSTEM_CALLS

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import ProviderRefused
from holdfast.providers import portable_python
from holdfast.providers.local import LocalProvider

pytestmark = pytest.mark.anyio


class ImageScene(Scene):
    """The same, with the guest's interpreter: the image has none."""

    async def attack(self, program: str, *arguments: str, box: Box | None = None, timeout: float = PATIENCE) -> Any:
        python = portable_python.prepare(self.provider.data_dir, self.provider.sandbox.mounted.host_python).command
        done = await (box or self.box).exec([*python, "-c", PRELUDE + program, *arguments], timeout=timeout)
        assert done.exit_code == 0, done.stderr.decode()
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ImageScene]:
    home: Path = tmp_path_factory.mktemp("attacked")
    async with LocalProvider(home) as provider:
        await provider.images.import_archive("busybox", pieces(busybox().done()))
        box = await provider.create(BoxSpec(image="busybox"), id="attacker")
        neighbour = await provider.create(BoxSpec(image="busybox", env={"SECRET": "neighbours"}), id="neighbour")
        yield ImageScene(home, provider, box, neighbour)
        await box.delete()
        await neighbour.delete()


async def test_nothing_of_the_machine_is_there(scene: ImageScene, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-the-machine")
    paths = [str(secret), "/etc/shadow", "/usr/bin/env", f"/proc/self/root{secret}", f"/workspace/../..{secret}",
             str(scene.home), str(scene.provider.data_dir.path), "/run/holdfast", "/oldroot", "/newroot"]  # fmt: skip
    assert set((await scene.attack(READ, *paths)).values()) == {"ENOENT"}
    assert str(scene.neighbour.id) not in (await scene.box.exec(["cat", "/proc/self/mountinfo"])).text
    await scene.still_fine()


async def test_no_capability_beyond_its_own_files_is_had_or_gained(scene: ImageScene) -> None:
    status = (await scene.box.exec(["cat", "/proc/self/status"])).text
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    own = (1 << 1) | (1 << 18)  # CAP_DAC_OVERRIDE, CAP_SYS_CHROOT
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {own}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    maps = [(await scene.box.exec(["cat", f"/proc/self/{name}_map"])).text.split() for name in ("uid", "gid")]
    assert [each[0::2] for each in maps] == [["0", "1"]] * 2
    user = scene.provider.sandbox.user_of(scene.box.id)
    assert user != 0
    assert {int(each[1]) for each in maps} == {user}
    told = await scene.attack(
        """
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
header, data = Header(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
call(libc.capset, ctypes.byref(header), data)  # pretends
os.setuid(1234)
tell({
    "user": os.getuid(),
    "ambient": call(libc.prctl, 47, 2, 21, 0, 0),
    "capabilities": [line for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm"))],
    "nice": attempt(os.setpriority, os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1),
    "port": attempt(socket.socket().bind, ("127.0.0.1", 80)),
})
"""
    )
    assert told["user"] == 0
    assert all(int(line.split()[1], 16) == own for line in told["capabilities"])
    assert {told["ambient"], told["nice"], told["port"]} <= {"EPERM", "EACCES"}


async def test_system_calls_that_change_the_machine_are_refused(scene: ImageScene) -> None:
    every = await scene.attack(SYSTEM_CALLS)
    assert len(every) > 25
    assert {name: told for name, told in every.items() if told not in ("EPERM", "ENOSYS")} == {}


async def test_nothing_is_mounted_and_no_namespace_is_made_or_entered(scene: ImageScene) -> None:
    told = await scene.attack(
        """
os.makedirs("/tmp/place", exist_ok=True)
own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
tell({
    "tmpfs": call(libc.mount, b"none", b"/tmp/place", b"tmpfs", 0, None),
    "bind": call(libc.mount, b"/proc", b"/tmp/place", None, 4096, None),
    "writable guest": call(libc.mount, None, b"/.holdfast", None, 32 | 4096, None),
    "unmount": call(libc.umount2, b"/.python", 2),
    "user namespace": call(libc.unshare, 0x10000000),
    "mount namespace": call(libc.unshare, 0x20000),
    "all": call(libc.unshare, 0x7E020000),
    "setns": call(libc.setns, own, 0),
    "clone": call(libc.syscall, {"x86_64": 56, "aarch64": 220}[os.uname().machine], 0x10000000 | 17, 0, 0, 0, 0),
})
"""
    )
    assert set(told.values()) == {"EPERM"}, told


async def test_a_changed_root_is_left_again_for_nothing_but_the_box(scene: ImageScene) -> None:
    """The old way out of a chroot: keep a folder outside open, and climb from it."""
    told = await scene.attack(
        """
os.makedirs("/jail", exist_ok=True)
outer = os.open("/", os.O_RDONLY)
os.chroot("/jail")
os.fchdir(outer)
for _ in range(100):
    os.chdir("..")
os.chroot(".")
tell(sorted(os.listdir("/")))
"""
    )
    listed = (await scene.box.exec(["ls", "-a", "/"])).text.split()
    assert told == sorted(name for name in listed if name not in (".", ".."))


async def test_process_1_is_neither_looked_into_nor_robbed(scene: ImageScene) -> None:
    told = await scene.attack(
        """
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(16)
piece = Piece(ctypes.addressof(buffer), 16)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
def opened(path, flags=os.O_RDONLY):
    try:
        descriptor = os.open(path, flags)
        return "read" if os.read(descriptor, 10) else "empty"
    except OSError as error:
        return errno.errorcode[error.errno]
tell({
    "read": call(libc.process_vm_readv, 1, ctypes.byref(piece), 1, ctypes.byref(piece), 1, 0),
    "write": call(libc.process_vm_writev, 1, ctypes.byref(piece), 1, ctypes.byref(piece), 1, 0),
    "attach": call(libc.ptrace, 16, 1, None, None),
    "seize": call(libc.ptrace, 0x4206, 1, None, None),
    "socket": call(libc.syscall, 438, os.pidfd_open(1), 3, 0),
    "limits": attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE, (1, 1)),
    **{name: opened(f"/proc/1/{name}")
       for name in ("mem", "environ", "maps", "auxv", "fd/3", "fd/0", "exe", "root/etc")},
    "links": attempt(os.readlink, "/proc/1/fd/3"),
    "threads": opened("/proc/1/task/1/mem"),
})
"""
    )
    assert set(map(str, told.values())) <= {"EPERM", "EACCES"}, told
    assert (await scene.box.exec(["true"])).ok


async def test_no_process_outside_can_be_signalled(scene: ImageScene) -> None:
    with subprocess.Popen(["sleep", "1000"]) as outer:  # noqa: ASYNC220 - starts at once
        try:
            program = "tell([attempt(os.kill, int(each), 9) for each in sys.argv[1:]])"
            told = await scene.attack(program, str(outer.pid), str(os.getpid()), "70000")
            assert outer.poll() is None
        finally:
            outer.kill()
    assert set(told) <= {"ESRCH"}
    await scene.still_fine()


async def test_what_the_loader_of_process_1_reads_is_not_the_boxs_to_write(scene: ImageScene) -> None:
    """What /etc/ld.so.preload names is loaded into every program that this box starts, and into nothing of ours."""
    async with scene.another(image="busybox") as box:
        for name in ("ld.so.preload", "ld.so.cache", "ld.so.conf"):
            await box.files.write(f"/etc/{name}", b"/tmp/evil.so\n")
        await box.files.write("/tmp/evil.so", b"not even a library")
        for folder in ("/lib/x86_64-linux-gnu", "/usr/lib/locale/C.utf8", "/lib", "/usr/lib/python3.11"):
            await box.files.write(f"{folder}/libc.so.6", b"evil")
            await box.files.write(f"{folder}/os.py", b"raise SystemExit('evil')")
        await box.stop()
        await box.start()
        assert (await box.exec(["echo", "here"])).text == "here\n"
        log = (scene.provider.data_dir.box(box.id) / "start.log").read_text()
        assert "evil" not in log
        assert "preload" not in log


async def test_a_link_where_something_is_mounted_keeps_a_box_from_starting(scene: ImageScene) -> None:
    async with scene.another(image="busybox") as box:
        told = await scene.attack(
            """
found = {}
for place in ("/proc", "/dev", "/run", "/.holdfast", "/.python"):
    found[place] = [attempt(os.rename, place, "/moved"), attempt(os.rmdir, place)]
tell(found)
""",
            box=box,
        )
        assert {error for errors in told.values() for error in errors} <= {"EBUSY", "EXDEV", "ENOTEMPTY"}, told
        await box.stop()
        upper = scene.provider.data_dir.box(box.id) / "upper"
        (upper / ".python").symlink_to("/etc")  # as if it had found a way
        with pytest.raises(ProviderRefused, match="is a link"):
            await box.start()


async def test_the_guest_and_its_interpreter_cannot_be_written(scene: ImageScene) -> None:
    told = await scene.attack(
        """
found = []
for path in ("/.holdfast/init.pyc", "/.python/lib/ld.so", "/.python/about.json", "/proc/self/exe", "/proc/1/exe"):
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
        found.append(attempt(os.open, path, flags))
found += [attempt(os.chmod, "/.python/lib/ld.so", 0o777), attempt(os.mkdir, "/.python/x"), attempt(os.mkdir, "/dev/x"),
          attempt(os.unlink, "/.holdfast/init.pyc"), attempt(os.open, "/proc/sysrq-trigger", os.O_WRONLY),
          attempt(os.open, "/proc/sys/kernel/core_pattern", os.O_WRONLY),
          attempt(os.open, "/proc/sys/kernel/modprobe", os.O_WRONLY)]
tell(found)
"""
    )
    assert set(told) <= {"EROFS", "EACCES", "EPERM", "ETXTBSY", "ENOENT"}, told


async def test_no_device_is_made_that_is_one(scene: ImageScene) -> None:
    told = await scene.attack(
        """
import stat
results = []
for kind in (stat.S_IFBLK, stat.S_IFCHR):
    for folder in ("/", "/tmp", "/dev/shm", "/run"):
        os.mknod(folder + "/node", kind | 0o666, os.makedev(1, 1)) if folder != "/dev" else None
        results.append(attempt(os.stat, folder + "/node"))
tell(results)
"""
    )
    assert set(map(str, told)) == {"ENOENT"}


async def test_layers_of_the_image_are_not_changed_by_a_box(scene: ImageScene) -> None:
    async with scene.another(image="busybox") as box:
        assert (
            await box.exec(["sh", "-c", "echo evil > /etc/passwd; echo evil >> /bin/busybox; rm -rf /bin /etc"])
        ).exit_code in (0, 1, 127)
    assert (await scene.neighbour.exec(["cat", "/etc/passwd"])).text.startswith("root:x:0:0")
    await scene.still_fine()


async def test_sockets_of_the_machine_are_not_reached(scene: ImageScene, tmp_path: Path) -> None:
    abstract, path = f"holdfast-image-attack-{os.getpid()}", str(tmp_path / "s")
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as hidden, socket.socket(socket.AF_UNIX) as named:
        tcp.bind(("127.0.0.1", 0))
        hidden.bind(f"\0{abstract}")
        named.bind(path)
        for each in (tcp, hidden, named):
            each.listen()
        arguments = (str(tcp.getsockname()[1]), abstract, path)
        assert outside(CONNECT, *arguments) == [None, None, None]
        assert await scene.attack(CONNECT, *arguments) == ["ECONNREFUSED", "ECONNREFUSED", "ENOENT"]
    opened = """
def opened(*arguments):
    try:
        socket.socket(*arguments).close()
        return "opened"
    except OSError as error:
        return errno.errorcode[error.errno]
tell([opened(socket.AF_INET, socket.SOCK_RAW, 1), opened(socket.AF_PACKET, socket.SOCK_RAW, 3), opened(40, 1, 0),
      opened(38, 5, 0)])
"""
    assert set(await scene.attack(opened)) <= {"EPERM", "EACCES", "EAFNOSUPPORT"}
    await scene.still_fine()
