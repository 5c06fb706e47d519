"""Sessions with a workstation on a real server, in boxes with the programs of this machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Session
from tests.server.conftest import api_of

from holdfast.testing.server import ServerProcess

PATIENCE = 240.0
_DESKTOP = ("Xvfb", "fluxbox", "x11vnc", "websockify", "xterm")
needs_desktop = pytest.mark.skipif(
    not all(map(shutil.which, _DESKTOP)),
    reason="there is no desktop here: apt install xvfb fluxbox x11vnc novnc websockify xterm",
)


@contextmanager
def a_server(home: Path, **settings: Any) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    """A server with a model that is never asked."""
    with ServerProcess(home, **settings) as server, api_of(server) as api:
        model = {"apis": ["openai-chat"], "baseUrl": "http://127.0.0.1:9", "model": "m"}
        answer = api.put("/v1/models/none", json=model)
        assert answer.status_code < 300, answer.text
        yield server, api


def new_workstation(server: ServerProcess, api: httpx.Client, **more: Any) -> Session:
    """A session that runs. Its programs may still be starting."""
    wanted = {"agent": "pi", "model": "none", "workstation": True, **more}
    answer = api.post("/v1/sessions", json=wanted)
    assert answer.status_code == 201, answer.text
    id = answer.json()["id"]
    found = until(lambda: _running(api, id))
    return Session(server, api, id, found["box"])


def _running(api: httpx.Client, id: str) -> dict[str, Any] | None:
    found: dict[str, Any] = api.get(f"/v1/sessions/{id}").json()
    assert found["state"] in ("initializing", "restoring", "running"), found
    return found if found["state"] == "running" else None


def until(look: Any, seconds: float = PATIENCE) -> Any:
    """Returns the first value that is not None or False."""
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"it did not happen within {seconds} s")


def diagnose(session: Session) -> dict[str, Any]:
    answer = session.ask("GET", "/diagnosis")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return {**found, "steps": {each["name"]: each for each in found["steps"]}}


def states(session: Session) -> dict[str, str]:
    return {name: each["state"] for name, each in diagnose(session)["steps"].items()}


def ready(session: Session) -> dict[str, Any]:
    """Wait until all programs have started. Returns the diagnosis."""
    return dict(until(lambda: (found := diagnose(session))["ms"] is not None and found))


def run(session: Session, command: str) -> str:
    """Run a command in the box."""
    import base64

    answer = session.api.post(f"/v1/boxes/{session.box}/exec", json={"argv": ["sh", "-c", command]}, timeout=240)
    assert answer.status_code == 200, answer.text
    done = answer.json()
    assert done["exitCode"] == 0, base64.b64decode(done["stderr"])
    return base64.b64decode(done["stdout"]).decode()


def end(session: Session) -> None:
    session.ask("POST", "/terminate")
    until(lambda: session.ask("GET", "").json()["released"])
    assert session.ask("DELETE", "/workspace").status_code == 200
