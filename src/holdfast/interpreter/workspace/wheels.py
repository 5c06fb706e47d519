"""Wheels for an image, downloaded by the pip of this machine.

Mirrors and logins that pip uses stay on this machine, and the box that installs the wheels needs no network. No code of
a package runs here: only wheels are downloaded, and the box builds packages that have none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import CannotExecute
from holdfast.api.errors.interpreters import InvalidInterpreter, WorkspaceFailed
from holdfast.api.progress import Progress
from holdfast.box_json import parse
from holdfast.time_limit import time_limit

_SECONDS: Final = 1800.0
_LAST: Final = 64 * 1024
_REQUIREMENT: Final = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"  # a name
    r"(\[[A-Za-z0-9._-]+(,[A-Za-z0-9._-]+)*\])?"  # extras
    r"((===|==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!_-]{1,60}(,(===|==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!_-]{1,60}){0,9})?"
)
_OLD_NAMES: Final = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_ASK: Final = """
import json, os, platform, sys
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION")
except (ValueError, OSError):
    libc = None
print(json.dumps({"version": list(sys.version_info[:2]), "kind": sys.implementation.name,
                  "machine": platform.machine(), "libc": libc}))
"""


class NoWheels(Exception):
    """This machine cannot download the wheels. `output` is the output of pip."""

    def __init__(self, message: str, output: bytes = b"") -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True, slots=True)
class Python:
    """The Python that wheels have to fit."""

    version: tuple[int, int]
    machine: str
    """As in `x86_64`."""
    glibc: int | None
    """The minor version of glibc 2; None for another C library."""

    @property
    def platforms(self) -> tuple[str, ...]:
        if self.glibc is None:
            return ()
        newer = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc, 4, -1)]
        older = [f"{name}_{self.machine}" for minor, name in _OLD_NAMES.items() if minor <= self.glibc]
        return (*newer, *older, f"linux_{self.machine}")


def check_requirement(text: str) -> str:
    """Check the name of a package, with optional extras and versions. URLs, paths and options need a recipe."""
    plain = text.replace(" ", "")
    if not _REQUIREMENT.fullmatch(plain):
        raise InvalidInterpreter(
            f"{text[:80]!r} is not a Python package",
            hint="use pandas, 'pandas>=2,<3' or 'pandas[excel]', or a recipe",
        )
    return plain


async def python_in(box: Box) -> Python:
    """The `python3` of a box."""
    try:
        done = await box.exec(("python3", "-I", "-c", _ASK), cwd="/", timeout=60, max_output=1 << 16)
    except CannotExecute:
        done = None
    try:
        answer: Any = parse(done.stdout) if done is not None and done.ok else None
        major, minor = (int(each) for each in answer["version"])
        machine, libc = answer["machine"], answer["libc"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise WorkspaceFailed(
            f"the image {box.spec.image} has no working python3", hint="use an image that has one"
        ) from None
    fits = isinstance(machine, str) and re.fullmatch(r"[a-z0-9_]{1,32}", machine)
    found = re.fullmatch(r"glibc 2\.([0-9]{1,3})", libc) if isinstance(libc, str) else None
    if not fits or not 0 < major < 10 or not 0 <= minor < 100:
        raise WorkspaceFailed(f"the python3 of image {box.spec.image} returned an invalid answer")
    return Python((major, minor), machine, int(found[1]) if found and answer.get("kind") == "cpython" else None)


class HostPip:
    """The pip of this machine, run with this environment instead of the one of this process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    async def download(self, requirements: Sequence[str], python: Python, folder: Path, progress: Progress) -> None:
        """Download wheels of packages and their dependencies into a folder. Raises `NoWheels`."""
        path = self._environment.get("PATH")
        program = next((found for name in ("pip", "pip3") if (found := shutil.which(name, path=path))), None)
        if program is None:
            raise NoWheels("this machine has no pip")
        if not python.platforms:
            raise NoWheels("the image has a C library for which no wheels can be chosen")
        platforms = [word for each in python.platforms for word in ("--platform", each)]
        command = [
            program, "download", "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
            "--only-binary=:all:", "--implementation", "cp", "--python-version", ".".join(map(str, python.version)),
            *platforms, "--dest", str(folder), "--", *requirements,
        ]  # fmt: skip
        last = bytearray()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise NoWheels(f"{program} cannot be run: {error}") from None
        assert process.stdout is not None
        try:
            async with time_limit(_SECONDS):
                while piece := await process.stdout.read(1 << 16):
                    progress.output(piece)
                    last += piece
                    del last[:-_LAST]
                await process.wait()
        except TimeoutError:
            raise NoWheels(f"pip did not end within {_SECONDS:g} s", bytes(last)) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            raise NoWheels("pip found no wheels for some packages", bytes(last))
