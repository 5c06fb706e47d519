"""Writers that never let go of a message, and readers that follow along, whatever happens to the server meanwhile."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from random import Random
from typing import Any, Final

import httpx
import orjson
from tests.durability.evidence import Acknowledgement, Delivery, Ledger
from tests.durability.http import Answer, HttpConnection, Lost, Refused
from tests.durability.shapes import EntryShape, Shape, entry_message

from holdfast.client import Client, DiskFull, Entry, HoldfastError, Unreachable
from holdfast.client.thread.tail import decode_events
from holdfast.time_limit import time_limit

STREAMS: Final = "/v1/stream/"
THREADS: Final = "threads/"
_PATIENCE: Final = 240.0
"""Seconds without any progress after which a trial is given up."""
_FULL: Final = (503, 507)
"""Not written, try again: the disk is full, or something written before on the same stream found it so."""
_GIVE_UP: Final = 0.1
"""How likely a writer is to let go of a delivery whose answer was lost."""


class UnexpectedAnswer(Exception):
    """An answer that no fault explains."""


class Scene:
    """What writers and readers know of the server and tell of themselves: is it up, how much was acknowledged."""

    def __init__(self, address: tuple[str, int], credential: str | None, random: Random) -> None:
        self.random = random
        self.up = asyncio.Event()
        self.life = 0
        self.acknowledged = 0
        """Requests to append."""
        self.in_flight = 0
        """Requests to append that are on their way."""
        self.answers: Counter[int] = Counter()
        """To requests to append, by status."""
        self.finishing = False
        """Nothing new is to be written, and nothing that was lost to be repeated."""
        self._address = address
        self._credential = credential
        self._waiting: dict[asyncio.Future[None], tuple[Callable[[], bool], Callable[[], None]]] = {}

    def connect(self) -> HttpConnection:
        return HttpConnection(self._address, self._credential)

    def came_up(self) -> None:
        self.life += 1
        self.up.set()

    def went_down(self) -> None:
        self.up.clear()

    @contextmanager
    def request(self) -> Iterator[None]:
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def count_acknowledged(self) -> None:
        self.acknowledged += 1
        self.tell()

    def tell(self) -> None:
        """Something happened that somebody may wait for."""
        for future, (reached, then) in list(self._waiting.items()):
            if not future.done() and reached():
                then()
                future.set_result(None)

    async def wait_acknowledged(self, more: int, then: Callable[[], None] = lambda: None) -> None:
        """Until so many more requests are acknowledged; `then` is called at that very moment."""
        target = self.acknowledged + more
        await self.wait_until(lambda: self.acknowledged >= target, f"{more} more acknowledged appends", then=then)

    async def wait_until(
        self,
        reached: Callable[[], bool],
        what: str,
        *,
        patience: float = _PATIENCE,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = (reached, then)
        try:
            self.tell()
            async with time_limit(patience):
                await future
        except TimeoutError:
            raise UnexpectedAnswer(f"waited {patience:g} s for {what}, in vain") from None
        finally:
            del self._waiting[future]


class Writer:
    """Appends to one stream, one delivery after the other, and writes down what it asked and what it was told.

    A lost delivery is repeated until it is acknowledged. Now and then it is given up instead.
    """

    def __init__(self, scene: Scene, name: str, path: str, shape: Shape, ledger: Ledger) -> None:
        self.name = name
        self.repeated = 0
        """Deliveries that turned out to have been written when they were repeated."""
        self._scene = scene
        self._target = STREAMS + path
        self._shape = shape
        self._ledger = ledger
        self._random = Random(scene.random.random())
        self._connection = scene.connect()
        self._messages = 0
        self._deliveries = 0

    async def write(self) -> None:
        """Write until the scene is finishing."""
        try:
            while not self._scene.finishing:
                delivery = self._next()
                self._ledger.deliveries.append(delivery)
                acknowledgement = await self._deliver(delivery)
                if acknowledgement is not None:
                    self._ledger.acknowledged[delivery] = acknowledgement
                    self._scene.count_acknowledged()
        finally:
            self._connection.close()

    def _next(self) -> Delivery:
        size = 1 if self._random.random() < 0.7 else self._random.randint(2, 6)
        messages = []
        for _ in range(size):
            messages.append(self._shape.message(self.name, self._messages, self._random))
            self._messages += 1
        self._deliveries += 1
        return Delivery(self.name, self._deliveries - 1, tuple(messages))

    async def _deliver(self, delivery: Delivery) -> Acknowledgement | None:
        scene, failures = self._scene, 0
        while True:
            await scene.up.wait()
            try:
                with scene.request():
                    answer = await self._send(delivery)
            except Lost:
                if scene.finishing or self._random.random() < _GIVE_UP:
                    self._give_up()
                    return None
            else:
                scene.answers[answer.status] += 1
                if answer.is_success:
                    return self._acknowledge(answer)
                if answer.status not in _FULL:
                    raise UnexpectedAnswer(f"{self.name} wrote to {self._target} and was told {answer}")
                scene.tell()
                if scene.finishing:
                    self._give_up()
                    return None
            await asyncio.sleep(min(0.5, 0.01 * 2**failures) * self._random.random())
            failures = min(failures + 1, 10)

    async def _send(self, delivery: Delivery) -> Answer:
        headers = {"content-type": self._shape.content_type, **self._headers()}
        return await self._connection.ask("POST", self._target, headers, self._shape.body(delivery.messages))

    def _headers(self) -> Mapping[str, str]:
        return {}

    def _give_up(self) -> None:
        """Let go of a delivery whose fate is unknown."""

    def _acknowledge(self, answer: Answer) -> Acknowledgement:
        # Without a producer an answer to a repetition looks like the first one, and its offset may be a later one.
        return Acknowledgement(None, self._scene.life)


class ProducerWriter(Writer):
    """An idempotent producer of the protocol."""

    def __init__(self, scene: Scene, name: str, path: str, shape: Shape, ledger: Ledger) -> None:
        super().__init__(scene, name, path, shape, ledger)
        self._epoch = 0
        self._seq = 0

    def _headers(self) -> Mapping[str, str]:
        return {
            "producer-id": self.name,
            "producer-epoch": str(self._epoch),
            "producer-seq": str(self._seq),
        }

    def _give_up(self) -> None:
        self._epoch += 1
        self._seq = 0

    def _acknowledge(self, answer: Answer) -> Acknowledgement:
        said = (answer.headers.get("producer-epoch"), answer.headers.get("producer-seq"))
        if said != (str(self._epoch), str(self._seq)):
            raise UnexpectedAnswer(f"{self.name} sent {self._epoch}/{self._seq} and was told {said}")
        self._seq += 1
        first_time = answer.status == 200
        self.repeated += not first_time
        return Acknowledgement(answer.headers["stream-next-offset"] if first_time else None, self._scene.life)


class ChatWriter(Writer):
    """Posts to a thread by the REST surface. The entry's id is what makes repeating it harmless."""

    def __init__(self, scene: Scene, name: str, thread: str, shape: EntryShape, ledger: Ledger) -> None:
        super().__init__(scene, name, THREADS + thread, shape, ledger)
        self._target = f"/v1/threads/{thread}/chat"

    def _next(self) -> Delivery:
        number = self._deliveries
        self._deliveries += 1
        said = orjson.loads(self._shape.message(self.name, number, self._random))
        payload = {"type": "chat", "role": "user", "text": f"{number}: {said['payload']['text']}"}
        return Delivery(self.name, number, (entry_message(said["id"], payload),))

    async def _send(self, delivery: Delivery) -> Answer:
        entry = orjson.loads(delivery.messages[0])
        body = orjson.dumps({"id": entry["id"], "text": entry["payload"]["text"]})
        return await self._connection.ask("POST", self._target, {"content-type": "application/json"}, body)


class ClientWriter(Writer):
    """Writes by `holdfast.Client`, which repeats by itself."""

    def __init__(self, scene: Scene, name: str, client: Client, thread: str, shape: EntryShape, ledger: Ledger) -> None:
        super().__init__(scene, name, THREADS + thread, shape, ledger)
        self._thread = client.thread(thread)

    async def _deliver(self, delivery: Delivery) -> Acknowledgement | None:
        entries = [Entry(each["id"], 1, each["payload"]) for each in map(orjson.loads, delivery.messages)]
        while True:
            try:
                with self._scene.request():
                    await self._thread.append(entries)
            except DiskFull:
                # The client leaves it to people to make room: its user asks again.
                self._scene.answers[507] += 1
                self._scene.tell()
                if self._scene.finishing:
                    return None
                await asyncio.sleep(0.3 * self._random.random())
            except Unreachable:
                return None
            except HoldfastError as error:
                raise UnexpectedAnswer(f"{self.name} failed: {error!r}") from error
            else:
                return Acknowledgement(None, self._scene.life)


class Reader:
    """Follows one stream by server-sent events. A lost connection is taken up at the last offset it was told."""

    def __init__(self, scene: Scene, path: str) -> None:
        self.offset = "-1"
        self.pages: list[bytes] = []
        """What it was sent, up to its offset."""
        self.connections = 0
        self._scene = scene
        self._target = f"{STREAMS}{path}?live=sse&offset="

    async def read(self) -> None:
        """Read until cancelled."""
        while True:
            await self._scene.up.wait()
            try:
                await self._follow()
            except Lost:
                await asyncio.sleep(0.01)
            except Refused as refusal:
                raise UnexpectedAnswer(f"GET {self._target}{self.offset} answered {refusal.answer}") from None

    async def _follow(self) -> None:
        pages: list[bytes] = []
        self.connections += 1
        async with aclosing(self._scene.connect().follow(self._target + self.offset)) as chunks:
            async for event in decode_events(chunks):
                if event.type == "data":
                    # Bytes come in base64; JSON is an array, which no base64 looks like.
                    pages.append(event.data.encode() if event.data[:1] == "[" else base64.b64decode(event.data))
                elif event.type == "control":
                    # What came without its offset would come again: it counts from here on.
                    self.pages += pages
                    pages = []
                    self.offset = orjson.loads(event.data)["streamNextOffset"]
                    self._scene.tell()


class ClientReader:
    """Follows a thread by `holdfast.Client`, which takes up lost connections by itself."""

    def __init__(self, scene: Scene, client: Client, thread: str) -> None:
        self.messages: list[bytes] = []
        self._scene = scene
        self._thread = client.thread(thread)

    async def read(self) -> None:
        try:
            async with self._thread.tail() as tail:
                async for entry in tail:
                    if not entry.type.startswith("signal."):
                        self.messages.append(entry_message(entry.id, entry.payload))
                        self._scene.tell()
        except HoldfastError as error:
            raise UnexpectedAnswer(f"the client's reader failed: {error!r}") from error


async def read_pages(http: httpx.AsyncClient, path: str, offset: str = "-1") -> tuple[list[bytes], str]:
    """A stream from an offset to its end, and where that is."""
    pages: list[bytes] = []
    while True:
        response = await ask(http, "GET", STREAMS + path, params={"offset": offset})
        following = response.headers["stream-next-offset"]
        if response.content:
            pages.append(response.content)
        if response.headers.get("stream-up-to-date") == "true":
            return pages, following
        if following <= offset != "-1":
            raise UnexpectedAnswer(f"reading {path} does not get past {offset}")
        offset = following


async def ask(http: httpx.AsyncClient, method: str, url: str, **fields: Any) -> httpx.Response:
    """A request that has to succeed."""
    response = await http.request(method, url, **fields)
    if not response.is_success:
        raise UnexpectedAnswer(f"{method} {url} answered {response.status_code} {response.text[:300]}")
    return response


def connect(url: str, api_key: str | None) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=_PATIENCE, trust_env=False)
