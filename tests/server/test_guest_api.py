"""The guest API: what a run may ask of Holdfast from inside, and everything that is refused there."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import httpx
import orjson
import pytest
import uvloop
from tests.stores import open_records
from tests.threads.access.test_authority import END, PAYLOADS
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from holdfast.api.access.tenants import TenantQuotas
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors import Conflict
from holdfast.egress import EgressProxy
from holdfast.egress.models.meter import Terms
from holdfast.server.tenant.quotas import Quotas
from holdfast.server.wire.guest_api import GuestApi, GuestRuns, ModelRelay
from holdfast.storage.sqlite.access.api_keys import SqliteApiKeys
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.testing.outside import Nowhere
from holdfast.threads.access.authority import Authority, EntryKind
from holdfast.threads.access.credentials import Access, RunGrant, RunScope, Scope
from holdfast.threads.access.seals import Origin, Seals
from holdfast.threads.protocol.surface import StreamSurface
from holdfast.threads.store import StreamConfig

pytestmark = pytest.mark.anyio

WAIT = 10.0
T = TypeVar("T")
SEALS = Seals(b"of these tests")
ENTRY = {"id": "r-1-2-1", "ts": 1, "payload": {"type": "pi.assistant", "text": "hello"}}


@dataclass
class Runs:
    """One run that lives, in one epoch."""

    run: str = "r-1"
    epoch: int = 2
    cancel: str | None = None
    is_current: bool = False
    """Whether it is the run of a session."""
    hit: dict[str, str] | None = None
    beats: list[str] = field(default_factory=list)
    model_errors: list[tuple[str, str, str]] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)

    async def beat(self, run: str, epoch: int) -> str | None:
        if not await self.lives("t-1", run, epoch):
            raise Conflict(f"run {run} is over")
        self.beats.append(run)
        return self.cancel

    async def limit(self, run: str, epoch: int) -> dict[str, str] | None:
        if not await self.lives("t-1", run, epoch):
            raise Conflict(f"run {run} is over")
        return self.hit

    async def current(self, thread: str, box: str) -> tuple[str, int] | None:
        return (self.run, self.epoch) if self.is_current and (thread, box) == ("t-1", "b-1") else None

    async def lives(self, thread: str, run: str, epoch: int) -> bool:
        return (run, epoch) == (self.run, self.epoch)

    async def model_terms(self, thread: str, run: str) -> Terms:
        return Terms(thread, run, (thread,))

    async def report_model_error(self, thread: str, run: str, message: str) -> None:
        self.model_errors.append((thread, run, message))

    async def call_tool(self, thread: str, run: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append((thread, run, tool))
        return {"given": dict(arguments)}


@dataclass
class Part(Generic[T]):
    """A part of a server that is open, or not yet."""

    opened: T | None = None

    async def get(self) -> T:
        assert self.opened is not None
        return self.opened


class Relay:
    """Says who came through."""

    async def handle(
        self, scope: Any, receive: Any, send: Any, grant: RunGrant, *, tell: object = None, terms: object = None
    ) -> None:
        assert terms == Terms(grant.thread, grant.run, (grant.thread,))
        await self._say(send, 200, {"run": grant.run, "model": grant.model, "path": scope["path"]})

    async def refuse(self, scope: Any, send: Any, status: int, message: str) -> None:
        await self._say(send, status, {"error": {"message": message}})

    async def _say(self, send: Any, status: int, body: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": orjson.dumps(body)})


@dataclass
class World:
    store: SqliteStreams
    access: Access
    runs: Runs
    runs_part: Part[GuestRuns]
    models_part: Part[ModelRelay]
    proxy: EgressProxy
    guest_api: GuestApi
    listeners: dict[str, int]
    now: list[int]

    def admit(self, box: str, policy: NetworkPolicy) -> None:
        """A box, with its listener, as its guest would hand it out."""
        self.proxy.admit(box, policy, {})
        if box not in self.listeners:
            listener = socket.create_server(("127.0.0.1", 0))
            self.listeners[box] = listener.getsockname()[1]
            self.proxy.listen(box, listener)

    def token(self, scope: RunScope = RunScope.RUNNER, *, box: str = "b-1", epoch: int = 2, run: str = "r-1") -> str:
        return self.access.issue_run("t-1", run, epoch, box, scope, model="scripted/m", agent="pi").token

    def client(self, token: str | None = None, *, box: str = "b-1") -> httpx.AsyncClient:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.listeners[box]}", headers=headers, timeout=WAIT, trust_env=False
        )

    async def append(
        self, token: str | None = None, *, thread: str = "t-1", entry: Any = ENTRY, **headers: str
    ) -> httpx.Response:
        sent = {"producer-id": "run", "producer-epoch": "2", "producer-seq": "0", "content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client(token or self.token()) as client:
            return await client.post(f"/v1/stream/threads/{thread}", json=[entry], headers=sent)

    async def entries(self) -> list[Any]:
        slice_ = await self.store.read("threads/t-1", 0, 1 << 20)
        return [orjson.loads(line) for line in slice_.data.split(b",\n") if line]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = await SqliteStreams.open(tmp_path / "data.db")
    now = [1_800_000_000_000]
    # As of a server that asks nobody for a key: the guest API still does.
    access = Access(SqliteApiKeys(store), b"secret", required=False, clock=lambda: now[0])
    runs = Runs()
    runs_part, models_part = Part[GuestRuns](runs), Part[ModelRelay](Relay())
    surface = StreamSurface(store, Authority(SEALS))
    guest_api = GuestApi(surface, access, lambda: "q-1", runs_part, models_part, max_body=1 << 20)
    async with (
        open_records(tmp_path / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records, guest_api=guest_api) as proxy,
    ):
        world = World(store, access, runs, runs_part, models_part, proxy, guest_api, {}, now)
        await store.create("threads/t-1", StreamConfig(content_type="application/json"))
        await store.create("threads/t-2", StreamConfig(content_type="application/json"))
        world.admit("b-1", NetworkPolicy())
        world.admit("b-2", NetworkPolicy())
        yield world
    await store.close()


async def test_a_runner_appends_to_its_thread_from_a_box_without_a_network(world: World) -> None:
    answer = await world.append()
    assert answer.status_code == 200
    assert [entry["payload"]["text"] for entry in await world.entries()] == ["hello"]
    again = await world.append()
    assert again.status_code == 204  # the same request twice is one
    assert len(await world.entries()) == 1


async def test_a_runner_in_an_older_epoch_is_refused(world: World) -> None:
    entry = {**ENTRY, "id": "r-1-3-1"}
    assert (await world.append(world.token(epoch=3), producer_epoch="3", entry=entry)).status_code == 200
    stale = await world.append(producer_seq="1")
    assert stale.status_code == 403
    assert len(await world.entries()) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"producer_id": "another"},
        {"producer_epoch": "3"},
        {"producer_epoch": "02"},
        {"stream_closed": "true"},
    ],
)
async def test_what_would_get_around_the_epoch_is_refused(world: World, headers: dict[str, str]) -> None:
    assert (await world.append(**headers)).status_code == 403
    assert await world.entries() == []


@pytest.mark.parametrize("kind", list(PAYLOADS))
async def test_a_runner_writes_its_agents_entries_and_its_own_end_and_nothing_else(
    world: World, kind: EntryKind
) -> None:
    for number, payload in enumerate(PAYLOADS[kind]):
        own = payload == END or payload["type"].startswith("pi.")
        entry = {"id": "end-r-1" if payload == END else f"r-1-2-{number}", "payload": payload}
        before = len(await world.entries())
        answer = await world.append(entry=entry, producer_seq=str(before))
        assert answer.is_success is own, answer.text
        assert len(await world.entries()) == before + own


async def test_the_end_of_a_runner_gets_the_servers_seal_and_that_of_another_run_does_not(world: World) -> None:
    other = {"id": "end-r-2", "payload": {**END, "run": "r-2"}}
    assert (await world.append(entry=other)).status_code == 400
    assert (await world.append(entry={"id": "end-r-1", "payload": END})).is_success
    (ended,) = await world.entries()
    assert SEALS.origin("t-1", ended) is Origin.HERE


async def test_a_runner_of_a_tenant_over_its_storage_writes_notes_only(world: World, tmp_path: Path) -> None:
    """It loses nothing before the tenant has stored half more than it may, and its end is always written."""
    limit = [TenantQuotas(storage=1 << 40)]
    world.guest_api._check_append = Quotas(lambda: limit[0], tmp_path / "data.db", time.monotonic).check_append
    large = {"id": "r-1-2-1", "payload": {"type": "pi.notice", "text": "x" * 10_000}}
    assert (await world.append(entry=large)).is_success
    limit[0] = TenantQuotas(storage=1)
    refused = await world.append(entry={**large, "id": "r-1-2-2"}, producer_seq="1")
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
    assert "may store 1 bytes" in refused.text
    assert (await world.append(entry={"id": "end-r-1", "payload": END}, producer_seq="1")).is_success
    assert [entry["id"] for entry in await world.entries()] == ["r-1-2-1", "end-r-1"]


async def test_an_append_without_a_producer_is_refused(world: World) -> None:
    async with world.client(world.token()) as client:
        answer = await client.post("/v1/stream/threads/t-1", json=[ENTRY])
    assert answer.status_code == 403


@pytest.mark.parametrize("thread", ["t-2", "t-1/../t-2", "%74-2", "t-1%2f..%2ft-2", "../keys"])
async def test_another_thread_is_out_of_reach(world: World, thread: str) -> None:
    assert (await world.append(thread=thread)).status_code in (400, 403, 404)
    assert (await world.store.head("threads/t-2")).tail == 0


async def test_a_token_is_good_in_its_own_box_alone(world: World) -> None:
    async with world.client(world.token(), box="b-2") as client:
        answer = await client.post("/v1/runs/r-1/beat", json={})
    assert answer.status_code == 403
    assert world.runs.beats == []


async def test_by_url_only_tokens_that_were_issued_for_it_are_valid(world: World) -> None:
    issue = world.access.issue_run
    by_url = issue("t-1", "r-1", 2, "b-1", RunScope.RUNNER, agent="pi", by_url=True).token
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=cast(Any, world.guest_api.by_url)), base_url="http://relay.example.com/guest"
    ) as client:

        async def ask(path: str, token: str | None, **more: Any) -> httpx.Response:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            return await client.post(path, headers=headers | more.pop("headers", {}), **more)

        for token, status in ((None, 401), ("hf_key", 401), (world.token(), 403)):
            for path in ("/v1/runs/r-1/beat", "/v1/tokens/renew", "/v1/stream/threads/t-1", "/model/v1/messages"):
                assert (await ask(path, token, json={})).status_code == status
        assert world.runs.beats == []
        assert (await ask("/v1/runs/r-1/beat", by_url, json={})).json() == {"cancel": None}
        # What such a token may do is the same, and so it is after a renewal.
        renewed = (await ask("/v1/tokens/renew", by_url, json={})).json()["token"]
        assert (await ask("/v1/runs/r-2/beat", renewed, json={})).status_code == 403
        producer = {"producer-id": "run", "producer-epoch": "2", "producer-seq": "0"}
        assert (await ask("/v1/stream/threads/t-2", renewed, json=[ENTRY], headers=producer)).status_code == 403
        assert (await ask("/v1/stream/threads/t-1", renewed, json=[ENTRY], headers=producer)).status_code == 200
        assert (await ask("/v1/boxes", renewed, json={})).status_code == 404
        assert (await client.get("/v1/runs/r-1/beat")).status_code == 405
        assert (await ask("/v1/tokens/renew", None, content=b"x" * 70_000)).status_code == 413
        model = issue("t-1", "r-1", 2, "b-1", RunScope.MODEL, model="scripted/m", by_url=True).token
        assert (await ask("/model/v1/messages", model, json={})).json()["path"] == "/model/v1/messages"


@pytest.mark.parametrize("credential", [None, "nonsense", "hf_key"])
async def test_without_a_runs_token_nothing_is_answered(world: World, credential: str | None) -> None:
    async with world.client(credential) as client:
        for path in ("/v1/runs/r-1/beat", "/v1/runs/r-1/limit", "/v1/tokens/renew", "/v1/stream/threads/t-1"):
            assert (await client.post(path, json={})).status_code == 401
        assert (await client.get("/model/v1/models")).status_code == 401


async def test_a_threads_own_token_is_no_token_of_a_run(world: World) -> None:
    token = world.access.issue("t-1", Scope.WRITE, 60).token
    assert (await world.append(token)).status_code == 401
    with pytest.raises(Exception, match="not valid"):
        await Access(SqliteApiKeys(world.store), b"secret", clock=lambda: world.now[0]).grant(world.token())


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
async def test_nothing_is_read_or_removed_at_the_door(world: World, method: str) -> None:
    async with world.client(world.token()) as client:
        for path in ("/v1/stream/threads/t-1", "/v1/threads", "/v1/keys", "/metrics", "/health"):
            assert (await client.request(method, path)).status_code == 405
        assert (await client.post("/v1/keys", json={"name": "mine"})).status_code == 404


async def test_a_beat_says_how_the_run_is_to_end(world: World) -> None:
    async with world.client(world.token()) as client:
        assert (await client.post("/v1/runs/r-1/beat", json={})).json() == {"cancel": None}
        world.runs.cancel = "interrupt"
        assert (await client.post("/v1/runs/r-1/beat", json={})).json() == {"cancel": "interrupt"}
        assert (await client.post("/v1/runs/r-2/beat", json={})).status_code == 403
        world.runs.epoch = 5
        assert (await client.post("/v1/runs/r-1/beat", json={})).status_code == 409


async def test_a_runner_may_ask_which_limit_its_agent_was_killed_by(world: World) -> None:
    async with world.client(world.token()) as client:
        assert (await client.post("/v1/runs/r-1/limit", json={})).json() == {"limit": None}
        world.runs.hit = {"code": "memory_limit", "message": "the box ran out of memory", "hint": "give it more"}
        assert (await client.post("/v1/runs/r-1/limit", json={})).json() == {"limit": world.runs.hit}
        assert (await client.post("/v1/runs/r-2/limit", json={})).status_code == 403
        assert (await client.post("/v1/runs/r-1/x/limit", json={})).status_code == 403
        world.runs.epoch = 5
        assert (await client.post("/v1/runs/r-1/limit", json={})).status_code == 409


async def test_a_token_that_expired_is_renewed_while_its_run_lives(world: World) -> None:
    token = world.token()
    world.now[0] += 2 * 3600 * 1000
    assert (await world.append(token)).status_code == 401
    async with world.client(token) as client:
        renewed = (await client.post("/v1/tokens/renew")).json()
    assert renewed["expires_at"] > world.now[0]
    assert (await world.append(renewed["token"])).status_code == 200
    world.runs.run = "r-9"
    async with world.client(token) as client:
        assert (await client.post("/v1/tokens/renew")).status_code == 403


async def test_an_agent_asks_its_model_and_nothing_else(world: World) -> None:
    token = world.token(RunScope.MODEL)
    async with world.client() as client:
        answer = await client.post("/model/v1/messages", json={}, headers={"x-api-key": token})
        assert answer.json() == {"run": "r-1", "model": "scripted/m", "path": "/model/v1/messages"}
    async with world.client(token) as client:
        assert (await client.post("/model/v1/responses", json={})).status_code == 200
        assert (await client.post("/v1/runs/r-1/beat", json={})).status_code == 403
    assert (await world.append(token)).status_code == 403
    async with world.client(world.token()) as client:
        assert (await client.post("/model/v1/responses", json={})).status_code == 403


async def test_the_model_of_a_run_that_is_over_is_not_asked(world: World) -> None:
    token = world.token(RunScope.MODEL)
    world.runs.run = "r-2"
    async with world.client(token) as client:
        answer = await client.post("/model/v1/responses", json={})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        403, "run r-1 has ended, so it can no longer use its model",
    )  # fmt: skip


async def test_a_token_of_a_session_is_worth_nothing_without_a_run(world: World) -> None:
    token = world.token(RunScope.MODEL, run="", epoch=0)
    async with world.client(token) as client:
        assert (await client.post("/model/v1/responses", json={})).status_code == 403
        world.runs.is_current = True
        answer = await client.post("/model/v1/responses", json={})
        assert answer.json() == {"run": "r-1", "model": "scripted/m", "path": "/model/v1/responses"}
        assert (await client.post("/v1/tokens/renew", json={})).status_code == 403
    tools = world.token(RunScope.DELEGATE, run="", epoch=0)
    async with world.client(tools) as client:
        assert (await client.post("/v1/tools/delegate", json={})).status_code == 200
        world.runs.is_current = False
        assert (await client.post("/v1/tools/delegate", json={})).status_code == 403
    assert world.runs.calls == [("t-1", "r-1", "delegate")]


async def test_only_the_runner_of_a_session_speaks_with_the_hub(world: World) -> None:
    served: list[tuple[str, str, str, str]] = []

    class Hub:
        async def serve(self, thread: str, box: str, runner: str, process: str, receive: Any, send: Any) -> None:
            served.append((thread, box, runner, process))
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": "welcome"})
            await send({"type": "websocket.close", "code": 1000, "reason": ""})

    async def hub() -> Hub:
        return Hub()

    world.guest_api._hub = hub
    world.admit("b-2", NetworkPolicy(mode=Network.NONE))

    async def status(
        token: str | None, *, box: str = "b-1", path: str = "/v1/hub?runner=0123456789abcdef&process=p-1"
    ) -> int:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        url = f"ws://127.0.0.1:{world.listeners[box]}{path}"
        try:
            async with connect(url, additional_headers=headers, proxy=None) as socket:
                assert await socket.recv() == "welcome"
        except InvalidStatus as refused:
            return refused.response.status_code
        return 101

    ours = world.token(RunScope.HUB, run="", epoch=0)
    assert await status(ours) == 101
    assert served == [("t-1", "b-1", "0123456789abcdef", "p-1")]
    assert await status(None) == 401
    assert await status("nonsense") == 401
    assert await status(ours, box="b-2") == 403
    for scope in (RunScope.RUNNER, RunScope.MODEL, RunScope.DELEGATE):
        assert await status(world.token(scope)) == 403
    for path in ("/v1/hub", "/v1/hub?runner=..%2f&process=p-1", "/v1/hub?runner=0123456789abcdef&process=a%20b"):
        assert await status(ours, path=path) == 400
    assert await status(ours, path="/v1/runs/r-1/beat?runner=0123456789abcdef&process=p-1") != 101
    world.now[0] += 5 * 24 * 3_600_000
    assert await status(ours) == 401
    assert len(served) == 1


async def test_a_box_without_a_network_has_none_beside_its_door(world: World) -> None:
    async with httpx.AsyncClient(proxy=f"http://127.0.0.1:{world.listeners['b-1']}", trust_env=False) as client:
        with pytest.raises(httpx.HTTPError):
            await client.get("http://example.com/")


async def test_a_policy_that_closes_leaves_the_door_open(world: World) -> None:
    world.admit("b-1", NetworkPolicy(Network.OPEN))
    async with world.client(world.token()) as client:
        assert (await client.post("/v1/runs/r-1/beat", json={})).status_code == 200
        world.admit("b-1", NetworkPolicy())
        assert (await client.post("/v1/runs/r-1/beat", json={})).status_code == 200


async def test_a_head_without_end_is_cut_off(world: World) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", world.listeners["b-1"])
    writer.write(b"GET / HTTP/1.1\r\n")

    async def go_on() -> None:
        while True:
            writer.write(b"x: " + b"y" * 8000 + b"\r\n")
            await writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(go_on(), WAIT)
    writer.close()


async def test_a_body_that_is_too_large_is_refused(world: World) -> None:
    async with world.client(world.token()) as client:
        answer = await client.post("/v1/stream/threads/t-1", content=b"[" + b" " * (2 << 20) + b"]")
    assert answer.status_code == 413


async def test_who_comes_before_the_runs_are_open_is_told_to_try_again(world: World) -> None:
    world.runs_part.opened = None
    async with world.client(world.token()) as client:
        assert (await client.post("/v1/runs/r-1/beat", json={})).status_code == 503
    async with world.client(world.token(RunScope.MODEL)) as client:
        answer = await client.post("/model/v1/messages", json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_a_box_that_is_dismissed_loses_its_door(world: World) -> None:
    async with world.client(world.token()) as client:
        assert (await client.post("/v1/runs/r-1/beat", json={})).status_code == 200
        world.proxy.dismiss("b-1")
        with pytest.raises(httpx.HTTPError):
            await client.post("/v1/runs/r-1/beat", json={})


def test_what_was_read_of_a_request_comes_before_what_follows() -> None:
    """On the loop that servers run on, which reads of a socket as soon as it has it."""

    async def ask() -> bytes:
        nothing: Any = None  # nobody gets that far
        guest_api = GuestApi(nothing, nothing, lambda: "r", nothing, nothing, max_body=1 << 20)
        ours, theirs = socket.socketpair()
        body = b"x" * 100_000
        head = b"POST /v1/nothing HTTP/1.1\r\nhost: door\r\ncontent-length: %d\r\n\r\n" % len(body)
        ours.sendall(body)
        serving = asyncio.create_task(guest_api("box", theirs, head))
        ours.setblocking(False)
        answer = await asyncio.get_running_loop().sock_recv(ours, 1 << 16)
        ours.close()
        await serving
        return answer

    for _ in range(20):
        assert uvloop.run(ask()).startswith(b"HTTP/1.1 404 ")


# --- delegation ---


@pytest.mark.parametrize("scope", [RunScope.RUNNER, RunScope.MODEL])
async def test_no_other_token_of_a_run_delegates(world: World, scope: RunScope) -> None:
    async with world.client(world.token(scope)) as client:
        answer = await client.post("/v1/tools/delegate_task", json={"prompt": "a"})
    assert (answer.status_code, world.runs.calls) == (403, [])


async def test_a_token_for_delegation_is_for_nothing_else(world: World) -> None:
    token = world.token(RunScope.DELEGATE)
    async with world.client(token) as client:
        called = await client.post("/v1/tools/task_status", json={"task": "t-2"})
        assert called.json() == {"given": {"task": "t-2"}}
        for path in ("/v1/runs/r-1/beat", "/v1/runs/r-1/limit", "/model/v1/messages"):
            assert (await client.post(path, json={})).status_code == 403
    assert (await world.append(token)).status_code == 403
    assert world.runs.calls == [("t-1", "r-1", "task_status")]


@pytest.mark.parametrize("changed", [{"box": "b-2"}, {"epoch": 3}, {"run": "r-2"}])
async def test_a_token_of_another_box_epoch_or_run_delegates_nothing(world: World, changed: dict[str, Any]) -> None:
    async with world.client(world.token(RunScope.DELEGATE, **changed)) as client:
        answer = await client.post("/v1/tools/delegate_task", json={"prompt": "a"})
    assert (answer.status_code, world.runs.calls) == (403, [])


async def test_nothing_is_delegated_after_the_end_of_the_run(world: World) -> None:
    token = world.token(RunScope.DELEGATE)
    world.runs.run = "r-later"
    async with world.client(token) as client:
        answer = await client.post("/v1/tools/delegate_task", json={"prompt": "a"})
    assert (answer.status_code, world.runs.calls) == (403, [])
    assert "has ended" in answer.text


@pytest.mark.parametrize("body", [b"[]", b"7", b"{", b"\xff", b'{"a":' * 5000])
async def test_arguments_that_are_no_object_are_refused(world: World, body: bytes) -> None:
    async with world.client(world.token(RunScope.DELEGATE)) as client:
        answer = await client.post("/v1/tools/delegate_task", content=body)
    assert (answer.status_code, world.runs.calls) == (400, [])
