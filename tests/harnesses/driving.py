"""Drives a real agent on this machine as a runner would in a box: its files, command and reader. No box, no server.

with Driven(harness, task) as agent:
    agent.wait_for("assistant")
    agent.abort()
    agent.finish()
agent.outcome, agent.payloads, agent.of("tool")
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from tests.agents import InstalledAgents

from holdfast.guest.agent_reader import Reader
from holdfast.harnesses.harness import (
    AbortByLine,
    AbortBySignal,
    Api,
    Command,
    Harness,
    ModelAccess,
    Place,
    Rebuilt,
    Task,
)
from holdfast.testing.model import ScriptedModel

PATIENCE: Final = 240.0
TOKEN: Final = "eyJ-token.of.a-run"
_GRACE: Final = 2.0
_SOURCE: Final = Path(__file__).parents[2] / "src"

Payload = dict[str, Any]


class Driven:
    """One run of an agent. Leaving the context ends the agent and everything that it started."""

    def __init__(self, harness: Harness, task: Task, *, rebuilt: Rebuilt | None = None) -> None:
        self.harness = harness
        self.task = task
        self.payloads: list[Payload] = []
        self.lines: list[bytes] = []
        self.exit_code: int | None = None
        self.outcome: dict[str, Any] = {}
        self.stderr = b""
        self.reader: Reader = importlib.import_module(f"holdfast.harnesses.{harness.name}.reader").Reader()
        self._rebuilt = rebuilt
        self._mark = f"HOLDFAST_RUN=driven-{uuid4().hex}"
        self._changed = threading.Condition()
        self._over = False

    def __enter__(self) -> Self:
        place = self.task.place
        for folder in (place.workspace, place.state):
            Path(folder).mkdir(parents=True, exist_ok=True)
        files = dict(self.harness.files(self.task))
        if self._rebuilt is not None:
            files.update(self._rebuilt.files)
        write_files(files)
        command = self.harness.command(self.task)
        environment = self._environment(command)
        if self._rebuilt is not None:
            for argv in self._rebuilt.commands:
                subprocess.run(
                    argv, cwd=place.workspace, env=environment, check=True, capture_output=True, timeout=PATIENCE
                )
        self._command = command
        takes_lines = isinstance(command.abort, AbortByLine)
        self.process = subprocess.Popen(
            self._argv(command),
            cwd=place.workspace,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write((command.stdin or "").encode())
            self.process.stdin.flush()
        if not takes_lines:
            self._close_stdin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_tree()
        self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        self._close_stdin()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.process.stderr is not None:
            self.process.stderr.close()

    # --- what a run does to an agent ---

    def abort(self) -> None:
        """End its turn in its own way."""
        match self._command.abort:
            case AbortByLine(line):
                assert self.process.stdin is not None
                self.process.stdin.write(line.encode() + b"\n")
                self.process.stdin.flush()
            case AbortBySignal(number):
                self.kill(number)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """A signal to the agent alone, not to its tools."""
        self.process.send_signal(number)

    def finish(self, patience: float = PATIENCE) -> Self:
        """Wait for the agent's end, by its own word or by its exit, and judge it."""
        end = time.monotonic() + patience
        with self._changed:
            if not self._changed.wait_for(lambda: self.reader.ended or self._over, patience):
                raise TimeoutError(f"the agent did not end; it said:\n{self.said()}")
        self._close_stdin()
        try:
            self.process.wait(_GRACE if self.reader.ended else max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            if not self.reader.ended:
                raise TimeoutError(f"the agent did not exit; it said:\n{self.said()}") from None
            self.end_tree()
            self.process.wait(PATIENCE)
        self.end_tree()  # a tool that outlived it may hold its output open
        for thread in self._threads:
            thread.join(PATIENCE)
        self.exit_code = self.process.returncode
        self.payloads += self.reader.close()
        self.outcome = self.reader.outcome(self.exit_code)
        json.dumps(self.payloads, ensure_ascii=False).encode()  # all of it can be posted
        return self

    # --- what it said ---

    def wait_for(
        self, kind: str, holds: Callable[[Payload], bool] = lambda _: True, patience: float = PATIENCE
    ) -> Payload:
        """The first payload of this kind that holds."""

        def found() -> Payload | None:
            return next((payload for payload in self.of(kind) if holds(payload)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._over, patience)
            payload = found()
        assert payload is not None, f"no {kind}; the agent said:\n{self.said()}"
        return payload

    def of(self, kind: str) -> list[Payload]:
        return [payload for payload in self.payloads if payload["type"] == f"{self.harness.name}.{kind}"]

    def text(self) -> str:
        """Of the last whole message."""
        return str(self.of("assistant")[-1]["text"])

    def entries(self, run: str = "r-1") -> list[dict[str, Any]]:
        return entries_of(self.payloads, run)

    def said(self) -> str:
        lines = [json.dumps(payload, ensure_ascii=False)[:400] for payload in self.payloads]
        return "\n".join((*lines, self.stderr.decode(errors="replace")[-2000:]))

    def children(self) -> list[int]:
        """Processes that the agent left, or has still."""
        return [pid for pid in _marked(self._mark) if pid != self.process.pid]

    def end_tree(self) -> None:
        end = time.monotonic() + PATIENCE
        while pids := _marked(self._mark):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            if time.monotonic() > end:
                raise TimeoutError(f"these would not end: {pids}")
            time.sleep(0.005)

    # --- pieces ---

    def _argv(self, command: Command) -> list[str]:
        if command.driver:
            return [sys.executable, "-m", f"holdfast.harnesses.{self.harness.name}.driver", *command.argv]
        return list(command.argv)

    def _environment(self, command: Command) -> dict[str, str]:
        place = self.task.place
        home = Path(place.state).parent / "home"
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": f"{Path(place.node).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            # Nothing but the machine itself answers: what an agent asks of the world would be noticed as a failure.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
            **command.env,
        }
        if command.driver:
            environment["PYTHONPATH"] = str(_SOURCE)
        name, _, value = self._mark.partition("=")
        environment[name] = value
        return environment

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            payloads = self.reader.read(line)
            with self._changed:
                self.lines.append(line)
                self.payloads += payloads
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr = (self.stderr + line)[-65536:]

    def _close_stdin(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


@dataclass(frozen=True)
class Bench:
    """An agent, a scripted model and a folder on this machine: all that a run needs."""

    harness: Harness
    model: ScriptedModel
    api: Api
    place: Place
    model_name: str = "scripted"
    context_window: int = 128_000

    def task(self, prompt: str, session: str | None = None) -> Task:
        access = ModelAccess(self.api, self.model.url, TOKEN, self.model_name, self.context_window, 4096)
        return Task(prompt, self.place, access, session)

    def start(self, prompt: str, session: str | None = None) -> Driven:
        """To be used as a context."""
        return Driven(self.harness, self.task(prompt, session))

    def run(self, prompt: str, session: str | None = None) -> Driven:
        """A whole run, to its end."""
        with self.start(prompt, session) as agent:
            return agent.finish()

    def resume_elsewhere(self, folder: Path, entries: Iterable[Mapping[str, Any]], prompt: str) -> Driven:
        """A whole run in a place where nothing is left of the session but these entries."""
        place = place_in(folder, Path(self.place.program), Path(self.place.node))
        bench = replace(self, place=place)
        rebuilt = self.harness.rebuild(entries, bench.task(prompt))
        assert rebuilt is not None
        with Driven(self.harness, bench.task(prompt, rebuilt.session), rebuilt=rebuilt) as agent:
            return agent.finish()


def entries_of(payloads: Iterable[Payload], run: str = "r-1", start: int = 1_700_000_000_000) -> list[dict[str, Any]]:
    """As they are on a thread when its history is read: without the live words."""
    return [
        {"id": f"{run}-{number}", "ts": start + number, "payload": payload}
        for number, payload in enumerate(payloads)
        if not payload["type"].endswith(".delta")
    ]


def place_in(folder: Path, program: Path, node: Path) -> Place:
    return Place(
        workspace=str(folder / "workspace"),
        state=str(folder / "state"),
        program=str(program),
        node=str(node),
        python=(sys.executable,),
    )


def program_of(name: str) -> Path:
    """Where the agent is installed."""
    return InstalledAgents().install(name).folder


def node() -> Path:
    return InstalledAgents().install("pi").node


def write_files(files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _marked(mark: str) -> list[int]:
    """The live processes that were started with this in their environment."""
    found = []
    wanted = mark.encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
