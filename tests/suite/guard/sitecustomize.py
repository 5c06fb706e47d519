"""Python loads this at its start in every process that a test starts: it notes what the test is not marked for.

See `tests/suite/needs.py`. Standard library only, and quick: it is called for every file that a process opens.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # which would take longer than all the rest

_EVENTS = frozenset({"os.mkdir", "subprocess.Popen", "holdfast.tests.agent"})


def _mark(event: str, arguments: tuple[Any, ...]) -> str | None:
    """The mark of what is about to happen."""
    if event == "os.mkdir":
        path = arguments[0]
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).split("/")[-3:-1] == ["local", "boxes"]:
            return "box"
    elif event == "subprocess.Popen":
        words = arguments[1]
        program = str(words[0] if isinstance(words, (list, tuple)) and words else words)
        if program.endswith("dockerd"):
            return "docker"
        if "/playwright/" in program:
            return "browser"
    elif event == "holdfast.tests.agent":
        return "agent"
    return None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS:
        _note(event, arguments)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    mark = _mark(event, arguments)
    folder = os.environ.get("TEST_MARKS_FOLDER")
    if mark is None or folder is None:
        return
    try:
        with open(os.path.join(folder, "allowed")) as allowed:
            if mark in allowed.read().split():
                return
        with open(os.path.join(folder, "missing"), "a") as missing:
            missing.write(f"{mark}\n")
    except OSError:
        return  # the tests are over


if "TEST_MARKS_FOLDER" in os.environ:
    sys.addaudithook(_watch)
