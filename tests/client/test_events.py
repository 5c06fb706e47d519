"""Events are read the same, however the network cuts their bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.thread.tail import Event, LineDecoder, decode_events

pytestmark = pytest.mark.anyio


async def read(*chunks: bytes) -> list[Event]:
    async def feed() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [event async for event in decode_events(feed())]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"event: data\ndata:[1]\n\n", [Event("data", "[1]")]),
        (b"event:data\r\ndata: [1]\r\n\r\n", [Event("data", "[1]")]),
        (b"event:data\rdata: [1]\r\r", [Event("data", "[1]")]),
        (b"data: a\ndata:\ndata:  b\n\n", [Event("message", "a\n\n b")]),
        (b": a comment\n\nid: 7\nretry: 1\n\ndata: x\n\n", [Event("message", "x")]),
        (b"data: \xe2\x80\xa8 \xc2\x85 \x0b\n\n", [Event("message", "\u2028 \x85 \x0b")]),
        (b"data: cut of", []),
        (b"data: cut off\n", []),
    ],
)
async def test_events_are_decoded(text: bytes, events: list[Event]) -> None:
    assert await read(text) == events
    assert await read(*(text[at : at + 1] for at in range(len(text)))) == events


@given(
    text=st.binary().map(lambda raw: raw.translate(bytes(b"\r\n:ab"[byte % 5] for byte in range(256)))), data=st.data()
)
def test_lines_do_not_depend_on_how_they_arrive(text: bytes, data: st.DataObject) -> None:
    whole = LineDecoder().feed(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    decoder, lines = LineDecoder(), list[bytes]()
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        lines += decoder.feed(text[begin:end])
    assert lines == whole
