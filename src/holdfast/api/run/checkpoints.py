"""Checkpoints, and what threads are forked from and rewound to. Times are UTC milliseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Annotated, Final

from holdfast.api.document import Document, Limits
from holdfast.api.errors import InvalidRequest
from holdfast.api.limits import (
    AgentName,
    EntryId,
    ModelName,
    ModelNames,
    Printable,
    PromptText,
    StrictBool,
    ThreadId,
    Title,
    without_nul,
)
from holdfast.api.model.budgets import Cost
from holdfast.api.run.info import RunStatus, TokenUsage
from holdfast.api.run.runs import FileChange
from holdfast.api.thread.threads import ForkSource

_GIGABYTE: Final = 1 << 30
_SIZE: Final = re.compile(r"(\d{1,9})([kmgt]?)b?", re.IGNORECASE)
_HINT: Final = "write every or off, and after every what to change: every keep=20 days=7 total=5G seconds=30 size=500M"


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """Whether the files of a box are saved at the end of each turn, how long that may take, and what is kept."""

    every: bool = True
    """After every turn. Otherwise never."""
    seconds: int = 20
    """How long a snapshot may take. The next turn waits for it."""
    size: int = _GIGABYTE
    """How many bytes a snapshot may copy. A local box in which nothing runs is saved without a copy."""
    keep: int = 100
    """How many checkpoints of a thread are kept."""
    days: int = 30
    """For how long they are kept."""
    total: int = 20 * _GIGABYTE
    """How many bytes they may have together."""

    @classmethod
    def parse(cls, text: str, usual: CheckpointPolicy | None = None) -> CheckpointPolicy:
        """Read `every`, `off`, or `every keep=20 size=500M`. What it does not say is as `usual`. Raises
        `InvalidRequest`.
        """
        mode, *settings = text.split() or [""]
        if mode not in ("every", "off") or (mode == "off" and settings):
            raise InvalidRequest(f"invalid checkpoint policy {text[:200]!r}", hint=_HINT)
        given: dict[str, int] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            size = _SIZE.fullmatch(value)
            known = name in _NAMES and name not in given
            if not known or size is None or (size[2] and name not in ("size", "total")) or not int(size[1]):
                raise InvalidRequest(f"invalid setting {setting[:100]!r} in a checkpoint policy", hint=_HINT)
            given[name] = int(size[1]) * 1024 ** " kmgt".index(size[2].lower() or " ")
        return replace(usual or cls(), every=mode == "every", **given)


_NAMES: Final = frozenset(each.name for each in fields(CheckpointPolicy)) - {"every"}
At = Annotated[str, Limits(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
"""The number of a turn, or the id of an entry, which stands for the last turn that had ended when it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInfo(Document):
    """One turn of a thread."""

    turn: int
    """Its number, from 1."""
    thread: str
    """The thread that it happened on: this one, or the one that this was forked from."""
    run: str
    agent: str
    status: RunStatus
    ended_at: int | None
    snapshot: str | None
    """The files at its end. None if they are not saved, or no longer."""
    size: int | None
    """Bytes that the snapshot added."""
    why: str | None
    """Why there is no snapshot."""
    rewound: bool
    """Whether the turn was rewound, so that it is no longer part of the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnList(Document):
    turns: tuple[TurnInfo, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFork(Document):
    at: At | None = None
    """Defaults to the latest turn."""
    id: ThreadId | None = None
    """The id of the new thread. A second request with the same id makes no second fork."""
    title: Title | None = None
    prompt: PromptText | None = None
    """By default, no run is launched."""
    prompt_id: EntryId | None = None
    author_id: Printable | None = None
    agent: AgentName | None = None
    model: ModelName | None = None
    fallbacks: ModelNames = ()
    """Models to use if `model` gives no answer, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked(Document):
    thread: str
    fork_of: ForkSource
    box: str
    run: str | None
    """The run that was launched."""
    next_offset: str
    """The offset of the first entry that is not of its source: tail from here."""
    ms: int
    """How long the fork took, until it had its box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind(Document):
    at: At | None = None
    undo: StrictBool = False
    """Undo the latest rewind. Then `at` is left out."""
    key: Printable | None = None
    """A second request with the same key, on the same thread, changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound(Document):
    thread: str
    turn: int
    """The turn that is the latest one now."""
    box: str | None
    """None if an earlier request has done it, and the thread has no box now."""
    can_undo: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewComparison(Document):
    other: ThreadId
    test: Annotated[str, Limits(min_length=1, max_length=10_000, check=without_nul)] | None = None
    """A command for the shell. It runs in a copy of each branch's box. Default: the test command of the environment."""
    seconds: Annotated[int, Limits(ge=1, le=3600, strict=True)] = 600
    """How long the command may take."""
    without_test: StrictBool = False
    """Run no command, not even that of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult(Document):
    __test__ = False

    exit_code: int | None
    """None if it took too long."""
    output: str
    """The end of what it wrote."""
    ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Document):
    """What one of two threads did since they parted."""

    thread: str
    title: str | None
    turns: int
    files: tuple[FileChange, ...]
    """Changes of the workspace since then."""
    patch: str
    """The beginning of the patch."""
    truncated: bool
    ms: int
    """How long its runs took, together."""
    usage: TokenUsage | None
    """What its runs used, together, as their agents say. None if none of them reported it."""
    test: TestResult | None
    cost: Cost | None = None
    """The calls of models of its runs, as counted by the server. None if there were none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Document):
    parted: ForkSource
    """The last turn that both have, and the thread that it happened on."""
    branches: tuple[Branch, ...]
    """The two threads, in the order of the request."""
    test: str | None = None
    """The command that was run in a copy of each box."""
