"""How the session files of agents are written: values, and times.

A session may have a hundred thousand messages. What makes one again takes a message and keeps it as it will be written:
then nothing that was parsed outlives its turn, neither in memory nor in the sight of the garbage collector. What is
kept is cut or added to first, and so copied: what orjson gives leaves a hole of several times its size behind it.
"""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime
from typing import Any

import orjson


def written(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a number that is too large, or half of a surrogate pair
        return json.dumps(value).encode()


def iso(ts: int) -> str:
    """A time in UTC milliseconds, as agents write it."""
    seconds, milliseconds = divmod(ts, 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


@functools.lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
