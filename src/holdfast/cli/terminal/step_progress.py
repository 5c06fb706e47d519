"""Shows the progress of long work on standard error: a line for each finished step, and on a terminal a live line."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from holdfast.cli.terminal.console import LABEL_WIDTH, Cell, note, printable
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_MEGABYTE: Final = 1 << 20
_STATUS_WIDTH: Final = 60
_DETAIL_WIDTH: Final = 44


class StepProgress:
    """A `holdfast.api.progress.Progress`. Leaving the `with` block removes the live line."""

    def __init__(self) -> None:
        self._step, self._detail = "", ""
        self._began = 0.0
        self._total: int | None = None
        self._done = 0
        self._line = b""
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove_line()

    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        self._step, self._detail, self._total = step, detail, total
        self._began = time.monotonic()
        self._line = b""
        self._done = 0
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task(
                f"  {step.ljust(LABEL_WIDTH - 1)}", total=total, detail=_cut(detail, _DETAIL_WIDTH), status=""
            )
            self._bar.start()

    def advance(self, amount: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, amount)
            self._done += amount
            if self._total is not None and self._total > _MEGABYTE:  # bytes
                status = f"{describe_size(self._done)} of {describe_size(self._total)}"
                self._bar.update(self._task, status=status)

    def output(self, data: bytes) -> None:
        if self._bar is None or self._task is None:
            return
        *lines, self._line = (self._line + data)[-4096:].split(b"\n")
        status = next((line for line in reversed(lines) if line.strip()), b"").decode("utf-8", "replace").strip()
        if status:
            self._bar.update(self._task, status=_cut(printable(status), _STATUS_WIDTH))

    def end(self, summary: str = "") -> None:
        self._remove_line()
        if not summary and self._total is not None and self._total > _MEGABYTE:
            summary = describe_size(self._total)
        self._print_step(summary, f"{time.monotonic() - self._began:.1f} s")

    def skip(self, step: str, detail: str = "") -> None:
        self._step, self._detail = step, detail
        self._print_step("", "cached")

    def _remove_line(self) -> None:
        """Remove the live line, so that something else can be printed."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print_step(self, summary: str, last: str) -> None:
        detail = "  ".join(filter(None, (self._detail, summary)))
        note(self._step, detail.ljust(_DETAIL_WIDTH), Cell(f"  {last}", "dim"))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _bar() -> Progress:
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class KnownEnd(ProgressColumn):
        """A bar, only if the total is known."""

        bar = BarColumn(bar_width=24, complete_style="dark_cyan", finished_style="dark_cyan")

        def render(self, task: Task) -> RenderableType:
            return self.bar.render(task) if task.total else Text("")

    return Progress(
        TextColumn("{task.description}", style="dim"),
        TextColumn("{task.fields[detail]}", markup=False),
        KnownEnd(),
        TextColumn("{task.fields[status]}", style="dim", markup=False),
        console=Console(stderr=True, highlight=False, markup=False, emoji=False),
        transient=True,
    )
