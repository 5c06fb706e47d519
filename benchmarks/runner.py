"""Measures the runner of a box: what an agent that says 2,000 things a second costs it, and how soon a word is posted.

    .holdfast/dev-*/bin/python benchmarks/runner.py [--seconds 60] [--rate 2000] [--json]

A real runner, with a scripted agent, posts to a real thread store in this process. Figures are the runner's own: the
agent's and the store's are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import checkout  # noqa: F401 - for what is imported from tests
import uvloop
from report import percentile
from tests.guest.fake_guest_api import FakeGuestApi
from tests.harnesses import scripted_reader

from holdfast.harnesses import runner_archive
from holdfast.threads.protocol.messages import Request, Response

_AGENT: Final = """
import json, os, sys, time
kind, rate, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
begin = time.monotonic()
total, said = int(rate * seconds), 0
while said < total:
    due = min(total, int((time.monotonic() - begin) * rate) + 1)
    lines = []
    for n in range(said, due):
        if kind == "events":
            record = {"type": "tool_update", "n": n, "at": time.monotonic(), "tool": "bash", "output": "x" * 150}
        else:
            record = {"message": "m%d" % (n // 1000), "delta": "word%d " % n}
        lines.append(json.dumps(record) + "\\n")
    os.write(1, "".join(lines).encode())
    said = due
    time.sleep(0.005 if rate > 100 else 1 / rate)
"""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def used(pid: int) -> tuple[float, int]:
    """Seconds of a processor, and the most memory, in bytes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    peak = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(peak.split()[1]) << 10


async def run(kind: str, rate: int, seconds: float) -> dict[str, Any]:
    """One run of an agent. What it cost, and what arrived."""
    delays: list[float] = []

    async def note(request: Request) -> Response | None:
        if kind == "events" and b'"at":' in request.body:
            now = time.monotonic()
            for each in json.loads(request.body):
                if "at" in each["payload"].get("record", {}):
                    delays.append((now - each["payload"]["record"]["at"]) * 1000)
        return None

    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-") as name:
        folder = Path(name)
        async with FakeGuestApi(folder) as api:
            api.fault = note if rate <= 100 else None
            await api.claim(1)
            config = {
                "run": "r-1", "thread": api.thread, "agent": "scripted", "reader": "scripted", "epoch": 1,
                "url": api.url, "token": api.new_token(), "env": {}, "cwd": name, "state": f"{name}/state",
                "argv": [sys.executable, "-I", "-S", "-c", _AGENT, kind, str(rate), str(seconds)],
            }  # fmt: skip
            archive = runner_archive.pack((), (("holdfast.harnesses.scripted.reader", Path(scripted_reader.__file__)),))
            process = await asyncio.create_subprocess_exec(
                *runner_archive.boot_argv([sys.executable]), stdin=asyncio.subprocess.PIPE
            )
            assert process.stdin is not None
            process.stdin.write(runner_archive.stdin_of(archive, config))
            process.stdin.close()
            began, figures = time.monotonic(), (0.0, 0)
            while process.returncode is None:
                try:
                    figures = used(process.pid)
                except (OSError, StopIteration):
                    break
                await asyncio.sleep(0.05)
            await process.wait()
            took = time.monotonic() - began
            found = await api.payloads()
            posts = sum(1 for path, _ in api.requests if "/stream/" in path)
    events, words = [each for each in found if each["type"].endswith(".event")], ""
    if kind == "events":
        lost = int(rate * seconds) - len(events)
        assert [each["record"]["n"] for each in events] == list(range(len(events))), "out of order"
    else:
        words = "".join(each["text"] for each in found if each["type"].endswith(".delta"))
        lost = int(rate * seconds) - words.count(" ")
    result = {
        "kind": kind, "rate": rate, "seconds": round(took, 1), "core_percent": round(100 * figures[0] / took, 1),
        "peak_mb": round(figures[1] / 1e6, 1), "lost": lost, "entries": len(found), "requests": posts,
    }  # fmt: skip
    if delays:
        result |= {"p50_ms": round(percentile(delays, 0.5), 2), "p99_ms": round(percentile(delays, 0.99), 2)}
    return result


async def measure(rate: int, seconds: float) -> Sequence[dict[str, Any]]:
    return [
        await run("events", rate, seconds),
        await run("words", rate, seconds),
        await run("events", 20, min(seconds, 20.0)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = uvloop.run(measure(given.rate, given.seconds))
    for each in results:
        print(json.dumps(each) if given.json else "  ".join(f"{name} {value}" for name, value in each.items()))


if __name__ == "__main__":
    main()
