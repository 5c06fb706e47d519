"""The questions of agents that wait for people."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.api.errors import HoldfastError, NotFound
from holdfast.guest.hub_messages import EXPIRED
from holdfast.sessions.hub.connection import Message, RunnerConnection
from holdfast.sessions.hub.runners import Runners

QUESTION_SECONDS: Final = 600.0
"""How long a question waits for somebody."""
_MOST_QUESTIONS: Final = 100
_LONGEST_QUESTION: Final = 64 * 1024
_LONGEST_ID: Final = 256


@dataclass(slots=True)
class Question:
    """A question of an agent that waits for somebody."""

    id: str
    text: str
    options: tuple[str, ...]
    kind: str
    run: str
    asked_at: int
    expires_at: int
    expires: asyncio.TimerHandle | None = field(default=None, repr=False)


class Questions:
    """Keeps the questions until they are answered or expire. Runners tell the next server theirs again."""

    def __init__(self, runners: Runners, clock: Callable[[], int], seconds: float = QUESTION_SECONDS) -> None:
        self._runners = runners
        self._clock = clock
        self._seconds = seconds
        self._questions: dict[str, dict[str, Question]] = {}
        """By session and id."""
        self._telling: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Agents keep waiting, and ask the next server."""
        for each in list(self._telling):
            each.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
        for questions in self._questions.values():
            for question in questions.values():
                if question.expires is not None:
                    question.expires.cancel()

    def of(self, thread: str) -> list[Question]:
        return list(self._questions.get(thread, {}).values())

    async def answer(self, thread: str, question: str, answer: Any) -> None:
        """Answer a question of the agent. Raises `NotFound` if it does not wait any more."""
        if question not in self._questions.get(thread, {}):
            raise NotFound(
                f"no question {question} waits in session {thread}",
                hint=f"list them: holdfast session questions {thread}",
            )
        await self._runners.get(thread).send("answer", {"questionId": question, "answer": answer})
        self.close_one(thread, question)

    async def ask(self, connection: RunnerConnection, message: Message) -> None:
        fields = message.fields
        thread, id = connection.thread, str(fields["questionId"])
        waiting = self._questions.get(thread, {})
        if id in waiting:
            return
        if len(waiting) >= _MOST_QUESTIONS or message.size > _LONGEST_QUESTION or len(id) > _LONGEST_ID:
            # The agent goes on at once, as if nobody had answered.
            await connection.send("answer", {"questionId": id[:_LONGEST_ID], "answer": EXPIRED})
            return
        waiting = self._questions.setdefault(thread, {})
        loop = asyncio.get_running_loop()
        waiting[id] = Question(
            id,
            fields["text"],
            tuple(fields.get("options", ())),
            fields.get("kind", "question"),
            fields.get("turnId", ""),
            self._clock(),
            self._clock() + int(self._seconds * 1000),
            loop.call_later(self._seconds, self._expire, thread, id),
        )

    def _expire(self, thread: str, question: str) -> None:
        async def tell() -> None:
            with suppress(HoldfastError):
                await self.answer(thread, question, EXPIRED)

        task = asyncio.create_task(tell(), name=f"expiry of a question of {thread}")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def close_one(self, thread: str, id: str) -> None:
        found = self._questions.get(thread, {}).pop(id, None)
        if found is not None and found.expires is not None:
            found.expires.cancel()
        if not self._questions.get(thread):
            self._questions.pop(thread, None)
