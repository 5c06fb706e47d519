"""Runs git on this machine: within a time limit, without hooks, and with no terminal to wait for.

`Git.of_user` reads the user's configuration, for credentials and proxies. `Git.alone` reads none, for files that
others wrote: without a configuration, no filter, merge driver or alias can start a program. `in_checkout` is for a
folder of the user: git reads its configuration, but starts no program that it names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, Self

from holdfast.api.errors.repositories import RepositoryFailed

QUICK_SECONDS: Final = 120.0
NETWORK_SECONDS: Final = 900.0
_SETTINGS: Final = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false",
    "-c", "fetch.recurseSubmodules=false", "-c", "gc.autoDetach=false", "-c", "core.quotePath=false",
    "-c", "advice.detachedHead=false", "-c", "protocol.ext.allow=never",
)  # fmt: skip
_KEPT: Final = frozenset(("GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_SSL_CAINFO", "GIT_SSL_NO_VERIFY"))
"""Variables of git that decide how a host is reached. All others could point to another repository."""
_MOST_SHOWN: Final = 500
_FILTERS: Final = r"^filter\..*\.(clean|smudge|process|required)$"
_OF_REPOSITORY: Final = frozenset((b"local", b"worktree"))


@dataclass(frozen=True, slots=True)
class Git:
    """How git is started. Frozen, so that it can be shared between threads."""

    program: str
    environment: Mapping[str, str]
    settings: tuple[str, ...] = ()
    """Further arguments before each command."""

    @classmethod
    def of_user(cls, environment: Mapping[str, str], protocols: str = "") -> Self:
        """With the user's configuration. `protocols` are the only transports: `https:ssh`."""
        kept = {name: value for name, value in environment.items() if not name.startswith("GIT_") or name in _KEPT}
        return cls(_program(environment), kept | _always(protocols))

    @classmethod
    def alone(cls, environment: Mapping[str, str], protocols: str = "") -> Self:
        """With no configuration of the user or the machine."""
        alone = {
            "PATH": environment.get("PATH", os.defpath),
            "HOME": os.devnull,
            "XDG_CONFIG_HOME": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
        }
        return cls(_program(environment), alone | _always(protocols))

    def in_checkout(self, folder: Path) -> Self:
        """Returns a git that starts no filter which the repository itself defines. Filters of the user stay.

        Others may have written the repository: it was downloaded, or copied out of a box. A folder with the layout of
        a bare repository is not taken for one: it may be a part of a repository like any other folder.
        """
        careful = replace(self, settings=(*self.settings, "-c", "safe.bareRepository=explicit"))
        listed = careful.try_(
            folder, "config", "--includes", "--show-scope", "-z", "--name-only", "--get-regexp", _FILTERS
        )
        fields = listed.stdout.split(b"\0")
        names = {
            os.fsdecode(name) for scope, name in zip(fields[::2], fields[1::2], strict=False) if scope in _OF_REPOSITORY
        }
        empty = (f"{name}={'false' if name.endswith('.required') else ''}" for name in sorted(names))
        return replace(careful, settings=(*careful.settings, *(word for each in empty for word in ("-c", each))))

    def run(
        self,
        folder: Path,
        *arguments: str,
        stdin: bytes | IO[bytes] | None = None,
        fine: Sequence[int] = (0,),
        seconds: float = QUICK_SECONDS,
        more: Mapping[str, str] | None = None,
    ) -> bytes:
        """Returns the output. Raises `RepositoryFailed` with git's last words."""
        return self.try_(folder, *arguments, stdin=stdin, fine=fine, seconds=seconds, more=more).stdout

    def try_(
        self,
        folder: Path,
        *arguments: str,
        stdin: bytes | IO[bytes] | None = None,
        fine: Sequence[int] | None = None,
        seconds: float = QUICK_SECONDS,
        more: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Like `run`, but also returns the exit code. Without `fine`, every code is accepted."""
        given: dict[str, object] = {"stdin": subprocess.DEVNULL}
        if isinstance(stdin, bytes):
            given = {"input": stdin}
        elif stdin is not None:
            given = {"stdin": stdin}
        try:
            done: subprocess.CompletedProcess[bytes] = subprocess.run(  # type: ignore[call-overload]
                [self.program, *_SETTINGS, *self.settings, *arguments],
                cwd=folder,
                env={**self.environment, **(more or {})},
                capture_output=True,
                timeout=seconds,
                check=False,
                **given,
            )
        except subprocess.TimeoutExpired:
            raise RepositoryFailed(f"git {arguments[0]} did not end within {seconds:g} s, and was stopped") from None
        if fine is not None and done.returncode not in fine:
            raise RepositoryFailed(f"git {arguments[0]} failed: {last_words(done)}")
        return done


def last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    """Returns the last line that git wrote, without characters that could control a terminal."""
    lines = [line.strip() for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:", "remote: "))] or lines
    shown = told[-1] if told else f"it ended with {done.returncode}"
    return "".join(each if each.isprintable() else "�" for each in shown)[:_MOST_SHOWN]


def _program(environment: Mapping[str, str]) -> str:
    program = shutil.which("git", path=environment.get("PATH", os.defpath))
    if program is None:
        raise RepositoryFailed("git is not installed", hint="apt install git")
    return program


def _always(protocols: str) -> dict[str, str]:
    return {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_ALLOW_PROTOCOL": protocols,
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_HTTP_LOW_SPEED_LIMIT": "1",
        "GIT_HTTP_LOW_SPEED_TIME": "120",
    }
