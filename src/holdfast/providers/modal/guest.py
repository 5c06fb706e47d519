"""How the guest comes into a sandbox, and how it is reached there.

A sandbox starts with a shell that waits for a file. One command then brings the guest's files and writes that file, so
that the shell becomes the guest. Nothing is built into images: any image with a shell and Python 3.9 will do.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import modal

from holdfast.api.errors.boxes import BoxError, CreateFailed
from holdfast.box_json import parse
from holdfast.providers.modal.account import as_any, limited
from holdfast.providers.modal.records import BoxRecord
from holdfast.providers.modal.transport import ModalTransport
from holdfast.providers.stream import (
    StreamGuestClient,
    StreamProcesses,
    bridge_command,
    guest_command,
    guest_files,
)

PLACE: Final = "/var/lib/holdfast"
"""Has the guest's files and, in `RUN`, what outlives a stop of the box."""
RUN: Final = f"{PLACE}/run"
_SETUP_SECONDS: Final = 120.0
_NO_PYTHON: Final = 69
_MEASURE_SECONDS: Final = 10.0
_WAIT: Final = """
n=0
until [ -f "$1" ]; do
  n=$((n + 1))
  [ "$n" -lt 6000 ] || exit 1
  sleep 0.05
done
exec sh "$1"
"""
"""The first command of a sandbox. It gives up after five minutes and more."""
_FIND_PYTHON: Final = f"""
for python in python3 /usr/local/bin/python3 /usr/bin/python3 python; do
  if command -v "$python" >/dev/null 2>&1 && "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then
    exec "$python" -I -S -c "$1"
  fi
done
exit {_NO_PYTHON}
"""

_JOIN: Final = """
place=$1 program=$2 mode=$3 run=$4
shift 4
for each in "$program" "$place"/guest-*/stream_server.py; do
  if [ -f "$each" ]; then exec "$@" "$each" "$mode" "$run"; fi
done
exit 1
"""
"""A sandbox that was started by another version of Holdfast has the files of that version."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What a sandbox has reported about itself."""

    python: str
    environment: Mapping[str, str]


@functools.cache
def _files() -> tuple[str, Mapping[str, str]]:
    """Returns the folder of the guest's files, which names their version, and the files."""
    files = {name: data.decode() for name, data in guest_files().items()}
    version = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
    return f"{PLACE}/guest-{version}", files


def start_file(nonce: str) -> str:
    return f"{PLACE}/start-{nonce}"


def first_command(nonce: str) -> list[str]:
    """The command that a sandbox is created with. `nonce` is new for each, because its files may be restored ones."""
    return ["sh", "-c", _WAIT, "holdfast", start_file(nonce)]


async def set_up(sandbox: modal.Sandbox, box: str, nonce: str) -> Ready:
    """Bring the guest into a sandbox and have it started. Raises `CreateFailed`, or an error of the SDK."""
    folder, files = _files()
    asked = {
        "folder": folder,
        "files": files,
        "start": start_file(nonce),
        # None stands for the interpreter that the sandbox has.
        "command": [word or None for word in guest_command([""], folder, box=box, run=RUN, options=["beside"])],
    }
    source = resources.files("holdfast.providers.modal").joinpath("guest_setup.py").read_text()
    process: Any = await limited(sandbox.exec.aio("sh", "-c", _FIND_PYTHON, "sh", source, text=False))
    process.stdin.write(json.dumps(asked).encode())
    process.stdin.write_eof()
    await limited(process.stdin.drain.aio(), _SETUP_SECONDS)
    code = await limited(process.wait.aio(), _SETUP_SECONDS)
    if code == _NO_PYTHON:
        raise CreateFailed(
            f"box {box} cannot be created: its image has no Python 3.9 or newer, which the guest needs",
            hint="choose an image with Python, for example python:3.12-slim",
        )
    stdout: bytes = await limited(process.stdout.read.aio())
    try:
        answer = parse(stdout)
        return Ready(str(answer["python"]), {str(name): str(value) for name, value in answer["environment"].items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        stderr: bytes = await limited(process.stderr.read.aio())
        words = stderr.decode("utf-8", "replace").strip()[-300:]
        raise CreateFailed(
            f"box {box} cannot be created: its guest was not set up: exit code {code}: {words}"
        ) from None


async def dial(sandbox: modal.Sandbox, python: str) -> ModalTransport:
    """Open a stream to the guest of a sandbox."""
    *interpreter, program, mode, run = bridge_command([python], _files()[0], run=RUN)
    command = ["sh", "-c", _JOIN, "sh", PLACE, program, mode, run, *interpreter]
    return ModalTransport(as_any(await limited(sandbox.exec.aio(*command, text=False))))


async def measure(guest: StreamGuestClient, record: BoxRecord) -> int:
    """Returns the bytes of the files that a box has made, as far as is known: Modal does not tell the size of an
    image. 0 if the box does not answer.
    """
    command = ["du", "-skx", record.spec.workdir, record.environment.get("HOME", "/root")]
    try:
        done = await StreamProcesses(guest).exec(command, record.environment, "/", timeout=_MEASURE_SECONDS, probe=True)
    except BoxError:
        return record.size
    lines = [line.split()[0] for line in done.text.splitlines() if line.split()]
    return sum(int(word) for word in lines if word.isdigit()) * 1024
