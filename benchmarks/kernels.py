"""The other interpreters that ours is measured beside: a Jupyter kernel, and dspy's own, which has no sandbox.

Each is driven as its own library does it, in this process, and gives milliseconds.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    from dspy.primitives.local_interpreter import LocalInterpreter

_WAIT: Final = 120.0
PIECE: Final = 1 << 20
"""Bytes that the code of `printing` prints at once."""


def printing(pieces: int) -> str:
    """Code that prints so many pieces, each a line."""
    return f"line = 'x' * {PIECE - 1}\nfor _ in range({pieces}):\n    print(line)"


def resident(pid: int | str = "self", name: str = "VmRSS") -> float:
    """Megabytes of memory that a process has now, or (`VmHWM`) had at most."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_peak() -> None:
    """From here on, `VmHWM` of this process counts anew."""
    Path("/proc/self/clear_refs").write_text("5")


class Ipykernel:
    """The kernel that notebooks run on, with the client that they use."""

    def __init__(self) -> None:
        self._manager = KernelManager(kernel_name="python3")
        self._client: BlockingKernelClient | None = None

    def start(self) -> float:
        """Milliseconds until the first result."""
        began = time.perf_counter()
        self._manager.start_kernel(env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_WAIT)
        self.execute("1+1")
        return (time.perf_counter() - began) * 1000

    def execute(self, code: str) -> float:
        """Milliseconds until its result is here, and the kernel is idle again."""
        assert self._client is not None
        results: list[Any] = []
        began = time.perf_counter()
        reply = self._client.execute_interactive(
            code, store_history=False, timeout=_WAIT, output_hook=lambda message: results.append(message["msg_type"])
        )
        took = (time.perf_counter() - began) * 1000
        assert reply["content"]["status"] == "ok", reply["content"]
        assert results, "nothing came back"
        return took

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


class Local:
    """dspy's LocalInterpreter: a process of this machine, with all that its user may do."""

    def __init__(self) -> None:
        self.interpreter = LocalInterpreter()

    def start(self) -> float:
        """Milliseconds until the first result."""
        began = time.perf_counter()
        self.interpreter.start()
        self.execute("1+1")
        return (time.perf_counter() - began) * 1000

    def execute(self, code: str) -> float:
        began = time.perf_counter()
        assert self.interpreter.execute(code) is not None, "nothing came back"
        return (time.perf_counter() - began) * 1000

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interpreter.shutdown()
