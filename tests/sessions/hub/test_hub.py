"""The hub by itself: what it takes from a runner, how often, and what it refuses. The runner is the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runs.world import PATIENCE, SEALS
from tests.sessions.world import SessionWorld, a_world

from holdfast.api.errors import NotFound
from holdfast.api.errors.sessions import AgentAway, AgentRefused
from holdfast.guest.hub_messages import from_hub, numbered, to_hub
from holdfast.guest.runner.entries import Entries
from holdfast.guest.session_runner.link import REPLACED
from holdfast.guest.turn_messages import message_of
from holdfast.sessions.hub.connection import RunnerConnection
from holdfast.sessions.hub.hub import Hub
from holdfast.sessions.hub.questions import QUESTION_SECONDS, Questions
from holdfast.sessions.hub.runners import Runners
from holdfast.sessions.hub.turn_writer import TurnWriter
from holdfast.threads.access.authority import Authority
from holdfast.threads.protocol.surface import StreamSurface
from holdfast.threads.run_events import Run

pytestmark = pytest.mark.anyio


class FakeInternalApi:
    """The edge of another part: answers as its routes do, once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked: list[tuple[str, str, bytes, bytes]] = []

    async def respond(self, box: str, method: str, path: str, query: bytes, body: bytes) -> tuple[int, bytes]:
        self.asked.append((method, path, query, body))
        await self.may_answer.wait()
        if path == "/api/memories":
            return 200, b'{"memories":[{"id":"m-1"}]}'
        return 400, b'{"error":"no such child"}'


class HubTest:
    def __init__(self, world: SessionWorld) -> None:
        self.world = world
        self.api = FakeInternalApi()
        self.open()

    def open(self, question_seconds: float = QUESTION_SECONDS, **more: Any) -> None:
        base = self.world.base
        surface = StreamSurface(base.store, Authority(SEALS, frozenset({"scripted"})))

        async def internal_api() -> FakeInternalApi:
            return self.api

        self.runners = Runners()
        self.questions = Questions(self.runners, base.clock.now, question_seconds)
        self.hub = Hub(
            base.log,
            TurnWriter(surface, lambda: "q-1"),
            base.runs,
            base.runs.ends,
            self.runners,
            self.questions,
            internal_api=internal_api,
            **{"beat_seconds": 3600.0, **more},
        )

    async def at_work(self) -> tuple[str, Run]:
        """A session with a run whose runner has started."""
        id = await self.world.running()
        await self.world.prompt(id)
        runner = await self.world.at_work(id)
        return id, runner.run

    async def entries(self, id: str, prefix: str) -> list[dict[str, Any]]:
        return [each for each in await self.world.base.entries(id) if each["payload"]["type"].startswith(prefix)]


class FakeRunner:
    """One connection of a runner."""

    def __init__(self, hub: Hub, thread: str, run: Run, runner: str = "0" * 16, process: str | None = None) -> None:
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "websocket.connect"})
        self.run = run
        self.number = 0
        self.encoded: list[bytes] = []
        self._entries = Entries(run.run, run.epoch, "scripted", self.encoded.append, lambda: 1.0, lambda: 1.0)
        self.task = asyncio.create_task(
            hub.serve(thread, run.box or "", runner, process or run.process or "", self._incoming.get, self._sent)
        )

    async def _sent(self, message: dict[str, Any]) -> None:
        self._outgoing.put_nowait(message)

    def put(self, text: str) -> None:
        self._incoming.put_nowait({"type": "websocket.receive", "text": text})

    def say(self, type: str, fields: dict[str, Any], number: int | None = None) -> int:
        self.number = self.number + 1 if number is None else number
        self.put(numbered(self.number, to_hub(type, fields)))
        return self.number

    def greet(self, *turns: str) -> None:
        self.put(to_hub("agentStatus", {"status": "thinking" if turns else "idle", "turns": list(turns)}))

    def entry(self, **payload: Any) -> int:
        self._entries.add(payload)
        self._entries.flush()
        return self.say(*message_of(self.run.run, self.encoded[-1]))

    def end(self, **payload: Any) -> int:
        self._entries.finish({"type": "signal.run.finished", "run": self.run.run, "by": "runner", **payload})
        return self.say(*message_of(self.run.run, self.encoded[-1]))

    async def until(self, type: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await self._outgoing.get()
                if message["type"] == "websocket.close":
                    return {"closed": message["code"], "reason": message["reason"]}
                if message["type"] == "websocket.send":
                    found, fields = from_hub(message["text"])
                    if found == type:
                        return fields

    async def acked(self, number: int) -> None:
        while (await self.until("ack"))["seq"] < number:
            pass

    async def leave(self) -> None:
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await self.task


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[HubTest]:
    async with a_world(tmp_path) as world:
        house = HubTest(world)
        yield house
        await house.hub.close()
        await house.questions.close()


@asynccontextmanager
async def connected(house: HubTest, id: str, run: Run, **more: Any) -> AsyncIterator[FakeRunner]:
    runner = FakeRunner(house.hub, id, run, **more)
    await runner.until("init")
    try:
        yield runner
    finally:
        if not runner.task.done():
            await runner.leave()


async def test_what_a_runner_says_twice_is_written_once_and_in_order(house: HubTest) -> None:
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        last = 0
        for word in ("one ", "two ", "three"):
            last = runner.entry(type="scripted.delta", message="m", text=word)
        await runner.acked(last)
        lost = runner.encoded[:]
    house.open()  # another hub, which has seen nothing
    async with connected(house, id, run) as again:
        for entry in lost:  # the acknowledgement did not arrive
            again.say(*message_of(run.run, entry))
        again.say("message.entry", {"turnId": run.run, "entry": json.dumps(
            {"id": f"{run.run}-{run.epoch}-9", "ts": 1, "payload": {"type": "scripted.assistant", "message": "m",
             "text": "one two three", "calls": []}})})  # fmt: skip
        last = again.end(status="completed", ms=1)
        await again.acked(last)
    texts = [each["payload"]["text"] for each in await house.entries(id, "scripted.")]
    assert texts == ["one ", "two ", "three", "one two three"]
    ends = await house.entries(id, "signal.run.finished")
    assert [each["payload"]["status"] for each in ends] == ["completed"]
    assert (await house.world.session(id)).processing == ()


async def test_a_number_that_was_taken_on_an_earlier_connection_is_not_taken_again(house: HubTest) -> None:
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        await runner.acked(runner.say("runner-health", {"kind": "opencode_crash", "crashCount": 1}))
    async with connected(house, id, run) as again:
        again.say("runner-health", {"kind": "opencode_crash", "crashCount": 1}, number=1)
        await again.acked(again.say("runner-health", {"kind": "opencode_fatal"}, number=2))
    kinds = [each["payload"]["kind"] for each in await house.entries(id, "signal.session.runner_health")]
    assert kinds == ["opencode_crash", "opencode_fatal"]


@pytest.mark.parametrize(
    "forged",
    [
        {"id": "r-other-2-1", "ts": 1, "payload": {"type": "scripted.assistant", "text": "forged"}},
        {"id": "{own}1", "ts": 1, "payload": {"type": "signal.run.claimed", "text": "forged"}},
        {"id": "{own}1", "ts": 1, "payload": {"type": "chat", "text": "forged", "role": "user"}},
        {"id": "{own}1", "ts": 1, "payload": {"type": "other.assistant", "text": "forged"}},
        {"id": "end-r-other", "ts": 1, "payload": {"type": "signal.run.finished", "run": "r-other", "by": "runner"}},
        "not an entry",
    ],
)
async def test_a_runner_writes_nothing_but_the_entries_of_its_run(house: HubTest, forged: Any) -> None:
    id, run = await house.at_work()
    text = forged if isinstance(forged, str) else json.dumps(forged).replace("{own}", f"{run.run}-{run.epoch}-")
    async with connected(house, id, run) as runner:
        await runner.acked(runner.say("message.entry", {"turnId": run.run, "entry": text}))
        await runner.acked(runner.entry(type="scripted.assistant", message="m", text="real", calls=[]))
    written = [each["payload"] for each in await house.world.base.entries(id)]
    assert not any(each.get("text") == "forged" or each.get("run") == "r-other" for each in written)
    assert [each["level"] for each in written if each["type"] == "scripted.notice"] == ["error"]


async def test_what_is_said_about_another_run_is_dropped(house: HubTest) -> None:
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        entry = {"id": f"r-other-{run.epoch}-1", "ts": 1, "payload": {"type": "scripted.assistant", "text": "forged"}}
        await runner.acked(runner.say("message.entry", {"turnId": "r-other", "entry": json.dumps(entry)}))
    assert await house.entries(id, "scripted.") == []


async def test_messages_that_are_none_are_refused_recorded_once_and_end_the_connection(house: HubTest) -> None:
    id, run = await house.at_work()
    runner = FakeRunner(house.hub, id, run)
    for _ in range(30):
        runner.put('{"type":"become-root"}')
    assert (await runner.until("nothing"))["closed"] == 1008
    await runner.leave()
    [refused] = await house.entries(id, "signal.session.message_refused")
    assert "become-root" in refused["payload"]["why"]


async def test_of_two_runners_the_later_one_stays(house: HubTest) -> None:
    id, run = await house.at_work()
    first = FakeRunner(house.hub, id, run, runner="1" * 16)
    await first.until("init")
    await first.acked(first.end(status="completed", ms=1))
    async with connected(house, id, run, runner="2" * 16, process="p-new"):
        assert await first.until("nothing") == {"closed": 1000, "reason": REPLACED}
        await first.leave()


async def test_a_runner_that_was_cut_off_for_long_does_not_replace_the_one_of_the_run(house: HubTest) -> None:
    id, run = await house.at_work()
    async with connected(house, id, run, runner="1" * 16) as current:
        late = FakeRunner(house.hub, id, run, runner="2" * 16, process="p-old")
        assert await late.until("nothing") == {"closed": 1000, "reason": REPLACED}
        await late.task
        await current.acked(current.entry(type="scripted.assistant", message="m", text="still here", calls=[]))
    assert [each["payload"]["text"] for each in await house.entries(id, "scripted.")] == ["still here"]


async def swept(house: HubTest, id: str) -> None:
    """As the sweeps of a server do."""
    await house.world.base.runs.sweep()
    await house.world.base.runs.launches.wait(id)
    await house.world.sessions.sweep()
    await house.world.settled(id)


@pytest.mark.parametrize("seconds", [1, 60, 599])
async def test_after_a_cut_of_the_network_the_runner_goes_on_where_it_was(house: HubTest, seconds: int) -> None:
    """Its box says that it lives. What it says meanwhile comes afterwards, in order and once."""
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        await runner.acked(runner.entry(type="scripted.assistant", message="m-1", text="before", calls=[]))
        said, number = runner.encoded, runner.number
    await swept(house, id)  # from here on the server counts
    house.world.base.clock.advance(seconds * 1000)
    for _ in range(3):
        await swept(house, id)
    async with connected(house, id, run) as again:
        again.encoded, again.number = said, number - 1
        again.say(*message_of(run.run, said[-1]))  # not acknowledged, as far as it knows
        again.greet(run.run)
        again._entries = runner._entries
        runner.encoded.clear()
        runner._entries.add({"type": "scripted.assistant", "message": "m-2", "text": "meanwhile", "calls": []})
        runner._entries.flush()
        again.say(*message_of(run.run, runner.encoded[-1]))
        runner._entries.finish({"type": "signal.run.finished", "run": run.run, "by": "runner", "status": "completed"})
        await again.acked(again.say(*message_of(run.run, runner.encoded[-1])))
    await swept(house, id)
    assert [each["payload"]["text"] for each in await house.entries(id, "scripted.")] == ["before", "meanwhile"]
    [ended] = (await house.world.session(id)).ended
    assert (ended.status.value, ended.attempts) == ("completed", 1)


async def test_after_ten_minutes_another_runner_has_the_prompt_and_the_old_one_is_sent_away(house: HubTest) -> None:
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        await runner.acked(runner.entry(type="scripted.assistant", message="m-1", text="before", calls=[]))
    await swept(house, id)  # from here on the server counts
    house.world.base.clock.advance(601_000)
    await swept(house, id)
    latest = (await house.world.at_work(id)).run
    assert latest.run != run.run
    late = FakeRunner(house.hub, id, run)
    assert await late.until("nothing") == {"closed": 1000, "reason": REPLACED}
    await late.task
    await house.world.answer(id)
    await swept(house, id)
    assert [each["payload"]["text"] for each in await house.entries(id, "scripted.assistant")] == ["before"]
    [ended] = (await house.world.session(id)).ended
    assert (ended.status.value, ended.attempts) == ("completed", 2)
    ends = [each["payload"]["run"] for each in await house.entries(id, "signal.run.finished")]
    assert ends == [run.run, latest.run]


@pytest.mark.parametrize("hours", [-48, 48])
async def test_a_clock_that_jumps_ends_no_run_and_doubles_no_prompt(house: HubTest, hours: int) -> None:
    """The clock of the day, and not the one that goes on evenly."""
    id, run = await house.at_work()
    real, now = house.world.base.log.clock, house.world.base.clock.now
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        await runner.acked(runner.entry(type="scripted.assistant", message="m-1", text="before", calls=[]))
        second = await house.world.prompt(id, "the next one")
        house.world.base.log.clock = lambda: now() + hours * 3_600_000
        third = await house.world.prompt(id, "and another", mode="collect")
        for _ in range(3):
            await swept(house, id)
        assert (await house.world.row(id)).runs.live is not None
        await runner.acked(runner.end(status="completed", ms=1))
    first = run.prompts[0]
    for _ in range(2):
        house.world.base.clock.advance(4_000)  # for the prompt that is collected
        await swept(house, id)
        await house.world.answer(id)
    house.world.base.log.clock = real
    await swept(house, id)
    session = await house.world.session(id)
    assert [(each.id, each.status.value, each.attempts) for each in session.ended] == [
        (each, "completed", 1) for each in (first, second, third)
    ]


async def test_a_run_whose_prompt_got_lost_with_its_server_waits_again_at_once(house: HubTest) -> None:
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        runner.greet()  # it knows nothing of the run
        await runner.acked(runner.say("models", {"models": []}))
    [end] = await house.entries(id, "signal.run.finished")
    assert (end["payload"]["status"], end["payload"]["error"]["code"]) == ("orphaned", "prompt_lost")
    assert [each.attempts for each in (await house.world.session(id)).queued] == [1]


async def test_a_prompt_that_was_sent_while_the_connection_was_lost_is_sent_again(house: HubTest) -> None:
    id, run = await house.at_work()
    house.runners.expect(run.run)
    async with connected(house, id, run) as runner:
        runner.greet()
        await runner.acked(runner.say("models", {"models": []}))
        connection = house.runners.connected(id, run.box or "")
        assert connection is not None
        fields = {"messageId": "m", "content": "do it"}
        await house.runners.prompt(connection, run.run, fields)
        assert await runner.until("prompt") == fields
    async with connected(house, id, run) as again:
        again.greet()
        assert await again.until("prompt") == fields
        again.greet(run.run)
        await again.acked(again.say("models", {"models": []}))
    assert await house.entries(id, "signal.run.finished") == []


async def test_a_request_is_answered_by_the_route_of_the_internal_api(house: HubTest) -> None:
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        runner.say("memory-read", {"requestId": "q-7", "query": "tea", "limit": 3})
        assert await runner.until("memory-read-result") == {"requestId": "q-7", "memories": [{"id": "m-1"}]}
        runner.say("terminate-child", {"requestId": "q-8", "childSessionId": "t-9"})
        assert await runner.until("terminate-child-result") == {"requestId": "q-8", "error": "no such child"}
        runner.say("call-tool", {"requestId": "q-9", "toolId": "x"})
        assert "does not answer call-tool" in (await runner.until("call-tool-result"))["error"]
    assert house.api.asked == [
        ("GET", "/api/memories", b"query=tea&limit=3", b""),
        ("POST", "/api/terminate-child", b"", b'{"childSessionId":"t-9"}'),
    ]


async def test_a_question_expires_and_an_agent_that_is_away_is_said_to_be(house: HubTest) -> None:
    house.open(question_seconds=0.05)
    id, run = await house.at_work()
    with pytest.raises(AgentAway):
        house.runners.models(id)
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        runner.say("question", {"questionId": "que_1", "text": "Which?", "options": ["a"], "turnId": run.run})
        assert await runner.until("answer") == {"questionId": "que_1", "answer": "__expired__"}
        with pytest.raises(NotFound):
            await house.questions.answer(id, "que_1", "a")


async def test_a_question_that_expires_while_its_runner_is_away_is_answered_when_it_comes_back(house: HubTest) -> None:
    house.open(question_seconds=0.05)
    id, run = await house.at_work()
    asked = {"questionId": "que_1", "text": "Which?", "turnId": run.run}
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        await runner.acked(runner.say("question", asked))
    async with asyncio.timeout(PATIENCE):
        while house.questions.of(id):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with connected(house, id, run) as again:
        again.greet(run.run)
        again.say("question", asked, number=2)
        assert await again.until("answer") == {"questionId": "que_1", "answer": "__expired__"}
        assert house.questions.of(id) == []


async def test_an_answer_that_was_lost_with_the_connection_is_sent_again_and_the_question_is_not_asked_again(
    house: HubTest,
) -> None:
    id, run = await house.at_work()
    asked = {"questionId": "que_1", "text": "Which?", "turnId": run.run}
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        await runner.acked(runner.say("question", asked))
        await house.questions.answer(id, "que_1", "the first")  # and nothing of it reaches the runner
    async with connected(house, id, run) as again:
        again.greet(run.run)
        again.say("question", asked, number=2)
        assert await again.until("answer") == {"questionId": "que_1", "answer": "the first"}
        assert house.questions.of(id) == []
        await again.acked(again.say("question-closed", {"questionId": "que_1", "answer": "the first"}, number=3))
        await again.acked(again.say("question", asked, number=4))  # another one, of the same name
        assert [each.id for each in house.questions.of(id)] == ["que_1"]


async def test_a_question_of_a_run_that_has_ended_waits_for_nobody(house: HubTest) -> None:
    id, run = await house.at_work()
    house.world.sessions._questions = house.questions
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        await runner.acked(runner.say("question", {"questionId": "que_1", "text": "Which?", "turnId": run.run}))
        assert [each.id for each in await house.world.sessions.questions(id)] == ["que_1"]
        assert [thread for thread, _ in await house.world.sessions.all_questions()] == [id]
    await house.world.answer(id, "failed")
    assert await house.world.sessions.all_questions() == []
    assert await house.world.sessions.questions(id) == []
    with pytest.raises(NotFound):
        await house.world.sessions.answer(id, "que_1", "too late")


async def test_what_a_runner_says_is_kept_within_limits(house: HubTest) -> None:
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        for number in range(70):
            runner.say("channel-session-created", {"channelKey": f"web:{number}", "opencodeSessionId": "ses_1"})
        runner.say("channel-session-created", {"channelKey": "x" * 4096, "opencodeSessionId": "ses_1"})
        await runner.acked(runner.say("models", {"models": [{"provider": "x" * (2 << 20), "models": []}]}))
        connection = house.runners.connected(id, run.box or "")
        assert connection is not None
        assert list(connection.sessions) == [f"web:{number}" for number in range(6, 70)]
        assert connection.models == []
        runner.say("question", {"questionId": "long", "text": "x" * (64 << 10)})
        assert await runner.until("answer") == {"questionId": "long", "answer": "__expired__"}
        for number in range(101):
            runner.say("question", {"questionId": f"q{number}", "text": "Which?"})
        assert await runner.until("answer") == {"questionId": "q100", "answer": "__expired__"}
        assert len(house.questions.of(id)) == 100
        assert house.questions.all() == [(id, each) for each in house.questions.of(id)]


async def test_a_runner_asks_for_so_much_at_once(house: HubTest) -> None:
    id, run = await house.at_work()
    house.api.may_answer.clear()
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        for number in range(33):
            runner.say("memory-read", {"requestId": f"r{number}"})
        assert (await runner.until("memory-read-result"))["requestId"] == "r32"
    async with connected(house, id, run) as runner:  # another connection does not help
        runner.greet(run.run)
        runner.say("memory-read", {"requestId": "again"}, 34)
        assert "error" in await runner.until("memory-read-result")
        house.api.may_answer.set()
        async with asyncio.timeout(PATIENCE):
            number = 35
            while True:
                runner.say("memory-read", {"requestId": "later"}, number)
                if "error" not in await runner.until("memory-read-result"):
                    break
                number += 1


async def test_messages_that_wait_have_a_budget_of_bytes() -> None:
    received = 0

    async def receive() -> dict[str, Any]:
        nonlocal received
        received += 1
        return {"type": "websocket.receive", "text": to_hub("question", {"questionId": "q", "text": "x" * (10 << 20)})}

    async def send(message: dict[str, Any]) -> None: ...

    async def refuse(why: str) -> None:
        raise AssertionError(why)

    connection = RunnerConnection("t-1", "b-1", "0" * 16, "p", receive, send)
    receiving = asyncio.create_task(connection.receive(refuse))
    for _ in range(20):
        await asyncio.sleep(0)
    assert received == 4, "three wait, and one is held back"
    assert len(await connection.messages()) == 3
    for _ in range(20):
        await asyncio.sleep(0)
    assert received == 4, "those three are not done yet"
    taking = asyncio.create_task(connection.messages())
    async with asyncio.timeout(PATIENCE):
        assert len(await taking) >= 1
    await connection.close(1000, "")
    async with asyncio.timeout(PATIENCE):
        await receiving


async def test_an_answer_of_the_agent_comes_to_whoever_asked(house: HubTest) -> None:
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        asking = asyncio.create_task(house.hub.ask(id, "diff", {}))
        request = (await runner.until("diff"))["requestId"]
        runner.say("diff", {"requestId": request, "data": {"files": []}})
        assert (await asking)["data"] == {"files": []}
        asking = asyncio.create_task(house.hub.ask(id, "diff", {}))
        runner.say("error", {"messageId": (await runner.until("diff"))["requestId"], "error": "no git"})
        with pytest.raises(AgentRefused, match="no git"):
            await asking
        with pytest.raises(AgentAway, match="within"):
            await house.hub.ask(id, "diff", {}, seconds=0.05)


async def test_a_run_that_is_to_end_is_aborted_when_its_runner_looks(house: HubTest) -> None:
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        await runner.acked(runner.say("models", {"models": []}))
        await house.world.sessions.abort(id)
        runner.greet(run.run)
        assert await runner.until("abort") == {}


async def test_a_runner_without_work_is_ended(house: HubTest) -> None:
    house.open(idle_seconds=0.0, beat_seconds=0.02)
    id, run = await house.at_work()
    async with connected(house, id, run) as runner:
        runner.greet(run.run)
        await runner.acked(runner.end(status="completed", ms=1))
        runner.greet()
        assert await runner.until("stop") == {}
