"""The command as the user called it, so that hints can be pasted: `bin/holdfast` in a checkout, otherwise `holdfast`.

Messages, including those of the server, always say `holdfast`, without `--home` and `--server`. Only this module puts
in the name that the user typed, and the `--home` or `--server` that the user gave.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = "holdfast"
_IN_A_HINT: Final = re.compile(rf"(?<![\w./-]){_NAME} (?=[a-z-])")
_OF_A_HOME: Final = ("up", "down", "demo", "backup", "restore", "check", "compact", "config", "doctor", "purge")
"""Commands that work on a home of this machine, and take no `--server`."""
_OF_NO_HOME: Final = ("relay",)
"""Commands that take neither."""
T = TypeVar("T")


class Target:
    """The home and the server that the command line named."""

    def __init__(self, home: str | None = None, server: str | None = None) -> None:
        self.home = home
        self.server = server


_named: Final = Target()
"""The target of the running command. A process runs only one."""


def remember_home(value: T) -> T:
    """A callback of the option `--home`."""
    _named.home = None if value is None else str(value)
    return value


def remember_server(value: T) -> T:
    """A callback of the option `--server`."""
    _named.server = None if value is None else str(value)
    return value


def forget_target() -> None:
    """Called when a command has ended."""
    _named.home = _named.server = None


def with_target(hint: str, target: Target) -> str:
    """Add the home or server to the commands in a hint. The option directly follows their names, before any `--`."""
    import shlex

    def option(found: re.Match[str]) -> str:
        name = found["single"] or found["group"]
        if name in _OF_NO_HOME:
            return ""
        if target.server is not None:
            # `up` cannot start a server on another machine.
            return "" if name in _OF_A_HOME else f" --server {shlex.quote(target.server)}"
        return "" if target.home is None else f" --home {shlex.quote(target.home)}"

    return _command_in_a_hint().sub(lambda found: found[0] + option(found), hint)


@cache
def _command_in_a_hint() -> re.Pattern[str]:
    from holdfast.cli.commands import COMMANDS, Group

    groups = [name for name, found in COMMANDS.items() if isinstance(found, Group)]
    single = [name for name, found in COMMANDS.items() if not isinstance(found, Group)]
    return re.compile(
        rf"(?<![\w./-]){_NAME} (?:interpreter template [a-z]+|interpreter jupyter install"
        rf"|(?P<group>{'|'.join(groups)}) (?!template|jupyter)[a-z]+|(?P<single>{'|'.join(single)}))\b"
        r"(?! --(?:home|server|help)\b)"
    )


def for_target(hint: str) -> str:
    """Add this command's home or server to the commands in a hint. They are still called `holdfast`."""
    return with_target(hint, _named)


def as_called(hint: str) -> str:
    """Write the commands in a hint as the user has to type them."""
    hint, name = for_target(hint), command_name()
    return hint if name == _NAME else _IN_A_HINT.sub(lambda _: f"{name} ", hint)


@cache
def command_name() -> str:
    """The name that the user typed, or plain `holdfast` if that runs the same program."""
    from pathlib import Path

    typed = Path(sys.argv[0])
    if typed.name != _NAME:
        return _NAME  # python -m holdfast, or another program that imports us
    import shlex

    found = _find_on_path(_NAME)
    if found is not None and typed.exists() and found.samefile(typed):
        return _NAME
    return shlex.quote(sys.argv[0])


def _find_on_path(program: str) -> Path | None:
    """As `shutil.which`, whose module takes longer to load than an everyday command takes in all."""
    from pathlib import Path

    candidates = (Path(folder, program) for folder in os.get_exec_path())
    # In this order: `is_file` raises for a folder that this user may not search.
    return next((path for path in candidates if os.access(path, os.X_OK) and path.is_file()), None)
