"""Runs one spawned process of a dummy box. It outlives the process that started it, and records how it ended.

Started as `python dummy_supervisor.py <folder of the process>`; returns at once, with one line that says how it went.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    os.closerange(
        3, 1024
    )  # event loops pass descriptors to children, and a caller would wait for those that are open here
    request = json.loads((folder / "request.json").read_bytes())
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        with os.fdopen(told, "rb") as report:
            os.write(1, report.read())
        return
    os.close(told)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    stdin, keep = nowhere, -1
    if request["stdin"]:
        # Kept open for writing, so that the process sees no end of file when a writer leaves.
        keep = os.open(folder / "stdin", os.O_RDWR | os.O_CLOEXEC)
        stdin = os.open(folder / "stdin", os.O_RDONLY | os.O_CLOEXEC)
        signal.signal(signal.SIGUSR1, lambda *_: os.close(keep))
    output = [os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for name in ("stdout", "stderr")]
    lineage = _lineage() if request["tree"] else None
    if lineage is not None:
        lineage.adopt_orphans()
    failed, fail = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(request, stdin, output, fail)
    os.close(fail)
    problem = os.read(failed, 4096)
    if problem:
        os.write(tell, problem)
        return
    _write(folder / "started.json", {"pid": pid, "supervisor": os.getpid()})
    os.write(tell, b"{}")
    os.close(tell)
    for number in (stdin, *output):
        os.close(number)

    def look_around(*_: object) -> None:
        if not folder.exists():  # the folder of the box was deleted, so nothing may keep running
            os.killpg(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, look_around)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if lineage is not None:
        lineage.end_all()
    if folder.exists():
        _write(folder / "ended.json", {"code": code if code >= 0 else 128 - code})


def _lineage() -> Any:
    """Loads the module of the guest by its path, because this program runs without the package."""
    spec = importlib.util.spec_from_file_location(
        "process_tree", Path(__file__).parents[1] / "guest" / "init" / "process_tree.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _become(request: dict[str, object], stdin: int, output: list[int], fail: int) -> None:
    try:
        os.setsid()
        for number, descriptor in enumerate((stdin, *output)):
            os.dup2(descriptor, number)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.chdir(str(request["cwd"]))
        argv, env = request["argv"], request["env"]
        assert isinstance(argv, list)
        assert isinstance(env, dict)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(fail, json.dumps({"errno": error.errno}).encode())
    os._exit(127)


def _write(path: Path, document: dict[str, object]) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(document))
    beside.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
