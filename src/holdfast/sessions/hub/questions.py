"""The questions of agents that wait for people."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.api.errors import NotFound
from holdfast.guest.hub_messages import EXPIRED
from holdfast.sessions.hub.connection import Message, RunnerConnection
from holdfast.sessions.hub.runners import Runners

QUESTION_SECONDS: Final = 600.0
"""How long a question waits for somebody."""
_MOST_QUESTIONS: Final = 100
_LONGEST_QUESTION: Final = 64 * 1024
_LONGEST_ID: Final = 256
_MOST_ANSWERS: Final = 1_000
"""Answers that no runner has confirmed."""


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
        self._answers: OrderedDict[tuple[str, str], Any] = OrderedDict()
        """Answers that were given, until the runner says that the question is closed: it may not have got them."""
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

    def all(self) -> list[tuple[str, Question]]:
        """Returns the questions of all sessions, each with its session."""
        return [(thread, each) for thread, waiting in self._questions.items() for each in waiting.values()]

    async def answer(self, thread: str, question: str, answer: Any) -> None:
        """Answer a question of the agent. Raises `NotFound` if it does not wait any more."""
        if question not in self._questions.get(thread, {}):
            raise NotFound(
                f"no question {question} waits in session {thread}",
                hint=f"list them: holdfast session questions {thread}",
            )
        connection = self._runners.get(thread)
        await self._give(thread, question, answer, connection)

    async def _give(self, thread: str, question: str, answer: Any, connection: RunnerConnection | None) -> None:
        self._forget(thread, question)
        self._answers[thread, question] = answer
        while len(self._answers) > _MOST_ANSWERS:
            self._answers.popitem(last=False)
        if connection is not None:
            await connection.send("answer", {"questionId": question, "answer": answer})

    async def ask(self, connection: RunnerConnection, message: Message) -> None:
        fields = message.fields
        thread, id = connection.thread, str(fields["questionId"])
        waiting = self._questions.get(thread, {})
        if (thread, id) in self._answers:  # the answer was lost with its connection
            await connection.send("answer", {"questionId": id, "answer": self._answers[thread, id]})
            return
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
            # A runner that is away asks again when it comes back, and gets this answer.
            await self._give(thread, question, EXPIRED, self._runners.find(thread))

        task = asyncio.create_task(tell(), name=f"expiry of a question of {thread}")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def close_one(self, thread: str, id: str) -> None:
        """The runner says that nobody has to answer any more."""
        self._answers.pop((thread, id), None)
        self._forget(thread, id)

    def keep_only(self, thread: str, run: str | None) -> None:
        """Forget the questions of other runs than the one that is in progress: their runner may have been killed."""
        for each in self.of(thread):
            if run is None or each.run not in ("", run):
                self._forget(thread, each.id)

    def _forget(self, thread: str, id: str) -> None:
        found = self._questions.get(thread, {}).pop(id, None)
        if found is not None and found.expires is not None:
            found.expires.cancel()
        if not self._questions.get(thread):
            self._questions.pop(thread, None)
