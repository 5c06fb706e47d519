"""The volume of an interpreter, where it is mounted, and its folders.

Only files on the volume outlive a box. Nothing is copied there automatically.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.files import FileKind
from holdfast.api.box.spec import BoxSpec, VolumeMount
from holdfast.api.errors.boxes import FileProblem, NoSpace
from holdfast.api.errors.interpreters import InvalidInterpreter, WorkspaceFailed

MEMORY: Final = "/home/box/memory"
"""Where boxes of interpreters mount their volume."""
FOLDERS: Final = ("memory", "artifacts", "buffers", "meta")
_READABLE: Final = 20
_LONGEST: Final = 256


def volume_name(tenant: str, workspace: str) -> str:
    """The name of the volume of a workspace. All its users share it; different workspaces have different volumes."""
    for what, value in (("tenant", tenant), ("workspace", workspace)):
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
            raise InvalidInterpreter(f"{what} {str(value)[:80]!r} must be a text of 1 to {_LONGEST} characters")
    # The names are shortened for people; only the digest distinguishes volumes. Its input is unambiguous.
    unique = f"{len(tenant)}:{tenant}{workspace}"
    digest = hashlib.sha256(unique.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return "-".join((*(_cleaned(each) for each in (tenant, workspace)), digest))


def _cleaned(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_READABLE].strip("-") or "x"


def mount(volume: str, subpath: str = "") -> VolumeMount:
    """Mount a volume, or a folder of it, where interpreters expect it."""
    return VolumeMount(volume, MEMORY, subpath)


def with_volume(spec: BoxSpec, volume: str | None, subpath: str = "") -> BoxSpec:
    """Replace the volume of a spec."""
    others = tuple(each for each in spec.volumes if each.path != MEMORY)
    return replace(spec, volumes=others if volume is None else (*others, mount(volume, subpath)))


def volume_of(volumes: Sequence[VolumeMount]) -> VolumeMount | None:
    return next((each for each in volumes if each.path == MEMORY), None)


async def make_folders(box: Box) -> None:
    """Create the folders of a volume. Existing content stays."""
    for folder in FOLDERS:
        path = f"{MEMORY}/{folder}"
        try:
            await box.files.mkdir(path)
            found = await box.files.stat(path)
        except NoSpace:
            raise
        except FileProblem as error:
            raise _unusable(path, error.message) from error
        if found.kind is not FileKind.FOLDER:
            # A link made by one box would lead the next box elsewhere.
            raise _unusable(path, f"it is a {found.kind}")


def _unusable(path: str, why: str) -> WorkspaceFailed:
    return WorkspaceFailed(
        f"{path} of the volume cannot be used as a folder: {why}",
        hint=f"move what is at {path} away, or use another volume",
    )
