"""The state of a context: saved to a file of its box, taken out as bytes, and put into another one.

Nothing of it is read here but its first line. It is written and read in boxes, by `holdfast.guest.kernel.state_file`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import BoxError, FileProblem
from holdfast.api.errors.interpreters import InterpreterError, InvalidInterpreter, StateFailed
from holdfast.api.ids import now_ms
from holdfast.guest.kernel.state_file import MAGIC
from holdfast.interpreter.kernel.context import GRACE_SECONDS, Context, ContextRefused
from holdfast.interpreter.results import Saved

EXPORT_LIMIT: Final = 1 << 30
"""Bytes of a state that is brought to the host. A larger one can be saved to a volume."""
SECONDS: Final = 600.0
_FORMAT: Final = 1
_MOST_NAMES: Final = 100_000
_LONGEST: Final = 4096

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a saved state is, and what is in it. Plain JSON: for a manifest, or an entry of a thread."""

    python: str
    """The version that it was saved by. Functions and classes can be loaded by that alone; other values by any."""
    names: tuple[str, ...]
    unsaved: Mapping[str, str]
    """Names that could not be saved, with why."""
    size: int
    saved_at: int
    """UTC milliseconds."""
    path: str | None = None
    """The file, where it was left in a box or on its volume."""

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "python": self.python,
            "names": list(self.names),
            "unsaved": dict(self.unsaved),
            "size": self.size,
            "savedAt": self.saved_at,
            "path": self.path,
        }

    @classmethod
    def from_json(cls, document: object) -> Checkpoint:
        """Raises `InvalidInterpreter`: what a volume has may be anybody's."""
        match document:
            case {"format": 1, "python": str(python), "names": list(names), "unsaved": dict(unsaved),
                  "size": int(size), "savedAt": int(saved_at), "path": str() | None as path}:  # fmt: skip
                texts = [python, path or "", *names, *unsaved, *unsaved.values()]
                few = len(texts) <= _MOST_NAMES and all(isinstance(each, str) for each in texts)
                if few and all(len(each) <= _LONGEST for each in texts):
                    return cls(python, tuple(names), dict(unsaved), size, saved_at, path)
        raise InvalidInterpreter("this says nothing of a saved state", hint="give what export_state returned")


@dataclass(frozen=True, slots=True)
class State:
    """A state that can be kept anywhere."""

    checkpoint: Checkpoint
    data: bytes = field(repr=False)


async def save(context: Context, path: str, *, seconds: float = SECONDS, now: Callable[[], int] = now_ms) -> Checkpoint:
    """Write all that can be saved to a file of the box, whole or not at all. Raises `StateFailed`, `KernelLost`."""
    done = await _within(seconds, context, context.save(path), "save its state")
    try:
        size = (await context.kernels.box.files.stat(path)).size
    except FileProblem as error:
        raise StateFailed(f"{path} is gone again: {error.message}") from None
    return Checkpoint(context.python, done.names, done.unsaved, size, now(), path)


async def load(context: Context, path: str, *, seconds: float = SECONDS) -> Saved:
    """Replace all that the context has by what a file of the box has; says what of it could not be loaded, with why.
    Where that is no state, or is damaged, nothing is changed. Raises `StateFailed`, `KernelLost`."""
    return await _within(seconds, context, context.load(path), f"load {path}")


async def export_state(
    context: Context, *, limit: int = EXPORT_LIMIT, seconds: float = SECONDS, now: Callable[[], int] = now_ms
) -> State:
    """The state as bytes. Raises `StateFailed` where it is larger than `limit`."""
    box = context.kernels.box
    path = _passing()
    try:
        saved = await save(context, path, seconds=seconds, now=now)
        if saved.size > limit:
            raise _too_large(saved.size, limit)
        data = bytearray()
        async for piece in box.files.stream(path):
            data += piece
            if len(data) > limit:  # it grows while it is read
                raise _too_large(len(data), limit)
    finally:
        await _remove(box, path)
    checkpoint = Checkpoint(saved.python, saved.names, saved.unsaved, len(data), saved.saved_at)
    return State(checkpoint, bytes(data))


async def import_state(context: Context, data: bytes, *, seconds: float = SECONDS) -> Saved:
    """Replace all that the context has by what was exported. Raises `InvalidInterpreter`, `StateFailed`."""
    if not data.startswith(MAGIC):
        raise InvalidInterpreter("this is no exported state", hint="give what export_state returned")
    box = context.kernels.box
    path = _passing()
    try:
        try:
            await box.files.write(path, data, mode=0o600)
        except FileProblem as error:
            raise StateFailed(f"the state could not be brought into box {box.id}: {error.message}") from None
        return await load(context, path, seconds=seconds)
    finally:
        await _remove(box, path)


def _passing() -> str:
    return f"/tmp/.holdfast-state-{secrets.token_hex(8)}"  # of the box


async def _remove(box: Box, path: str) -> None:
    with contextlib.suppress(BoxError):
        await box.files.delete(path)


def _too_large(size: int, limit: int) -> StateFailed:
    return StateFailed(
        f"the state has {size:,} bytes, and {limit:,} at most can be exported",
        hint="delete what is large and can be made again, or save to a file on the volume",
    )


async def _within(seconds: float, context: Context, work: Awaitable[Result], what: str) -> Result:
    """Values have code of their own for being saved and loaded, which may never end: then it is interrupted."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            await _end(context, task)
            raise StateFailed(
                f"context {context.id} took longer than {seconds:g} s to {what}, and was stopped",
                hint="a value whose __reduce__ or __setstate__ does not end may be the reason",
            )
    except asyncio.CancelledError:
        if not task.done():
            await _end(context, task)
        raise
    try:
        return task.result()
    except ContextRefused as error:
        raise StateFailed(error.message) from None


async def _end(context: Context, task: asyncio.Future[Any]) -> None:
    """Interrupt it; kill the context where that does not help."""
    with contextlib.suppress(InterpreterError):
        await context.interrupt()
    await asyncio.wait({task}, timeout=GRACE_SECONDS)
    if not task.done():
        await context.kill()
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
