"""A sandbox at Modal lives a day at most. Its box lives on: its files are saved before, as a stopped box has them.

Saving disturbs no process, so it is done more than once: what changed after the last time is lost with the sandbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.providers.modal.records import BoxRecord, State
from holdfast.providers.modal.sandboxes import LIFETIME_SECONDS

_BEFORE_THE_END: Final = (3600, 1200, 300)
"""Seconds before its end at which the files of a sandbox are saved."""
_PAUSE_SECONDS: Final = 30.0
log = logging.getLogger(__name__)


def save_is_due(record: BoxRecord, now: int) -> bool:
    """Whether the files of a box are to be saved now. A save that failed is due again."""
    end = (record.started_at or record.created_at) + LIFETIME_SECONDS * 1000
    if record.state is not State.RUNNING or now >= end:
        return False
    begun = [end - seconds * 1000 for seconds in _BEFORE_THE_END if now >= end - seconds * 1000]
    return bool(begun) and record.kept_at < begun[-1]


async def keep_saving(save_due: Callable[[], Awaitable[None]]) -> None:
    """Save what is due, until this is cancelled."""
    while True:
        try:
            await save_due()
        except Exception:
            log.exception("the files of boxes at Modal were not saved")
        await asyncio.sleep(_PAUSE_SECONDS)
