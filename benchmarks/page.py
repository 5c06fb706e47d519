"""Measures the page of a thread with 10,000 entries in Chromium: first paint, interactive, scrolling, and its size.

    .holdfast/dev-*/bin/python benchmarks/page.py [--quick] [--only ROW] [--json | --markdown]

docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import gzip
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
from measuring import Samples, add_rounds, in_rounds, options, print_results
from playwright.sync_api import Browser, Page, sync_playwright
from report import Goal, Result, Row

import holdfast
from holdfast.testing.server import ServerProcess

ROWS: Final = (
    Row("paint", "first paint of a thread with 10,000 entries", "ms", Goal("under", 500.0, "under 500 ms")),
    Row("interactive", "its latest entry is shown, and one can write", "ms", Goal("under", 1500.0, "under 1.5 s")),
    Row("frame", "scrolling through all of it: 95 % of frames within", "ms", Goal("under", 50.0, "under 50 ms")),
    Row("live", "from an append to its words on the page", "ms", Goal("under", 100.0, "under 100 ms")),
    Row("bundle", "the page without terminal and editor, packed", "KB", Goal("under", 400.0, "under 400 KB")),
)
_TIMES: Final = """() => new Promise((done) => {
  const look = () => {
    const paint = performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
    if (paint !== undefined && window.ready !== undefined) done({ paint, interactive: window.ready });
    else requestAnimationFrame(look);
  };
  look();
})"""
_WATCH: Final = """(() => {
  const watch = () => {
    const shown = document.getElementById("timeline")?.textContent.includes("LAST WORDS");
    if (shown && document.getElementById("composer")) window.ready = performance.now();
    else requestAnimationFrame(watch);
  };
  requestAnimationFrame(watch);
})()"""
_SCROLL: Final = """async () => {
  const scroller = document.querySelector(".scroller");
  const frames = [];
  let before = performance.now();
  scroller.scrollTop = scroller.scrollHeight;
  while (scroller.scrollTop > 0 && frames.length < 3000) {
    scroller.scrollTop -= 400;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - before);
    before = now;
  }
  return frames;
}"""


_OUTPUT: Final = "\n".join(f"test {each} ... \x1b[32mok\x1b[0m" for each in range(20))


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    entries: int


FULL: Final = Size(rounds=5, entries=10_000)
QUICK: Final = Size(rounds=1, entries=1_000)


def story(entries: int) -> Iterator[dict[str, Any]]:
    """Turns of prose, tool calls with output, and edits, as agents leave them."""
    ts = 1_790_000_000_000
    number = 0
    turn = 0
    run = ""
    while number < entries - 3:
        turn += 1
        run = f"r-{turn}"
        steps: list[dict[str, Any]] = [
            {"type": "chat", "text": f"Do the next thing, number {turn}."},
            {"type": "signal.run.started", "run": run, "agent": "pi", "model": "m/m", "provider": "local"},
        ]
        for step in range(12):
            command = {"command": f"make test-{turn}-{step}"}
            steps += [
                {"type": "pi.assistant", "text": f"I look at **part {step}** of `module_{turn}.py`.\n\n- one\n- two"},
                {"type": "pi.call", "call": f"{turn}-{step}", "name": "bash", "arguments": command},
                {"type": "pi.tool", "call": f"{turn}-{step}", "name": "bash", "arguments": command,
                 "status": "ok", "ms": 81, "result": _OUTPUT},
            ]  # fmt: skip
        steps.append({"type": "signal.run.finished", "run": run, "status": "completed"})
        for payload in steps[: entries - 3 - number]:
            ts += 200
            number += 1
            yield {"id": f"e-{number}", "ts": ts, "payload": payload}
    end = [
        {"type": "pi.assistant", "text": "LAST WORDS"},
        {"type": "signal.run.finished", "run": run, "status": "completed"},
    ]
    yield from ({"id": f"end-{at}", "ts": ts + at, "payload": payload} for at, payload in enumerate(end))


class Bench:
    def __init__(self, browser: Browser, server: ServerProcess, size: Size) -> None:
        self.browser, self.server = browser, server
        self.samples = Samples()
        headers = {"authorization": f"Bearer {server.api_key}"}
        self.api = httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60)
        self.thread = self.api.post("/v1/threads", json={"title": "Long"}).json()["id"]
        entries = list(story(size.entries))
        for start in range(0, len(entries), 1000):
            answer = self.api.post(f"/v1/stream/threads/{self.thread}", json=entries[start : start + 1000])
            answer.raise_for_status()

    @contextmanager
    def opened(self) -> Iterator[tuple[Page, dict[str, float]]]:
        """The page in a new browser profile, with nothing in its cache."""
        context = self.browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.add_init_script(_WATCH)
        page.goto(f"{self.server.url}/t/{self.thread}#token={self.server.api_key}")
        times = page.evaluate(_TIMES)
        yield page, times
        context.close()

    def load(self) -> None:
        with self.opened() as (page, times):
            self.samples.add("paint", "holdfast", times["paint"])
            self.samples.add("interactive", "holdfast", times["interactive"])
            frames = sorted(page.evaluate(_SCROLL))
            self.samples.add("frame", "holdfast", frames[int(len(frames) * 0.95)], frames=len(frames))

    def follow(self) -> None:
        with self.opened() as (page, _):
            page.get_by_text("new entries appear here").wait_for()
            taken = []
            for _ in range(20):
                mark = f"live-{time.monotonic_ns()}"
                page.evaluate(
                    """(mark) => { window.seen = new Promise((done) => {
                        const look = () => document.getElementById("timeline").textContent.includes(mark)
                          ? done(Date.now()) : requestAnimationFrame(look);
                        look();
                    }); }""",
                    mark,
                )
                began = page.evaluate("() => Date.now()")
                self.api.post(f"/v1/threads/{self.thread}/chat", json={"text": mark}).raise_for_status()
                taken.append(page.evaluate("() => window.seen") - began)
            self.samples.add("live", "holdfast", statistics.median(taken), max=max(taken))

    def bundle(self) -> None:
        folder = Path(holdfast.__file__).parent / "web"
        first = [path for path in folder.iterdir() if not path.name.startswith(("editor-", "terminal-"))]
        self.samples.add("bundle", "holdfast", sum(len(gzip.compress(path.read_bytes())) for path in first) / 1000)


_WORK: Final = {"load": Bench.load, "follow": Bench.follow, "bundle": Bench.bundle}
_ALSO: Final = {"paint": "load", "interactive": "load", "frame": "load", "live": "follow"}


def measure(size: Size, only: Sequence[str]) -> list[Result]:
    names = {_ALSO.get(name, name) for name in only} or set(_WORK)
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium here: apt install chromium")
    with tempfile.TemporaryDirectory(prefix="holdfast-page-") as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with ServerProcess(Path(folder) / "home") as server:
            bench = Bench(browser, server, size)
            for name in in_rounds([name for name in _WORK if name in names], size.rounds, once=("bundle",)):
                _WORK[name](bench)
            bench.api.close()
        browser.close()
        return bench.samples.results(ROWS)


def main() -> None:
    parser = options(__doc__, ROWS)
    add_rounds(parser)
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    print_results(given, measure(replace(size, rounds=given.rounds or size.rounds), given.only), "–")


if __name__ == "__main__":
    main()
