"""Tells a thread why the model of its run gives no answer, where an agent would only say that it tries again."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

from holdfast.runs.run_log import RunLog
from holdfast.threads.errors import StreamError
from holdfast.threads.run_events import model_trouble

_REMEMBERED: Final = 1_000
_MAX_MESSAGE: Final = 500

log = logging.getLogger(__name__)


class ModelTrouble:
    """Of each run, remembers what was told last: an agent that tries again finds the same trouble."""

    def __init__(self, run_log: RunLog) -> None:
        self._log = run_log
        self._told: OrderedDict[str, str] = OrderedDict()

    async def tell(self, thread: str, run: str, message: str) -> None:
        if self._told.get(run) == message:
            return
        self._told[run] = message
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        try:
            await self._log.append(thread, self._log.entry(model_trouble(run=run, message=message[:_MAX_MESSAGE])))
        except StreamError as error:  # the agent gets its answer all the same
            log.warning("thread %s is not told of the trouble of its model: %s", thread, error)
