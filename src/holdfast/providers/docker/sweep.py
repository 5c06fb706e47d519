"""Decides by labels which of Holdfast's objects at a Docker daemon are abandoned, and removes them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from holdfast.providers.docker.engine import Engine, EngineProblem, Removal
from holdfast.providers.docker.objects import BOX, KIND, MAKER, Kind, Maker, Names, is_abandoned

_UNFINISHED: Final = frozenset({"created"})
_LEAVING: Final = frozenset({"removing", "dead"})


def why_remove(
    id: str, state: str, labels: Mapping[str, str], keep: Collection[str] | None, me: Maker, now: float
) -> str | None:
    """Returns why the container of a box has to be removed, or None."""
    if state in _LEAVING:
        return "its deletion was interrupted"
    if state in _UNFINISHED:
        return "its creation was interrupted" if is_abandoned(labels.get(MAKER), me, now) else None
    if keep is not None and id not in keep:
        return "it is unknown to the server"
    return None


async def sweep_objects(engine: Engine, names: Names, me: Maker) -> tuple[list[str], int]:
    """Remove containers, volumes and images of objects that no longer exist."""
    now = time.time()
    removed: list[str] = []
    for each in await engine.containers(names.labels(Kind.HELPER)):
        if is_abandoned((each.get("Labels") or {}).get(MAKER), me, now):
            await engine.remove_container(str(each["Id"]))
            removed.append(f"container {each['Id'][:12]}: the operation that needed it was interrupted")
    # Boxes are listed last, so that a box created meanwhile keeps its volumes.
    beside = [await engine.volumes(names.labels(kind)) for kind in (Kind.PART, Kind.CHANGE)]
    boxes = {(each.get("Labels") or {}).get(BOX) for each in await engine.containers(names.labels(Kind.BOX))}
    for each in beside[0] + beside[1]:
        labels = each.get("Labels") or {}
        if labels.get(BOX) in boxes or (labels.get(KIND) == Kind.PART and not is_abandoned(labels.get(MAKER), me, now)):
            continue
        try:
            await engine.remove_volume(str(each["Name"]))
            removed.append(f"volume {each['Name']}: its box is gone")
        except EngineProblem:
            continue  # still in use
    freed = 0
    for each in await engine.images():
        labels = each.get("Labels") or {}
        kept = [tag for tag in each.get("RepoTags") or () if tag.startswith(names.kept_prefix)]
        if not kept or (labels.get(KIND) == Kind.FORK and not is_abandoned(labels.get(MAKER), me, now)):
            continue
        for tag in kept:
            if await engine.remove_image(tag) is Removal.DELETED:
                freed += int(each.get("Size") or 0)
                removed.append(f"image {tag}: it is not needed")
    return removed, freed
