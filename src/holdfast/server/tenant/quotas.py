"""What a tenant may use: requests, boxes, runs, storage and spending. Checks only; who asks decides what to do."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from holdfast.api.access.tenants import TenantQuotas
from holdfast.api.errors import QuotaExceeded, TooLarge, TooManyRequests
from holdfast.api.model.budgets import Budget

_BURST_SECONDS: Final = 2.0
_SIZE_SECONDS: Final = 5.0
"""How long a measured size counts."""
_RUN_SECONDS: Final = 15
_NOTE_BYTES: Final = 4096
_RUNS_SHARE: Final = 1.5
_OPERATOR: Final = "the operator of this server can allow more: holdfast tenant limit"


class Quotas:
    """The quotas of one tenant. They may change at any time: `find` returns them."""

    def __init__(self, find: Callable[[], TenantQuotas], database: Path, ticks: Callable[[], float]) -> None:
        self._find = find
        self._database = database
        self._ticks = ticks
        self._tokens = 0.0
        self._counted_at: float | None = None
        self._size = 0
        self._measured_at: float | None = None

    def take_request(self) -> None:
        """Count a request. Raises `TooManyRequests`, with the time after which to try again."""
        rate = self._find().requests
        if rate is None:
            return
        now, most = self._ticks(), max(1.0, rate * _BURST_SECONDS)
        since = now - self._counted_at if self._counted_at is not None else math.inf
        self._tokens = min(most, self._tokens + since * rate)
        self._counted_at = now
        if self._tokens < 1:
            wait = math.ceil((1 - self._tokens) / rate)
            raise TooManyRequests(
                f"this tenant may send {rate:g} requests a second",
                hint=f"send them more slowly; {_OPERATOR}",
                headers=((b"retry-after", b"%d" % wait),),
            )
        self._tokens -= 1

    def check_box(self, live: int) -> None:
        """Raises `QuotaExceeded` if the tenant may not have another box."""
        most = self._find().boxes
        if most is not None and live >= most:
            raise QuotaExceeded(
                f"this tenant may have {most} {'box' if most == 1 else 'boxes'}, and has {live}",
                hint=f"delete one with holdfast box delete; {_OPERATOR}",
            )

    async def check_run(self, count: Callable[[], Awaitable[int]]) -> None:
        """Raises `TooManyRequests` if the tenant may not have another run now."""
        most = self._find().runs
        if most is not None and (going := await count()) >= most:
            raise TooManyRequests(
                f"this tenant may have {most} {'run' if most == 1 else 'runs'} at once, and has {going}",
                hint=f"wait until one ends, or cancel one; {_OPERATOR}",
                headers=((b"retry-after", b"%d" % _RUN_SECONDS),),
            )

    def check_storage(self) -> None:
        """Raises `QuotaExceeded` if the tenant has stored as much as it may. It can still read and delete."""
        most = self._find().storage
        if most is not None and (size := self._measured()) >= most:
            raise QuotaExceeded(
                f"this tenant may store {most} bytes, and has stored {size}",
                hint=f"delete threads with holdfast thread delete; {_OPERATOR}",
            )

    def check_append(self, size: int) -> None:
        """Raises `TooLarge` if a runner may not add so many bytes. It writes a note in their place.

        Runs that are going lose nothing when the tenant has stored as much as it may. But a box can write without an
        end, so that is over when it has stored half more. Notes and the end of a run are always written.
        """
        most = self._find().storage
        if most is not None and size > _NOTE_BYTES and self._measured() >= most * _RUNS_SHARE:
            raise TooLarge(f"this tenant may store {most} bytes, and has stored half more", hint=_OPERATOR)

    @property
    def day_budget(self) -> Budget | None:
        """What models may cost in a day at most."""
        spend = self._find().spend
        return None if spend is None else Budget(cost=spend)

    def _measured(self) -> int:
        now = self._ticks()
        if self._measured_at is None or now - self._measured_at >= _SIZE_SECONDS:
            self._measured_at = now
            try:
                self._size = os.stat(self._database).st_size  # noqa: PTH116 - the path is made once
            except OSError:
                self._size = 0
        return self._size
