"""What a runner is told: one JSON object over its standard input. Read once, checked by reading."""

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
    """Raises ValueError, KeyError or TypeError where it is none."""

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
        """Of the first request: the append that claimed the epoch was number 0."""
        self.url = str(document["url"])
        self.token = str(document["token"])
        self.argv = [str(each) for each in document["argv"]]
        self.driver: str | None = document.get("driver")
        """The harness whose driver is started, with `argv` as its arguments; None: `argv` is the command."""
        self.env = {str(name): str(value) for name, value in document["env"].items()}
        self.cwd = str(document["cwd"])
        self.stdin: str | None = document.get("stdin")
        self.abort_line: str | None = abort.get("stdin")
        self.abort_signal = int(abort.get("signal", 2))
        self.state = str(document["state"])
        self.seconds = float(limits.get("seconds", _RUNAWAY))
        self.timeout = int(limits.get("timeout", 0))
        """Seconds that the run may take, as was asked for; 0 is no end."""
        self.timeout_left = float(limits.get("timeout_left", self.timeout))
        """Those that are left of it when the agent starts."""
        self.patience = float(limits.get("patience", max(60.0, self.seconds)))
        """After those, how long a server may still stay away that has not taken the end."""
        self.grace = float(limits.get("grace", _GRACE))
        """How long what was asked to end may take before it is killed."""
        self.soft_end = float(limits.get("soft_end", _SOFT_END))
        """How long an agent that said it is done may take to exit."""
        self.journal = int(limits.get("journal", 1 << 30))
        """Bytes on disk that wait for the server, before the agent has to wait too."""
        self.memory = int(limits.get("memory", 2 << 20))
        """Bytes of them in memory."""
        self.beat = float(document.get("beat", _BEAT))


def parse(data: bytes) -> Config:
    return Config(json.loads(data))
