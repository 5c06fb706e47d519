"""The labels that identify a box. Any process on any machine can find the box by asking its provider for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.api.box.records import OWNER_ENVIRONMENT, OWNER_THREAD, RESERVED, Owner
from holdfast.api.errors.boxes import InvalidSpec

KEY: Final = "holdfast.key"
"""The key that the box was acquired for."""
SPEC: Final = "holdfast.spec"
"""Hash of the spec that the box was created from."""
TENANT: Final = "holdfast.tenant"
NODE: Final = "holdfast.node"
"""The machine (or home) whose store knows the box. Other nodes leave it alone."""
POOL: Final = "holdfast.pool"
"""Hash of the spec of a box in the pool. Removed when the box is handed over."""
POOL_OF: Final = "holdfast.pool.of"
"""Version of what a box of the pool was created with. The box is out of date if a new one would get another."""
POOL_HOLDER: Final = "holdfast.pool.holder"
"""The process whose pool has the box, as named in its lease."""
POOL_FURNISHED: Final = "holdfast.pool.furnished"
"""What was started in a box of the pool, as the label of the specs that want it."""
POOL_SNAPSHOT: Final = "holdfast.pool.snapshot"
"""The snapshot that a box of the pool was restored from. Boxes with other files, or none, are not interchangeable."""
HIBERNATION: Final = "holdfast.hibernation"
"""Id of the box that hibernated with this snapshot. Deleted with the box, or when it hibernates again."""
CHECKPOINT: Final = "holdfast.checkpoint"
"""What a snapshot was taken for: the run that had ended, or the rewind that followed."""
BASE: Final = "holdfast.base"
"""Why the box of a key was started from given files (`BaseFiles`). Its snapshots carry it too."""
BASE_LOST: Final = "holdfast.base.lost"
"""The box has the label `BASE`, but was started without these files: their snapshot is gone."""

SERVICES: Final = "environment-services"
"""The box has services that its runs start again. What they listen on does not keep it from being idle."""
WORKSTATION: Final = "workstation"
"""The box has a desktop and an editor, which are started with it. The pool starts them ahead."""
MOVED_FROM: Final = "holdfast.moved.from"
"""Id of the box whose files this one took over."""
MOVED_KEY: Final = "holdfast.moved.key"
"""The key that the box took over. It has the key once the move is recorded, or the box it came from is gone."""


def owner_labels(owner: Owner) -> dict[str, str]:
    labels = {TENANT: owner.tenant}
    if owner.thread is not None:
        labels[OWNER_THREAD] = owner.thread
    if owner.environment is not None:
        labels[OWNER_ENVIRONMENT] = owner.environment
    return labels


def owner_of(labels: Mapping[str, str]) -> Owner:
    return Owner(labels.get(TENANT, "default"), labels.get(OWNER_THREAD), labels.get(OWNER_ENVIRONMENT))


def matches(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Returns whether `labels` contain all of `wanted`."""
    return all(labels.get(name) == value for name, value in wanted.items())


def refuse_reserved(labels: Mapping[str, str]) -> None:
    if reserved := sorted(name for name in labels if name.startswith(RESERVED)):
        raise InvalidSpec(f"label {reserved[0]} is reserved", hint=f"choose a name that does not start with {RESERVED}")
