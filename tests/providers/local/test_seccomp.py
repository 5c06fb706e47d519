"""The filter: what it answers to each system call, by running its program here, and by living under it in a sandbox."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.providers.local.sandboxing import reachable_bubblewrap

from holdfast.providers.local.machine import NOBODY, find_bubblewrap, try_sandbox
from holdfast.providers.local.seccomp import UnknownMachine, compile_filter, compile_root_filter

X86_64, I386 = 0xC000003E, 0x40000003
AARCH64, ARM = 0xC00000B7, 0x40000028
ARCHITECTURES = {"x86_64": X86_64, "aarch64": AARCH64}
ALLOW, KILL, PRETEND = "allow", "kill", "pretend"


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> str:
    """What the program says to one system call, by interpreting it as the kernel would."""
    return interpreted(compile_filter(machine), machine, number, *arguments, architecture=architecture)


def interpreted(program: bytes, machine: str, number: int, *arguments: int, architecture: int | None = None) -> str:
    words = [argument & 0xFFFF_FFFF_FFFF_FFFF for argument in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    data = struct.pack(
        "=IIQ6Q", number & 0xFFFF_FFFF, ARCHITECTURES[machine] if architecture is None else architecture, 0, *words
    )
    steps = list(struct.iter_unpack("=HBBI", program))
    register = at = 0
    while True:
        code, when_true, when_false, value = steps[at]
        at += 1
        match code:
            case 0x20:
                register = struct.unpack_from("=I", data, value)[0]
            case 0x15:
                at += when_true if register == value else when_false
            case 0x35:
                at += when_true if register >= value else when_false
            case 0x45:
                at += when_true if register & value else when_false
            case 0x54:
                register &= value
            case 0x06:
                break
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")
    if value >> 16 == 0x0005:
        return errno.errorcode[value & 0xFFFF] if value & 0xFFFF else PRETEND
    return {0x7FFF_0000: ALLOW, 0x8000_0000: KILL}[value]


# Taken from the kernel's tables, apart from the ones in the code.
X86_64_CALLS = {
    ALLOW: {
        "read": 0, "mmap": 9, "connect": 42, "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "ptrace": 101,
        "setuid": 105, "capset": 126, "mknod": 133, "prctl": 157, "arch_prctl": 158, "futex": 202, "epoll_wait": 232,
        "name_to_handle_at": 303, "process_vm_readv": 310, "process_vm_writev": 311, "seccomp": 317, "getrandom": 318,
        "memfd_create": 319, "execveat": 322, "statx": 332, "rseq": 334, "pidfd_send_signal": 424, "pidfd_open": 434,
        "close_range": 436, "openat2": 437, "faccessat2": 439, "epoll_pwait2": 441, "landlock_create_ruleset": 444,
        "landlock_restrict_self": 446, "futex_waitv": 449, "cachestat": 451, "mseal": 462, "removexattrat": 466,
    },
    "EPERM": {
        "syslog": 103, "uselib": 134, "ustat": 136, "sysfs": 139, "vhangup": 153, "pivot_root": 155, "_sysctl": 156,
        "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
        "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175,
        "delete_module": 176, "quotactl": 179, "nfsservctl": 180, "lookup_dcookie": 212, "clock_settime": 227,
        "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "kexec_load": 246, "add_key": 248,
        "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272, "move_pages": 279,
        "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308, "kcmp": 312,
        "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
        "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430,
        "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
        "mount_setattr": 442, "quotactl_fd": 443, "set_mempolicy_home_node": 450, "lsm_get_self_attr": 459,
    },
    "ENOSYS": {
        "clone3": 435, "uprobe": 336, "a gap": 400, "open_tree_attr": 467, "the future": 700,
        "x32 read": 0x4000_0000, "x32 mount": 0x4000_0000 + 165, "x32 ioctl": 0x4000_0000 + 514, "minus one": -1,
    },
}  # fmt: skip
AARCH64_CALLS = {
    ALLOW: {
        "getcwd": 17, "openat": 56, "read": 63, "futex": 98, "ptrace": 117, "prctl": 167, "connect": 203,
        "execve": 221, "mmap": 222, "accept4": 242, "wait4": 260, "name_to_handle_at": 264, "seccomp": 277,
        "memfd_create": 279, "rseq": 293, "pidfd_open": 434, "openat2": 437, "landlock_add_rule": 445,
    },
    "EPERM": {
        "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51,
        "vhangup": 58, "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
        "delete_module": 106, "clock_settime": 112, "syslog": 116, "reboot": 142, "sethostname": 161,
        "setdomainname": 162, "settimeofday": 170, "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224,
        "swapoff": 225, "mbind": 235, "get_mempolicy": 236, "set_mempolicy": 237, "migrate_pages": 238,
        "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268,
        "kcmp": 272, "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
        "io_uring_setup": 425, "fsopen": 430, "pidfd_getfd": 438, "mount_setattr": 442,
    },
    "ENOSYS": {"an arm call": 250, "a gap": 300, "clock_gettime64": 403, "clone3": 435, "the future": 467},
}  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "number", "wanted"),
    [
        pytest.param(machine, number, wanted, id=f"{machine} {name}")
        for machine, calls in (("x86_64", X86_64_CALLS), ("aarch64", AARCH64_CALLS))
        for wanted, numbers in calls.items()
        for name, number in numbers.items()
    ],
)
def test_each_system_call_gets_its_answer(machine: str, number: int, wanted: str) -> None:
    assert verdict(machine, number) == wanted


@pytest.mark.parametrize(
    ("number", "arguments", "wanted"),
    [
        pytest.param(56, (17,), ALLOW, id="clone: fork"),
        pytest.param(56, (0x3D0F00,), ALLOW, id="clone: thread"),
        pytest.param(56, (0x10000011,), "EPERM", id="clone: CLONE_NEWUSER"),
        pytest.param(56, (0x00020011,), "EPERM", id="clone: CLONE_NEWNS"),
        pytest.param(56, (0x40000011,), "EPERM", id="clone: CLONE_NEWNET"),
        pytest.param(56, (0x02000011,), "EPERM", id="clone: CLONE_NEWCGROUP"),
        pytest.param(56, (0xFFFF_FFFF_1000_0011,), "EPERM", id="clone: with rubbish above"),
        pytest.param(135, (0,), ALLOW, id="personality: Linux"),
        pytest.param(135, (0x20008,), ALLOW, id="personality: 32 bits, old version"),
        pytest.param(135, (-1,), ALLOW, id="personality: the question"),
        pytest.param(135, (0x40000,), "EPERM", id="personality: no address randomisation"),
        pytest.param(135, (0x1_0004_0000,), "EPERM", id="personality: with rubbish above"),
        pytest.param(41, (1, 1), ALLOW, id="socket: unix"),
        pytest.param(41, (2, 1), ALLOW, id="socket: inet"),
        pytest.param(41, (10, 1), ALLOW, id="socket: inet6"),
        pytest.param(41, (16, 3), ALLOW, id="socket: netlink"),
        pytest.param(41, (40, 1), "EAFNOSUPPORT", id="socket: vsock"),
        pytest.param(41, (38, 5), "EAFNOSUPPORT", id="socket: alg"),
        pytest.param(41, (0x1_0000_0028, 1), "EAFNOSUPPORT", id="socket: vsock with rubbish above"),
        pytest.param(53, (1, 1), ALLOW, id="socketpair: unix"),
        pytest.param(53, (30, 1), "EAFNOSUPPORT", id="socketpair: tipc"),
        pytest.param(16, (0, 0x5413), ALLOW, id="ioctl: window size"),
        pytest.param(16, (0, 0x5412), "EPERM", id="ioctl: TIOCSTI"),
        pytest.param(16, (0, 0x541C), "EPERM", id="ioctl: TIOCLINUX"),
        pytest.param(16, (0, 0x1_0000_5412), "EPERM", id="ioctl: TIOCSTI with rubbish above"),
    ],
)
def test_some_are_judged_by_their_arguments(number: int, arguments: tuple[int, ...], wanted: str) -> None:
    aarch64 = {56: 220, 135: 92, 41: 198, 53: 199, 16: 29}[number]
    assert verdict("x86_64", number, *arguments) == wanted
    assert verdict("aarch64", aarch64, *arguments) == wanted


@pytest.mark.parametrize(("machine", "architecture"), [("x86_64", I386), ("aarch64", ARM), ("x86_64", AARCH64)])
def test_calls_of_another_architecture_kill(machine: str, architecture: int) -> None:
    assert {verdict(machine, number, architecture=architecture) for number in range(500)} == {KILL}


def test_a_machine_without_a_table_is_refused_by_name() -> None:
    with pytest.raises(UnknownMachine, match=r"mips64.*x86_64 and aarch64"):
        compile_filter("mips64")


# --- in a sandbox ----------------------------------------------------------------------------------------------------

BWRAP = find_bubblewrap()
SANDBOX = None if BWRAP is None else try_sandbox(BWRAP.path)
SYSTEM_PYTHON = Path("/usr/bin/python3")
"""Preferred, because a Python below root's home cannot be run by the user that the sandbox gets."""
PROBE = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(each) for each in arguments))
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""


def needs_sandbox(test: Callable[[], None]) -> Callable[[], None]:
    why = SANDBOX.stderr if SANDBOX else "bubblewrap is not installed"
    refused = pytest.mark.skipif(SANDBOX is None or not SANDBOX.worked, reason=f"no sandboxes here: {why}")
    foreign = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the calls are made by their numbers on x86_64")
    return foreign(refused(test))


def in_sandbox(script: str) -> list[str]:
    """What a script prints, under the filter, in a sandbox that is otherwise open."""
    program = os.memfd_create("filter")
    try:
        os.write(program, compile_filter())
        os.lseek(program, 0, os.SEEK_SET)
        python = str(SYSTEM_PYTHON if SYSTEM_PYTHON.exists() else sys.executable)
        command = [
            reachable_bubblewrap(), "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev",
            "--proc", "/proc", "--tmpfs", "/tmp", "--seccomp", str(program), python, "-I", "-c", PROBE + script,
        ]  # fmt: skip
        nobody = NOBODY if os.geteuid() == 0 else None
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=240, check=False, cwd="/", pass_fds=[program],
            user=nobody, group=nobody, extra_groups=None if nobody is None else [],
        )  # fmt: skip
    finally:
        os.close(program)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@needs_sandbox
def test_python_with_threads_children_and_sockets_runs_under_it() -> None:
    said = in_sandbox("""
import asyncio, socket, ssl, subprocess, tempfile, threading
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run(["/bin/echo", "child"], capture_output=True, text=True, check=True).stdout)
child = os.fork()
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
def answer(reader, writer):
    writer.write(b"answer")
    writer.close()
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        print((await reader.read()).decode())
        writer.close()
asyncio.run(main())
left, right = socket.socketpair()
left.send(b"pair"); print(right.recv(9).decode())
with tempfile.TemporaryFile() as file:
    file.write(b"x"); print("file")
""")
    assert said == ["thread", "child", "7", "answer", "pair", "file"]


@needs_sandbox
def test_what_boxes_may_not_do_is_refused_there() -> None:
    said = in_sandbox("""
import socket
for number, arguments in (
    (272, (0x10000000,)),         # unshare a user namespace
    (56, (0x10000011, 0, 0, 0)),  # clone into one
    (435, (0, 0)),                # clone3
    (165, (0, 0, 0, 0, 0)),       # mount
    (430, (0, 0)),                # fsopen
    (161, (0,)),                  # chroot
    (250, (0, -3, 0)),            # keyctl
    (321, (0, 0, 0)),             # bpf
    (323, (1,)),                  # userfaultfd
    (425, (1, 0)),                # io_uring_setup
    (298, (0, 0, -1, -1, 0)),     # perf_event_open
    (304, (0, 0, 0)),             # open_by_handle_at
    (175, (0, 0, 0)),             # init_module
    (135, (0x40000,)),            # personality without address randomisation
    (467, ()),                    # newer than the list
    (0x40000000 + 39, ()),        # getpid of x32
    (16, (0, 0x5412, 0)),         # TIOCSTI
):
    print(call(number, *arguments))
try:
    socket.socket(40, socket.SOCK_STREAM)
except OSError as error:
    print(errno.errorcode[error.errno])
""")
    assert said == [
        "EPERM", "EPERM", "ENOSYS", "EPERM", "EPERM", "EPERM", "EPERM", "EPERM", "EPERM", "EPERM", "EPERM", "EPERM",
        "EPERM", "EPERM", "ENOSYS", "ENOSYS", "EPERM", "EAFNOSUPPORT",
    ]  # fmt: skip


@needs_sandbox
def test_debuggers_work_on_ones_own_children() -> None:
    said = in_sandbox("""
import signal
child = os.fork()
if child == 0:
    print(call(101, 0, 0, 0, 0), flush=True)  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(3)
print("stopped" if os.WIFSTOPPED(os.waitpid(child, 0)[1]) else "ran", flush=True)
print(call(101, 7, child, 0, 0))  # PTRACE_CONT
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert said == ["ok", "stopped", "ok", "3"]


@needs_sandbox
def test_a_call_through_the_32_bit_gate_kills_the_process_that_made_it() -> None:
    said = in_sandbox("""
import mmap, signal
child = os.fork()
if child == 0:
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid); int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    print(ctypes.CFUNCTYPE(ctypes.c_long)(address)(), flush=True)
    os._exit(0)
print(-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == signal.SIGSYS)
""")
    assert said == ["True"]


# --- the root of an image ---

PRETENDED = {
    "x86_64": {"chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "setuid": 105, "setgid": 106, "setreuid": 113,
               "setregid": 114, "setgroups": 116, "setresuid": 117, "setresgid": 119, "setfsuid": 122, "setfsgid": 123,
               "capset": 126},
    "aarch64": {"fchown": 55, "fchownat": 54, "setuid": 146, "setgid": 144, "setreuid": 145, "setregid": 143,
                "setgroups": 159, "setresuid": 147, "setresgid": 149, "setfsuid": 151, "setfsgid": 152, "capset": 91},
}  # fmt: skip
MAKE_NODE = {"x86_64": ((133, 1), (259, 2)), "aarch64": ((33, 2),)}
CHROOT = {"x86_64": 161, "aarch64": 51}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_root_is_told_what_it_wants_to_hear_and_may_do_nothing_more(machine: str) -> None:
    program = compile_root_filter(machine)
    for name, number in PRETENDED[machine].items():
        assert interpreted(program, machine, number) == PRETEND, name
    for number, argument in MAKE_NODE[machine]:
        for kind, wanted in ((0o020666, PRETEND), (0o060666, PRETEND), (0o010666, ALLOW), (0o100644, ALLOW), (0, ALLOW),
                             (0o140777, ALLOW)):  # fmt: skip
            arguments = [0xFFFF_FFFF] * argument + [kind]
            assert interpreted(program, machine, number, *arguments) == wanted, oct(kind)
    same = set(range(470)) - set(PRETENDED[machine].values()) - {number for number, _ in MAKE_NODE[machine]}
    for number in same - {CHROOT[machine]}:
        assert interpreted(program, machine, number) == verdict(machine, number), number
    assert interpreted(program, machine, CHROOT[machine]) == ALLOW
