"""What belongs to the tenant of the key although no key is in the request: the socket of events, and signed files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from daytona import Daytona, Sandbox
from tests.compat.daytona.conftest import client_of
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from holdfast.testing.server import ServerProcess

Limit = Callable[..., None]


@pytest.fixture(scope="module")
def owner(daytona_server: ServerProcess) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {daytona_server.api_key}"}
    with httpx.Client(base_url=daytona_server.url, headers=headers, timeout=240, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def key(owner: httpx.Client) -> str:
    made = owner.post("/v1/tenants", json={"name": "acme"})
    assert made.status_code == 201, made.text
    return str(made.json()["key"]["key"])


@pytest.fixture(scope="module")
def limit(owner: httpx.Client) -> Limit:
    def put(tenant: str, **quotas: Any) -> None:
        assert owner.put(f"/v1/tenants/{tenant}/quotas", json=quotas).status_code == 200

    return put


@pytest.fixture(scope="module")
def acme(daytona_server: ServerProcess, key: str) -> Iterator[Daytona]:
    with client_of(daytona_server, key) as client:
        yield client


@pytest.fixture(scope="module")
def theirs(acme: Daytona) -> Iterator[Sandbox]:
    """A sandbox of the tenant acme."""
    made = acme.create()
    yield made
    made.delete()


@contextlib.contextmanager
def events(server: ServerProcess, token: object, *, header: str | None = None) -> Iterator[ClientConnection]:
    """The socket of events, as an SDK connects it."""
    url = server.url.replace("http", "ws", 1) + "/compat/daytona/socket.io/?EIO=4&transport=websocket"
    headers = {} if header is None else {"Authorization": f"Bearer {header}"}
    with connect(url, additional_headers=headers, open_timeout=30) as socket:
        assert str(socket.recv(timeout=240)).startswith("0{")
        socket.send("40" + json.dumps({"token": token}))
        yield socket


def told(socket: ClientConnection) -> str:
    return str(socket.recv(timeout=240))


def test_the_socket_of_events_is_that_of_the_tenant_of_the_key(
    daytona_server: ServerProcess, daytona: Daytona, shared: Sandbox, acme: Daytona, theirs: Sandbox, key: str
) -> None:
    assert acme._event_dispatcher is not None
    assert acme._event_dispatcher.is_connected, "the SDK came in"
    with events(daytona_server, key) as of_acme, events(daytona_server, daytona_server.api_key) as of_default:
        assert told(of_acme).startswith("40{")
        assert told(of_default).startswith("40{")
        theirs.stop()
        shared.stop()
        theirs.start()
        shared.start()
        for socket, own, other in ((of_acme, theirs, shared), (of_default, shared, theirs)):
            states: list[str] = []
            while "started" not in states:
                message = told(socket)
                assert other.id not in message
                if message.startswith("42"):
                    _, event = json.loads(message[2:])
                    assert event["sandbox"]["id"] == own.id
                    states.append(event["newState"])
            assert "stopped" in states


def test_no_credential_opens_the_events_of_another_tenant(daytona_server: ServerProcess, key: str) -> None:
    forged = key.replace("hf_acme.", "hf_")
    unknown = key.replace("hf_acme.", "hf_zebra.")
    attempts: list[tuple[object, str | None]] = [(forged, None), (unknown, None), (None, None), ([key], None)]
    attempts.append((daytona_server.api_key, key))  # its own header leads to acme, which does not know this key
    for token, header in attempts:
        with events(daytona_server, token, header=header) as socket:
            assert told(socket).startswith("44"), (token, header)
            with pytest.raises(ConnectionClosed):
                socket.recv(timeout=240)


def test_signed_files_count_as_requests_of_the_tenant(theirs: Sandbox, limit: Limit) -> None:
    theirs.fs.upload_file(b"signed", "/tmp/signed")
    down, up = theirs.download_url("/tmp/signed"), theirs.upload_url("/tmp/more")
    broken = down.replace("signature=v1_", "signature=v1_0")
    assert broken != down
    with httpx.Client(timeout=240, trust_env=False) as anybody:
        limit("acme", requests=0.05)
        answers = [anybody.get(url).status_code for url in (broken, broken, broken, down, down, down)]
        assert answers == [401, 401, 401, 200, 429, 429], "strangers use up nothing"
        limit("acme", storage=1)
        assert anybody.post(up, content=b"more").status_code == 403
        assert anybody.get(down).content == b"signed", "it can still read"
    limit("acme")


def test_events_count_as_requests_and_end_with_the_tenant(
    daytona_server: ServerProcess, owner: httpx.Client, limit: Limit
) -> None:
    key = owner.post("/v1/tenants", json={"name": "brief"}).json()["key"]["key"]
    limit("brief", requests=0.01)
    with events(daytona_server, key) as socket, events(daytona_server, daytona_server.api_key) as of_default:
        assert told(socket).startswith("40{")
        with events(daytona_server, key) as another:
            refused = told(another)
        assert refused.startswith("44")
        assert "0.01 requests a second" in refused
        assert owner.delete("/v1/tenants/brief").status_code == 204
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=240)
        assert told(of_default).startswith("40{"), "of another tenant"
