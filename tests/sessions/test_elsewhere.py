"""Sessions with boxes at other providers: in real containers, and at the counterpart of Modal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import Session
from tests.providers.docker.engine import PYTHON_IMAGE, DockerEngine
from tests.sessions.workstations import a_server, diagnose, end, new_workstation, ready, run, states

from holdfast.testing.modal import ModalCloudThread

pytestmark = [pytest.mark.slow, pytest.mark.sampled]


def live_one_life(session: Session) -> dict[str, Any]:
    """From its first start over a restore to its end. Returns the first diagnosis."""
    first = ready(session)
    assert run(session, "cat ~/.holdfast/context/10-who.md; echo kept > /workspace/note") == "who\n"
    assert session.ask("POST", "/hibernate").json()["state"] == "hibernated"
    assert states(session)["box"] == "stopped"
    assert session.ask("POST", "/restore").json()["state"] == "running"
    assert run(session, "cat /workspace/note") == "kept\n"
    assert {name: each["state"] for name, each in ready(session)["steps"].items()} == {
        name: each["state"] for name, each in first["steps"].items()
    }
    link = session.api.post(f"/v1/sessions/{session.id}/links", json={"subject": "ada", "role": "owner"})
    assert link.status_code == 201, link.text
    assert "Terminal" in session.visit("/", headers=session.cookie()).text
    end(session)
    assert diagnose(session)["steps"]["box"]["state"] == "stopped"
    return first


def test_a_session_lives_in_a_container(engine: DockerEngine, tmp_path: Path) -> None:
    with a_server(tmp_path / "home", provider_settings={"docker_host": engine.url}) as served:
        box = {"provider": "docker", "image": PYTHON_IMAGE}
        first = live_one_life(new_workstation(*served, box=box, context=[{"name": "10-who.md", "text": "who\n"}]))
    # The image has none of the programs, and says so.
    programs = {name: each["state"] for name, each in first["steps"].items() if name not in ("box", "context")}
    assert set(programs.values()) == {"missing"}


@pytest.mark.box
def test_a_session_lives_at_modal(tmp_path: Path) -> None:
    with ModalCloudThread(tmp_path / "cloud") as thread:
        settings = {
            "modal_server_url": thread.cloud.url,
            "modal_token_id": thread.cloud.token_id,
            "modal_token_secret": thread.cloud.token_secret,
        }
        with a_server(tmp_path / "home", provider_settings=settings) as served:
            session = new_workstation(
                *served, box={"provider": "modal"}, context=[{"name": "10-who.md", "text": "who\n"}]
            )
            live_one_life(session)
        assert thread.cloud.running == []
