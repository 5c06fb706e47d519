"""Puts our guest into a sandbox and starts it there, in the background. It ends with its sandbox."""

from __future__ import annotations

import secrets
import shlex
from typing import Final

from daytona import AsyncSandbox

from holdfast.api.errors.boxes import CreateFailed
from holdfast.providers.daytona.api import DaytonaApi, repeated
from holdfast.providers.daytona.records import BoxRecord
from holdfast.providers.daytona.transport import PtyTransport
from holdfast.providers.stream import bridge_command, guest_command
from holdfast.providers.stream.home_guest import (
    NO_FILES,
    GuestPlace,
    guest_archive,
    read_place,
    run_folder,
    setup_command,
)

_SETUP_SECONDS: Final = 60.0
_LAUNCH: Final = """
import os, socket, sys
os.chdir(sys.argv[1])
try:
    socket.socket(socket.AF_UNIX).connect("guest.sock")
    sys.exit()
except OSError:
    pass
if os.fork():
    os._exit(0)
os.setsid()
nothing = os.open("/dev/null", os.O_RDWR)
for each in (0, 1, 2):
    os.dup2(nothing, each)
os.execv(sys.argv[2], sys.argv[2:])
"""
_DIAL_SECONDS: Final = 40.0
_MEASURE_SECONDS: Final = 10


async def place_guest(api: DaytonaApi, sandbox: AsyncSandbox, workdir: str) -> GuestPlace:
    """Look for the guest in a sandbox, and bring it if it is not there, or not of this version."""
    code, printed = await api.run(sandbox, shlex.join(setup_command(workdir, "")), _SETUP_SECONDS)
    if code == NO_FILES:
        return await bring_guest(api, sandbox, workdir)
    return read_place(code, printed, printed)


async def bring_guest(api: DaytonaApi, sandbox: AsyncSandbox, workdir: str) -> GuestPlace:
    """Put the guest into a sandbox and make the working directory. Doing it twice has no effect."""
    data, version = guest_archive()
    path = f"/tmp/holdfast-{version}-{secrets.token_hex(4)}.tar"
    await api.upload(sandbox, data, path)
    code, printed = await api.run(sandbox, shlex.join(setup_command(workdir, path)), _SETUP_SECONDS)
    return read_place(code, printed, printed)  # the toolbox does not tell stdout from stderr


async def start_guest(api: DaytonaApi, sandbox: AsyncSandbox, record: BoxRecord) -> None:
    """Start the guest, in the background. Does nothing if one runs: a request may be repeated."""
    run = run_folder(record.home)
    command = guest_command([record.python], record.guest, box=record.id, run=run, options=["unconfined"])
    launch = [record.python, "-I", "-S", "-c", _LAUNCH, run, *command]
    code, printed = await api.run(sandbox, shlex.join(launch), _SETUP_SECONDS)
    if code != 0:
        raise CreateFailed(f"the guest of box {record.id} does not start: {printed.strip()[-300:]}")


async def dial(sandbox: AsyncSandbox, record: BoxRecord) -> PtyTransport:
    """Open a stream to the guest of a sandbox."""
    command = bridge_command([record.python], record.guest, run=run_folder(record.home))
    return await repeated(lambda: PtyTransport.open(sandbox, command), seconds=_DIAL_SECONDS)


async def measure(api: DaytonaApi, sandbox: AsyncSandbox, record: BoxRecord) -> int:
    """Returns about how many bytes the files of a box have."""
    folders = [record.home, record.spec.workdir, "/tmp"]
    script = 'timeout 8 du -scbx -- "$@" 2> /dev/null | tail -n 1'
    _, printed = await api.run(sandbox, shlex.join(["sh", "-c", script, "sh", *folders]), _MEASURE_SECONDS)
    total = printed.strip().partition("\t")[0]
    return int(total) if total.isdigit() else 0
