"""Converts box records to the types of the box contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from holdfast.api.box.box import BoxInfo, Power
from holdfast.api.box.records import TOMBSTONES, BoxRecord, BoxState
from holdfast.api.errors.boxes import BoxGone

_STOPPED: Final = frozenset({BoxState.STOPPED, BoxState.STARTING, BoxState.HIBERNATED, BoxState.WAKING})


def power_of(record: BoxRecord) -> Power:
    """Raises `BoxGone` if the box is gone."""
    if record.state in TOMBSTONES or record.state is BoxState.DELETING:
        why = f": {record.ended_why}" if record.ended_why else ""
        raise BoxGone(f"box {record.id} is {record.state}{why}")
    if record.state is BoxState.PAUSED:
        return Power.PAUSED
    return Power.STOPPED if record.state in _STOPPED else Power.RUNNING


def info_of(record: BoxRecord, env: Mapping[str, str] | None = None) -> BoxInfo:
    """Raises `BoxGone` if the box is gone. Servers do not return the values of `env`: they are as given, or empty."""
    spec, power = record.spec.to_spec(), power_of(record)
    if env is not None:
        spec = replace(spec, env=dict(env))
    return BoxInfo(record.id, record.provider, spec, record.labels, power, record.created_at, record.snapshot)
