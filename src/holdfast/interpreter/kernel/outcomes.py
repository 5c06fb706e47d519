"""What came of an execution: made whole by what is in its box, and as it is written on the thread."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from holdfast.api.box.files import Files
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.api.limits import OUTPUT_LIMIT
from holdfast.guest.kernel import value_codec
from holdfast.interpreter.display_values import show
from holdfast.interpreter.record import EXECUTION
from holdfast.interpreter.results import LARGEST_VALUE, VALUE, Artifact, CodeError, Execution

_SHOWN_IMAGE: Final = 4 << 20
"""Bytes of a figure that comes along with its result."""


async def with_images(files: Files, done: Execution) -> Execution:
    """Figures come along; other files are read where somebody wants them."""
    if not any(each.media_type == "image/png" for each in done.artifacts):
        return done
    found: list[Artifact] = []
    for each in done.artifacts:
        if each.media_type == "image/png" and each.size <= _SHOWN_IMAGE:
            with suppress(BoxError):
                each = replace(each, data=await files.read(each.path))
        found.append(each)
    return replace(done, artifacts=tuple(found))


async def read_value(files: Files | None, execution: Execution) -> Any:
    """The value of an execution, also where it was too large to come along."""
    if execution.value_missing is None:
        return execution.value
    kept = next((each for each in execution.artifacts if each.name == VALUE), None)
    if kept is None or files is None:
        raise InvalidInterpreter(
            f"the value of {execution.id} cannot be had: {execution.value_missing}",
            hint="have the code give plain values, arrays, tables or texts, or write a file",
        )
    data = bytearray()
    async for piece in files.stream(kept.path):
        data += piece
        if len(data) > LARGEST_VALUE:
            raise InvalidInterpreter(
                f"the value of {execution.id} has more than {LARGEST_VALUE:,} bytes",
                hint="read less of it, or have the code write a file",
            )
    try:
        return await asyncio.to_thread(value_codec.load, data)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidInterpreter(
            f"the value of {execution.id} cannot be read: {error}", hint="run the code again"
        ) from None


def with_outcome(done: Execution, *, restored: bool) -> Execution:
    """A result that says what became of the memory."""
    assert done.error is not None
    outcome = "was restored as it was before this execution" if restored else "is lost; a new one is there"
    told = f"{done.error.message}. What it had in memory {outcome}"
    error = CodeError(done.error.kind, told, told)
    return replace(done, error=error, state_lost=not restored, restored=restored)


def entry_of(done: Execution, code: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": EXECUTION,
        "id": done.id,
        "code": code,
        "ok": done.ok,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "value_text": None if done.value_text is None else done.value_text[:OUTPUT_LIMIT],
        "seconds": done.seconds,
        "compute_seconds": done.compute_seconds,
    }
    if done.error is not None:
        told["error"] = {"kind": done.error.kind, "message": done.error.message, "traceback": done.error.traceback}
    if done.submitted is not None:
        told["submitted"] = show(done.submitted)
    if done.artifacts:
        told["artifacts"] = [
            {"name": each.name, "media_type": each.media_type, "path": each.path, "size": each.size}
            for each in done.artifacts
        ]
    if done.value_missing is not None:
        told["value_missing"] = done.value_missing
    if done.state_lost:
        told["state_lost"] = True
    if done.restored:
        told["restored"] = True
    return told
