"""Puts our guest into a sprite, and starts and ends it there. It is a service, so it comes back with its sprite."""

from __future__ import annotations

from typing import Final

from sprites.exceptions import SpriteError

from holdfast.providers.sprites.api import SpritesApi
from holdfast.providers.sprites.records import BoxRecord
from holdfast.providers.stream import bridge_command, guest_command
from holdfast.providers.stream.home_guest import GuestPlace, guest_archive, read_place, run_folder, setup_command

SERVICE: Final = "holdfast"
MARK: Final = "HOLDFAST_SPRITE"
"""In the environment of the guest and of every process that it starts: how a stop finds them all."""
_SETUP_SECONDS: Final = 180.0
_KILL_SECONDS: Final = 30.0
_MEASURE_SECONDS: Final = 10.0
_KILL: Final = """
import os, signal, sys, time
mark, box, spare = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2]), sys.argv[3:] == ["descendants"]

def read(pid, name):
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""

for _ in range(500):
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    marked = {pid for pid in pids if mark in read(pid, "environ").split(b"\\0")}
    parents = {pid: int((read(pid, "stat").rpartition(b")")[2].split() or [0, 0])[1]) for pid in pids}
    # The guest lets nobody read its environment.
    guests = {pid for pid in pids if b"start" in (words := read(pid, "cmdline").split(b"\\0")) and box in words}
    found = marked | guests
    while True:
        more = {pid for pid in pids if parents[pid] in found} - found
        if not more:
            break
        found |= more
    states = {pid: (read(pid, "stat").rpartition(b")")[2].split() or [b"X"])[0] for pid in found}
    found = {pid for pid in found - (guests if spare else set()) if states[pid] not in (b"Z", b"X")}
    if not found:
        break
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.01)
else:
    sys.exit("processes do not end: %r" % sorted(found))
"""
"""Kills every process with a mark in its environment, and their descendants. With `descendants`, not the guest itself,
which adopts those that lost their parent."""


async def place_guest(api: SpritesApi, sprite: str, workdir: str) -> GuestPlace:
    """Put the guest into a sprite and make the working directory. Doing it twice has no effect."""
    argv, data = setup_command(workdir, "-"), guest_archive()[0]
    done = await api.run(sprite, argv, stdin=data, seconds=_SETUP_SECONDS)
    if done.exit_code == 0 and not done.stdout:
        done = await api.run(sprite, argv, stdin=data, seconds=_SETUP_SECONDS)  # its report was lost in a cut
    return read_place(done.exit_code, done.stdout, done.stderr)


async def start_guest(api: SpritesApi, sprite: str, record: BoxRecord) -> None:
    command = guest_command(
        [record.python], record.guest, box=record.id, run=run_folder(record.home), options=["unconfined"]
    )
    await api.put_service(sprite, SERVICE, ["env", f"{MARK}={record.id}", *command])


async def end_guest(api: SpritesApi, sprite: str, record: BoxRecord) -> None:
    """End the guest and every process that it started. Raises `SpriteError` if one of them does not end."""
    # Before the guest ends: a process that changed its environment is known by the guest, its ancestor.
    await _kill(api, sprite, record, "descendants")
    await api.stop_service(sprite, SERVICE)
    await _kill(api, sprite, record)


async def _kill(api: SpritesApi, sprite: str, record: BoxRecord, *which: str) -> None:
    argv = [record.python, "-I", "-S", "-c", _KILL, f"{MARK}={record.id}", f"box={record.id}", *which]
    done = await api.run_short(sprite, argv, seconds=_KILL_SECONDS)
    if done.exit_code != 0:
        raise SpriteError(done.stderr.strip() or "its processes do not end")


def join_command(record: BoxRecord) -> list[str]:
    """Returns the command that joins its stdin and stdout to the guest."""
    return bridge_command([record.python], record.guest, run=run_folder(record.home))


async def measure(api: SpritesApi, sprite: str, record: BoxRecord) -> int:
    """Returns about how many bytes the files of a box have."""
    folders = [record.home, record.spec.workdir, "/tmp"]
    script = 'exec timeout 8 du -scbx -- "$@" 2> /dev/null'
    done = await api.run_short(sprite, ["sh", "-c", script, "sh", *folders], seconds=_MEASURE_SECONDS)
    total = done.stdout.strip().rpartition("\n")[2].partition("\t")[0]
    return int(total) if total.isdigit() else 0
