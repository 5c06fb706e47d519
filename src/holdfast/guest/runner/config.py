"""The configuration of a runner: one JSON object on its standard input. Parsing it is the check."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GRACE = 5.0
_SOFT_END = 2.0
_BEAT = 5.0
_RUNAWAY = 3 * 24 * 3600.0


class Config:
    """Raises ValueError, KeyError or TypeError if the document is not valid."""

    def __init__(self, document: dict[str, Any]) -> None:
        limits = document.get("limits") or {}
        abort = document.get("abort") or {}
        self.run = str(document["run"])
        self.thread = str(document["thread"])
        self.agent = str(document["agent"])
        self.reader = str(document["reader"])
        self.model = str(document.get("model", "NAME"))
        """The name of its model, for hints."""
        self.epoch = int(document["epoch"])
        self.seq = int(document.get("seq", 1))
        """The number of the first request. The append that claimed the epoch was number 0."""
        self.url = str(document["url"])
        self.token = str(document["token"])
        self.argv = [str(each) for each in document["argv"]]
        self.driver: str | None = document.get("driver")
        """The harness whose driver is started with `argv` as its arguments. None: `argv` is the command."""
        self.env = {str(name): str(value) for name, value in document["env"].items()}
        self.cwd = str(document["cwd"])
        self.stdin: str | None = document.get("stdin")
        self.abort_line: str | None = abort.get("stdin")
        self.abort_signal = int(abort.get("signal", 2))
        self.state = str(document["state"])
        self.seconds = float(limits.get("seconds", _RUNAWAY))
        self.timeout = int(limits.get("timeout", 0))
        """The requested time limit of the run in seconds; 0 means no limit."""
        self.timeout_left = float(limits.get("timeout_left", self.timeout))
        """What is left of it when the agent starts."""
        self.patience = float(limits.get("patience", max(60.0, self.seconds)))
        """How long to wait after that for a server that has not accepted the end."""
        self.grace = float(limits.get("grace", _GRACE))
        """How long a process that was asked to exit may take before it is killed."""
        self.soft_end = float(limits.get("soft_end", _SOFT_END))
        """How long an agent that reported it is done may take to exit."""
        self.journal = int(limits.get("journal", 1 << 30))
        """How many bytes may wait on disk for the server before the agent has to wait too."""
        self.memory = int(limits.get("memory", 2 << 20))
        """How many of these bytes are kept in memory."""
        self.beat = float(document.get("beat", _BEAT))


def parse(data: bytes) -> Config:
    return Config(json.loads(data))
