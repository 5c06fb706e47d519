"""Holdfast's volumes at a Docker daemon. A box mounts a whole volume or a folder of one.

A folder is mounted through a separate volume that binds it, for one box. The daemon follows links in its path, and
another box may have created one. So before a box starts, a helper container mounts both, checks that they are the same
folder, and keeps them mounted until the box has started.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.box.snapshots import Volume
from holdfast.api.box.spec import BoxSpec, VolumeMount, check_name
from holdfast.api.errors.boxes import InvalidSpec, ProviderRefused, VolumeExists, VolumeInUse, VolumeNotFound
from holdfast.api.ids import now_ms
from holdfast.providers.docker.engine import Engine, EngineProblem
from holdfast.providers.docker.objects import BOX, MAKER, NONCE, RECORD, BoxRecord, Kind, Maker, Names
from holdfast.providers.docker.runtime import Runtime, run_helper

_NAME: Final = "holdfast.docker.volume"
_CREATED: Final = "holdfast.docker.created"
TOOLS: Final = ".holdfast/tools"
"""Where agents are put, below the home folder: see `holdfast.harnesses.placement`."""
_HOME: Final = "/root"
"""Boxes run as root. If an image has another home for root, its boxes have agents among their files."""
_WHOLE: Final = "/whole"
_PARTS: Final = "/parts"
_MEASURE: Final = """
import json, os
size = 0
for folder, names, files in os.walk("/whole"):
    for name in files:
        try:
            size += os.lstat(folder + "/" + name).st_blocks * 512
        except OSError:
            pass
print(json.dumps(size), flush=True)
"""
_OPEN: Final = """
import json, os, sys
def below(root, subpath):
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for part in subpath.split("/"):
        try:
            os.mkdir(part, 0o777, dir_fd=here)
            os.chmod(part, 0o777, dir_fd=here)
        except FileExistsError:
            pass
        here = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
    return os.fstat(here)
answers = []
for each in json.loads(sys.argv[1]):
    try:
        found = below("/whole/%d" % each["whole"], each["subpath"])
        if each["part"] is not None:
            part = os.stat("/parts/%d" % each["part"])
            if (part.st_dev, part.st_ino) != (found.st_dev, found.st_ino):
                raise OSError(0, "it leads outside the volume")
        answers.append(None)
    except OSError as error:
        answers.append(error.strerror or "?")
print(json.dumps(answers), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Mounts:
    whole: tuple[dict[str, Any], ...]
    """In the form that Docker expects."""
    folders: tuple[tuple[VolumeMount, str], ...]
    """Mounts of a folder of a volume, each with the path of the volume on the daemon's machine."""


async def create(engine: Engine, names: Names, name: str) -> Volume:
    check_name(name, "volume")
    nonce, created = secrets.token_hex(8), now_ms()
    labels = names.labels(Kind.VOLUME, **{_NAME: name, NONCE: nonce, _CREATED: str(created)})
    made = await engine.create_volume(names.volume(name), labels)
    if (made.get("Labels") or {}).get(NONCE) != nonce:
        raise VolumeExists(f"there is a volume {name} already")
    return Volume(name, created)


async def all_volumes(engine: Engine, names: Names) -> list[Volume]:
    found = []
    for each in await engine.volumes(names.labels(Kind.VOLUME)):
        labels = each.get("Labels") or {}
        with contextlib.suppress(KeyError, ValueError):
            found.append(Volume(labels[_NAME], int(labels[_CREATED])))
    return sorted(found, key=lambda volume: volume.name)


async def delete(engine: Engine, names: Names, runtime: Runtime, name: str) -> int:
    try:
        check_name(name, "volume")
        await engine.volume(names.volume(name))
    except (EngineProblem, InvalidSpec):
        raise VolumeNotFound(f"there is no volume {name}") from None
    await _refuse_used(engine, names, name)
    helper = await run_helper(
        engine, names, runtime, _MEASURE, [], [_mount(names.volume(name), _WHOLE, read_only=True)]
    )
    await helper.release()
    try:
        if not await engine.remove_volume(names.volume(name)):
            raise VolumeNotFound(f"there is no volume {name}")
    except EngineProblem as problem:
        if problem.conflict:
            raise VolumeInUse(f"a box mounts volume {name}") from None
        raise
    return int(helper.answer)


async def _refuse_used(engine: Engine, names: Names, name: str) -> None:
    """The daemon knows which containers mount a volume, but not which mount a folder of one."""
    for each in await engine.containers(names.labels(Kind.BOX)):
        record = BoxRecord.from_text((each.get("Labels") or {}).get(RECORD, ""))
        if record is not None and any(mount.volume == name for mount in record.spec.volumes):
            raise VolumeInUse(f"box {record.id} mounts volume {name}", hint=f"holdfast box delete {record.id}")


def _mount(volume: str, path: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "volume", "Source": volume, "Target": path, "ReadOnly": read_only, "VolumeOptions": {"NoCopy": True}
    }  # fmt: skip


async def mounts(engine: Engine, names: Names, spec: BoxSpec) -> Mounts:
    """Returns what a box mounts. Raises `VolumeNotFound`: the daemon would create a missing volume."""
    whole, folders = [], []
    for each in spec.volumes:
        try:
            found = await engine.volume(names.volume(each.volume))
        except EngineProblem as problem:
            if problem.missing:
                raise VolumeNotFound(
                    f"there is no volume {each.volume}", hint=f"holdfast volume create {each.volume} --provider docker"
                ) from None
            raise
        if each.subpath:
            folders.append((each, str(found["Mountpoint"])))
        else:
            whole.append(_mount(names.volume(each.volume), each.path, read_only=each.read_only))
    return Mounts(tuple(whole), tuple(folders))


async def make_parts(engine: Engine, names: Names, id: str, wanted: Mounts, me: Maker) -> list[dict[str, Any]]:
    """Create the volumes that bind folders of others. Nothing is mounted yet: the folders may still be missing."""
    made = []
    for number, (mount, place) in enumerate(wanted.folders):
        name = names.part(id, number)
        labels = names.labels(Kind.PART, **{BOX: id, MAKER: str(me)})
        await engine.create_volume(name, labels, type="none", o="bind", device=f"{place}/{mount.subpath}")
        made.append(_mount(name, mount.path, read_only=mount.read_only))
    return made


def tools_mount(names: Names, id: str, image: Mapping[str, Any], me: Maker) -> dict[str, Any]:
    """Returns the mount of a volume for agents, which are copied into a box when it needs them. It belongs to the box
    alone and goes with it. So snapshots, which are commits, do not copy the agents each time.
    """
    environment = dict(each.split("=", 1) for each in (image.get("Config") or {}).get("Env") or () if "=" in each)
    home = environment.get("HOME", "")
    home = home.rstrip("/") if home.startswith("/") and ".." not in home.split("/") else _HOME
    labels = names.labels(Kind.PART, **{BOX: id, MAKER: str(me)})
    return {"Type": "volume", "Target": f"{home}/{TOOLS}", "VolumeOptions": {"Labels": labels}}


@contextlib.asynccontextmanager
async def verified_parts(
    engine: Engine, names: Names, runtime: Callable[[], Awaitable[Runtime]], record: BoxRecord
) -> AsyncIterator[None]:
    """While a box starts, ensures that its folders of volumes are the right ones and stay so."""
    folders = [each for each in record.spec.volumes if each.subpath]
    if not folders:
        yield
        return
    made = await runtime()
    first = [{"whole": number, "part": None, "subpath": each.subpath} for number, each in enumerate(folders)]
    whole = [
        _mount(names.volume(each.volume), f"{_WHOLE}/{number}", read_only=False) for number, each in enumerate(folders)
    ]
    # First create missing folders, since the daemon mounts only existing ones. Then check what it mounted.
    await (await _checked(engine, names, made, first, whole, record)).release()
    second = [{**each, "part": each["whole"]} for each in first]
    parts = [
        _mount(names.part(record.id, number), f"{_PARTS}/{number}", read_only=True) for number in range(len(folders))
    ]
    helper = await _checked(engine, names, made, second, [*whole, *parts], record)
    try:
        yield
    finally:
        await helper.release()


async def _checked(
    engine: Engine,
    names: Names,
    runtime: Runtime,
    folders_asked: list[dict[str, Any]],
    mounted: list[dict[str, Any]],
    record: BoxRecord,
) -> Any:
    try:
        helper = await run_helper(engine, names, runtime, _OPEN, [json.dumps(folders_asked)], mounted)
    except EngineProblem as problem:
        raise ProviderRefused(f"the volumes of box {record.id} cannot be mounted: {problem.message}") from None
    for each, answer in zip(folders_asked, helper.answer, strict=True):
        if answer is not None:
            await helper.release()
            raise ProviderRefused(f"folder {each['subpath']} of a volume cannot be mounted: {answer}")
    return helper


async def remove_parts(engine: Engine, names: Names, id: str) -> None:
    for each in await engine.volumes(names.labels(Kind.PART, **{BOX: id})):
        with contextlib.suppress(EngineProblem):
            await engine.remove_volume(str(each["Name"]))
