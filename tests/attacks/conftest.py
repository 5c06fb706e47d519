"""A server as users start it, for attackers who have what users give out: tokens, links, a shell in a box."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from holdfast.testing.server import ServerProcess

TIMEOUT = 240.0


@dataclass(frozen=True)
class Outside:
    """What can be reached from outside: the server's public surface."""

    server: ServerProcess

    def ask(self, method: str, path: str, credential: str | None, **fields: Any) -> httpx.Response:
        headers = {**fields.pop("headers", {})}
        if credential is not None:
            headers["authorization"] = f"Bearer {credential}"
        return httpx.request(
            method, self.server.url + path, headers=headers, timeout=TIMEOUT, trust_env=False, **fields
        )

    def admin(self, method: str, path: str, **fields: Any) -> Any:
        answer = self.ask(method, path, self.server.api_key, **fields)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def thread(self, **fields: Any) -> str:
        return str(self.admin("POST", "/v1/threads", json=fields)["id"])

    def token(self, thread: str, scope: str) -> str:
        return str(self.admin("POST", f"/v1/threads/{thread}/tokens", json={"scope": scope})["token"])

    def types(self, thread: str) -> list[str]:
        found = self.admin("GET", f"/v1/threads/{thread}/entries", params={"limit": 1000})
        return [entry["payload"]["type"] for entry in found["entries"]]


@pytest.fixture(scope="package")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """With real boxes, which are deleted in the end."""
    with ServerProcess(tmp_path_factory.mktemp("attacks") / "home") as server:
        outside = Outside(server)
        yield outside
        for box in outside.admin("GET", "/v1/boxes", params={"limit": 200})["boxes"]:
            outside.admin("DELETE", f"/v1/boxes/{box['id']}")
