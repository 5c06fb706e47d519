"""Errors of models, reported on the thread of the run: many agents say only that they try again."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

from holdfast.api.errors import Refused
from holdfast.runs.run_log import RunLog
from holdfast.threads.run_events import model_trouble

_REMEMBERED: Final = 1_000
_MAX_MESSAGE: Final = 500

log = logging.getLogger(__name__)


class ModelErrors:
    """Remembers the last error that was reported of each run: an agent that tries again meets the same one."""

    def __init__(self, run_log: RunLog) -> None:
        self._log = run_log
        self._reported: OrderedDict[str, str] = OrderedDict()

    async def report(self, thread: str, run: str, message: str) -> None:
        """Write on the thread why the model gives no answer, unless that was written last."""
        if self._reported.get(run) == message:
            return
        self._reported[run] = message
        while len(self._reported) > _REMEMBERED:
            self._reported.popitem(last=False)
        try:
            await self._log.append(thread, self._log.entry(model_trouble(run=run, message=message[:_MAX_MESSAGE])))
        except Refused as error:  # the agent gets its answer all the same
            log.warning("the error of a model could not be written on thread %s: %s", thread, error)
