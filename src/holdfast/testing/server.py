"""A real server in its own process, which can be started, stopped, killed and restarted on the same home.

Servers are forked from an interpreter that has imported everything (see `fork_server`). Only the first start in a
process is slow; later ones take a few hundredths of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from holdfast.client.local_server import RunningServer, read_running
from holdfast.server.config import Settings
from holdfast.testing.clock import ShiftedClocks
from holdfast.testing.fork_server import Template, forks, leave, start_template

if TYPE_CHECKING:
    from holdfast.server.components import FindAgent
    from holdfast.server.tenant.core import MakeOutside, OpenProviders

_LOG_SHOWN: Final = 6_000
_LOADED_LATER: Final = ("boxes", "egress", "providers.local", "runs", "server", "storage")
"""Packages that a server imports in the background once it answers, or with its first box."""


class ServerFailed(Exception):
    """The server did not start, did not stop, or exited on its own. The message has the end of its log."""


class ServerProcess:
    """A server and its process. `with` and `async with` start and stop it.

    It owns the process and the log file, but not the home: what the server wrote stays there for inspection. The port
    is chosen at the first start and kept across restarts. `settings` are fields of `server.config.Settings`.

    `providers` opens the box providers instead of the installed ones. It must be a function of a module, which the
    server's process loads again. `outside`, also such a function, makes what boxes can reach beyond the server: nothing
    by default. `agents` finds agents instead of the registry. `clocks` replaces the server's clocks.

    `command` is put before the interpreter, to run the server inside something else. If the home has another path from
    outside, that is `home_here`. `patience` is how many seconds a start or a stop may take.
    """

    def __init__(
        self,
        home: Path,
        *,
        port: int = 0,
        log: Path | None = None,
        command: Sequence[str] = (),
        home_here: Path | None = None,
        patience: float = 60.0,
        providers: OpenProviders | None = None,
        outside: MakeOutside | None = None,
        clocks: ShiftedClocks | None = None,
        agents: FindAgent | None = None,
        **settings: Any,
    ) -> None:
        self.home = home
        self.log = log or home.with_name(f"{home.name}.log")
        # No boxes made in advance: a test that kills its server would leave them behind.
        self._settings = Settings(home=home, port=port, **{"pool": 0, **settings})
        self.command = tuple(command)
        self.home_here = home_here or home
        self._patience = patience
        self._providers = providers
        self._outside = outside
        self._clocks = clocks
        self._agents = agents
        self._template: Template | None = None
        self._pid: int | None = None
        """Process id of the server, from its start until its exit is noticed."""
        self._running: RunningServer | None = None
        self._reservation: socket.socket | None = None

    # --- properties ---

    @property
    def url(self) -> str:
        return self._announced().url

    @property
    def api_key(self) -> str | None:
        """A key that is valid for this run of the server, or None if it requires no keys."""
        return self._announced().api_key

    @property
    def pid(self) -> int:
        if self._pid is None:
            raise RuntimeError("this server is not running: start it first")
        return self._pid

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for sockets."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    def read_log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.log.read_text(errors="replace")
        return ""

    # --- lifecycle ---

    def start(self) -> None:
        """Start the server, and return when it answers."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the server, and return when it is about to open its home."""
        if self._pid is not None:
            raise RuntimeError("this server is already running: stop or kill it first")
        if self._template is None:
            self._template = start_template(self.command, self.log)
            self._expect("prepared")
        if sys.platform != "linux":
            self._release_port()
        clocks = None if self._clocks is None else str(self._clocks.file)
        places = {
            "providers": _place(self._providers),
            "outside": _place(self._outside),
            "clocks": clocks,
            "agents": _place(self._agents),
        }
        self._template.tell(json.dumps({**asdict(self._settings), "home": str(self.home), **places}))
        self._pid = int(self._expect("pid"))

    def wait_ready(self) -> None:
        """Wait until a launched server answers."""
        self._expect("ready")
        self._running = read_running(self.home_here)
        if self._running is None:
            raise self._failed("it did not write its address")
        self._settings = replace(self._settings, port=self.address[1])
        self._release_port()

    def stop(self) -> None:
        """Stop the server with SIGTERM, and wait until it has exited."""
        if self._pid is None:
            return
        self._check_alive()
        self._signal(self._pid, signal.SIGTERM)
        try:
            code = int(self._expect("ended"))
        except ServerFailed:
            self.kill()
            raise self._failed(f"it did not stop within {self._patience:g} s of SIGTERM") from None
        self._note_end()
        if code:
            raise self._failed(f"it did not stop cleanly ({_ending(code)})")

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._pid is None:
            return
        self._check_alive()
        self._signal(self._pid, signal.SIGKILL)
        while not (said := self._listen()).startswith("ended"):
            if not said:
                raise self._failed(f"it did not end within {self._patience:g} s of SIGKILL")
            # It may have reported that it is ready before.
        self._note_end()

    @staticmethod
    def _signal(pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended, and that is about to be reported
            os.kill(pid, number)

    def restart(self) -> None:
        """Stop the server, and start it on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server if it is running, and release everything. It can be started again."""
        try:
            self.stop()
        finally:
            self._release_port()
            if self._template is not None:
                self._template.close()
                self._template = None
                self._pid = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            with contextlib.suppress(ServerFailed):
                self.kill()
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # The error that brings us here matters more than how the server ends.
        with contextlib.suppress(ServerFailed):
            self.close()
        error.add_note(self._log_excerpt())

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    # --- talking to the child ---

    def _announced(self) -> RunningServer:
        if self._running is None:
            raise RuntimeError("this server has not been started")
        return self._running

    def _expect(self, word: str) -> str:
        """Wait for this word. Returns what follows it."""
        said = self._listen()
        name, _, value = said.partition(" ")
        if name == word:
            return value
        if name == "ended":
            self._note_end()
            raise self._failed(f"it exited on its own ({_ending(int(value))})")
        raise self._failed(
            f"it said {said!r} instead of {word!r}" if said else f"no {word!r} from it within {self._patience:g} s"
        )

    def _listen(self) -> str:
        assert self._template is not None
        return self._template.listen(time.monotonic() + self._patience)

    def _check_alive(self) -> None:
        assert self._template is not None
        said = self._template.listen(0.0)
        if said.startswith("ended"):
            self._note_end()
            raise self._failed(f"it exited on its own ({_ending(int(said.partition(' ')[2]))})")

    def _failed(self, how: str) -> ServerFailed:
        return ServerFailed(f"the server on {self.home} failed: {how}\n{self._log_excerpt()}")

    def _log_excerpt(self) -> str:
        text = self.read_log()
        return f"the server's log ({self.log}) ends with:\n{text[-_LOG_SHOWN:]}" if text else "its log is empty"

    def _note_end(self) -> None:
        self._pid = None
        self._reserve_port()

    def _reserve_port(self) -> None:
        """Keep the port while the server is down. Otherwise the system could use it for another connection.

        On Linux, a socket that does not listen can share its port with the next server.
        """
        if self._reservation is not None or self._running is None or sys.platform != "linux":
            return
        host, port = self.address
        reservation = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reservation.bind((host, port))
        except OSError:
            reservation.close()
        else:
            self._reservation = reservation

    def _release_port(self) -> None:
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _main() -> None:
    """Run as a template or, with a socket's descriptor as the argument, as the process that forks templates."""
    from holdfast.server.compose import open_providers, serve
    from holdfast.testing.outside import nowhere

    def run(told: bytes) -> None:
        values = json.loads(told)
        opens = _function(values.pop("providers"), open_providers)
        makes = _function(values.pop("outside"), nowhere)
        finds = _function(values.pop("agents"), None)
        clocks = None if (file := values.pop("clocks")) is None else ShiftedClocks(Path(file)).clocks()
        threading.Thread(target=_stop_with_parent, name="stop-with-parent", daemon=True).start()
        serve(
            Settings(**{**values, "home": Path(values["home"])}), lambda *_: _say("ready"), opens, makes, clocks, finds
        )

    if len(sys.argv) == 1:
        _fork_servers(run)
        return
    _load(_LOADED_LATER)
    gc.freeze()  # what is loaded stays: no fork looks through it, and copies it by that
    for _ in forks(int(sys.argv[1])):
        _fork_servers(run)
        leave()


def _load(packages: Sequence[str]) -> None:
    """Import whole packages, so that forks do not have to."""
    for name in packages:
        package = importlib.import_module(f"holdfast.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def _fork_servers(run: Callable[[bytes], None]) -> None:
    """Run as a template: fork a server for every line of settings, and report how each of them exits."""
    _say("prepared")
    while told := sys.stdin.buffer.readline():
        pid = os.fork()
        if not pid:
            _say(f"pid {os.getpid()}")
            run(told)
            leave()
        _, status = os.waitpid(pid, 0)
        _say(f"ended {os.waitstatus_to_exitcode(status)}")


def _place(function: Any) -> tuple[str, str] | None:
    """Returns the file and name of a function, so that another process can load it."""
    return None if function is None else (inspect.getfile(function), getattr(function, "__name__", ""))


def _function(place: list[str] | None, otherwise: Any) -> Any:
    """Load a function from a file, which need not be on the module path."""
    if place is None:
        return otherwise
    file, name = place
    spec = importlib.util.spec_from_file_location("holdfast_under_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def _stop_with_parent() -> None:
    """Stop the server when the test process that started it exits."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    _main()
