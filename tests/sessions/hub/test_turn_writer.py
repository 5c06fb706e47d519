"""What a runner says about its turn, written on the thread."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from tests.threads.access.test_authority import SEALS

from holdfast.api.errors import TooLarge
from holdfast.sessions.hub.turn_writer import TurnWriter
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.threads.access.authority import Authority
from holdfast.threads.protocol.surface import StreamSurface
from holdfast.threads.run_events import Run
from holdfast.threads.store import StreamConfig

pytestmark = pytest.mark.anyio
RUN = Run("r-1", 2, "pi", "m", "local", 1)


async def test_what_may_not_be_stored_is_replaced_by_a_note(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "data.db")
    await store.create("threads/t-1", StreamConfig(content_type="application/json"))

    def check(size: int) -> None:
        if size > 4096:
            raise TooLarge("this tenant may store 1 bytes")

    surface = StreamSurface(store, Authority(SEALS, frozenset({"pi"})))
    writer = TurnWriter(surface, lambda: "q-1", check)
    entries = [
        orjson.dumps({"id": f"r-1-2-{number}", "ts": 1, "payload": {"type": "pi.text", "text": text}}).decode()
        for number, text in enumerate(["small", "x" * 100_000, "also small"])
    ]
    await writer.write("t-1", RUN, entries)
    found = await store.read("threads/t-1", 0, 1 << 20)
    payloads = [orjson.loads(line)["payload"] for line in found.data.split(b",\n") if line]
    assert [each["type"] for each in payloads] == ["pi.text", "pi.notice", "pi.text"]
    assert "was refused by the server and skipped: this tenant may store 1 bytes" in payloads[1]["text"]
    await store.close()
