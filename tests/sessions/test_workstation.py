"""The workstation of a session in a real box: its programs start, are supervised, and come back after a restore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.gateway.conftest import Session, new_session
from tests.sessions.workstations import (
    a_server,
    diagnose,
    end,
    needs_desktop,
    new_workstation,
    ready,
    run,
    states,
    until,
)
from websockets.exceptions import InvalidStatus

from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.box, pytest.mark.slow, needs_desktop]
DESKTOP = ("screen", "windows", "vnc", "desktop")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workstation") / "home"


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    with a_server(home) as served:
        yield served


@pytest.fixture
def session(served: tuple[ServerProcess, httpx.Client]) -> Iterator[Session]:
    made = new_workstation(*served, context=[{"name": "10-reviewer.md", "text": "You review.\n"}])
    yield made
    end(made)


@pytest.fixture(scope="module")
def shared(served: tuple[ServerProcess, httpx.Client]) -> Iterator[Session]:
    """One that tests leave as it is."""
    made = new_workstation(*served)
    ready(made)
    yield made
    end(made)


def booted(session: Session) -> list[dict[str, object]]:
    answer = session.api.get(f"/v1/stream/threads/{session.id}?offset=-1")
    return [each["payload"] for each in answer.json() if each["payload"]["type"] == "signal.session.booted"]


def test_programs_start_are_restarted_and_come_back_after_hibernation(session: Session) -> None:
    found = ready(session)
    assert {name: found["steps"][name]["state"] for name in DESKTOP} == dict.fromkeys(DESKTOP, "running")
    assert found["steps"]["editor"]["state"] == "missing"
    assert found["steps"]["editor"]["detail"] == "code-server is not in this box"
    assert found["steps"]["context"]["state"] == "done"
    assert all(found["steps"][name]["ms"] is not None for name in ("box", "context", *DESKTOP))
    (entry,) = booted(session)
    assert {each["name"]: each["state"] for each in entry["steps"]} == states(session)  # type: ignore[attr-defined]
    assert run(session, "cat ~/.holdfast/context/10-reviewer.md; echo $DISPLAY") == "You review.\n:99\n"
    # Nobody but the box itself reaches them.
    listening = run(session, "cat /proc/net/tcp /proc/net/tcp6")
    addresses = [line.split()[1].split(":") for line in listening.splitlines() if line.split()[3] == "0A"]
    ours = {(address, port) for address, port in addresses if int(port, 16) != 3128}  # the way out of the box
    assert {port for _, port in ours} == {f"{5900:04X}", f"{6080:04X}"}
    assert {address for address, _ in ours} <= {"0100007F", "00000000000000000000000001000000"}

    run(session, "kill -9 $(pidof Xvfb)")
    until(lambda: diagnose(session)["steps"]["screen"]["restarts"] == 1)
    until(lambda: {states(session)[name] for name in DESKTOP} == {"running"})

    # A lock that outlives its program, as in the snapshot of a box that was cut off.
    run(session, "kill -9 $(pidof Xvfb); rm -f /tmp/.X99-lock; echo 4190000 > /tmp/.X99-lock")
    assert session.ask("POST", "/hibernate").json()["state"] == "hibernated"
    assert {states(session)[name] for name in ("box", *DESKTOP)} == {"stopped"}
    assert session.ask("POST", "/restore").json()["state"] == "running"
    found = ready(session)
    assert {found["steps"][name]["state"] for name in DESKTOP} == {"running"}
    assert len(booted(session)) == 2


def test_the_supervisor_comes_back_with_another_server(tmp_path: Path) -> None:
    with a_server(tmp_path / "home") as (server, api):
        session = new_workstation(server, api)
        ready(session)
        processes = f"/v1/boxes/{session.box}/processes"
        argv = next(
            each["argv"]
            for each in api.get(processes).json()["processes"]
            if each["argv"][-1].startswith("holdfast-workstation:")
        )
        run(session, "pkill -9 -f '[h]oldfast-workstation'")  # with all that it has started
        until(lambda: states(session)["desktop"] == "stopped")
        # The server dies when it has started another one, and has not sent it the programs yet.
        mute = api.post(processes, json={"argv": argv, "stdin": True, "tree": True})
        assert mute.status_code < 300, mute.text
        server.kill()
    with a_server(tmp_path / "home") as (server, api):
        again = Session(server, api, session.id, session.box)
        until(lambda: {states(again)[name] for name in DESKTOP} == {"running"})
        assert len(booted(again)) == 1
        end(again)


def test_a_program_that_squats_on_a_port_is_told_of(served: tuple[ServerProcess, httpx.Client]) -> None:
    # The box is there before its session starts anything in it, and so is the squatter.
    server, api = served
    plain = new_workstation(server, api, workstation=False, context=[{"name": "a.md", "text": "x"}])
    assert "desktop" not in states(plain)
    end(plain)
    session = new_workstation(server, api)
    ready(session)
    squat = "import socket,time; s=socket.create_server(('127.0.0.1',6080)); time.sleep(600)"
    run(session, f'pkill -9 websockify; (setsid python3 -c "{squat}" >/dev/null 2>&1 &)')
    blocked = until(lambda: (found := diagnose(session)["steps"]["desktop"])["state"] == "blocked" and found)
    assert "another program listens on port 6080: python3" in blocked["detail"]
    assert blocked["path"] is None
    page = session.visit("/", headers={**session.cookie(), "accept": "text/html"})
    assert "Desktop: blocked" in page.text
    assert "/vnc/" not in page.text
    end(session)


def test_context_files_follow_no_link(session: Session) -> None:
    ready(session)
    run(session, "rm -r ~/.holdfast/context && ln -s /workspace ~/.holdfast/context")
    session.ask("POST", "/hibernate")
    session.ask("POST", "/restore")
    context = until(lambda: diagnose(session)["steps"].get("context"))
    assert context["state"] == "failed"
    assert run(session, "ls -A /workspace") == ""


@pytest.mark.parametrize(
    "name", ["../up.md", "/etc/up.md", "a/b.md", ".hidden.md", "x", "a\x00.md", "x" * 80 + ".md", "00-repository.md"]
)
def test_names_of_context_files_are_plain(served: tuple[ServerProcess, httpx.Client], name: str) -> None:
    context = [{"name": name, "text": "x"}]
    answer = served[1].post("/v1/sessions", json={"agent": "pi", "model": "none", "context": context})
    assert answer.status_code in (400, 422), answer.text


def test_context_files_are_small_and_few(served: tuple[ServerProcess, httpx.Client]) -> None:
    for context in (
        [{"name": f"{number}.md", "text": "x"} for number in range(17)],
        [{"name": f"{number}.md", "text": "x" * 8_001} for number in range(2)],
        [{"name": "same.md", "text": "x"}, {"name": "same.md", "text": "y"}],
    ):
        answer = served[1].post("/v1/sessions", json={"agent": "pi", "model": "none", "context": context})
        assert answer.status_code in (400, 422), answer.text


def test_a_viewer_sees_no_program_and_reaches_none(shared: Session) -> None:
    session = shared
    viewer = session.cookie("vera", "viewer")
    assert "/vnc/" not in session.visit("/", headers=viewer).text
    assert session.visit("/vnc/vnc.html", headers=viewer).status_code == 403
    assert session.visit("/vnc/vnc.html").status_code == 401
    for headers, status in ((viewer, 403), ({}, 401)):
        with pytest.raises(InvalidStatus) as refused:
            session.socket("/vnc/websockify", headers)
        assert refused.value.response.status_code == status
    owner = session.cookie()
    assert "/vnc/vnc.html" in session.visit("/", headers=owner).text
    page = session.visit("/vnc/vnc.html", headers=owner)
    assert (page.status_code, "noVNC" in page.text) == (200, True)


def test_the_cookie_of_another_session_opens_nothing(
    shared: Session, served: tuple[ServerProcess, httpx.Client]
) -> None:
    other = new_session(*served)
    assert shared.visit("/vnc/vnc.html", headers=other.cookie()).status_code == 401
    assert shared.visit("/vnc/vnc.html", headers=other.bearer()).status_code == 401
    assert served[1].delete(f"/v1/boxes/{other.box}").status_code == 200


@pytest.mark.sampled
def test_a_workstation_at_rest_falls_asleep_and_wakes_for_whoever_opens_it(
    served: tuple[ServerProcess, httpx.Client],
) -> None:
    session = new_workstation(*served, box={"idleSeconds": 3})
    ready(session)
    until(lambda: session.ask("GET", "").json()["state"] == "hibernated", 60)
    assert states(session)["desktop"] == "stopped"
    # Whoever opens it wakes it, with all of its programs.
    cookie = {**session.cookie(), "accept": "text/html"}
    until(lambda: session.visit("/vnc/vnc.html", headers=cookie).status_code == 200)
    assert session.ask("GET", "").json()["state"] == "running"
    end(session)


@pytest.mark.sampled
def test_a_pool_starts_programs_before_there_is_a_session(tmp_path: Path) -> None:
    with a_server(tmp_path / "home", pool=1) as served:

        def was_ahead() -> bool:
            session = new_workstation(*served)
            started = ready(session)["steps"]["screen"]["since"]
            created = session.ask("GET", "").json()["createdAt"]
            end(session)
            return bool(started < created)

        until(was_ahead)
