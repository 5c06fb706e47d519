"""An agent that is no agent: a small program which says what its prompt tells it to, at the pace that it is told.

For figures and tests of runs, where a real agent would be most of what is measured. The prompt is a JSON object:
`{"words": 100, "pace": 0.1}` says so many words, so many seconds apart, in one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from holdfast.api.model.models import Api
from holdfast.harnesses import registry, runner_archive
from holdfast.harnesses.harness import Command, Harness, Package, Rebuilt, Task

_READER: Final = Path(__file__).with_name("scripted_reader.py")
"""By path: a server under test loads this module from its file, and knows no other of the tests."""
_PROGRAM: Final = """
import json, os, sys, time
told = json.loads(sys.argv[1].rpartition("\\n")[2])
words, pace = told.get("words", 1), told.get("pace", 0)
def say(**record):
    os.write(1, json.dumps(record).encode() + b"\\n")
say(session="s-1")
begin = time.monotonic()
for n in range(words):
    time.sleep(max(0, begin + n * pace - time.monotonic()))
    say(message="m", delta="%.6f " % time.time())
say(message="m", text="said")
say(done=True)
"""


class Scripted(Harness):
    name: ClassVar[str] = "scripted"
    title: ClassVar[str] = "Scripted"
    package: ClassVar[Package | None] = None
    apis: ClassVar[tuple[Api, ...]] = tuple(Api)

    def archive(self) -> bytes:
        return runner_archive.pack((), (("holdfast.harnesses.scripted.reader", _READER),))

    def files(self, task: Task) -> Mapping[str, bytes]:
        return {}

    def command(self, task: Task) -> Command:
        return Command(("python3", "-I", "-S", "-c", _PROGRAM, task.prompt))

    def rebuild(self, entries: Iterable[Mapping[str, Any]], task: Task) -> Rebuilt | None:
        return None


def find(name: str) -> Harness:
    """For `ServerProcess(agents=…)`: this one beside all others."""
    return Scripted() if name == Scripted.name else registry.find(name)
