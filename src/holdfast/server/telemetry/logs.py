"""Structured logs: lines of JSON for programs, short lines on a terminal. Secrets are redacted."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import Final, TextIO

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

_SECRETS: Final = re.compile(
    r"(?P<name>\b(?:holdfast_)?token=|\bBearer\s+|\bbearer\s+)[^\s&\"']+|\bhf[osv]?_(?:[a-z][a-z0-9]{0,15}\.)?[A-Za-z0-9_-]{8,}|\beyJ[\w-]+\.[\w-]+\.[\w-]+"
)


def redact(text: str) -> str:
    return _SECRETS.sub(lambda match: f"{match['name'] or ''}[redacted]", text)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if (id := getattr(record, "request_id", None) or request_id.get()) is not None:
            line["requestId"] = id
        for name in ("method", "path", "status", "ms"):
            if (value := getattr(record, name, None)) is not None:
                line[name] = redact(value) if isinstance(value, str) else value
        if record.exc_info:
            line["error"] = redact(self.formatException(record.exc_info))
        return json.dumps(line)


class PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{when} {record.levelname.lower():<7} {_visible(record.getMessage())}"
        if record.exc_info:
            text += "\n" + "\n".join(map(_visible, self.formatException(record.exc_info).split("\n")))
        return redact(text)


def _visible(line: str) -> str:
    """One line for a terminal. Clients choose the paths that are logged, which must neither control the terminal nor
    start a new line."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


def configure(level: str, stream: TextIO | None = None) -> None:
    """Log to standard error, in the form for a terminal or a program."""
    # Neither form has these, and finding them out takes longer than the rest of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(PlainFormatter() if target.isatty() else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))
