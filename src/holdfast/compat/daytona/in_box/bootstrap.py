"""How a program of ours gets into a box: its code comes over its own standard input, and touches no file there."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Final

_BOOT: Final = (
    "import os,sys\n"
    "n=int(os.read(0,8));code=b''\n"
    "while len(code)<n:code+=os.read(0,n-len(code))\n"
    "exec(compile(code,sys.argv[1],'exec'))"
)


def argv(python: tuple[str, ...], program: str, *words: str) -> list[str]:
    """The command of a program. Its words are found again in the list of the box's processes."""
    return [*python, "-u", "-c", _BOOT, f"daytona-{program}", *words]


@functools.cache
def stdin(program: str) -> bytes:
    """What the command reads first: the length of the code in eight digits, and the code."""
    code = source(program)
    return b"%08d" % len(code) + code


@functools.cache
def source(program: str) -> bytes:
    return resources.files(__package__).joinpath(f"{program}.py").read_bytes()


def words_of(command: tuple[str, ...], program: str) -> tuple[str, ...] | None:
    """The words of a process that was started with `argv` for this program. None for any other process."""
    name = f"daytona-{program}"
    if _BOOT not in command or name not in command:
        return None
    place = command.index(_BOOT) + 1
    return tuple(command[place + 1 :]) if command[place : place + 1] == (name,) else None
