"""Encodes values and times for the session files of agents.

A session may have a hundred thousand messages. Rebuilding encodes each message at once and keeps only the bytes, so
that no parsed object stays in memory or under the garbage collector. The bytes are sliced or extended first, which
copies them: the buffers that orjson returns are several times larger.
"""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime
from typing import Any

import orjson

from holdfast.calendar_time import LAST


def written(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a number that is too large, or half of a surrogate pair
        return json.dumps(value).encode()


def iso(ts: int) -> str:
    """Formats a time in UTC milliseconds as agents do."""
    seconds, milliseconds = divmod(min(ts, LAST), 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


@functools.lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
