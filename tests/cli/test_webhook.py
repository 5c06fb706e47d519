"""`holdfast webhook`, with a receiver on this machine."""

from __future__ import annotations

import http.server
import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.conftest import Cli

from holdfast.threads.subscriptions.events import sign

Requests = queue.Queue[tuple[dict[str, str], bytes]]


@pytest.fixture
def receiver() -> Iterator[tuple[str, Requests]]:
    """The URL of a receiver, and what it gets."""
    received: Requests = queue.Queue()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.put(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", received
        finally:
            server.shutdown()
            thread.join()


def test_a_webhook_is_added_tested_rotated_and_removed(cli: Cli, receiver: tuple[str, Requests]) -> None:
    url, received = receiver
    assert "no webhooks" in cli("webhook", "list").out
    refused = cli("webhook", "add", "http://10.0.0.1/")
    assert refused.exit != 0
    assert refused.err
    unknown = cli("webhook", "add", url, "--event", "run.forgotten")
    assert (unknown.exit, "run.finished" in unknown.err) == (2, True)
    assert "needs-you" in cli("webhook", "add", "--help").out
    made = cli("webhook", "add", url, "--event", "run.finished", "--json").json()
    id, secret = made["webhook"]["id"], made["secret"]
    assert "delivered" in cli("webhook", "test", id).out
    headers, body = received.get(timeout=240)
    assert json.loads(body)["type"] == "webhook.test"
    signature = sign(secret, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    assert headers["webhook-signature"] == signature
    assert cli("webhook", "rotate", id, "--json").json()["secret"] != secret
    shown = cli("webhook", "list")
    assert (id in shown.out, "run.finished" in shown.out, secret in shown.out) == (True, True, False)
    assert "all" in cli("webhook", "show", id).out
    assert "--yes" in cli("webhook", "remove", id).err
    assert cli("webhook", "remove", id, "--yes").exit == 0
    assert "there is no webhook" in cli("webhook", "test", id).err
