"""`holdfast box top`: what all boxes use, live; in a pipe one table, or JSON."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from holdfast.cli.box.commands import state_cell
from holdfast.cli.command_name import as_called
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import (
    ACCENT,
    Cell,
    hint,
    is_terminal,
    note,
    printable,
    write_field,
    write_json,
    write_table,
)
from holdfast.cli.terminal.durations import describe_duration
from holdfast.cli.terminal.sizes import describe_size
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from rich.console import Group

    from holdfast.api.box.usage import BoxUsage, BoxUsages
    from holdfast.client import Client

SortName = Literal["cpu", "memory", "disk", "network", "idle", "name"]
_KEYS: Final[dict[str, SortName]] = {
    "c": "cpu", "m": "memory", "d": "disk", "n": "network", "i": "idle", "b": "name",
}  # fmt: skip
_MINIMUM_INTERVAL: Final = 1.0
"""Seconds. The server samples no more often."""
_HISTORY: Final = 10
_BARS: Final = " ▁▂▃▄▅▆▇█"
_SIGNS: Final = {"running": "●", "paused": "◐", "hibernated": "○", "stopped": "·"}
_COLUMNS: Final = ("box", "state", "cpu", "", "memory", "disk", "sent", "received", "procs", "idle", "key")
_DROP_ORDER: Final = ("", "disk", "procs", "sent", "received", "key", "idle", "memory")
"""Columns to leave out on a narrow terminal, the first one first."""
_RIGHT: Final = frozenset({"cpu", "memory", "disk", "sent", "received", "procs", "idle"})


@dataclass(frozen=True, slots=True)
class Line:
    """One box, with its rates since the previous sample."""

    usage: BoxUsage
    cpu: float | None = None
    """Cores."""
    sent: float | None = None
    """Bytes per second."""
    received: float | None = None

    @property
    def idle(self) -> float | None:
        """Seconds since the box was last active, or None while it is."""
        if self.usage.metrics is None or self.usage.state == "paused":
            return (self.usage.sampled_at - self.usage.last_active_at) / 1000
        return self.usage.metrics.idle_seconds or None


@dataclass(slots=True)
class Watch:
    """The previous sample of each box, and the history of its CPU use."""

    before: dict[str, BoxUsage] = field(default_factory=dict)
    history: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, usages: Sequence[BoxUsage]) -> list[Line]:
        lines = [compare(self.before.get(usage.id), usage) for usage in usages]
        self.before = {usage.id: usage for usage in usages}
        self.history = {usage.id: self.history.get(usage.id, deque(maxlen=_HISTORY)) for usage in usages}
        for line in lines:
            self.history[line.usage.id].append(line.cpu or 0.0)
        return lines


def compare(before: BoxUsage | None, now: BoxUsage) -> Line:
    """The current sample of a box, with its rates since the previous one."""
    if before is None or before.metrics is None or now.metrics is None or now.sampled_at <= before.sampled_at:
        return Line(now)
    seconds = (now.sampled_at - before.sampled_at) / 1000
    was, is_ = before.metrics, now.metrics

    def rate(one: float | None, other: float | None) -> float | None:
        return None if one is None or other is None else max(0.0, other - one) / seconds

    return Line(now, rate(was.cpu_seconds, is_.cpu_seconds), rate(was.sent, is_.sent), rate(was.received, is_.received))


def sorted_by(lines: Sequence[Line], sort: SortName) -> list[Line]:
    """Sort the heaviest first, and sleeping boxes last."""

    def weight(line: Line) -> tuple[float, ...]:
        metrics = line.usage.metrics
        asleep = float(metrics is None)
        memory = float(metrics.memory or 0) if metrics is not None else 0.0
        match sort:
            case "cpu":
                return (asleep, -(line.cpu or 0.0), -memory)
            case "memory":
                return (asleep, -memory)
            case "disk":
                return (asleep, -float((metrics.disk or 0) if metrics is not None else 0))
            case "network":
                return (asleep, -(line.sent or 0.0) - (line.received or 0.0))
            case "idle":
                return (-(line.idle or 0.0),)
            case "name":
                return ()

    return sorted(lines, key=lambda line: (*weight(line), line.usage.id))


def cells(line: Line, history: Sequence[float] = ()) -> list[Cell | str]:
    """One row of the table, in the order of the columns."""
    usage, metrics = line.usage, line.usage.metrics
    memory = "" if metrics is None or metrics.memory is None else describe_size(metrics.memory)
    if memory and usage.memory_limit is not None:
        memory += f" / {describe_size(usage.memory_limit)}"
    full = metrics is not None and usage.memory_limit is not None and (metrics.memory or 0) > 0.9 * usage.memory_limit
    sign = _SIGNS.get(usage.state, "…")
    return [
        Cell(usage.id, "bold"),
        Cell(f"{sign} {usage.state}", state_cell(usage.state).style),
        _share(line),
        Cell(spark(history, usage.cpu_limit or 1.0), ACCENT),
        Cell(memory, "red" if full else ""),
        "" if metrics is None or metrics.disk is None else describe_size(metrics.disk),
        _speed(line.sent),
        _speed(line.received),
        "" if metrics is None else str(metrics.processes),
        "" if line.idle is None or line.idle < 1 else describe_duration(line.idle),
        usage.key or "",
    ]


def _share(line: Line) -> str:
    if line.usage.metrics is None or line.usage.state == "paused":
        return ""
    return "…" if line.cpu is None else f"{line.cpu * 100:.0f} %"


def _speed(rate: float | None) -> str:
    return "" if rate is None or rate < 1 else f"{describe_size(int(rate))}/s"


def spark(history: Sequence[float], full: float) -> str:
    """A small plot of the CPU use, newest at the right."""
    steps = len(_BARS) - 1
    bars = [min(steps, round(min(value / full, 1.0) * steps) or (1 if value > 0.005 else 0)) for value in history]
    return "".join(_BARS[bar] for bar in bars).rjust(_HISTORY) if history else ""


def summary(lines: Sequence[Line]) -> str:
    """All boxes in one line."""
    states = Counter(line.usage.state.value for line in lines)
    parts = [f"{count} {state}" for state, count in sorted(states.items(), key=lambda each: (-each[1], each[0]))]
    parts.append(f"{sum(line.cpu or 0.0 for line in lines):.2f} cores")
    parts.append(
        f"{describe_size(sum((line.usage.metrics.memory or 0) for line in lines if line.usage.metrics))} memory"
    )
    return " · ".join(parts)


def document(lines: Sequence[Line]) -> dict[str, Any]:
    return {
        "boxes": [
            {
                **line.usage.to_json(),
                "cpuCores": None if line.cpu is None else round(line.cpu, 4),
                "sentPerSecond": None if line.sent is None else round(line.sent),
                "receivedPerSecond": None if line.received is None else round(line.received),
            }
            for line in lines
        ]
    }


def top(
    sort: Annotated[SortName, Option(help="Sort by this, highest first.")] = "cpu",
    every: Annotated[float, Option(metavar="SECONDS", min=1.0, max=3600.0, help="Seconds between updates.")] = 2.0,
    once: Annotated[bool, Option("--once", help="Print one table and exit.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Watch what boxes use: CPU, memory, disk and network. This wakes no sleeping box.

    Live on a terminal: c, m, d, n, i and b sort by CPU, memory, disk, network, idle time and box; q quits. In a pipe,
    or with --once or --json, prints one sample, which takes a second.

    \b
    holdfast box top --sort memory
    holdfast box top --json | jq '.boxes[] | select(.cpuCores > 0.5).id'
    """
    if as_json or once or not is_terminal():
        _print_once(where, sort, as_json=as_json)
    else:
        with contextlib.suppress(KeyboardInterrupt):
            ask(where, lambda client: _live(client, sort, every))


def _print_once(where: Where, sort: SortName, *, as_json: bool) -> None:
    async def work(client: Client) -> tuple[list[Line], int]:
        watch = Watch()
        watch.add((await client.boxes.usage()).boxes)
        await asyncio.sleep(_MINIMUM_INTERVAL)
        usages = await client.boxes.usage()
        return watch.add(usages.boxes), usages.left_out

    found, left_out = ask(where, work)
    lines = sorted_by(found, sort)
    if as_json:
        write_json({**document(lines), "leftOut": left_out})
    elif not lines:
        write_field("no boxes", hint("create one with holdfast box create"))
    else:
        write_table(*_without_empty(_COLUMNS, [cells(line) for line in lines]))
        if left_out:
            note("more", f"{left_out} less recently active boxes are left out")


def _without_empty(columns: Sequence[str], rows: list[list[Cell | str]]) -> tuple[list[str], list[list[Cell | str]]]:
    """Leave out columns that are empty for all these boxes."""
    used = [number for number in range(len(columns)) if any(_text(row[number]).strip() for row in rows)]
    return [columns[number] for number in used], [[row[number] for number in used] for row in rows]


def fitting(columns: list[str], rows: list[list[Cell | str]], width: int) -> tuple[list[str], list[list[Cell | str]]]:
    """Leave out columns until the rest fits, the least useful first."""
    for name in _DROP_ORDER:
        needed = [max(len(column), *(len(_text(row[at])) for row in rows)) for at, column in enumerate(columns)]
        if sum(needed) + 2 * len(needed) <= width:
            break
        if name in columns:
            at = columns.index(name)
            columns = columns[:at] + columns[at + 1 :]
            rows = [row[:at] + row[at + 1 :] for row in rows]
    return columns, rows


def _text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


# --- live -------------------------------------------------------------------------------------------------------------


async def _live(client: Client, sort: SortName, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    watch = Watch()
    chosen = [sort]
    pressed = asyncio.Event()
    done = asyncio.Event()

    def press(key: str) -> None:
        if key in ("q", "\x03", "\x1b"):
            done.set()
        elif key in _KEYS:
            chosen[0] = _KEYS[key]
        pressed.set()

    with _keys(press), Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
        lines: list[Line] = []
        left_out = 0
        due = 0.0
        while not done.is_set():
            if time.monotonic() >= due:
                usages: BoxUsages = await client.boxes.usage()
                # Rates need two samples, so the second one comes as soon as possible.
                due = time.monotonic() + (every if lines else _MINIMUM_INTERVAL)
                lines, left_out = watch.add(usages.boxes), usages.left_out
            live.update(_page(lines, watch, chosen[0], left_out, console.width, console.height), refresh=True)
            pressed.clear()
            with contextlib.suppress(TimeoutError):
                async with time_limit(max(0.0, due - time.monotonic())):
                    await pressed.wait()


def _page(lines: Sequence[Line], watch: Watch, sort: SortName, left_out: int, width: int, height: int) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble(("  boxes  ", "bold"), (summary(lines) if lines else "none yet", ""))
    head.no_wrap, head.overflow = True, "ellipsis"
    if not lines:
        return Group(head, Text(), Text(as_called("  create one with holdfast box create"), "dim"))
    room = max(1, height - 5)
    shown = sorted_by(lines, sort)[:room]
    rows = [cells(line, watch.history.get(line.usage.id, ())) for line in shown]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=False)
    columns, kept = fitting(*_without_empty(_COLUMNS, rows), width - 4)
    table.add_column("", width=0)
    for column in columns:
        table.add_column(
            Text(column, "bold" if column == _column_of(sort) else "dim"),
            justify="right" if column in _RIGHT else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in kept:
        table.add_row("", *(_as_text(cell) for cell in row))
    more = len(lines) - len(shown) + left_out
    keys = "sort  c cpu · m memory · d disk · n network · i idle · b box     q quit"
    foot = Text(f"  {more} more     {keys}" if more else f"  {keys}", "dim", no_wrap=True, overflow="ellipsis")
    return Group(head, Text(), table, Text(), foot)


def _column_of(sort: SortName) -> str:
    return {"network": "received", "name": "box"}.get(sort, sort)


def _as_text(cell: Cell | str) -> Any:
    from rich.text import Text

    return Text(printable(cell)) if isinstance(cell, str) else Text(printable(cell.text), cell.style)


@contextlib.contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call `press` for each key pressed, without echo. Does nothing if standard input is not a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in os.read(descriptor, 64).decode("utf-8", "replace") or "q":
            press(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
