"""Signals about checkpoints, forks and rewinds: their names, their payloads, and how they change the row of a thread.

Only data and pure functions. `holdfast.runs.checkpoint` acts on them. The server believes none without its seal: a
snapshot that somebody else named on a thread is never restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.threads.access.seals import Origin
from holdfast.threads.checkpoints import Base, Checkpoint, Files, ForkOf, Lineage, Undo
from holdfast.threads.run_events import Run, ThreadRuns
from holdfast.threads.session_events import fold_rewound

CHECKPOINT: Final = "signal.thread.checkpoint"
CHECKPOINT_SKIPPED: Final = "signal.thread.checkpoint_skipped"
FORKED: Final = "signal.thread.forked"
REWOUND: Final = "signal.thread.rewound"
LINEAGE_SIGNALS: Final = frozenset((CHECKPOINT, CHECKPOINT_SKIPPED, FORKED, REWOUND))
_MAX_WHY: Final = 500
_MAX_POSITION: Final = 2**53 - 1


def fold_lineage(
    lineage: Lineage, runs: ThreadRuns, entry: Mapping[str, Any], origin: Origin
) -> tuple[Lineage, ThreadRuns]:
    """Returns both after one more entry of `LINEAGE_SIGNALS`. Ignores malformed and unproven ones. Never raises."""
    payload = entry["payload"]
    try:
        match payload["type"]:
            case "signal.thread.checkpoint" | "signal.thread.checkpoint_skipped" if origin is Origin.HERE:
                return lineage, _with_checkpoint(runs, entry, payload)
            case "signal.thread.forked" if origin is Origin.HERE:
                fork_of = ForkOf(str(payload["from"]), _number(payload["turn"]), _number(payload["offset"]))
                run = None if runs.latest is None else runs.latest.run
                return Lineage(fork_of, Base(entry["id"], Files.from_json(payload), run)), runs
            case "signal.thread.rewound" if origin is not Origin.UNPROVEN and runs.live is None:
                rewound = _rewound(runs, payload, origin)
                if origin is Origin.FORK:  # the files of a fork are those that its own `forked` names
                    return lineage, rewound
                undo = payload.get("undo")
                base = Base(
                    entry["id"], Files.from_json(payload), None if rewound.latest is None else rewound.latest.run
                )
                return replace(lineage, base=base, undo=None if undo is None else Undo.from_json(undo)), rewound
    except (KeyError, TypeError, ValueError):
        pass
    return lineage, runs


def _with_checkpoint(runs: ThreadRuns, entry: Mapping[str, Any], payload: Mapping[str, Any]) -> ThreadRuns:
    run = runs.latest
    if run is None or run.live or not run.is_ours or run.checkpoint is not None or payload["run"] != run.run:
        return runs
    if entry["id"] != checkpoint_id(run.run):
        return runs
    skipped = payload["type"] == CHECKPOINT_SKIPPED
    checkpoint = Checkpoint(
        _number(payload["offset"]),
        entry["ts"],
        None if skipped else Files.from_json(payload),
        None if skipped else _number(payload["size"]),
        str(payload["why"])[:_MAX_WHY] if skipped else None,
    )
    return replace(runs, latest=replace(run, checkpoint=checkpoint))


def _rewound(runs: ThreadRuns, payload: Mapping[str, Any], origin: Origin) -> ThreadRuns:
    """Returns the runs as they were at the end of the conversation that the entry names."""
    then = ThreadRuns.from_json(payload["runs"])
    latest = then.latest
    if latest is not None and latest.is_ours and origin is Origin.FORK:
        latest = replace(latest, origin=Origin.FORK)
    return replace(
        then,
        epoch=runs.epoch,
        count=runs.count,
        latest=latest,
        waiting=(),
        sessions={agent: replace(each, whole=False) for agent, each in then.sessions.items()},
        dropped=(*then.dropped, (_number(payload["offset"]), _number(payload["until"]))),
        delegation=runs.delegation,  # what a task has reported to its parent stays reported
        session=None if runs.session is None else fold_rewound(runs.session, then.session),
    )


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_POSITION:
        raise ValueError(f"not a whole number: {value!r}")
    return value


# --- writing payloads ---


def checkpoint_id(run: str) -> str:
    """The id of the entry with the checkpoint of a run, or with the reason why there is none: only one of them."""
    return f"checkpoint-{run}"


def checkpointed(run: Run, offset: int, files: Files, *, size: int, ms: int) -> dict[str, Any]:
    payload = {"type": CHECKPOINT, "run": run.run, "turn": run.turn, "offset": offset, **files.to_json()}
    return {**payload, "size": size, "ms": ms}


def checkpoint_skipped(run: Run, offset: int, why: str) -> dict[str, Any]:
    why = why[:_MAX_WHY]
    return {"type": CHECKPOINT_SKIPPED, "run": run.run, "turn": run.turn, "offset": offset, "why": why}


def forked(source: ForkOf, files: Files) -> dict[str, Any]:
    return {
        "type": FORKED,
        "from": source.thread,
        "turn": source.turn,
        "offset": source.offset,
        **files.to_json(),
    }


def rewound(
    *, turn: int, offset: int, until: int, files: Files, runs: ThreadRuns, undo: Undo | None, undoes: bool
) -> dict[str, Any]:
    """`runs` are those at `offset`. What is between `offset` and `until` is no longer part of the conversation."""
    payload: dict[str, Any] = {"type": REWOUND, "turn": turn, "offset": offset, "until": until, **files.to_json()}
    if undoes:
        payload["undoes"] = True
    return {**payload, "runs": runs.to_json(), "undo": None if undo is None else undo.to_json()}
