"""The labels by which boxes are found again, by any process on any machine that asks their provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.api.boxes import Owner as Owner
from holdfast.boxes.errors import InvalidSpec

KEY: Final = "holdfast.key"
"""What the box was acquired for."""
SPEC: Final = "holdfast.spec"
"""Hash of the spec it was made from."""
TENANT: Final = "holdfast.tenant"
NODE: Final = "holdfast.node"
"""The machine (or home) whose store knows the box: others leave it alone."""
POOL: Final = "holdfast.pool"
"""Hash of the spec that a box was made ahead for. Nobody's yet; gone once it is handed over."""
POOL_OF: Final = "holdfast.pool.of"
"""What a box of the pool was made with: it is out of date where a new one would be made with something else."""
POOL_HOLDER: Final = "holdfast.pool.holder"
"""The process that keeps a box of the pool, as its lease names it."""
POOL_FURNISHED: Final = "holdfast.pool.furnished"
"""What was started in a box of the pool ahead, by the label of those who want it."""
HIBERNATION: Final = "holdfast.hibernation"
"""Id of the box that a snapshot was taken of when it fell asleep. It goes with the box, and with its next one."""
OWNER_THREAD: Final = "holdfast.owner.thread"
OWNER_ENVIRONMENT: Final = "holdfast.owner.environment"
RESERVED: Final = "holdfast."
"""Labels that start so are ours: callers cannot set them by hand."""


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
    """Whether all of `wanted` is among `labels`."""
    return all(labels.get(name) == value for name, value in wanted.items())


def refuse_reserved(labels: Mapping[str, str]) -> None:
    if reserved := sorted(name for name in labels if name.startswith(RESERVED)):
        raise InvalidSpec(f"label {reserved[0]} is reserved", hint=f"choose a name that does not begin {RESERVED}")
