"""Counts the files of ours that a command passes on its way, in the command line and the server together.

    .holdfast/dev-*/bin/python benchmarks/walks.py [--files WALK | --functions WALK] [--checkout FOLDER ...]

A file counts if one of its Python functions is called while the command runs (`walk_tracer.py`). Code inside a box does
not count. The server is warm. What it does in the background (sweeps, projections) is left out in two ways: functions
that it also calls while it is idle do not count, and a figure has only the functions that all rounds have in common.

Prints the table of docs/architecture.md. `--files` prints the files of one walk by package, `--functions` each file
with its functions. `--checkout` measures another checkout in the same way, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

from walk_tracer import Tracer

_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_TRACER: Final = Path(__file__).with_name("walk_tracer.py")
_SECONDS: Final = 120.0
_SETTLE_SECONDS: Final = 1.0
"""After a command, until the server has nothing more to do for it."""
_IDLE_SECONDS: Final = 15.0
"""Longer than the pauses between sweeps."""
_WARM_UP: Final = 2
_WALKS: Final = {
    "append": "`holdfast thread append`",
    "exec": "`holdfast box exec`, by key",
    "run": "`holdfast run` with pi",
    "execute": "`Interpreter.execute` with a callback, in the caller's process",
}


class Bench:
    """A traced server on a home of its own, and the commands that ask it."""

    def __init__(self, source: Path, folder: Path, model_url: str) -> None:
        self._package = source / "holdfast"
        self._folder = folder
        self._home = folder / "home"
        self._files = folder / "files"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            "PYTHONPATH": str(source),
            "HOLDFAST_HOME": str(self._home),
        }
        self._model_url = model_url
        self._server_output = folder / "server"
        self._command_output = folder / "command"
        self._idle: set[str] = set()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """A server for the time of the block, with a model, a thread and a box."""
        self._home.mkdir()
        (self._home / "tools").symlink_to((_CHECKOUT / ".holdfast" / "tools").resolve())
        self._files.mkdir()
        (self._files / "main.py").write_text("print('hello')\n")
        with (self._folder / "server.log").open("wb") as log:
            server = subprocess.Popen(
                self._traced(self._server_output, "up", "--port", "0", "--pool", "0"),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_until_up(server)
            self._call("model", "list", tries=10)  # traced, a server loads slowly
            self._call(
                *("model", "add", "scripted", "--api", "openai-chat", "--base-url", self._model_url),
                *("--model", "scripted", "--key-stdin"),
                stdin="sk-of-the-model",
            )
            self._thread = self._call("thread", "new", "walks").strip()
            self._call("box", "create", "--key", "walks")
            yield
            (self._home / "tools").unlink()
            self._call("purge", "--yes")  # boxes outlive their server
        finally:
            server.terminate()
            server.wait(_SECONDS)

    def idle(self) -> None:
        """Learn what the server does when nobody asks it for anything."""
        time.sleep(_IDLE_SECONDS)  # until it is done with what was asked before
        self._called_in_server()
        time.sleep(_IDLE_SECONDS)
        self._idle = self._called_in_server()

    def append(self) -> set[str]:
        return self._walk("thread", "append", self._thread, "hello")

    def exec(self) -> set[str]:
        return self._walk("box", "exec", "walks", "--", "true")

    def run(self) -> set[str]:
        return self._walk("run", "Say hello.", "--agent", "pi", "--model", "scripted")

    def execute(self) -> set[str]:
        """The second execution of an interpreter, in a process of its own."""
        command = [sys.executable, str(Path(__file__)), "--in-this-process", str(self._package)]
        done = subprocess.run(
            command,
            env=self._environment,
            cwd=self._files,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        return set(done.stdout.splitlines())

    def _walk(self, *arguments: str) -> set[str]:
        self._called_in_server()
        self._call(*arguments)
        time.sleep(_SETTLE_SECONDS)
        return {*self._command_output.read_text().splitlines(), *(self._called_in_server() - self._idle)}

    def _call(self, *arguments: str, stdin: str = "", tries: int = 1) -> str:
        Path(f"{self._command_output}.sock").unlink(missing_ok=True)
        done = subprocess.run(
            self._traced(self._command_output, *arguments),
            env=self._environment,
            cwd=self._files,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode and tries > 1:
            return self._call(*arguments, stdin=stdin, tries=tries - 1)
        if done.returncode:
            raise SystemExit(
                f"holdfast {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def _traced(self, output: Path, *arguments: str) -> list[str]:
        return [sys.executable, str(_TRACER), str(self._package), str(output), "holdfast", *arguments]

    def _wait_until_up(self, server: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not list(self._home.glob("server*.json")):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start:\n{(self._folder / 'server.log').read_text()}")
            time.sleep(0.1)

    def _called_in_server(self) -> set[str]:
        """Returns the functions that the server has called since the last time."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{self._server_output}.sock")
            return set(b"".join(iter(lambda: connection.recv(65536), b"")).decode().splitlines())


def measure(checkout: Path, walks: list[str], rounds: int) -> dict[str, set[str]]:
    """Returns the functions of each walk, as the tracer prints them."""
    from holdfast.testing.model import ScriptedModel
    from holdfast.testing.model.steps import Step

    folder = Path(tempfile.mkdtemp(prefix="holdfast-walks-"))
    folder.chmod(0o711)
    found: dict[str, set[str]] = {}
    try:
        with ScriptedModel(key="sk-of-the-model") as model:
            bench = Bench((checkout / "src").resolve(), folder, model.openai_url)
            steps: Mapping[str, Callable[[], set[str]]] = {name: getattr(bench, name) for name in walks}
            with bench.serving():
                for number in range(_WARM_UP + rounds):
                    if number == _WARM_UP:
                        bench.idle()
                    for name, step in steps.items():
                        model.script([Step(text="Hello.")])
                        print(f"{name} {number + 1}/{_WARM_UP + rounds}", file=sys.stderr)
                        called = step()
                        if number >= _WARM_UP:
                            found[name] = called & found.get(name, called)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


async def _execute(package: Path) -> list[str]:
    """Returns the functions of the second execution in this process, with a call of a tool."""
    from holdfast import Interpreter

    def double(number: int) -> int:
        return 2 * number

    tracer = Tracer(package)
    async with Interpreter(tools=[double]) as interpreter:
        await interpreter.execute("double(1)")
        tracer.start()
        result = await interpreter.execute("double(2)")
        assert result.value == 4, result
        return tracer.take()


def _files(called: set[str]) -> dict[str, list[str]]:
    """Returns the functions of each file, sorted."""
    pairs = sorted((line.split(" ") for line in called), key=lambda pair: (Path(pair[0]).parent, *pair))
    return {file: [function for _, function in group] for file, group in groupby(pairs, itemgetter(0))}


def _print_table(measured: Mapping[str, Mapping[str, set[str]]]) -> None:
    print(f"| walk | {' | '.join(measured)} |\n|---{'|---' * len(measured)}|")
    for name, title in _WALKS.items():
        print(f"| {title} | {' | '.join(str(len(_files(called[name]))) for called in measured.values())} |")


def _print_files(called: set[str], *, with_functions: bool) -> None:
    files = _files(called)
    for package, group in groupby(map(Path, files), lambda file: file.parent):
        members = list(group)
        if not with_functions:
            print(f"{package!s:<24} {len(members):>3}  {' '.join(file.stem for file in members)}")
            continue
        for file in members:
            print(f"{file}\n    {' '.join(files[str(file)])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", choices=_WALKS, help="print the files of this walk by package")
    parser.add_argument("--functions", choices=_WALKS, help="print the files of this walk with their functions")
    parser.add_argument("--rounds", type=int, default=3, help="how often each command is measured")
    parser.add_argument("--checkout", type=Path, action="append", default=[], help="another checkout to measure; first")
    parser.add_argument("--in-this-process", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_this_process:
        print("\n".join(asyncio.run(_execute(options.in_this_process))))
        return
    walk = options.files or options.functions
    measured = {
        checkout.resolve().name: measure(checkout, [walk] if walk else list(_WALKS), options.rounds)
        for checkout in (*options.checkout, _CHECKOUT)
    }
    if walk is None:
        _print_table(measured)
        return
    for checkout, called in measured.items():
        print(f"{checkout}: {len(_files(called[walk]))} files")
        _print_files(called[walk], with_functions=bool(options.functions))


if __name__ == "__main__":
    main()
