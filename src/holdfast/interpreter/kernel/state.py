"""The state of a context: saved to a file in its box, exported as bytes, and imported into another context.

Boxes write and read it, by `holdfast.guest.kernel.state_file`. The host checks only its first line.
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
from holdfast.interpreter.kernel.context import GRACE_SECONDS, Context, ContextRefused, SavedNames

EXPORT_LIMIT: Final = 1 << 30
"""The largest state that is exported, in bytes. A larger one can be saved to a volume."""
SECONDS: Final = 600.0
_FORMAT: Final = 1
_MOST_NAMES: Final = 100_000
_LONGEST: Final = 4096

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The description of a saved state. As JSON, it is part of manifests and entries."""

    python: str
    """The version that saved it. Only this version can load functions and classes; any can load other values."""
    names: tuple[str, ...]
    unsaved: Mapping[str, str]
    """Names that could not be saved, with the reason."""
    size: int
    saved_at: int
    """UTC milliseconds."""
    path: str | None = None
    """The file, if the state is in a box or on a volume."""

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
        """Raises `InvalidInterpreter` if the document is malformed: anyone may have written to the volume."""
        match document:
            case {"format": 1, "python": str(python), "names": list(names), "unsaved": dict(unsaved),
                  "size": int(size), "savedAt": int(saved_at), "path": str() | None as path}:  # fmt: skip
                texts = [python, path or "", *names, *unsaved, *unsaved.values()]
                few = len(texts) <= _MOST_NAMES and all(isinstance(each, str) for each in texts)
                if few and all(len(each) <= _LONGEST for each in texts):
                    return cls(python, tuple(names), dict(unsaved), size, saved_at, path)
        raise InvalidInterpreter("this is not the description of a saved state", hint="give what export_state returned")


@dataclass(frozen=True, slots=True)
class State:
    """An exported state."""

    checkpoint: Checkpoint
    data: bytes = field(repr=False)


async def save(context: Context, path: str, *, seconds: float = SECONDS, now: Callable[[], int] = now_ms) -> Checkpoint:
    """Save the state to a file in the box, atomically. Raises `StateFailed`, `KernelLost`."""
    done = await _within(seconds, context, context.save(path), "save its state")
    try:
        size = (await context.box.files.stat(path)).size
    except FileProblem as error:
        raise StateFailed(f"{path} has disappeared: {error.message}") from None
    return Checkpoint(context.python, done.names, done.unsaved, size, now(), path)


async def load(context: Context, path: str, *, seconds: float = SECONDS) -> SavedNames:
    """Replace the memory of the context with the state in a file of the box. Returns what was loaded and what was not.
    Raises `StateFailed` and changes nothing if the file is damaged or no state. Raises `KernelLost`."""
    return await _within(seconds, context, context.load(path), f"load {path}")


async def export_state(
    context: Context, *, limit: int = EXPORT_LIMIT, seconds: float = SECONDS, now: Callable[[], int] = now_ms
) -> State:
    """Return the state as bytes. Raises `StateFailed` if it is larger than `limit`."""
    box = context.box
    path = _temporary_path()
    try:
        saved = await save(context, path, seconds=seconds, now=now)
        if saved.size > limit:
            raise _too_large(saved.size, limit)
        data = bytearray()
        async for piece in box.files.stream(path):
            data += piece
            if len(data) > limit:  # the file grew while it was read
                raise _too_large(len(data), limit)
    finally:
        await _remove(box, path)
    checkpoint = Checkpoint(saved.python, saved.names, saved.unsaved, len(data), saved.saved_at)
    return State(checkpoint, bytes(data))


async def import_state(context: Context, data: bytes, *, seconds: float = SECONDS) -> SavedNames:
    """Replace the memory of the context with an exported state. Raises `InvalidInterpreter`, `StateFailed`."""
    if not data.startswith(MAGIC):
        raise InvalidInterpreter("this is not an exported state", hint="give what export_state returned")
    box = context.box
    path = _temporary_path()
    try:
        try:
            await box.files.write(path, data, mode=0o600)
        except FileProblem as error:
            raise StateFailed(f"the state could not be written to box {box.id}: {error.message}") from None
        return await load(context, path, seconds=seconds)
    finally:
        await _remove(box, path)


def _temporary_path() -> str:
    return f"/tmp/.holdfast-state-{secrets.token_hex(8)}"  # in the box


async def _remove(box: Box, path: str) -> None:
    with contextlib.suppress(BoxError):
        await box.files.delete(path)


def _too_large(size: int, limit: int) -> StateFailed:
    return StateFailed(
        f"the state has {size:,} bytes, and at most {limit:,} can be exported",
        hint="delete large values that can be computed again, or save to a file on the volume",
    )


async def _within(seconds: float, context: Context, work: Awaitable[Result], what: str) -> Result:
    """Wait for saving or loading. Values run code of their own then, which may never end: it is interrupted."""
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
    """Interrupt the context, and kill it if that does not help."""
    with contextlib.suppress(InterpreterError):
        await context.interrupt()
    await asyncio.wait({task}, timeout=GRACE_SECONDS)
    if not task.done():
        await context.kill()
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
