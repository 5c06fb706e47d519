"""What the signals of a thread say, in words. Pure. The texts are not escaped yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_SILENT: Final = frozenset(
    (
        "model.call", "run.heartbeat", "run.installing", "run.provisioned", "run.runner", "run.services", "run.setup",
        "thread.child_read", "thread.created", "thread.exported", "thread.labelled", "thread.reported",
        "thread.status_changed",
    )
)  # fmt: skip
"""Signals without news for a reader of the thread."""
FAILOVERS: Final = {
    "billing": "is not paid for",
    "rate": "has too many requests",
    "auth": "does not accept its key",
    "unsupported": "does not take this request",
    "empty": "gave an empty answer",
    "unreachable": "cannot be reached",
}
"""Why a model was left, by the reason of a failover."""


def describe(name: str, payload: Mapping[str, Any]) -> str | None:
    """Returns what a signal says, or None if that is nothing for people. `name` is its type without `signal.`.

    A signal that is not known here is shown by its name.
    """
    if name in _SILENT:
        return None
    if name.startswith("session."):
        return _session(name.removeprefix("session."), payload)
    match name:
        case "thread.renamed":
            return f"renamed to {_word(payload, 'title')}"
        case "thread.archived":
            return "archived" if payload.get("archived") is not False else "no longer archived"
        case "thread.checkpoint":
            return f"files saved after turn {_word(payload, 'turn')}"
        case "thread.checkpoint_skipped":
            return f"files not saved after turn {_word(payload, 'turn')}: {_word(payload, 'why')}"
        case "thread.forked":
            return f"forked from thread {_word(payload, 'from')} after turn {_word(payload, 'turn')}"
        case "thread.rewound" if payload.get("undoes") is True:
            return "rewind undone"
        case "thread.rewound":
            return f"rewound to the end of turn {_word(payload, 'turn')}: what came after it no longer counts"
        case "thread.imported":
            return f"imported from thread {_word(payload, 'from')} of another home"
        case "thread.delegated":
            return f"a task of thread {_word(payload, 'parent')}"
        case "thread.child_started":
            task = f"{_word(payload, 'title')}, thread {_word(payload, 'child')}"
            return f"task delegated to {_word(payload, 'agent')}: {task}"
        case "thread.child_finished":
            return f"task of thread {_word(payload, 'child')} {_word(payload, 'status')}"
        case "thread.task_refused":
            return f"task refused: {_word(payload, 'message')}"
        case "run.environment":
            return f"environment {_word(payload, 'environment')}"
        case "run.cancel_requested":
            return "interrupted" if payload.get("interrupt") is True else "cancelled"
        case "run.model_trouble":
            return _word(payload, "message")
        case "model.failover":
            why = FAILOVERS.get(_word(payload, "reason"), "gave no answer")
            to = f"going on with {_word(payload, 'to')}" if payload.get("to") else "no other is left"
            return f"{_word(payload, 'model')} {why}: {to}"
        case "workflow.started":
            return f"workflow {_word(payload, 'name')} started by {_word(payload, 'by')}"
        case "workflow.step_process":
            return None
        case "workflow.step_started":
            return f"step {_word(payload, 'step')} begins"
        case "workflow.step_ended":
            output = _word(payload, "error") or _word(payload, "output").strip()
            return f"step {_word(payload, 'step')} {_word(payload, 'status')}{f': {output}' if output else ''}"
        case "workflow.approval":
            return f"step {_word(payload, 'step')} waits for approval"
        case "workflow.decided":
            decision = "approved" if payload.get("approve") is True else "denied"
            why = f": {_word(payload, 'reason')}" if payload.get("reason") else ""
            return f"step {_word(payload, 'step')} {decision} by {_word(payload, 'by')}{why}"
        case "workflow.finished":
            why = f": {_word(payload, 'error')}" if payload.get("error") else ""
            return f"workflow {_word(payload, 'status')}{why}"
        case "model.budget":
            used = "is used up" if payload.get("state") == "reached" else "is nearly used up"
            return f"the budget of this {_word(payload, 'scope')} {used}"
    return name


def _session(name: str, payload: Mapping[str, Any]) -> str | None:
    why = f": {_word(payload, 'why')}" if payload.get("why") else ""
    match name:
        case "created":
            return "session created"
        case "slow":
            return "the agent has not answered for two minutes"
        case "restoring":
            return "waking up"
        case "hibernated":
            return "asleep, with its files saved"
        case "running" if payload.get("from") == "restoring":
            return "awake again"
        case "terminated":
            return f"session terminated{why}"
        case "error":
            error = payload.get("error")
            said = _word(error, "message") if isinstance(error, Mapping) else ""
            return f"the session could not be started{f': {said}' if said else ''}"
        case "child_terminated":
            return f"session {_word(payload, 'child')}, which belongs to this one, has ended{why}"
    return None


def _word(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name)
    return "" if value is None else str(value)[:500]
