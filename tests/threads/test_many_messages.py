"""One append holds so many messages and no more: each is checked while nobody else is served."""

from __future__ import annotations

import httpx

from holdfast.testing.server import ServerProcess
from holdfast.threads.framing import MOST_MESSAGES


def test_an_append_of_too_many_messages_is_refused_and_says_how_many_fit(open_server: ServerProcess) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/stream/many", "/v1/stream/threads/t-many-messages"):
        with httpx.Client(base_url=open_server.url, timeout=60) as client:
            if "threads" in path:
                assert client.post("/v1/threads", json={"id": "t-many-messages"}).status_code == 201
            else:
                assert client.put(path, headers=headers).status_code == 201
            refused = client.post(path, content=b"[" + b"0," * MOST_MESSAGES + b"0]", headers=headers)
            assert refused.status_code == 413
            assert f"{MOST_MESSAGES + 1} messages in one append: at most {MOST_MESSAGES}" in refused.text
    with httpx.Client(base_url=open_server.url, timeout=60) as client:
        fits = client.post("/v1/stream/many", content=b"[" + b"0," * (MOST_MESSAGES - 1) + b"0]", headers=headers)
        assert fits.status_code in (200, 204)
