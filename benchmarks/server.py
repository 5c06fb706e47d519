"""Measures a server as a product: its start, its memory, reads over REST, and many readers of many threads.

    .holdfast/dev-*/bin/python benchmarks/server.py [--quick] [--only ROW] [--json | --markdown]

docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
from live_readers import Work, measure
from measuring import Samples, add_folder, folder_of_boxes, options, print_results
from report import Goal, Row, percentile

ROWS: Final = (
    Row("start", "start of a server, until it answers", "s", Goal("under", 1.0, "under 1 s")),
    Row("memory", "memory of an idle server", "MB", Goal("under", 120.0, "under 120 MB")),
    Row("first", "processor time of the first REST request", "ms", Goal("under", 150.0, "under 150 ms")),
    Row("read", "GET of a thread, 10,000 threads, p50", "ms", Goal("at most", 2.0, "≤ 2 of a bare FastAPI route")),
    Row("list", "GET of 50 threads of 10,000, p50", "ms", Goal("at most", 2.0, "≤ 2 of a bare FastAPI route")),
    Row("entries", "GET of 50 entries of a thread, p50", "ms", Goal("at most", 2.0, "≤ 2 of a bare FastAPI route")),
    Row("readers", "1,000 SSE readers on 100 threads at 5 entries/s: p99", "ms", Goal("under", 100.0, "under 100 ms")),
)
_BARE: Final = """
import sys, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
class Thread(BaseModel):
    id: str
    title: str
    labels: dict[str, str] = {}
class Entry(BaseModel):
    id: str
    ts: int
    payload: dict[str, str]
app = FastAPI()
@app.get("/v1/threads/{id}")
async def get(id: str) -> Thread:
    return Thread(id=id, title="a thread")
@app.get("/v1/threads")
async def many(limit: int = 50) -> list[Thread]:
    return [Thread(id=f"t-{number:05}", title=f"thread {number}") for number in range(limit)]
@app.get("/v1/threads/{id}/entries")
async def entries(id: str, limit: int = 50) -> list[Entry]:
    return [Entry(id=f"e-{number}", ts=1, payload={"type": "chat", "text": "a message"}) for number in range(limit)]
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", loop="uvloop", http="httptools")
"""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(home: Path) -> Iterator[tuple[str, dict[str, str], int]]:
    """A server as users start it. Yields its URL, the headers of an owner, and its process id."""
    command = [sys.executable, "-m", "holdfast", "up", "--home", str(home), "--port", "0", "--json", "--pool", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            text = b""
            while True:
                text += process.stdout.readline()
                try:
                    told = json.loads(text)
                    break
                except json.JSONDecodeError:
                    continue
            key = json.loads((home / "server.json").read_text())["apiKey"]
            yield told["url"], {"Authorization": f"Bearer {key}"}, process.pid
        finally:
            process.terminate()
            process.wait(60)


def processor_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / _TICKS


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def settle(pid: int) -> None:
    """Wait until the server has loaded what it loads in the background."""
    quiet, last = 0, processor_ms(pid)
    while quiet < 4:
        time.sleep(0.5)
        now = processor_ms(pid)
        quiet, last = (quiet + 1 if now - last < 30 else 0), now


def measure_start(samples: Samples, folder: Path, rounds: int) -> None:
    for number in range(rounds):
        home = folder / f"start-{number % 2}"
        began = time.perf_counter()
        with serving(home) as (url, headers, pid):
            waited = time.perf_counter() - began
            samples.add("start", "holdfast", waited, **{"processor s": processor_ms(pid) / 1000})
            settle(pid)
            samples.add("memory", "holdfast", memory_mb(pid))
            with httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
                before = processor_ms(pid)
                client.get("/v1/threads").raise_for_status()
                samples.add("first", "holdfast", processor_ms(pid) - before)


_READS: Final = {
    "read": lambda number: f"/v1/threads/t-{number % 100:05}",
    "list": lambda number: "/v1/threads?limit=50",
    "entries": lambda number: "/v1/threads/t-00000/entries?limit=50",
}


def measure_reads(samples: Samples, folder: Path, wanted: set[str], threads: int, requests: int) -> None:
    port = _free_port()
    with subprocess.Popen([sys.executable, "-c", _BARE, str(port)], stderr=subprocess.DEVNULL) as bare:
        try:
            with serving(folder / "reads") as (url, headers, pid):
                asyncio.run(_fill(url, headers, threads))
                settle(pid)
                for row in _READS:
                    if row in wanted:
                        _measure_read(samples, row, f"http://127.0.0.1:{port}", url, headers, requests)
        finally:
            bare.terminate()


def _measure_read(samples: Samples, row: str, bare: str, url: str, headers: dict[str, str], requests: int) -> None:
    _timed(row, bare, {}, 200)
    _timed(row, url, headers, 200)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(10):  # in turn, so that what disturbs the machine disturbs both
        theirs += _timed(row, bare, {}, requests // 10)
        ours += _timed(row, url, headers, requests // 10)
    samples.add_median(row, "reference", theirs)
    samples.add_median(row, "holdfast", ours)


async def _fill(url: str, headers: dict[str, str], threads: int) -> None:
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
        places = asyncio.Semaphore(32)

        async def create(number: int) -> None:
            async with places:
                body = {"id": f"t-{number:05}", "title": f"thread {number}"}
                (await client.post("/v1/threads", json=body)).raise_for_status()

        await asyncio.gather(*(create(number) for number in range(threads)))
        for number in range(60):
            (await client.post("/v1/threads/t-00000/chat", json={"text": f"message {number}"})).raise_for_status()


def _timed(row: str, url: str, headers: dict[str, str], requests: int) -> list[float]:
    found = []
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30) as client:
        for attempt in range(200):
            try:
                client.get(_READS[row](0)).raise_for_status()
                break
            except httpx.ConnectError:
                time.sleep(0.05 * (attempt > 0))
        for number in range(requests):
            began = time.perf_counter()
            client.get(_READS[row](number)).raise_for_status()
            found.append((time.perf_counter() - began) * 1000)
    return found


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure_readers(samples: Samples, folder: Path, threads: int, readers: int, seconds: float) -> None:
    with serving(folder / "readers") as (url, headers, pid):
        asyncio.run(_fill(url, headers, threads))
        settle(pid)
        port = int(url.rpartition(":")[2])
        before = processor_ms(pid)
        delays, dropped = measure(Work(port, headers["Authorization"], threads, readers, 5.0, seconds))
        samples.add(
            "readers",
            "holdfast",
            percentile(delays, 0.99),
            p50=percentile(delays, 0.5),
            dropped=float(dropped),
            **{"server's processor %": (processor_ms(pid) - before) / seconds / 10, "load": os.getloadavg()[0]},
        )


def main() -> None:
    parser = options(__doc__, ROWS)
    add_folder(parser)
    given = parser.parse_args()
    wanted = set(given.only) or {row.name for row in ROWS}
    samples = Samples()
    with folder_of_boxes(given.dir) as folder:
        if wanted & {"start", "memory", "first"}:
            measure_start(samples, folder, 2 if given.quick else 5)
        if wanted & _READS.keys():
            measure_reads(samples, folder, wanted, 200 if given.quick else 10_000, 500 if given.quick else 5000)
        if "readers" in wanted:
            threads, readers = (10, 50) if given.quick else (100, 1000)
            measure_readers(samples, folder, threads, readers, 3.0 if given.quick else 20.0)
    print_results(given, samples.results(ROWS), "bare FastAPI")


if __name__ == "__main__":
    main()
