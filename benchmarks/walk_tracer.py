"""Runs a Python module as a program, and records which functions of a folder's files are called.

    python walk_tracer.py FOLDER OUTPUT MODULE [ARGUMENT ...]

When the program ends, the functions are written to OUTPUT, each on a line: `package/file.py Class.method`. Until then
OUTPUT.sock is a socket. Each connection gets the functions since the connection before it, so that a server can be
asked after every command.
"""

from __future__ import annotations

import atexit
import inspect
import os
import runpy
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class Tracer:
    """Records calls in all threads of this process, for good.

    The code of modules and classes is no call, and what it calls is left out: it runs once, when a module is imported.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder.resolve()}{os.sep}"
        self._called: dict[int, CodeType] = {}

    def start(self) -> None:
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            threading.setprofile(self._profile)
            sys.setprofile(self._profile)
            return
        tool, events = monitoring.PROFILER_ID, monitoring.events
        monitoring.use_tool_id(tool, "walks")
        on_call: Callable[[CodeType, int], None] = lambda code, _: self._record(code)  # noqa: E731
        monitoring.register_callback(tool, events.PY_START, on_call)
        monitoring.register_callback(tool, events.PY_RESUME, on_call)
        monitoring.set_events(tool, events.PY_START | events.PY_RESUME)

    def take(self) -> list[str]:
        """Returns the functions since the last call, with their files relative to the folder."""
        called, self._called = self._called, {}
        return sorted({f"{code.co_filename.removeprefix(self._folder)} {code.co_qualname}" for code in called.values()})

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._record(frame.f_code)

    def _record(self, code: CodeType) -> None:
        # By id: Python computes the hash of code from all its parts, each time.
        if id(code) not in self._called and code.co_filename.startswith(self._folder) and not _is_importing():
            self._called[id(code)] = code


def _is_importing() -> bool:
    """Whether the code of a module or a class is running, except for that of the program itself."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


def _answer(tracer: Tracer, listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall("\n".join(tracer.take()).encode())


def main() -> None:
    folder, output, module, *arguments = sys.argv[1:]
    tracer = Tracer(Path(folder))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{output}.sock")
    listener.listen()
    threading.Thread(target=_answer, args=(tracer, listener), daemon=True).start()
    atexit.register(lambda: Path(output).write_text("\n".join(tracer.take())))
    tracer.start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
