"""What is there before something bad happens, and is to be there afterwards."""

from __future__ import annotations

from pathlib import Path

import httpx
from tests.server.raw import TIMEOUT

from holdfast.testing.server import ServerProcess

MAX_BODY = 1_000_000
JSON = {"content_type": "application/json"}


class Witness:
    """A stream and a thread that are there before something bad happens, and are to be there afterwards."""

    def __init__(self, server: ServerProcess, name: str) -> None:
        self._server = server
        self._logged = len(server.read_log())
        self._http = httpx.Client(base_url=server.url, timeout=TIMEOUT)
        self.stream = f"/v1/stream/witness/{name}"
        self.thread = f"t-witness-{name}"
        self._expected = [{"n": n} for n in range(3)]
        assert self._http.put(self.stream, json=self._expected).status_code == 201
        assert self._http.post("/v1/threads", json={"id": self.thread}).status_code == 201

    def check(self) -> None:
        """The server answers, has what it had, takes more, and found nothing that it did not expect."""
        assert self._http.get("/health").json()["status"] == "ok"
        assert self._http.get(self.stream).json() == self._expected
        assert self._http.get(f"/v1/threads/{self.thread}").json()["entryCount"] == 1
        assert self._http.post(self.stream, json={"n": "more"}).status_code == 204
        assert self._http.get(self.stream).json() == [*self._expected, {"n": "more"}]
        self._http.close()
        log = self._server.read_log()[self._logged :]
        unexpected = [line for line in log.splitlines() if '"level": "error"' in line or "Traceback" in line]
        assert not unexpected, "\n".join(unexpected)


names = iter(range(1_000_000))


def new_stream(server: ServerProcess, content_type: str = "application/json") -> str:
    target = f"/v1/stream/hostile/{next(names)}"
    created = httpx.put(server.url + target, headers={"content-type": content_type}, timeout=TIMEOUT)
    assert created.status_code == 201
    return target


def resident_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024
