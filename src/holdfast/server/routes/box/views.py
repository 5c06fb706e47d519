"""Converts boxes, files and processes to API types. Values of `env` are never included."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import fields, replace

from holdfast.api.box import box
from holdfast.api.box.files import FileInfo
from holdfast.api.box.process import ProcessInfo
from holdfast.api.box.records import BoxOwner, BoxRecord, MovedBox, Owner, Pruned, RemovedBox, ShownSpec, Step, Steps
from holdfast.api.box.spec import BoxSpec
from holdfast.api.box.usage import BoxMetrics, BoxUsage
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service import sweep
from holdfast.boxes.service.move import Moved
from holdfast.server.telemetry import box_metrics


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidSpec(f"stdin is not base64: {error}") from None


def shown(text: str) -> str:
    """File names and arguments in a box are bytes. Bytes that are not UTF-8 are replaced, for JSON."""
    return text.encode("utf-8", "replace").decode()


def chosen_owner(owner: BoxOwner) -> Owner:
    return Owner(thread=owner.thread, environment=owner.environment)


def box_record(row: BoxRow) -> BoxRecord:
    return BoxRecord(
        id=row.id,
        node=row.node,
        provider=row.provider,
        key=row.key,
        state=row.state,
        lifetime=row.lifetime,
        spec=_spec(row.spec),
        labels=dict(row.labels),
        owner=row.owner,
        created_at=row.created_at,
        changed_at=row.changed_at,
        last_active_at=row.last_active_at,
        ended_at=row.ended_at,
        ended_why=row.ended_why,
        freed=row.freed,
        snapshot=row.snapshot,
    )


def _spec(spec: BoxSpec) -> ShownSpec:
    shared = {each.name: getattr(spec, each.name) for each in fields(ShownSpec) if each.name not in ("env", "hash")}
    return ShownSpec(**shared, env=tuple(sorted(spec.env)), hash=spec.hash)


def moved(found: Moved) -> MovedBox:
    return MovedBox(
        box=box_record(found.row),
        moved_from=found.source.id,
        kept=found.kept,
        entries=found.entries,
        bytes=found.bytes,
    )


def pruned(found: sweep.Pruned) -> Pruned:
    return Pruned(
        removed=tuple(RemovedBox(id=each.id, why=each.why, freed=each.freed) for each in found.removed),
        gone=tuple(found.gone),
        leftovers=tuple(map(shown, found.leftovers)),
        failed=tuple(map(shown, found.failed)),
        freed=found.freed,
    )


def metrics(found: box.Metrics) -> BoxMetrics:
    return BoxMetrics(**{each.name: getattr(found, each.name) for each in fields(BoxMetrics)})


def usage(found: box_metrics.BoxUsage) -> BoxUsage:
    row = found.row
    return BoxUsage(
        id=row.id,
        provider=row.provider,
        key=row.key,
        state=row.state,
        thread=row.owner.thread,
        environment=row.owner.environment,
        last_active_at=row.last_active_at,
        sampled_at=found.at,
        cpu_limit=row.spec.cpu,
        memory_limit=row.spec.memory,
        metrics=None if found.metrics is None else metrics(found.metrics),
    )


def steps(found: Iterable[Step]) -> Steps:
    return Steps(steps=tuple(replace(each, detail=shown(each.detail)) for each in found))


def process_info(info: ProcessInfo) -> ProcessInfo:
    return replace(info, argv=tuple(map(shown, info.argv)))


def file_info(info: FileInfo) -> FileInfo:
    return replace(info, path=shown(info.path), target=None if info.target is None else shown(info.target))


def label_filter(labels: list[str]) -> dict[str, str]:
    """Parse the `name:value` pairs of a query."""
    wanted = {}
    for label in labels:
        name, colon, value = label.partition(":")
        if not colon or not name:
            raise InvalidSpec(f"label {label!r}: should be name:value")
        wanted[name] = value
    return wanted
