"""Measures how long a session takes until its workstation is ready: new, from a warm pool, and woken.

    .holdfast/dev-*/bin/python benchmarks/session.py [--home DIR] [--quick] [--only ROW] [--json | --markdown]

The boxes have the programs of this machine, or, with --home, the image holdfast/workstation of a home in which it was
built (`holdfast image build workstation --home DIR`). What is not there is not waited for. The reference is the time
that the programs themselves take, of which code-server is the longest: it is measured in the same boxes.
docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from measuring import Samples, add_rounds, chosen, in_rounds, options, print_results
from report import Goal, Result, Row

from holdfast.api.session.sessions import SessionDiagnosis, StepState
from holdfast.client import SyncClient
from holdfast.testing.server import ServerProcess

_AHEAD_SECONDS: Final = 15.0
"""Time for the pool to make a box, and for the programs in it to start."""
_PAUSE: Final = 0.01
_PATIENCE: Final = 180.0
_MODEL: Final = "never-asked"
_EDITOR: Final = "editor"

ROWS: Final = (
    Row("box", "a new session has its box", "ms", None),
    Row("desktop", "a new session has its desktop", "ms", Goal("under", 5000.0, "under 5 s")),
    Row("editor", "a new session has its editor", "ms", None),
    Row("beyond", "of that, what code-server itself does not take", "ms", Goal("under", 5000.0, "under 5 s")),
    Row("warm-desktop", "the same from a warm pool: desktop", "ms", Goal("under", 1000.0, "under 1 s")),
    Row("warm-editor", "the same from a warm pool: editor", "ms", Goal("under", 1000.0, "under 1 s")),
    Row("woken", "a session that slept has its desktop again", "ms", None),
)
_ALSO: Final = {
    "box": "new",
    "desktop": "new",
    "editor": "new",
    "beyond": "new",
    "warm-desktop": "warm",
    "warm-editor": "warm",
}


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds from the request."""

    box: float
    desktop: float
    editor: float | None
    own: int | None
    """What code-server took, from its start until it listened."""


def _is_ready(found: SessionDiagnosis, name: str) -> bool:
    return any(each.name == name and each.state in (StepState.RUNNING, StepState.MISSING) for each in found.steps)


def _until(client: SyncClient, id: str, holds: Callable[[SessionDiagnosis], bool]) -> SessionDiagnosis:
    last = time.monotonic() + _PATIENCE
    while time.monotonic() < last:
        found = client.sessions.diagnose(id)
        if holds(found):
            return found
        time.sleep(_PAUSE)
    raise TimeoutError(f"session {id} was not ready within {_PATIENCE} s")


def _end(client: SyncClient, id: str) -> None:
    client.sessions.terminate(id)
    while not client.sessions.get(id).released:
        time.sleep(_PAUSE)
    client.sessions.delete_workspace(id)


def _start(client: SyncClient) -> tuple[str, Times]:
    began = time.perf_counter()
    id = client.sessions.create(agent="pi", model=_MODEL, workstation=True).id

    def now() -> float:
        return (time.perf_counter() - began) * 1000

    while client.sessions.get(id).state != "running":
        time.sleep(_PAUSE)
    box = now()
    _until(client, id, lambda found: _is_ready(found, "desktop"))
    desktop = now()
    found = _until(client, id, lambda found: _is_ready(found, _EDITOR))
    editor = next(each for each in found.steps if each.name == _EDITOR)
    if editor.state is StepState.MISSING:
        return id, Times(box, desktop, None, None)
    return id, Times(box, desktop, now(), editor.ms)


@contextmanager
def _served(home: Path, pool: int = 0) -> Iterator[SyncClient]:
    with ServerProcess(home, pool=pool) as server, SyncClient(server.url, api_key=server.api_key) as client:
        client.models.add(_MODEL, apis=["openai-chat"], base_url="http://127.0.0.1:9", model="m")
        yield client


def measure(home: Path, rounds: int, only: list[str]) -> list[Result]:
    samples = Samples()
    names = chosen(only, ("new", "warm", "woken"), _ALSO)
    if "new" in names or "woken" in names:
        with _served(home) as client:
            _end(client, _start(client)[0])  # the first one opens the parts of the server
            for name in in_rounds([each for each in names if each != "warm"], rounds):
                id, times = _start(client)
                if name == "new":
                    samples.add("box", "holdfast", times.box)
                    samples.add("desktop", "holdfast", times.desktop)
                    if times.editor is not None and times.own is not None:
                        samples.add("editor", "holdfast", times.editor)
                        samples.add("beyond", "holdfast", times.editor - times.own)
                else:
                    client.sessions.hibernate(id)
                    began = time.perf_counter()
                    client.sessions.restore(id)
                    _until(client, id, lambda found: _is_ready(found, "desktop"))
                    samples.add("woken", "holdfast", (time.perf_counter() - began) * 1000)
                _end(client, id)
    if "warm" in names:
        with _served(home, pool=2) as client:
            for _ in range(3):  # demand, without which nothing is made ahead
                _end(client, _start(client)[0])
            for _ in range(rounds):
                time.sleep(_AHEAD_SECONDS)
                id, times = _start(client)
                samples.add("warm-desktop", "holdfast", times.desktop)
                if times.editor is not None:
                    samples.add("warm-editor", "holdfast", times.editor)
                _end(client, id)
    return samples.results(ROWS)


def main() -> None:
    parser = options(__doc__, ROWS)
    add_rounds(parser)
    parser.add_argument("--home", type=Path, help="a home in which holdfast/workstation was built")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-") as folder:
        home = given.home or Path(folder) / "home"
        results = measure(home, given.rounds or (1 if given.quick else 5), given.only)
    print_results(given, results, "none")


if __name__ == "__main__":
    main()
