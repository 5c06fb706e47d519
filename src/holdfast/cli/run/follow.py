"""Follows a thread's runs until they are done. Shows entries as lines or as JSON, and handles Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from holdfast.cli.command_name import as_called
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import Where
from holdfast.cli.session import reach
from holdfast.cli.terminal.console import Cell, assemble, hint, is_terminal, note, write_field, write_json, write_line
from holdfast.cli.terminal.run_lines import RunLines, RunSeen
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from rich.console import Group

    from holdfast.client import Client, Entry

T = TypeVar("T")

_REFRESH: Final = 0.1
_NEXT_RUN_SECONDS: Final = 30.0
"""How long the next run may take to start while prompts are queued."""
_LAUNCH_SECONDS: Final = 3.0
"""How long Ctrl-C waits for the answer to a launch, which has the id of the thread."""
_PATIENCE: Final = 15.0
"""How long a server may be unreachable before we search for it again."""
_SEARCH_PAUSE: Final = 0.5
_REFUSALS: Final = 20
"""How often in a row a key may be refused, while a server restarts."""
_HISTORY_PAGE: Final = 1000


class Display(Protocol):
    """Shows entries."""

    lines: RunLines

    def take(self, entry: Entry, offset: str) -> None: ...

    def tick(self) -> None:
        """Redraw the live part, if there is one."""

    def close(self) -> None: ...


class JsonDisplay:
    """Prints each entry as a line of JSON, without the deltas of live text."""

    def __init__(self) -> None:
        self.lines = RunLines(width=None)

    def take(self, entry: Entry, offset: str) -> None:
        self.lines.take(entry)
        if not entry.type.endswith(".delta"):
            write_json({**entry.to_json(), "offset": offset})

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


class PlainDisplay:
    """Prints complete lines, for a pipe."""

    def __init__(self) -> None:
        self.lines = RunLines(width=None)
        self._silent = False
        """Whether the silence of the run has been reported."""

    def take(self, entry: Entry, offset: str) -> None:
        for line in self.lines.take(entry):
            write_line(*line)

    def tick(self) -> None:
        silence = self.lines.silence(time.time_ns() // 1_000_000)
        if silence and not self._silent:
            note("silent", silence, hint(f"  find out why with holdfast thread diagnose {self.lines.thread}"))
        self._silent = bool(silence)

    def close(self) -> None:
        for line in self.lines.close():
            write_line(*line)


class LiveDisplay:
    """Prints lines on a terminal, and redraws the current activity below them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.lines = RunLines(width=shutil.get_terminal_size().columns)
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def take(self, entry: Entry, offset: str) -> None:
        self.lines.width = self._console.width
        if lines := self.lines.take(entry):
            # The live text is complete now, and must not be visible twice, not even for a moment.
            self._live.update(self._now())
            for line in lines:
                self._console.print(assemble(line), soft_wrap=True)

    def tick(self) -> None:
        self._live.update(self._now(), refresh=True)

    def _now(self) -> Group:
        from rich.console import Group

        size = self._console.size
        self.lines.width = size.width
        shown = self.lines.live(time.time_ns() // 1_000_000, max(2, size.height - 2))
        return Group(*map(assemble, shown))

    def close(self) -> None:
        from rich.text import Text

        for line in self.lines.close():
            self._console.print(assemble(line), soft_wrap=True)
        self._live.update(Text(), refresh=True)
        self._live.stop()


@contextlib.contextmanager
def showing(*, as_json: bool) -> Iterator[Display]:
    """Open the display for JSON, a terminal or a pipe."""
    shown: Display = JsonDisplay() if as_json else LiveDisplay() if is_terminal() else PlainDisplay()
    try:
        yield shown
    finally:
        shown.close()


@dataclass(slots=True)
class Interrupts:
    """Ctrl-C as an event. The first one means to leave; more have no further effect."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def before(self, work: Awaitable[T], grace: float) -> T | None:
        """Return the result of `work`, or None if Ctrl-C came first and the work did not end within `grace` seconds."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self.asked.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait({task}, timeout=grace)
            return task.result() if task.done() else None
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)


@contextlib.asynccontextmanager
async def interrupts() -> AsyncIterator[Interrupts]:
    loop = asyncio.get_running_loop()
    caught = Interrupts()
    loop.add_signal_handler(signal.SIGINT, caught.asked.set)
    try:
        yield caught
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if caught.asked.is_set():
            # Only the last messages are left to print: a second Ctrl-C must not cut them off.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


class Following:
    """Follows a thread through restarts of its server, which may have another key and another port afterwards."""

    def __init__(self, where: Where, thread: str, since: str | None, shown: Display, caught: Interrupts) -> None:
        self._where = where
        self._thread = thread
        self._since = since
        self._shown = shown
        shown.lines.thread = thread
        self._caught = caught
        self._refused = 0

    async def until_done(self) -> bool:
        """Show entries until no run is in progress or about to start. Returns False if Ctrl-C came first."""
        while not self._caught.asked.is_set():
            try:
                async with reach(self._where) as client:
                    return await self._follow(client)
            except CommandError as error:
                # While a server restarts, there may be none, or one that does not accept the previous key.
                self._refused += error.exit is Exit.NOT_AUTHORISED
                if error.exit not in (Exit.UNREACHABLE, Exit.NOT_AUTHORISED) or self._refused > _REFUSALS:
                    raise
            with contextlib.suppress(TimeoutError):
                async with time_limit(_SEARCH_PAUSE):
                    await self._caught.asked.wait()
        return False

    async def _follow(self, client: Client) -> bool:
        lines = self._shown.lines
        deadline: float | None = None
        drawn = 0.0
        stop = asyncio.ensure_future(self._caught.asked.wait())
        pending: asyncio.Future[Entry] | None = None
        try:
            async with client.thread(self._thread).tail(since=self._since, patience=_PATIENCE) as tail:
                while not self._caught.asked.is_set():
                    if pending is None:
                        pending = asyncio.ensure_future(tail.__anext__())
                    both: set[asyncio.Future[Any]] = {pending, stop}
                    await asyncio.wait(both, timeout=_REFRESH, return_when=asyncio.FIRST_COMPLETED)
                    if pending.done():
                        done, pending = pending, None
                        try:
                            entry = done.result()
                        except StopAsyncIteration:
                            return True
                        self._since, self._refused = tail.offset, 0
                        self._shown.take(entry, tail.offset)
                        if entry.type == "signal.run.finished" and not lines.running:
                            if not lines.waiting:
                                return True
                            deadline = time.monotonic() + _NEXT_RUN_SECONDS
                        if time.monotonic() - drawn < _REFRESH:
                            continue
                    if lines.running:
                        deadline = None
                    elif deadline is not None and time.monotonic() > deadline:
                        return True
                    drawn = time.monotonic()
                    self._shown.tick()
                return False
        finally:
            waiting: list[asyncio.Future[Any]] = [stop] if pending is None else [stop, pending]
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def show_history(client: Client, thread: str, shown: Display) -> str | None:
    """Show the entries of a thread so far. Returns the offset after them."""
    since: str | None = None
    while True:
        page = await client.thread(thread).page(since=since, limit=_HISTORY_PAGE, unfinished=True)
        for entry in page.entries:
            shown.take(entry, page.next_offset)
        since = page.next_offset
        if page.up_to_date:
            return since


async def page_link(client: Client, thread: str) -> str:
    """The URL of the thread's page. On a terminal it contains a key, in the fragment, which browsers never send. In a
    pipe or a file, where the key would be stored, it does not."""
    from holdfast.api.errors import HoldfastError

    url = f"{client.url}/t/{thread}"
    if not client.has_credential or not is_terminal():
        return url
    try:
        return await client.thread(thread).link()
    except HoldfastError:
        return url  # a token for this thread cannot make links, and does not need one


async def introduce(client: Client, thread: str) -> None:
    """Print the thread's id and the URL of its page."""
    write_field("thread", Cell(thread, "bold"))
    write_field("page", await page_link(client, thread))


def outcome(thread: str, page: str, run: RunSeen | None, *, status: str | None = None) -> dict[str, Any]:
    """The last line of `--json`. `page` is the URL of the thread's page."""
    document: dict[str, Any] = {
        "thread": thread,
        "run": None if run is None else run.id,
        "status": status or (None if run is None else run.status or "running"),
        "url": page,
    }
    if run is not None and run.error:
        document["error"] = {"message": run.error, **({"hint": run.hint} if run.hint else {})}
    if run is not None and run.usage:
        document["usage"] = dict(run.usage)
    return document


def print_missing(thread: str, run: RunSeen | None) -> None:
    """Print what the run's commands did not find in the box, and how to provide it."""
    if run is None or not run.missing:
        return
    closed = "no network" in run.isolation
    what = "the network: the box has none" if run.missing == "the network" else f"{run.missing} is not in the box"
    note("missing", what if closed or run.missing != "the network" else "a host that the box may not reach")
    reopen = f"box network {run.box}" if run.of_session else f"resume {thread}"
    opened = f"holdfast {reopen} --allow default" if closed else f"holdfast box egress {run.box} --denied"
    effect = "allow package registries" if closed else "see what was denied"
    note("", hint(f"{effect} with {opened}; use other programs with holdfast run --image NAME"))


def conclude(thread: str, run: RunSeen | None) -> Exit:
    """Print what to do next, and return the exit code: 0 only for a completed run."""
    print_missing(thread, run)
    completed = run is not None and run.status == "completed"
    if is_terminal():
        work = ["diff", "apply"] if run is not None and run.may_have_changed else []
        go_on = f"resume {thread}"
        if run is not None and run.of_session:
            go_on = f'session prompt {thread} "…"'
        work = [f"{each} {thread}" for each in work]
        commands = [*work, go_on] if completed else [go_on, *work, f"thread diagnose {thread}"]
        write_line("")
        write_next([f"holdfast {each}" for each in commands])
    return Exit.OK if completed else Exit.FAILURE


def write_next(commands: list[str]) -> None:
    """Print commands to continue with, each on a line of its own, so that they can be copied."""
    for number, each in enumerate(commands):
        write_line(Cell(f"  {'' if number else 'next':<7}", "dim"), as_called(each))


def print_detached(thread: str) -> None:
    note("detached", f"the run continues on thread {thread}")
    note("next", hint(f"holdfast attach {thread}"))
    note("", hint(f"holdfast cancel {thread}"))


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that was launched or resumed, and the offset where its entries start."""

    thread: str
    run: str
    since: str | None


@dataclass(slots=True)
class LaunchState:
    """Whether the launch of a run was requested."""

    sent: bool = False
    """The request was sent: whatever happens now, the run may start."""


async def begin_and_follow(
    where: Where, client: Client, begin: Callable[[LaunchState], Awaitable[StartedRun]], *, detach: bool, as_json: bool
) -> Exit:
    """Launch or resume, then show what happens until it is done."""
    state = LaunchState()
    async with interrupts() as caught:
        started = await caught.before(begin(state), _LAUNCH_SECONDS)
        if started is None and not state.sent:
            raise CommandError("interrupted: nothing was started", exit=Exit.INTERRUPTED)
        if started is None:
            raise CommandError(
                "interrupted before the server answered: the run may have started",
                next_step="list threads, newest first, with holdfast thread list",
                exit=Exit.INTERRUPTED,
            )
        if detach or caught.asked.is_set():
            return await _leave(client, started, as_json=as_json, asked=detach)
        if not as_json:
            await introduce(client, started.thread)
        with showing(as_json=as_json) as shown:
            shown.lines.expect(started.run)
            finished = await Following(where, started.thread, started.since, shown, caught).until_done()
        run = shown.lines.latest
        if as_json:
            write_json(outcome(started.thread, await page_link(client, started.thread), run))
        if not finished:
            if not as_json:
                print_detached(started.thread)
            return Exit.INTERRUPTED
        if as_json:
            return Exit.OK if run is not None and run.status == "completed" else Exit.FAILURE
        return conclude(started.thread, run)


async def _leave(client: Client, started: StartedRun, *, as_json: bool, asked: bool) -> Exit:
    if as_json:
        page = await page_link(client, started.thread)
        write_json({**outcome(started.thread, page, None, status="running"), "run": started.run})
    elif not asked:
        print_detached(started.thread)
    elif is_terminal():
        await introduce(client, started.thread)
        write_next([f"holdfast attach {started.thread}", f"holdfast cancel {started.thread}"])
    else:
        write_line(started.thread)
    return Exit.OK if asked else Exit.INTERRUPTED
