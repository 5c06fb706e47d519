"""The volume with the guest and its Python, which every box at a daemon mounts.

The volume has a version in its name and never changes. It is filled first. Then an empty volume with labels marks it as
complete, so an interrupted one is never used.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import platform
import secrets
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from holdfast.api.errors.boxes import BoxError, BoxUnreachable, CannotIsolate
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.docker import guest_python
from holdfast.providers.docker.engine import Engine, EngineProblem, refusals_named
from holdfast.providers.docker.objects import KIND, MAKER, NAMESPACE, NONCE, RECORD, Kind, Maker, Names, is_abandoned
from holdfast.time_limit import time_limit

PLACE: Final = guest_python.PLACE
"""The path of the volume in a box."""
_GUEST: Final = f"{PLACE}/guest"
EMPTY_IMAGE: Final = "holdfast/empty:1"
"""For containers that have only volumes."""
_HELPER_SECONDS: Final = 120.0
_MAX_ANSWER: Final = 1 << 20
_VERSION: Final = 1
_OLD_SECONDS: Final = 30 * 24 * 3600.0
_COMMON: Final = "common"
"""The namespace of objects that all homes at a daemon share."""
_MACHINES: Final = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Runtime:
    """What is mounted into boxes, and the commands that run there."""

    volume: str
    python: tuple[str, ...]

    @property
    def mount(self) -> dict[str, Any]:
        return {
            "Type": "volume", "Source": self.volume, "Target": PLACE, "ReadOnly": True,
            "VolumeOptions": {"NoCopy": True},
        }  # fmt: skip

    def first(self, box: str, run: str) -> list[str]:
        """Returns the command of process 1: the guest, and beside it a bridge on the container's own stdin and
        stdout."""
        return [*self.python, "-I", "-S", "-B", "-X", "utf8", f"{_GUEST}/stdio_init.py", f"run={run}", f"box={box}"]

    def bridge(self, run: str) -> list[str]:
        return [*self.python, "-I", "-S", "-B", "-X", "utf8", f"{_GUEST}/stdio_init.py", "join", f"run={run}"]


class RuntimeVolume:
    """Puts the volume at the daemon when it is first needed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runtime: Runtime | None = None
        self._preparing = asyncio.Lock()

    async def get(self) -> Runtime:
        if self._runtime is None:
            async with self._preparing:
                if self._runtime is None:
                    self._runtime = await to_the_end(prepare(self._engine))
        return self._runtime

    def forget(self) -> None:
        """The next `get` creates the volume again if it is gone."""
        self._runtime = None


def same_machine(info: Mapping[str, Any]) -> bool:
    """Returns whether programs of this machine run on the daemon's machine."""
    there = _MACHINES.get(str(info.get("Architecture")), str(info.get("Architecture")))
    return info.get("OSType") == "linux" and there == _MACHINES.get(platform.machine(), platform.machine())


async def prepare(engine: Engine) -> Runtime:
    """Find the volume at the daemon, or create it, which takes a second or two, once for each version."""
    identity = await asyncio.to_thread(_identity)
    marker = f"holdfast-guest-{identity}"
    with refusals_named("the guest cannot be put on a volume"):
        await _make_empty_image(engine)
        found = await _find(engine, marker)
        return found if found is not None else await _make(engine, marker)


async def _find(engine: Engine, marker: str) -> Runtime | None:
    try:
        labels = (await engine.volume(marker)).get("Labels") or {}
        record = json.loads(labels[RECORD])
        runtime = Runtime(str(record["volume"]), tuple(map(str, record["python"])))
        filled = (await engine.volume(runtime.volume)).get("Labels") or {}
        # If the volume was removed, the daemon may have created an empty one in its place.
        return runtime if filled.get(KIND) == Kind.GUEST else None
    except EngineProblem as problem:
        if problem.missing:
            return None
        raise
    except (KeyError, TypeError, ValueError):
        raise CannotIsolate(
            f"the volume {marker} at the Docker daemon does not belong to Holdfast", hint=f"docker volume rm {marker}"
        ) from None


async def sweep(engine: Engine, me: Maker) -> list[str]:
    """Remove volumes whose filling was interrupted, and volumes of versions that are no longer used."""
    removed = []
    now = time.time()
    common = Names(_COMMON)
    for each in await engine.containers(common.labels(Kind.HELPER)):
        if is_abandoned((each.get("Labels") or {}).get(MAKER), me, now):
            await engine.remove_container(str(each["Id"]))
            removed.append(f"container {str(each['Id'])[:12]}: the operation that needed it was interrupted")
    found = {str(each["Name"]): each.get("Labels") or {} for each in await engine.volumes(common.labels(Kind.GUEST))}
    for name, labels in found.items():
        maker = Maker.parse(labels.get(MAKER, ""))
        marker = name.rpartition(".")[0] if RECORD not in labels else name
        if maker is not None and now - maker.at > _OLD_SECONDS:
            why = "no box has used it for a long time"
        elif marker not in found and is_abandoned(labels.get(MAKER), me, now):
            why = "its filling was interrupted"
        else:
            continue
        with contextlib.suppress(EngineProblem):  # it is in use
            await engine.remove_volume(name)
            removed.append(f"volume {name}: {why}")
    return removed


async def _make(engine: Engine, marker: str) -> Runtime:
    nonce = secrets.token_hex(8)
    labels = {NAMESPACE: _COMMON, KIND: Kind.GUEST, MAKER: str(Maker.this())}
    archive, python = await asyncio.to_thread(guest_python.pack, _sources(), "guest")
    runtime = Runtime(f"{marker}.{nonce}", python)
    await engine.create_volume(runtime.volume, labels)
    mount = {**runtime.mount, "ReadOnly": False}
    config = {
        "Image": EMPTY_IMAGE, "Cmd": ["nothing"], "Labels": {**labels, KIND: Kind.HELPER},
        "HostConfig": {"Mounts": [mount], "NetworkMode": "none"},
    }  # fmt: skip
    filling = await engine.create_container(f"holdfast-{_COMMON}.helper.{nonce}", config)
    try:
        await engine.send(f"containers/{filling}/archive", archive, params={"path": PLACE}, put=True)
    finally:
        await engine.remove_container(filling)
    record = json.dumps({"volume": runtime.volume, "python": list(runtime.python)})
    # If the volume was removed by hand, remove its marker first. Otherwise creating the marker would return the old
    # one.
    try:
        await engine.remove_volume(marker) if await _find(engine, marker) is None else None
    except EngineProblem as problem:
        if not problem.conflict:
            raise
    made = await engine.create_volume(marker, {**labels, RECORD: record, NONCE: nonce})
    if (made.get("Labels") or {}).get(NONCE) == nonce:
        return runtime
    await engine.remove_volume(runtime.volume)  # another process was faster
    found = await _find(engine, marker)
    if found is None:
        raise BoxUnreachable("the volume with the guest was removed while it was created", hint="try again")
    return found


async def _make_empty_image(engine: Engine) -> None:
    try:
        await engine.image(EMPTY_IMAGE)
        return
    except EngineProblem as problem:
        if not problem.missing:
            raise
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folder = tarfile.TarInfo(PLACE.strip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
    name, _, tag = EMPTY_IMAGE.partition(":")
    await engine.send("images/create", buffer.getvalue(), params={"fromSrc": "-", "repo": name, "tag": tag})


def _sources() -> dict[str, bytes]:
    """Returns every module of the guest, by name."""
    files = [each for each in resources.files("holdfast.guest.init").iterdir() if each.name.endswith(".py")]
    return {each.name[:-3]: each.read_bytes() for each in files if each.name != "__init__.py"}


def _identity() -> str:
    """Returns a hash of everything on the volume."""
    about = guest_python.python_here().stat()
    digest = hashlib.sha256(f"{_VERSION} {sys.version} {about.st_size} {platform.machine()}".encode())
    digest.update(" ".join(guest_python.MODULES).encode())
    for name, source in sorted(_sources().items()):
        digest.update(name.encode() + source)
    return digest.hexdigest()[:16]


# --- containers that do something for a moment ------------------------------------------------------------------------


class Helper:
    """A helper container that mounts volumes and runs a short program, which reports what it sees as JSON.

    The volumes stay mounted until the container is released.
    """

    def __init__(self, engine: Engine, container: str, answer: Any) -> None:
        self._engine = engine
        self._container = container
        self.answer = answer

    async def release(self) -> None:
        await self._engine.remove_container(self._container)


async def run_helper(
    engine: Engine,
    names: Names,
    runtime: Runtime,
    program: str,
    arguments: Sequence[str],
    mounts: Sequence[Mapping[str, Any]],
) -> Helper:
    """Run a program in a container of ours, without any code of the user. The last line of its output is the answer."""
    nonce = secrets.token_hex(8)
    config = {
        "Image": EMPTY_IMAGE,
        "Cmd": [*runtime.python, "-I", "-S", "-B", "-c", program, *arguments],
        "Labels": names.labels(Kind.HELPER, **{MAKER: str(Maker.this())}),
        "OpenStdin": True, "StdinOnce": True, "AttachStdin": True, "AttachStdout": True, "AttachStderr": True,
        "WorkingDir": "/", "StopSignal": "SIGKILL",
        "HostConfig": {
            "Mounts": [runtime.mount, *mounts], "NetworkMode": "none", "LogConfig": {"Type": "none"},
            "SecurityOpt": ["no-new-privileges"], "ReadonlyRootfs": True,
            "CapDrop": ["ALL"], "CapAdd": ["DAC_OVERRIDE", "FOWNER", "CHOWN"],
        },
    }  # fmt: skip
    container = await engine.create_container(names.helper(nonce), config)
    try:
        stream = await engine.attach(container)
        try:
            async with time_limit(_HELPER_SECONDS):
                await engine.ask("POST", f"containers/{container}/start")
                output = b""
                while not output.endswith(b"\n"):
                    message = await stream.read_out()
                    if message is None:
                        raise BoxUnreachable(f"a helper container did not answer: {output[-500:]!r}")
                    output += message.data
                    if len(output) > _MAX_ANSWER:
                        raise BoxUnreachable("a helper container printed too much")
        except TimeoutError:
            raise BoxUnreachable(f"a helper container did not answer within {_HELPER_SECONDS:g} s") from None
        finally:
            await stream.close()
        try:
            return Helper(engine, container, json.loads(output.splitlines()[-1]))
        except ValueError:
            raise BoxUnreachable(f"a helper container sent an invalid answer: {output[-500:]!r}") from None
    except BaseException as error:
        await asyncio.shield(engine.remove_container(container))
        if isinstance(error, EngineProblem) and not isinstance(error, BoxError):
            raise
        raise
