"""Forks, rewinds and comparisons of threads: `client.forks`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from holdfast.api.ids import new_entry_id, new_id
from holdfast.api.run.checkpoints import (
    Comparison,
    Forked,
    NewComparison,
    NewFork,
    Rewind,
    Rewound,
    TurnInfo,
    TurnList,
)
from holdfast.client.connection import ServerConnection
from holdfast.client.resource import LONG_SECONDS, Resource


class Forks:
    """The turns of threads, and what can be made of them: `client.forks`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def turns(self, thread: str) -> tuple[TurnInfo, ...]:
        """Returns the turns of a thread, oldest first, with those before it was forked."""
        return (await self._thread(thread).ask("GET", "/turns")).read(TurnList.from_json).turns

    async def fork(
        self,
        thread: str,
        at: int | str | None = None,
        *,
        prompt: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        fallbacks: Sequence[str] = (),
        title: str | None = None,
        author_id: str | None = None,
    ) -> Forked:
        """Make a new thread with the entries up to a turn, and a box with the files as they were at its end.

        `at` is the number of a turn, or the id of an entry, which stands for the last turn that had ended when it was
        written. It defaults to the latest turn. With a prompt, a run is launched there.
        `fallbacks` are models to use if `model` gives no answer.
        """
        new = NewFork(
            at=None if at is None else str(at),
            id=new_id("t"),  # chosen here, so that a retry finds what the first attempt made
            title=title,
            prompt=prompt,
            prompt_id=None if prompt is None else new_entry_id(),
            author_id=author_id,
            agent=agent,
            model=model,
            fallbacks=tuple(fallbacks),
        )
        answer = await self._thread(thread).ask(
            "POST", "/forks", new.to_request(), repeatable=True, timeout=LONG_SECONDS
        )
        return answer.read(Forked.from_json)

    async def rewind(self, thread: str, at: int | str | None = None, *, key: str | None = None) -> Rewound:
        """Take a thread back to the end of a turn, with its files. What came after stays readable on the thread.

        Calls with the same `key` on the same thread rewind it once. Raises `ThreadBusy` if a run is in progress.
        """
        return await self._rewind(thread, Rewind(at=None if at is None else str(at), key=key or new_id("k")))

    async def undo(self, thread: str, *, key: str | None = None) -> Rewound:
        """Undo the latest rewind of a thread. An undo can be undone in the same way. For `key` see `rewind`."""
        return await self._rewind(thread, Rewind(undo=True, key=key or new_id("k")))

    async def _rewind(self, thread: str, wanted: Rewind) -> Rewound:
        # Each has a key, so that a retry finds what the first attempt did.
        answer = await self._thread(thread).ask("POST", "/rewind", wanted.to_request(), timeout=LONG_SECONDS)
        return answer.read(Rewound.from_json)

    async def compare(
        self, first: str, second: str, *, test: str | None = None, seconds: int = 600, without_test: bool = False
    ) -> Comparison:
        """Compare two threads: where they part, and what each has changed and used since then.

        `test` is a command for the shell. It runs in a copy of each box, for `seconds` at most. By default it is the
        test command of their environment, if that has one. `without_test` runs none.
        """
        wanted = NewComparison(other=second, test=test, seconds=seconds, without_test=without_test)
        answer = await self._thread(first).ask(
            "POST", "/compare", wanted.to_request(), timeout=LONG_SECONDS + 2 * seconds
        )
        return answer.read(Comparison.from_json)

    def _thread(self, id: str) -> Resource:
        return Resource(self._connection, f"/v1/threads/{quote(id, safe='')}")
