"""Builds the seccomp filter of a box, as bubblewrap's `--seccomp` expects it, without a library.

It denies what Docker's default profile denies to a container without capabilities, and a little more. A denied call
returns EPERM. A call that is newer than this list returns ENOSYS, so that programs fall back to older calls.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Final, NamedTuple

_NEWEST: Final = 466
"""removexattrat, the last system call that Docker's profile knows. From 424 on, numbers are the same on all
machines."""

_DENIED: Final[dict[str, tuple[int | None, int | None]]] = {
    # Each call with its number on x86_64 and on aarch64.
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "afs_syscall": (183, None),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "get_mempolicy": (239, 236),
    "getpmsg": (181, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "lsm_get_self_attr": (459, 459),
    "lsm_list_modules": (461, 461),
    "lsm_set_self_attr": (460, 460),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "putpmsg": (182, None),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "security": (185, None),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "tuxcall": (184, None),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
    "vserver": (236, None),
}

_PRETENDED: Final[dict[str, tuple[int | None, int | None]]] = {
    "capset": (126, 91),
    "chown": (92, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "lchown": (94, None),
    "setfsgid": (123, 152),
    "setfsuid": (122, 151),
    "setgid": (106, 144),
    "setgroups": (116, 159),
    "setregid": (114, 143),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setreuid": (113, 145),
    "setuid": (105, 146),
}
"""Calls that the root user of an image makes and cannot be allowed, since a box has one user. They report success and
do nothing, because package managers give up otherwise."""
_ROOT_MAY: Final = ("chroot",)
"""apk runs the scripts of packages this way. It leads only into the box's own files."""
_MAKE_NODE: Final[dict[str, tuple[tuple[int | None, int | None], int]]] = {
    "mknod": ((133, None), 1),
    "mknodat": ((259, 33), 2),
}
"""Call numbers, and the argument that tells what is created."""
_DEVICES: Final = (0o020000, 0o060000)
_FILE_KIND: Final = 0o170000

_NEW_NAMESPACES: Final = 0x7E02_0000
"""All of clone's CLONE_NEW* except CLONE_NEWTIME, whose bit is part of the signal there."""
_PERSONALITIES: Final = (0x0, 0x8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF)
"""Linux, 32 bits, an old kernel's version number, both, and the query. None weakens anything."""
_FAMILIES: Final = (1, 2, 10, 16, 17)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, and AF_PACKET, which the kernel itself refuses. Docker allows more, though
not AF_ALG and AF_VSOCK. Naming a family makes the kernel load its module, and many vulnerabilities are in such
modules."""
_TERMINAL_INJECTIONS: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX insert characters into a terminal as if another user had typed them."""
_LEASE: Final = (1024,)
"""F_SETLEASE of fcntl: opening a leased file blocks, and the host opens files with the output of boxes."""
_GUEST: Final = (1,)
"""The process whose limits no other process in the box may set: it needs descriptors to answer the host."""


class UnknownMachine(Exception):
    """There is no table of system calls for this processor, so no filter can be built."""


class _Machine(NamedTuple):
    audit: int
    """The kernel's number of the architecture, which tells calls of other architectures apart."""
    column: int
    clone: int
    fcntl: int
    ioctl: int
    personality: int
    prlimit: int
    socket: int
    socketpair: int
    unassigned: tuple[tuple[int, int], ...]
    """First and last number of each gap below the newest."""


_MACHINES: Final = {
    "x86_64": _Machine(0xC000_003E, 0, 56, 72, 16, 135, 302, 41, 53, ((336, 423),)),
    "aarch64": _Machine(0xC000_00B7, 1, 220, 25, 29, 92, 261, 198, 199, ((244, 259), (295, 423))),
}
_CLONE3: Final = 435

# --- the assembler: an instruction is code, steps to skip when true, when false, and a number ------------------------

_LOAD: Final = 0x20
_EQUAL: Final = 0x15
_AT_LEAST: Final = 0x35
_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_AND: Final = 0x54

_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16

_ALLOW: Final = 0x7FFF_0000
_ERROR: Final = 0x0005_0000
_KILL_PROCESS: Final = 0x8000_0000


class _Step(NamedTuple):
    code: int
    when_true: int
    when_false: int
    number: int


_Block = tuple[_Step, ...]


def compile_filter(machine: str | None = None) -> bytes:
    """Returns the filter for one architecture, by default this one. Raises UnknownMachine if there is no table for
    it."""
    known = _known(machine)
    return _assemble(known, _blocks(known))


def compile_root_filter(machine: str | None = None) -> bytes:
    """The same for the root user of an image: it may also change its root, and more of its calls report success."""
    known = _known(machine)
    blocks = _blocks(known)
    for name in _ROOT_MAY:
        if (number := _DENIED[name][known.column]) is not None:
            del blocks[number]
    for numbers in _PRETENDED.values():
        if (number := numbers[known.column]) is not None:
            blocks[number] = (_return(_ERROR | 0),)
    for numbers, argument in _MAKE_NODE.values():
        if (number := numbers[known.column]) is not None:
            blocks[number] = _pretend_values(argument, _FILE_KIND, _DEVICES)
    return _assemble(known, blocks)


def _known(machine: str | None) -> _Machine:
    name = os.uname().machine if machine is None else machine
    known = _MACHINES.get(name)
    if known is None:
        raise UnknownMachine(f"no table of system calls for {name}: there is one for {' and '.join(_MACHINES)}")
    return known


def _assemble(known: _Machine, blocks: dict[int, _Block]) -> bytes:
    steps = [
        _load(_ARCHITECTURE_AT),
        _Step(_EQUAL, 1, 0, known.audit),
        # No program of another architecture runs in a box. Its numbers mean other calls.
        _return(_KILL_PROCESS),
        _load(_NUMBER_AT),
        *_search(_intervals(blocks)),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _blocks(machine: _Machine) -> dict[int, _Block]:
    """Returns what to do by number, for all calls that are not simply allowed."""
    denied, unknown = (_return(_ERROR | errno.EPERM),), (_return(_ERROR | errno.ENOSYS),)
    blocks: dict[int, _Block] = {}
    for first, last in machine.unassigned:
        blocks |= dict.fromkeys(range(first, last + 1), unknown)
    for numbers in _DENIED.values():
        if (number := numbers[machine.column]) is not None:
            blocks[number] = denied
    blocks[machine.clone] = _deny_bits(0, _NEW_NAMESPACES)
    # Its flags are behind a pointer, which a filter cannot follow: libraries fall back to clone.
    blocks[_CLONE3] = unknown
    blocks[machine.personality] = _allow_values(0, _PERSONALITIES, errno.EPERM)
    blocks[machine.socket] = blocks[machine.socketpair] = _allow_values(0, _FAMILIES, errno.EAFNOSUPPORT)
    blocks[machine.ioctl] = _deny_values(1, _TERMINAL_INJECTIONS)
    blocks[machine.fcntl] = _deny_values(1, _LEASE)
    blocks[machine.prlimit] = _deny_values(0, _GUEST)
    # Includes all numbers of the x32 interface, which have bit 30 set.
    blocks[_NEWEST + 1] = unknown
    return blocks


def _intervals(blocks: dict[int, _Block]) -> list[tuple[int, _Block]]:
    """Returns the first number of each run of equal blocks. The last run has no end."""
    runs: list[tuple[int, _Block]] = []
    for number in range(_NEWEST + 2):
        block = blocks.get(number, (_return(_ALLOW),))
        if not runs or runs[-1][1] != block:
            runs.append((number, block))
    return runs


def _search(runs: list[tuple[int, _Block]]) -> _Block:
    """Builds a binary search: about seven comparisons for each system call instead of seventy."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    lower, upper = _search(runs[:middle]), _search(runs[middle:])
    return (_Step(_AT_LEAST, len(lower), 0, runs[middle][0]), *lower, *upper)


# The kernel reads the arguments tested below as 32 bits, so the low word (the first: both machines are little-endian)
# is all there is to test, and rubbish in the high word changes nothing.


def _deny_bits(argument: int, mask: int) -> _Block:
    return (
        _load(_ARGUMENTS_AT + 8 * argument),
        _Step(_ANY_BIT, 1, 0, mask),
        _return(_ALLOW),
        _return(_ERROR | errno.EPERM),
    )


def _deny_values(argument: int, values: tuple[int, ...]) -> _Block:
    return _compare(argument, values, equal=_ERROR | errno.EPERM, other=_ALLOW)


def _allow_values(argument: int, values: tuple[int, ...], error: int) -> _Block:
    return _compare(argument, values, equal=_ALLOW, other=_ERROR | error)


def _pretend_values(argument: int, mask: int, values: tuple[int, ...]) -> _Block:
    load, *rest = _compare(argument, values, equal=_ERROR | 0, other=_ALLOW)
    return (load, _Step(_AND, 0, 0, mask), *rest)


def _compare(argument: int, values: tuple[int, ...], *, equal: int, other: int) -> _Block:
    count = len(values)
    tests = (_Step(_EQUAL, count - place, 0, value) for place, value in enumerate(values))
    return (_load(_ARGUMENTS_AT + 8 * argument), *tests, _return(other), _return(equal))


def _load(offset: int) -> _Step:
    return _Step(_LOAD, 0, 0, offset)


def _return(verdict: int) -> _Step:
    return _Step(_RETURN, 0, 0, verdict)
