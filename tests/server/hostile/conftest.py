"""Servers that take what comes, and a witness of what they keep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.server.hostile.witness import MAX_BODY, Witness, names
from tests.server.raw import RawClient

from holdfast.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("hostile") / "home"
    with ServerProcess(home, auth=False, max_body=MAX_BODY, long_poll_timeout=0.5, log_level="debug") as server:
        yield server


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that waits a second for a request to arrive."""
    with ServerProcess(tmp_path_factory.mktemp("impatient") / "home", auth=False, request_timeout=1.0) as server:
        yield server


@pytest.fixture
def witness(server: ServerProcess) -> Iterator[Witness]:
    witness = Witness(server, str(next(names)))
    yield witness
    witness.check()


@pytest.fixture
def client(server: ServerProcess, witness: Witness) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        yield client
