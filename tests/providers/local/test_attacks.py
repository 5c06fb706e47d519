"""From inside a box: nothing of the machine can be read, signalled, mounted, traced or talked to."""

# Small files of their own, and sockets that are there for a moment.

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.providers.local.attacking import Scene, outside

from holdfast.api.box.process import Process, ProcessState

pytestmark = pytest.mark.anyio

DENIED = {"EPERM", "EACCES"}
READ = """
def read(path):
    try:
        with open(path, "rb") as file:
            return file.read(100000).decode("utf-8", "replace")
    except OSError as error:
        return errno.errorcode[error.errno]
tell({path: read(path) for path in sys.argv[1:]})
"""
EVERYTHING = """
def everything():
    "Every file of the box but for the programs of the machine."
    for at, folders, names in os.walk("/"):
        if at == "/":
            folders[:] = [name for name in folders if not name.startswith(("proc", "usr", "lib", "bin", "sbin"))]
        for name in names:
            yield os.path.join(at, name)
"""


async def runs(process: Process) -> bool:
    return (await process.info()).state is ProcessState.RUNNING


# --- files of the machine ---------------------------------------------------------------------------------------------


async def test_files_of_the_machine_are_not_there(scene: Scene, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-the-machine")
    paths = [str(secret), "/etc/shadow", "/etc/hostname", f"/proc/self/root{secret}", f"/workspace/../..{secret}"]
    if os.geteuid() == 0:
        assert "a-secret-of-the-machine" in outside(READ, str(secret))[str(secret)]
    told = await scene.attack(READ, *paths)
    assert told.pop("/etc/hostname") == "box\n"
    assert set(told.values()) == {"ENOENT"}, told
    await scene.still_fine()


async def test_home_directories_of_the_machine_are_not_there(scene: Scene) -> None:
    listed = await scene.attack("tell({name: attempt(os.listdir, name) for name in ('/home', '/root', '/mnt')})")
    assert listed == {"/home": ["box"], "/root": [], "/mnt": []}
    homes = sorted({entry.pw_dir for entry in pwd.getpwall() if entry.pw_uid >= 1000 or entry.pw_uid == 0} - {"/"})
    homes = [home for home in homes if home not in ("/nonexistent", "/root", "/home/box")]
    told = await scene.attack("tell({name: attempt(os.listdir, name) for name in sys.argv[1:]})", *homes)
    assert all(found == "ENOENT" for found in told.values()), told


async def test_the_folder_of_the_server_is_not_there_by_any_of_its_names(scene: Scene) -> None:
    names = [str(scene.home), str(scene.provider.data_dir.path), str(scene.provider.data_dir.box(scene.neighbour.id))]
    listed = "tell({name: attempt(os.listdir, name) for name in sys.argv[1:]})"
    assert all(isinstance(found, list) for found in outside(listed, *names).values())
    told = await scene.attack(listed, *names, "/run/holdfast", "/oldroot", "/newroot")
    assert set(told.values()) == {"ENOENT"}, told


async def test_the_environment_of_the_server_is_in_no_process(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_SERVER", "value-of-the-server")
    found = await scene.attack(
        """
seen = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        seen[pid] = open(f"/proc/{pid}/environ", "rb").read().decode()
    except OSError as error:
        seen[pid] = errno.errorcode[error.errno]
tell(seen)
"""
    )
    assert found.pop("1") == "EACCES"
    assert not any("SECRET" in value for value in found.values())


async def test_mounts_tell_no_path_of_the_machine_but_that_of_the_boxes_own_files(scene: Scene) -> None:
    mounts = (await scene.box.exec(["cat", "/proc/self/mountinfo"])).text
    assert str(Path.home()) not in mounts or os.geteuid() != 0
    assert str(scene.neighbour.id) not in mounts


async def test_other_boxes_are_neither_files_nor_processes_here(scene: Scene) -> None:
    await scene.neighbour.files.write("/home/box/token-of-the-neighbour", b"x")
    process = await scene.neighbour.spawn(["sleep", "98765"])
    found = await scene.attack(
        EVERYTHING
        + """
names = list(everything())
others = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in ("1", str(os.getpid()))]
tell([[name for name in names if "neighbour" in name], [open(f"/proc/{pid}/cmdline").read() for pid in others]])
"""
    )
    assert found == [[], []]
    assert await runs(process)
    await process.kill()
    await scene.still_fine()


# --- processes --------------------------------------------------------------------------------------------------------


async def test_no_process_outside_can_be_signalled(scene: Scene) -> None:
    sleeping = await scene.neighbour.spawn(["sleep", "1000"])
    with subprocess.Popen(["sleep", "1000"]) as outer:  # noqa: ASYNC220 - starts at once
        try:
            told = await scene.attack(
                """
numbers = [int(each) for each in sys.argv[1:]] + list(range(2, 70000))
hit = [pid for pid in numbers if pid != os.getpid() and attempt(os.kill, pid, 9) is None]
tell({"hit": hit, "self": os.getpid(), "group": attempt(os.killpg, int(sys.argv[1]), 9)})
""",
                str(outer.pid),
                str(os.getpid()),
                str(os.getppid()),
            )
            assert outer.poll() is None
        finally:
            outer.kill()
    assert told["group"] == "ESRCH"
    assert await runs(sleeping)
    await sleeping.kill()
    await scene.still_fine()


async def test_a_signal_for_everybody_ends_the_box_s_own_processes_alone(scene: Scene) -> None:
    bystander = await scene.neighbour.spawn(["sleep", "1000"])
    done = await scene.box.exec(["sh", "-c", "kill -9 -1; echo survived"], timeout=30)
    assert b"survived" in done.stdout or done.exit_code == 137
    assert (await scene.box.exec(["echo", "here"])).text == "here\n"
    assert await runs(bystander)
    await bystander.kill()
    await scene.still_fine()


async def test_no_signal_ends_or_stops_process_1(scene: Scene) -> None:
    told = await scene.attack("tell([attempt(os.kill, 1, number) for number in range(1, 65)])")
    assert [each for each in told if each is not None] in ([], ["EINVAL"] * 2)  # sent, each of them
    assert (await scene.box.exec(["echo", "here"], timeout=30)).text == "here\n"
    # An interrupt that comes while it is at something.
    storm = "for _ in range(3000): os.kill(1, signal.SIGINT); os.kill(1, signal.SIGCHLD)\ntell(None)"
    await scene.attack(storm)
    assert (await scene.box.exec(["echo", "here"], timeout=30)).text == "here\n"


async def test_nobody_looks_into_process_1(scene: Scene) -> None:
    own = """
def look(pid):
    found = {}
    for name in ("mem", "environ", "maps", "auxv", "stack", "syscall", "io"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                found[name] = "opened" if name == "mem" else type(file.read(10)).__name__
        except OSError as error:
            found[name] = errno.errorcode[error.errno]
    for name in ("root", "cwd", "exe"):
        found[name] = attempt(os.readlink, f"/proc/{pid}/{name}")
    for name in ("fd", "map_files", "root/"):
        found[name] = attempt(os.listdir, f"/proc/{pid}/{name}")
    return found
"""
    mine = await scene.attack(own + "tell(look('self'))")
    assert mine["mem"] == "opened"
    assert mine["environ"] == "bytes"
    assert mine["fd"]
    told = await scene.attack(own + "tell(look(1))")
    assert set(map(str, told.values())) <= DENIED, told


async def test_process_1_is_neither_traced_nor_read_nor_robbed_of_its_socket(scene: Scene) -> None:
    told = await scene.attack(
        """
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(16)
local = Piece(ctypes.addressof(buffer), 16)
child = os.fork()
if child == 0:
    signal.pause()
address = ctypes.addressof(buffer)  # the same in the child
remote = Piece(address, 16)
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
handle = os.pidfd_open(1)
tell({
    "own child": call(libc.process_vm_readv, child, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0),
    "read": call(libc.process_vm_readv, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0),
    "write": call(libc.process_vm_writev, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0),
    "seize child": call(libc.ptrace, PTRACE_SEIZE, child, None, None),
    "attach": call(libc.ptrace, PTRACE_ATTACH, 1, None, None),
    "seize": call(libc.ptrace, PTRACE_SEIZE, 1, None, None),
    "socket": call(libc.syscall, 438, handle, 3, 0),
})
os.kill(child, 9)
"""
    )
    assert told.pop("own child") == "done"  # it works where it may
    assert told.pop("seize child") == "done"
    assert set(told.values()) == {"EPERM"}, told
    assert (await scene.box.exec(["true"])).ok


async def test_the_limits_of_process_1_are_nobody_else_s_to_set(scene: Scene) -> None:
    told = await scene.attack(
        """
kinds = [resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE]
def limit(pid, kind):
    try:
        return resource.prlimit(pid, kind, (16, 16)) and "done"
    except (OSError, PermissionError) as error:
        return errno.errorcode[error.errno]
tell([[limit(1, kind) for kind in kinds], limit(0, resource.RLIMIT_NOFILE)])
"""
    )
    assert told == [["EPERM"] * 4, "done"]
    assert (await scene.box.exec(["true"])).ok
    assert await scene.box.files.read("/etc/hostname") == b"box\n"


async def test_limits_are_not_raised(scene: Scene) -> None:
    told = await scene.attack(
        """
def raised(kind):
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY:
        return "EPERM"
    try:
        resource.setrlimit(kind, (hard + 1, hard + 1))
        return "raised"
    except (OSError, ValueError):
        return "EPERM"
names = ("RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_NPROC", "RLIMIT_NICE")
tell({name: raised(getattr(resource, name)) for name in names})
"""
    )
    assert set(told.values()) == {"EPERM"}, told


# --- the kernel -------------------------------------------------------------------------------------------------------

SYSTEM_CALLS = """
numbers = {
    "x86_64": dict(pivot_root=155, init_module=175, finit_module=313, delete_module=176, bpf=321, keyctl=250,
        add_key=248, request_key=249, open_by_handle_at=304, kexec_load=246, reboot=169, swapon=167, acct=163,
        settimeofday=164, clock_settime=227, perf_event_open=298, userfaultfd=323, io_uring_setup=425, fsopen=430,
        open_tree=428, move_mount=429, mount_setattr=442, syslog=103, quotactl=179, iopl=172, ioperm=173,
        fanotify_init=300, sethostname=170, setdomainname=171, kcmp=312, lookup_dcookie=212, pidfd_getfd=438,
        umount2=166, setns=308),
    "aarch64": dict(pivot_root=41, init_module=105, finit_module=273, delete_module=106, bpf=280, keyctl=219,
        add_key=217, request_key=218, open_by_handle_at=265, kexec_load=104, reboot=142, swapon=224, acct=89,
        settimeofday=170, clock_settime=112, perf_event_open=241, userfaultfd=282, io_uring_setup=425, fsopen=430,
        open_tree=428, move_mount=429, mount_setattr=442, syslog=116, quotactl=60, fanotify_init=262,
        sethostname=161, setdomainname=162, kcmp=272, lookup_dcookie=18, pidfd_getfd=438, umount2=39, setns=268),
}[os.uname().machine]
wanted = {name: number for name, number in numbers.items() if name not in sys.argv[1:]}
tell({name: call(libc.syscall, number, 0, 0, 0, 0, 0, 0) for name, number in wanted.items()})
"""


async def test_system_calls_that_change_the_machine_are_refused(scene: Scene) -> None:
    # Outside, the same calls with the same senseless arguments fail for another reason, or do what they do.
    unharmful = ("kcmp", "pidfd_getfd", "setns", "open_by_handle_at", "finit_module", "keyctl", "add_key")
    every = await scene.attack(SYSTEM_CALLS)
    assert len(every) > 25
    assert {name: told for name, told in every.items() if told not in ("EPERM", "ENOSYS")} == {}
    harmful = [name for name in every if name not in unharmful]
    assert set(outside(SYSTEM_CALLS, *harmful).values()) - {"EPERM"}


async def test_nothing_is_mounted_and_no_namespace_is_made_or_entered(scene: Scene) -> None:
    told = await scene.attack(
        """
os.makedirs("/tmp/place", exist_ok=True)
own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
tell({
    "tmpfs": call(libc.mount, b"none", b"/tmp/place", b"tmpfs", 0, None),
    "bind": call(libc.mount, b"/proc", b"/tmp/place", None, 4096, None),
    "writable usr": call(libc.mount, None, b"/usr", None, 32 | 4096, None),
    "unmount": call(libc.umount2, b"/etc", 2),
    "chroot": attempt(os.chroot, "/tmp/place"),
    "user namespace": call(libc.unshare, 0x10000000),
    "mount namespace": call(libc.unshare, 0x20000),
    "all": call(libc.unshare, 0x7E020000),
    "setns": call(libc.setns, own, 0),
    "clone": call(libc.syscall, {"x86_64": 56, "aarch64": 220}[os.uname().machine], 0x10000000 | 17, 0, 0, 0, 0),
    "clone3": call(libc.syscall, 435, 0, 0),
})
"""
    )
    assert told.pop("clone3") == "ENOSYS"
    assert set(told.values()) == {"EPERM"}, told


async def test_no_capability_is_had_and_none_is_gained(scene: Scene) -> None:
    status = (await scene.box.exec(["cat", "/proc/self/status"])).text
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    told = await scene.attack(
        """
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
header, data = Header(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
tell({
    "setuid": attempt(os.setuid, 0), "setgid": attempt(os.setgid, 0), "setgroups": attempt(os.setgroups, [0]),
    "setresuid": attempt(os.setresuid, 0, 0, 0), "capset": call(libc.capset, ctypes.byref(header), data),
    "chown": attempt(os.chown, "/workspace", 0, 0),
    "nice": attempt(os.setpriority, os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1),
})
"""
    )
    assert set(told.values()) <= {"EPERM", "EINVAL", "EACCES"}, told


async def test_setuid_programs_gain_nothing(scene: Scene) -> None:
    names = ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/sudo", "/usr/bin/passwd", "/usr/bin/newgrp", "/usr/bin/pkexec")
    there = [name for name in names if Path(name).exists()]
    assert there
    told = await scene.attack(
        """
import subprocess
os.environ["LC_ALL"] = "C"
def run(*argv):
    return subprocess.run(argv, capture_output=True, timeout=240, stdin=subprocess.DEVNULL).returncode
own = "/tmp/id"
import shutil
shutil.copy("/usr/bin/id", own)
os.chmod(own, 0o6755)
found = {"own": subprocess.run([own, "-u"], capture_output=True).stdout.decode().strip()}
if "/usr/bin/su" in sys.argv:
    found["su"] = run("/usr/bin/su", "-s", "/bin/sh", "-c", "id", "root") != 0
if "/usr/bin/mount" in sys.argv:
    found["mount"] = run("/usr/bin/mount", "-t", "tmpfs", "none", "/mnt") != 0
if "/usr/bin/sudo" in sys.argv:
    found["sudo"] = run("/usr/bin/sudo", "-n", "id") != 0
tell(found)
""",
        *there,
    )
    assert told.pop("own") == "1000"
    assert all(told.values()), told


async def test_device_nodes_are_not_made(scene: Scene) -> None:
    told = await scene.attack(
        """
import stat
tell({
    "memory": attempt(os.mknod, "/tmp/mem", 0o600 | stat.S_IFCHR, os.makedev(1, 1)),
    "disk": attempt(os.mknod, "/tmp/disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0)),
    "whiteout": attempt(os.mknod, "/workspace/gone", 0o600 | stat.S_IFCHR, os.makedev(0, 0)),
    "attribute": attempt(os.setxattr, "/workspace", "trusted.overlay.opaque", b"y"),
    "devices": sorted(os.listdir("/dev")),
})
"""
    )
    devices = set(told.pop("devices"))
    assert devices <= {
        "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom",
        "zero", "console",
    }  # fmt: skip
    assert set(told.values()) <= {"EPERM"}, told


async def test_switches_of_the_kernel_are_not_thrown(scene: Scene) -> None:
    told = await scene.attack(
        """
def write(path):
    try:
        file = os.open(path, os.O_WRONLY)
        return "opened" if path != "/proc/self/uid_map" else attempt(os.write, file, b"0 0 1")
    except OSError as error:
        return errno.errorcode[error.errno]
tell({path: write(path) for path in sys.argv[1:]})
""",
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/user/max_user_namespaces",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/self/uid_map",
        "/proc/1/oom_score_adj",
        "/proc/irq/default_smp_affinity",
        "/proc/kcore",
        "/proc/kmsg",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/cgroup.procs",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/kvm",
        "/dev/fuse",
    )
    # What is masked shows itself as an empty file that throws bytes away.
    assert {path for path, result in told.items() if result == "opened"} <= {"/proc/kcore"}, told
    assert set(told.values()) <= {"EACCES", "EPERM", "ENOENT", "EROFS", "EIO", "opened"}, told


async def test_what_proc_tells_of_the_machine_is_masked(scene: Scene) -> None:
    told = await scene.attack(
        "tell({name: len(open(name, 'rb').read(4096)) if os.path.isfile(name) and os.access(name, os.R_OK) else 0"
        " for name in sys.argv[1:]})",
        *(f"/proc/{name}" for name in ("kcore", "keys", "timer_list", "sched_debug", "kmsg", "interrupts")),
    )
    assert set(told.values()) == {0}, told


async def test_the_hostname_and_the_clock_stay(scene: Scene) -> None:
    before = socket.gethostname()
    told = await scene.attack(
        """
import time
tell([attempt(socket.sethostname, "mine"), attempt(time.clock_settime, time.CLOCK_REALTIME, 1.0), socket.gethostname()])
"""
    )
    assert told == ["EPERM", "EPERM", scene.box.id]
    assert socket.gethostname() == before


# --- sockets ----------------------------------------------------------------------------------------------------------

CONNECT = """
def connect(family, address):
    with socket.socket(family) as probe:
        probe.settimeout(2)
        return attempt(probe.connect, address)
port, abstract, path = sys.argv[1:]
tell([connect(socket.AF_INET, ("127.0.0.1", int(port))), connect(socket.AF_UNIX, chr(0) + abstract),
      connect(socket.AF_UNIX, path)])
"""


async def test_sockets_of_the_machine_are_not_reached(scene: Scene, tmp_path: Path) -> None:
    abstract, path = f"holdfast-attack-{os.getpid()}", str(tmp_path / "s")
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as hidden, socket.socket(socket.AF_UNIX) as named:
        tcp.bind(("127.0.0.1", 0))
        hidden.bind(f"\0{abstract}")
        named.bind(path)
        for each in (tcp, hidden, named):
            each.listen()
        arguments = (str(tcp.getsockname()[1]), abstract, path)
        assert outside(CONNECT, *arguments) == [None, None, None]
        assert await scene.attack(CONNECT, *arguments) == ["ECONNREFUSED", "ECONNREFUSED", "ENOENT"]
    await scene.still_fine()


async def test_no_socket_of_a_service_lies_anywhere_in_a_box(scene: Scene) -> None:
    found = await scene.attack(
        EVERYTHING
        + """
import stat
places = ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket",
          "/run/systemd/private", "/run/user/1000/bus", "/tmp/.X11-unix/X0", "/run/podman/podman.sock"]
there = [path for path in places if os.path.lexists(path)]
tell(there + [path for path in everything() if stat.S_ISSOCK(os.lstat(path).st_mode)])
"""
    )
    assert found == []


async def test_there_is_no_network(scene: Scene) -> None:
    told = await scene.attack(
        """
def connect(family, kind, address):
    with socket.socket(family, kind) as probe:
        probe.settimeout(2)
        return attempt(probe.connect, address)
tell([connect(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)),
      connect(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)),
      connect(socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
      connect(socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 80)),
      [name for _, name in socket.if_nameindex()]])
"""
    )
    assert told[-1] == ["lo"]
    assert set(told[:-1]) <= {"ENETUNREACH", "EADDRNOTAVAIL"}, told


async def test_sockets_below_the_network_are_not_opened(scene: Scene) -> None:
    told = await scene.attack(
        """
def opened(*arguments):
    try:
        socket.socket(*arguments).close()
        return "opened"
    except OSError as error:
        return errno.errorcode[error.errno]
tell({"raw": opened(socket.AF_INET, socket.SOCK_RAW, 1), "raw 6": opened(socket.AF_INET6, socket.SOCK_RAW, 58),
      "packet": opened(socket.AF_PACKET, socket.SOCK_RAW, 3), "vsock": opened(40, socket.SOCK_STREAM, 0),
      "alg": opened(38, socket.SOCK_SEQPACKET, 0), "bluetooth": opened(31, socket.SOCK_RAW, 1),
      "can": opened(29, socket.SOCK_RAW, 1), "xdp": opened(44, socket.SOCK_RAW, 0),
      "audit": opened(socket.AF_NETLINK, socket.SOCK_RAW, 9), "plain": opened(socket.AF_INET, socket.SOCK_STREAM, 0)})
"""
    )
    assert told.pop("plain") == "opened"
    told.pop("audit")  # opened by anybody; what is sent over it needs a capability that nobody has
    assert set(told.values()) <= {"EPERM", "EACCES", "EAFNOSUPPORT"}, told


# --- what belongs to everybody ----------------------------------------------------------------------------------------


async def test_what_is_shared_with_the_machine_cannot_be_written(scene: Scene) -> None:
    program = """
def write(path):
    results = set()
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        try:
            os.close(os.open(path, flags))
            results.add("opened")
        except OSError as error:
            results.add(errno.errorcode[error.errno])
    return sorted(results)
def make(folder):
    try:
        open(folder + "/holdfast-attack", "x").close()
        return ["made"]
    except OSError as error:
        return [errno.errorcode[error.errno]]
found = {path: write(path) for path in ("/usr/bin/env", "/bin/sh", os.path.realpath("/proc/self/exe"), "/proc/self/exe",
                                        "/etc/passwd", "/.holdfast/init.pyc", "/lib64/ld-linux-x86-64.so.2")
         if os.path.exists(path)}
folders = ("/usr", "/usr/local/bin", "/bin", "/lib", "/etc", "/.holdfast", "/dev", "/proc")
found |= {path: make(path) for path in folders}
found["chmod"] = [attempt(os.chmod, "/usr/bin/env", 0o777)]
found["times"] = [attempt(os.utime, "/usr/bin/env")]
found["move"] = [attempt(os.rename, "/usr", "/usr2"), attempt(os.rename, "/.holdfast", "/h")]
found["remove"] = [attempt(os.rmdir, "/proc")]
tell(found)
"""
    told = await scene.attack(program)
    allowed = {"EROFS", "EACCES", "EPERM", "ETXTBSY", "EBUSY", "ENOENT"}
    assert {path: result for path, result in told.items() if not set(result) <= allowed} == {}
    assert not Path("/usr/holdfast-attack").exists()
    await scene.still_fine()


async def test_a_running_program_of_the_machine_is_not_overwritten_through_its_process(scene: Scene) -> None:
    """The way out of runc: wait until the program that is run can be opened for writing through /proc/<pid>/exe."""
    before = Path(sys.executable).resolve().read_bytes()[:4096], Path("/bin/sh").resolve().read_bytes()[:4096]
    told = await scene.attack(
        """
import subprocess, time
victims = [subprocess.Popen(["sleep", "0.2"]) for _ in range(3)]
handles = [os.open(f"/proc/{victim.pid}/exe", os.O_PATH) for victim in victims]
for victim in victims:
    victim.wait()
results = set()
for handle in handles:
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_TRUNC):
        results.add(str(attempt(os.open, f"/proc/self/fd/{handle}", flags)))
results.add(str(attempt(os.open, "/proc/1/exe", os.O_WRONLY)))
tell(sorted(results))
"""
    )
    assert set(told) <= {"EROFS", "EACCES", "EPERM", "ETXTBSY"}, told
    assert before == (Path(sys.executable).resolve().read_bytes()[:4096], Path("/bin/sh").resolve().read_bytes()[:4096])


# --- descriptors ------------------------------------------------------------------------------------------------------


async def test_a_process_has_three_descriptors_and_no_more(scene: Scene) -> None:
    listed = ["sh", "-c", "cd /proc/self/fd && echo *"]  # the shell's own globbing opens one: 3
    assert set((await scene.box.exec(listed)).text.split()) <= {"0", "1", "2", "3"}
    program = (
        "import os; print([n for n in os.listdir('/proc/self/fd') if n > '2' and os.path.exists('/proc/self/fd/' + n)])"
    )
    argv = ["python3", "-I", "-c", program]
    assert (await scene.box.exec(argv)).text == "[]\n"
    for pty in (False, True):
        process = await scene.box.spawn(argv, pty=pty)
        assert await process.wait(240) == 0
        assert (await process.read()).strip() == b"[]"
    process = await scene.box.spawn(argv, stdin=True)
    assert await process.wait(240) == 0
    assert (await process.read()).strip() == b"[]"
    async with await scene.box.channel(argv) as channel:
        assert await channel.read() == b"[]\n"


async def test_the_way_back_over_a_given_descriptor_leads_nowhere(scene: Scene) -> None:
    """Kept output is a file of the machine: from it, nothing beside it is reached."""
    program = """
found = [attempt(os.open, "/proc/self/fd/1/..", os.O_RDONLY), attempt(os.open, "..", os.O_RDONLY, dir_fd=1),
         attempt(os.listdir, os.path.dirname(os.readlink("/proc/self/fd/1")) or "/nowhere"),
         attempt(os.link, "/proc/self/fd/1", "/workspace/link", follow_symlinks=True)]
tell(found)
"""
    told = await scene.attack_detached(program)
    assert told[:2] == ["ENOTDIR", "ENOTDIR"]
    assert told[2] in ("ENOENT", "EACCES")
    assert told[3] == "EXDEV"


async def test_kept_output_is_not_held_back_by_a_lease(scene: Scene) -> None:
    """Whoever opens a leased file waits for up to a minute: it must not be the server."""
    lease = """
import fcntl, tempfile
with tempfile.NamedTemporaryFile() as file:
    own = attempt(fcntl.fcntl, file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
tell([own, attempt(fcntl.fcntl, 1, fcntl.F_SETLEASE, fcntl.F_WRLCK)])
"""
    assert outside(lease)[0] == 0
    assert await scene.attack_detached(lease) == ["EPERM", "EPERM"]


async def test_characters_are_not_put_into_a_terminal(scene: Scene) -> None:
    program = """
import fcntl, termios
tell([attempt(fcntl.ioctl, 0, termios.TIOCSTI, b"x"), attempt(fcntl.ioctl, 0, 0x541C, b"x"),
      os.isatty(0) and len(fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))])
"""
    assert await scene.attack_detached(program, pty=True) == ["EPERM", "EPERM", 8]
