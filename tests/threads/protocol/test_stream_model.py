"""A model of the protocol, and a real server, do the same things and must say the same."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.testing.server import ServerProcess

EXAMPLES = 150 if os.environ.get("HOLDFAST_TEST_ALL") else 20
JSON, TEXT = "application/json", "text/plain"

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=12)
messages = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=5), scalars, max_size=3)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@dataclass
class Model:
    """What a stream must be, by everything the server has acknowledged."""

    content_type: str
    offsets: list[str]
    """Every position given out, in order."""
    items: list[Any] = field(default_factory=list)
    """What stands between two positions: messages of one append (JSON), or its bytes (text)."""
    closed: bool = False
    closed_by: tuple[str, int, int] | None = None
    last_seq: str | None = None
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    forks: int = 0
    source: Model | None = None
    deleted: bool = False

    @property
    def json(self) -> bool:
        return self.content_type == JSON

    def content(self, start: int = 0) -> Any:
        items = self.items[start:]
        return [message for item in items for message in item] if self.json else "".join(items)

    def check(self, response: httpx.Response, start: int = 0) -> None:
        assert response.status_code == 200
        assert (json.loads(response.content) if self.json else response.content.decode()) == self.content(start)
        assert response.headers["stream-next-offset"] == self.offsets[-1]
        assert response.headers["stream-up-to-date"] == "true"
        assert response.headers.get("stream-closed") == ("true" if self.closed else None)


class StreamMachine(RuleBasedStateMachine):
    url: ClassVar[str]
    counter: ClassVar[int] = 0

    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.client = httpx.Client(base_url=f"{self.url}/v1/stream/", timeout=240)
        self.models: dict[str, Model] = {}

    def teardown(self) -> None:
        self.client.close()

    def fresh_path(self) -> str:
        StreamMachine.counter += 1
        return f"model/{os.getpid()}/{StreamMachine.counter}"

    def post(self, path: str, item: Any, headers: dict[str, str]) -> httpx.Response:
        model = self.models[path]
        if item is None:
            return self.client.post(path, headers=headers)
        body = json.dumps(item) if model.json else item
        return self.client.post(path, content=body.encode(), headers={"content-type": model.content_type, **headers})

    def accepted(self, model: Model, response: httpx.Response, item: Any) -> None:
        offset = response.headers["stream-next-offset"]
        if item is None:
            assert offset == model.offsets[-1]
            return
        assert offset > model.offsets[-1]
        model.offsets.append(offset)
        model.items.append(item)

    @initialize(target=streams, kind=st.sampled_from([JSON, TEXT]))
    def first(self, kind: str) -> str:
        return self.create(kind, None)

    @rule(target=streams, kind=st.sampled_from([JSON, TEXT]), item=st.none() | st.lists(messages, max_size=3))
    def create_another(self, kind: str, item: list[Any] | None) -> str:
        return self.create(kind, item)

    def create(self, kind: str, item: list[Any] | None) -> str:
        path = self.fresh_path()
        body = b"" if item is None else json.dumps(item).encode()
        response = self.client.put(path, content=body, headers={"content-type": kind})
        assert response.status_code == 201
        model = self.models[path] = Model(kind, [response.headers["stream-next-offset"]])
        if body and (kind == TEXT or item):
            model.offsets.insert(0, "0000000000000000_0000000000000000")
            model.items.append(item if kind == JSON else body.decode())
        return path

    @rule(path=streams)
    def create_again(self, path: str) -> None:
        model = self.models[path]
        if model.deleted or model.source is not None:
            return
        headers = {"content-type": model.content_type, **({"stream-closed": "TRUE"} if model.closed else {})}
        assert self.client.put(path, headers=headers).status_code == 200
        other = TEXT if model.json else JSON
        assert self.client.put(path, headers={**headers, "content-type": other}).status_code == 409

    @rule(path=streams, data=st.data(), close=st.booleans(), seq=st.none() | st.sampled_from("abcdef"))
    def append(self, path: str, data: st.DataObject, close: bool, seq: str | None) -> None:
        model = self.models[path]
        if model.deleted:
            return
        close = close and data.draw(st.integers(0, 9)) == 0
        item = data.draw(st.lists(messages, min_size=1, max_size=3) if model.json else texts)
        headers = {**({"stream-closed": "true"} if close else {}), **({"stream-seq": seq} if seq else {})}
        response = self.post(path, item, headers)
        if model.closed:
            assert response.status_code == 409
            assert response.headers["stream-closed"] == "true"
        elif seq is not None and model.last_seq is not None and seq <= model.last_seq:
            assert response.status_code == 409
        else:
            assert response.status_code == 204
            self.accepted(model, response, item)
            model.last_seq = seq or model.last_seq
            model.closed = close

    @rule(
        path=streams,
        data=st.data(),
        id=st.sampled_from(["p", "q"]),
        step=st.sampled_from([-1, 0, 1, 1, 1, 2]),
        bump=st.sampled_from([-1, 0, 0, 0, 1]),
        close=st.sampled_from([False] * 9 + [True]),
    )
    def produce(self, path: str, data: st.DataObject, id: str, step: int, bump: int, close: bool) -> None:
        model = self.models[path]
        if model.deleted:
            return
        known = model.producers.get(id)
        epoch, last = known or (0, -1)
        epoch = max(0, epoch + bump)
        seq = max(0, (0 if bump > 0 and step == 1 else last + step))
        item = data.draw(st.lists(messages, min_size=1, max_size=2) if model.json else texts)
        headers = {"producer-id": id, "producer-epoch": str(epoch), "producer-seq": str(seq)}
        response = self.post(path, item, {**headers, **({"stream-closed": "true"} if close else {})})
        if model.closed:
            repeated = model.closed_by == (id, epoch, seq)
            assert response.status_code == (204 if repeated else 409)
        elif known is not None and epoch < known[0]:
            assert response.status_code == 403
            assert response.headers["producer-epoch"] == str(known[0])
        elif known is not None and epoch > known[0] and seq != 0:
            assert response.status_code == 400
        elif known is not None and epoch == known[0] and seq <= known[1]:
            assert response.status_code == 204
            assert response.headers["producer-seq"] == str(known[1])
        elif seq != (0 if known is None or epoch > known[0] else known[1] + 1):
            assert response.status_code == 409
            assert response.headers["producer-received-seq"] == str(seq)
        else:
            assert response.status_code == 200
            self.accepted(model, response, item)
            model.producers[id] = (epoch, seq)
            if close:
                model.closed, model.closed_by = True, (id, epoch, seq)

    @rule(path=streams)
    def close_only(self, path: str) -> None:
        model = self.models[path]
        if not model.deleted and len(model.items) > 4:
            response = self.post(path, None, {"stream-closed": "true"})
            assert response.status_code == 204
            assert response.headers["stream-closed"] == "true"
            model.closed = True

    @rule(path=streams, data=st.data())
    def read_from_somewhere(self, path: str, data: st.DataObject) -> None:
        model = self.models[path]
        if not model.deleted:
            start = data.draw(st.integers(0, len(model.items)))
            model.check(self.client.get(path, params={"offset": model.offsets[start]}), start)

    @rule(path=streams, data=st.data())
    def follow_from_somewhere(self, path: str, data: st.DataObject) -> None:
        model = self.models[path]
        if model.deleted or not model.items:
            return
        start = data.draw(st.integers(0, len(model.items) - 1))
        response = self.client.get(path, params={"offset": model.offsets[start], "live": "long-poll"})
        model.check(response, start)
        assert int(response.headers["stream-cursor"]) > 0

    @rule(target=streams, path=streams, data=st.data())
    def fork(self, path: str, data: st.DataObject) -> str:
        source = self.models[path]
        fork = self.fresh_path()
        headers = {"stream-forked-from": f"/v1/stream/{path}"}
        if source.deleted:
            assert self.client.put(fork, headers=headers).status_code in (404, 409)
            return self.create(TEXT, None)
        at = data.draw(st.integers(0, len(source.items)))
        response = self.client.put(fork, headers={**headers, "stream-fork-offset": source.offsets[at]})
        assert response.status_code == 201
        assert response.headers["stream-next-offset"] == source.offsets[at]
        source.forks += 1
        self.models[fork] = Model(source.content_type, source.offsets[: at + 1], list(source.items[:at]), source=source)
        return fork

    @precondition(lambda self: len(self.models) > 2)
    @rule(path=consumes(streams))
    def delete(self, path: str) -> None:
        model = self.models[path]
        if model.deleted:
            return
        assert self.client.delete(path).status_code == 204
        model.deleted = True
        assert self.client.head(path).status_code == (410 if model.forks else 404)
        while model.forks == 0 and model.deleted and model.source is not None:
            model.source.forks -= 1
            model = model.source

    @invariant()
    def heads_agree(self) -> None:
        for path, model in list(self.models.items())[-3:]:
            head = self.client.head(path)
            if model.deleted:
                assert head.status_code == (410 if model.forks else 404)
            else:
                assert head.status_code == 200
                assert head.headers["stream-next-offset"] == model.offsets[-1]
                assert head.headers.get("stream-closed") == ("true" if model.closed else None)


@pytest.fixture(scope="module")
def machine(open_server: ServerProcess) -> type[StreamMachine]:
    StreamMachine.url = open_server.url
    return StreamMachine


def test_a_real_server_and_the_model_never_disagree(machine: type[StreamMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
