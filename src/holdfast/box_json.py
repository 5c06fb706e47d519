"""Parses JSON that a box wrote. Its size and the number of its values are limited.

Parsing holds up everything else in the process, also on another thread. Many small values take the longest: a few
megabytes of them take seconds, which a box could cause again and again.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

MOST_BYTES: Final = 1024 * 1024
MOST_VALUES: Final = 100_000


def parse(data: bytes | bytearray, *, most_bytes: int = MOST_BYTES, most_values: int = MOST_VALUES) -> Any:
    """Raises `ValueError` if it is too large, has too many values, or is not valid JSON.

    Values are counted by what separates them, before anything is parsed. So commas and brackets in texts count, too.
    """
    if len(data) > most_bytes:
        raise ValueError(f"it has {len(data)} bytes, and at most {most_bytes} are read")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > most_values:
        raise ValueError(f"it has more than {most_values} values")
    return orjson.loads(data)
