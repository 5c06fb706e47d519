"""A server for the tests of a module, and the end of the boxes that they leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import SyncClient
from holdfast.testing.server import ServerProcess


@contextmanager
def serving(home: Path, **options: Any) -> Iterator[ServerProcess]:
    with ServerProcess(home, **options) as server:
        yield server
        with SyncClient(server.url, api_key=server.api_key) as client:
            for each in client.boxes.list():
                client.boxes.delete(each.id)
