"""Following a thread's runs until they are done: its entries as lines, or as JSON, and what Ctrl-C means meanwhile."""

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
"""How long the run may take to begin that prompts wait for."""
_LAUNCH_SECONDS: Final = 3.0
"""How long Ctrl-C waits for the answer to a launch, which says where the work is."""
_PATIENCE: Final = 15.0
"""How long a server may be away before it is looked for anew."""
_LOOK_AGAIN_SECONDS: Final = 0.5
_REFUSALS: Final = 20
"""How often a key may be refused in a row, while a server starts again."""
_HISTORY_PAGE: Final = 1000


class Shown(Protocol):
    """Where entries go."""

    lines: RunLines

    def take(self, entry: Entry, offset: str) -> None: ...

    def tick(self) -> None:
        """Draw again what goes on, where that is drawn."""

    def close(self) -> None: ...


class ShownAsJson:
    """Whole entries, one a line. Live text is for eyes: each message comes whole."""

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


class ShownPlainly:
    """Lines for a pipe, each when it is whole."""

    def __init__(self) -> None:
        self.lines = RunLines(width=None)
        self._silent = False
        """It was said that the run gives no sign of life."""

    def take(self, entry: Entry, offset: str) -> None:
        for line in self.lines.take(entry):
            write_line(*line)

    def tick(self) -> None:
        silence = self.lines.silence(time.time_ns() // 1_000_000)
        if silence and not self._silent:
            note("silent", silence, hint(f"  holdfast thread diagnose {self.lines.thread} says why"))
        self._silent = bool(silence)

    def close(self) -> None:
        for line in self.lines.close():
            write_line(*line)


class ShownLive:
    """Lines for a terminal, with what goes on at this moment drawn below them, over and over."""

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
            # What was live is whole now: it is not to be seen twice, not even for a moment.
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
def showing(*, as_json: bool) -> Iterator[Shown]:
    """Where entries go, by who reads them."""
    shown: Shown = ShownAsJson() if as_json else ShownLive() if is_terminal() else ShownPlainly()
    try:
        yield shown
    finally:
        shown.close()


@dataclass(slots=True)
class Interrupts:
    """Ctrl-C as an event. The first one asks to leave; those after it do nothing worse."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def before(self, work: Awaitable[T], grace: float) -> T | None:
        """The result of some work; None where Ctrl-C came first, and the work did not end soon after."""
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
            # What is left is to say goodbye: a second Ctrl-C must not cut that short.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


class Following:
    """A thread that is followed through anything that happens to its server: found anew, it has another key, perhaps
    another port."""

    def __init__(self, where: Where, thread: str, since: str | None, shown: Shown, caught: Interrupts) -> None:
        self._where = where
        self._thread = thread
        self._since = since
        self._shown = shown
        shown.lines.thread = thread
        self._caught = caught
        self._refused = 0

    async def until_done(self) -> bool:
        """Show entries until no run goes on and none is about to. False where Ctrl-C came first."""
        while not self._caught.asked.is_set():
            try:
                async with reach(self._where) as client:
                    return await self._follow(client)
            except CommandError as error:
                # While a server starts there may be none, or one that does not know the key of the last one.
                self._refused += error.exit is Exit.NOT_AUTHORISED
                if error.exit not in (Exit.UNREACHABLE, Exit.NOT_AUTHORISED) or self._refused > _REFUSALS:
                    raise
            with contextlib.suppress(TimeoutError):
                async with time_limit(_LOOK_AGAIN_SECONDS):
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


async def show_history(client: Client, thread: str, shown: Shown) -> str | None:
    """Show what is on a thread; says where it ends."""
    since: str | None = None
    while True:
        page = await client.thread(thread).page(since=since, limit=_HISTORY_PAGE, unfinished=True)
        for entry in page.entries:
            shown.take(entry, page.next_offset)
        since = page.next_offset
        if page.up_to_date:
            return since


async def page_link(client: Client, thread: str) -> str:
    """The address of the thread's page. On a terminal it has a key, where the server asks for one, in the part of an
    address that is never sent. In a pipe or a file, where it would stay, it has none."""
    from holdfast.api.errors import HoldfastError

    url = f"{client.url}/t/{thread}"
    if not client.has_credential or not is_terminal():
        return url
    try:
        return await client.thread(thread).link()
    except HoldfastError:
        return url  # whoever has only a token for this thread has what it takes already


async def introduce(client: Client, thread: str) -> None:
    """Where the work is, on a terminal and in a browser."""
    write_field("thread", Cell(thread, "bold"))
    write_field("page", await page_link(client, thread))


def outcome(thread: str, page: str, run: RunSeen | None, *, status: str | None = None) -> dict[str, Any]:
    """The last line of `--json`. `page` is where the thread can be seen."""
    told: dict[str, Any] = {
        "thread": thread,
        "run": None if run is None else run.id,
        "status": status or (None if run is None else run.status or "running"),
        "url": page,
    }
    if run is not None and run.error:
        told["error"] = {"message": run.error, **({"hint": run.hint} if run.hint else {})}
    if run is not None and run.usage:
        told["usage"] = dict(run.usage)
    return told


def say_missing(thread: str, run: RunSeen | None) -> None:
    """How a run gets what its commands did not find: it has the programs of this computer or its image, no more."""
    if run is None or not run.missing:
        return
    closed = "no network" in run.isolation
    what = "the network: the box has none" if run.missing == "the network" else f"{run.missing}: it is not in the box"
    note("missing", what if closed or run.missing != "the network" else "a host that the box may not reach")
    opened = f"holdfast resume {thread} --allow default" if closed else f"holdfast box egress {run.box} --denied"
    told = "lets it reach package registries" if closed else "says what was refused"
    note("", hint(f"{opened} {told}; holdfast run --image NAME begins with other programs"))


def conclude(thread: str, run: RunSeen | None) -> Exit:
    """What to do next, for people; and the exit code: 0 only for a run that was completed."""
    say_missing(thread, run)
    completed = run is not None and run.status == "completed"
    if is_terminal():
        commands = ["diff", "resume"] if completed else ["resume", "diff", "thread diagnose"]
        write_line("")
        write_next([f"holdfast {each} {thread}" for each in commands])
    return Exit.OK if completed else Exit.FAILURE


def write_next(commands: list[str]) -> None:
    """Commands to go on with, each on a line of its own: people copy lines."""
    for number, each in enumerate(commands):
        write_line(Cell(f"  {'' if number else 'next':<7}", "dim"), as_called(each))


def say_detached(thread: str) -> None:
    note("detached", f"the run goes on without you, on thread {thread}")
    note("next", hint(f"holdfast attach {thread}"))
    note("", hint(f"holdfast cancel {thread}"))


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that was asked for, and where its entries begin."""

    thread: str
    run: str
    since: str | None


@dataclass(slots=True)
class Asking:
    """How far a command has come that wants a run."""

    sent: bool = False
    """The server was asked for it: whatever happens now, it may begin."""


async def begin_and_follow(
    where: Where, client: Client, begin: Callable[[Asking], Awaitable[Begun]], *, detach: bool, as_json: bool
) -> Exit:
    """Launch or resume, then show what happens until it is done."""
    asking = Asking()
    async with interrupts() as caught:
        begun = await caught.before(begin(asking), _LAUNCH_SECONDS)
        if begun is None and not asking.sent:
            raise CommandError("interrupted: nothing was begun", exit=Exit.INTERRUPTED)
        if begun is None:
            raise CommandError(
                "interrupted before the server had answered: the run may have begun",
                next_step="holdfast thread list shows the latest first",
                exit=Exit.INTERRUPTED,
            )
        if detach or caught.asked.is_set():
            return await _leave(client, begun, as_json=as_json, asked=detach)
        if not as_json:
            await introduce(client, begun.thread)
        with showing(as_json=as_json) as shown:
            shown.lines.expect(begun.run)
            finished = await Following(where, begun.thread, begun.since, shown, caught).until_done()
        run = shown.lines.latest
        if as_json:
            write_json(outcome(begun.thread, await page_link(client, begun.thread), run))
        if not finished:
            if not as_json:
                say_detached(begun.thread)
            return Exit.INTERRUPTED
        if as_json:
            return Exit.OK if run is not None and run.status == "completed" else Exit.FAILURE
        return conclude(begun.thread, run)


async def _leave(client: Client, begun: Begun, *, as_json: bool, asked: bool) -> Exit:
    if as_json:
        page = await page_link(client, begun.thread)
        write_json({**outcome(begun.thread, page, None, status="running"), "run": begun.run})
    elif not asked:
        say_detached(begun.thread)
    elif is_terminal():
        await introduce(client, begun.thread)
        write_next([f"holdfast attach {begun.thread}", f"holdfast cancel {begun.thread}"])
    else:
        write_line(begun.thread)
    return Exit.OK if asked else Exit.INTERRUPTED
