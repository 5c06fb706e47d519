"""Measures the Daytona API beside the same calls of our own API, on the same server and box, in one run.

    .holdfast/dev-*/bin/python benchmarks/daytona_api.py [--quick] [--only ROW] [--json | --markdown]

Single calls are plain requests over one kept connection on both sides, so that no client library counts. `create` is
what a program waits for: the SDK of Daytona on one side, our client on the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import checkout  # noqa: F401 - for what is imported from tests
import httpx
from daytona import Daytona
from measuring import Samples, add_folder, add_rounds, folder_of_boxes, in_rounds, options, print_results
from report import Goal, Result, Row
from tests.compat.daytona.conftest import client_of

from holdfast.client import SyncClient
from holdfast.testing.server import ServerProcess

_CALL: Final = Goal("at most", 1.3, "at most 1.3 times")
_CREATE: Final = Goal("at most", 1.5, "at most 1.5 times")
ROWS: Final = (
    Row("get", "get one box", "ms", _CALL),
    Row("list", "list boxes", "ms", _CALL),
    Row("exec", "run `true` by bash", "ms", _CALL),
    Row("write", "write a file of 10 KB", "ms", _CALL),
    Row("read", "read it", "ms", _CALL),
    Row("folder", "list a folder", "ms", _CALL),
    Row("create", "create → first command, by each one's client", "ms", _CREATE),
)
_CALLS: Final = 100
_REST_SECONDS: Final = 0.5
_TIMEOUT: Final = 120.0
_CONTENT: Final = b"0123456789" * 1024


class Sides:
    """The same work by both APIs, by the name of its row."""

    def __init__(self, api: httpx.Client, ours: SyncClient, theirs: Daytona) -> None:
        self._api = api
        self._ours = ours
        self._theirs = theirs
        id = theirs.create().id
        own, control = f"/v1/boxes/{id}", "/compat/daytona/sandbox"
        found = self._call("GET", f"{control}/{id}").json()
        toolbox = f"{found['toolboxProxyUrl']}/{id}"
        path = {"path": "/tmp/measured"}  # in the box
        files = {"file": ("measured", _CONTENT)}
        command, line = {"argv": ["bash", "-c", "true"]}, {"command": "true"}
        self.calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "get": (lambda: self._call("GET", own), lambda: self._call("GET", f"{control}/{id}")),
            "list": (lambda: self._call("GET", "/v1/boxes"), lambda: self._call("GET", control)),
            "exec": (
                lambda: self._call("POST", f"{own}/exec", json=command),
                lambda: self._call("POST", f"{toolbox}/process/execute", json=line),
            ),
            "write": (
                lambda: self._call("PUT", f"{own}/files", params=path, content=_CONTENT),
                lambda: self._call("POST", f"{toolbox}/files/upload", params=path, files=files),
            ),
            "read": (
                lambda: self._call("GET", f"{own}/files", params=path),
                lambda: self._call("GET", f"{toolbox}/files/download", params=path),
            ),
            "folder": (
                lambda: self._call("GET", f"{own}/files/list", params={"path": "/usr"}),
                lambda: self._call("GET", f"{toolbox}/files", params={"path": "/usr"}),
            ),
        }

    def _call(self, method: str, url: str, **more: object) -> httpx.Response:
        return self._api.request(method, url, **more).raise_for_status()  # type: ignore[arg-type]

    def create_ours(self) -> float:
        begin = time.perf_counter()
        with self._ours.boxes.open(self._ours.boxes.create().box.id) as box:
            box.exec(["sh", "-c", "true"])
            taken = time.perf_counter() - begin
            self._ours.boxes.delete(box.id)
        return taken

    def create_theirs(self) -> float:
        begin = time.perf_counter()
        sandbox = self._theirs.create()
        sandbox.process.exec("true")
        taken = time.perf_counter() - begin
        sandbox.delete()
        return taken


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(folder: Path, rounds: int, calls: int, names: list[str]) -> list[Result]:
    samples = Samples()
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(folder / "home", daytona=True, pool=8))
        headers = {"Authorization": f"Bearer {server.api_key}"}
        api = httpx.Client(base_url=server.url, headers=headers, timeout=_TIMEOUT, trust_env=False)
        sides = Sides(
            stack.enter_context(api),
            stack.enter_context(SyncClient(server.url, api_key=server.api_key)),
            stack.enter_context(client_of(server)),
        )
        for name in in_rounds(names, rounds):
            if name == "create":
                for side, create in (("reference", sides.create_ours), ("holdfast", sides.create_theirs)):
                    create()
                    time.sleep(_REST_SECONDS)  # the pool is filled again
                    samples.add(name, side, create() * 1000)
                    time.sleep(_REST_SECONDS)
                continue
            ours, theirs = sides.calls[name]
            taken: dict[str, list[float]] = {"reference": [], "holdfast": []}
            for number in range(calls + calls // 5):
                for side, call in (("reference", ours), ("holdfast", theirs)):
                    seconds = _timed(call)
                    if number >= calls // 5:
                        taken[side].append(seconds * 1000)
            for side, values in taken.items():
                samples.add_median(name, side, values)
    return samples.results([row for row in ROWS if row.name in names])


def main() -> None:
    parser = options(__doc__, ROWS)
    add_rounds(parser)
    add_folder(parser)
    given = parser.parse_args()
    names = [row.name for row in ROWS if not given.only or row.name in given.only]
    with folder_of_boxes(given.dir) as folder:
        rounds = given.rounds or (1 if given.quick else 9)
        results = measure(folder, rounds, 10 if given.quick else _CALLS, names)
    print_results(given, results, "our own API")


if __name__ == "__main__":
    main()
