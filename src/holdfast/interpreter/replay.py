"""What happened in an interpreter, read from the entries of its thread."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """A call of code in the box to the host."""

    id: str
    name: str
    status: str
    seconds: float
    payload: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReplayedExecution:
    id: str
    code: str | None
    """None if the thread has only calls of this execution, because it was cut short."""
    ok: bool | None
    """None if its end is not on the thread."""
    seconds: float
    calls: tuple[ReplayedCall, ...]
    payload: Mapping[str, Any] = field(repr=False)
    at: int = 0
    """UTC milliseconds."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The history of an interpreter."""

    started: Mapping[str, Any] | None = None
    """The latest start."""
    ended: Mapping[str, Any] | None = None
    """The end, if there was no start after it."""
    settings: Mapping[str, Any] | None = None
    """The settings, if the interpreter lives in a server."""
    starts: int = 0
    executions: tuple[ReplayedExecution, ...] = ()
    """In the order in which they began, as far as the thread tells."""
    workspace: Mapping[str, Any] | None = None
    """The latest transition."""
    workspaces: tuple[Mapping[str, Any], ...] = ()
    states: tuple[Mapping[str, Any], ...] = ()
    """States that were saved, loaded, forked or lost."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    missing: int = 0
    """The number of entries that could not be written."""

    @property
    def calls(self) -> int:
        return sum(len(each.calls) for each in self.executions)

    @property
    def submitted(self) -> Mapping[str, Any] | None:
        """The latest answer that was submitted."""
        for each in reversed(self.executions):
            found = each.payload.get("submitted")
            if isinstance(found, Mapping):
                return found
        return None


def replay(entries: Iterable[Mapping[str, Any]]) -> Replay:
    """Fold the entries of a thread. Ignores entries of other kinds and malformed ones."""
    starts, missing = 0, 0
    started: Mapping[str, Any] | None = None
    ended: Mapping[str, Any] | None = None
    executions: dict[str, tuple[int, Mapping[str, Any]]] = {}
    calls: dict[str, list[ReplayedCall]] = {}
    workspaces: list[Mapping[str, Any]] = []
    states: list[Mapping[str, Any]] = []
    settings: Mapping[str, Any] | None = None
    input_tokens = output_tokens = 0
    cost = 0.0
    for entry in entries:
        payload = entry.get("payload")
        if not isinstance(payload, Mapping):
            continue
        match payload.get("type"):
            case "interpreter.started":
                starts, started, ended = starts + 1, payload, None
            case "interpreter.ended":
                ended = payload
            case "interpreter.workspace":
                workspaces.append(payload)
            case "interpreter.state":
                states.append(payload)
            case "interpreter.settings":
                settings = found if isinstance(found := payload.get("settings"), Mapping) else settings
            case "interpreter.gap":
                missing += int(_number(payload.get("count")))
            case "interpreter.execution":
                id = str(payload.get("id"))
                # There is one entry when it begins, and one when it has ended.
                at = executions[id][0] if id in executions else int(_number(entry.get("ts")))
                executions[id] = at, {**(executions[id][1] if id in executions else {}), **payload}
                calls.setdefault(id, [])
            case "interpreter.call":
                calls.setdefault(str(payload.get("execution")), []).append(
                    ReplayedCall(
                        str(payload.get("id")),
                        str(payload.get("name")),
                        str(payload.get("status")),
                        _number(payload.get("seconds")),
                        payload,
                    )
                )
                usage = payload.get("usage")
                if isinstance(usage, Mapping):
                    input_tokens += int(_number(usage.get("input_tokens")))
                    output_tokens += int(_number(usage.get("output_tokens")))
                    cost += _number(usage.get("cost"))
    return Replay(
        started=started,
        ended=ended,
        settings=settings,
        starts=starts,
        executions=tuple(_execution(id, made, executions.get(id)) for id, made in calls.items()),
        workspace=workspaces[-1] if workspaces else None,
        workspaces=tuple(workspaces),
        states=tuple(states),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost=cost,
        missing=missing,
    )


def _execution(
    id: str, calls: Sequence[ReplayedCall], found: tuple[int, Mapping[str, Any]] | None
) -> ReplayedExecution:
    if found is None:
        return ReplayedExecution(id, None, None, 0.0, tuple(calls), {})
    at, payload = found
    code, ok = payload.get("code"), payload.get("ok")
    return ReplayedExecution(
        id,
        code if isinstance(code, str) else None,
        ok if isinstance(ok, bool) else None,
        _number(payload.get("seconds")),
        tuple(calls),
        payload,
        at,
    )


def _number(value: object) -> float:
    with contextlib.suppress(OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return 0.0
