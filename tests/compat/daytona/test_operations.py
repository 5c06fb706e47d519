"""Every operation that the SDKs' generated clients know is served, or refused by name with status 501."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import daytona_api_client
import daytona_toolbox_api_client
import httpx
import pytest
from daytona import Sandbox

pytestmark = [pytest.mark.box, pytest.mark.slow]
_OPERATION = re.compile(r"method='(\w+)',\s*resource_path='([^']+)'")
_NO_PART_OF_A_SANDBOX = {("POST", "/init")}
"""Asked by Daytona's own runner, of the daemon in a new sandbox."""
_WEBSOCKETS = {("GET", "/process/interpreter/execute"), ("GET", "/process/pty/{sessionId}/connect")}
"""Not there for plain HTTP. The SDKs' own methods call them: see test_every_method.py."""


def operations(package: ModuleType) -> set[tuple[str, str]]:
    folder = Path(str(package.__file__)).parent / "api"
    found = {each for file in folder.glob("*_api.py") for each in _OPERATION.findall(file.read_text())}
    assert len(found) > 50
    return found


def unknown(api: httpx.Client, base: str, method: str, path: str) -> str | None:
    """What is wrong with the answer to an operation, if this server does not know it."""
    answer = api.request(method, base + re.sub(r"\{[^}]*\}", "nothing", path), json={})
    if answer.status_code == 501:
        return None if "this server" in answer.text or "this sandbox" in answer.text else answer.text
    if answer.status_code >= 500 and answer.status_code != 503:
        return answer.text
    if answer.status_code != 404:
        return None
    return answer.text if answer.json()["message"].startswith("Cannot ") else None


def test_every_operation_of_the_control_plane_is_served_or_refused(api: httpx.Client) -> None:
    wrong = {each: unknown(api, "", *each) for each in sorted(operations(daytona_api_client))}
    assert {each: why for each, why in wrong.items() if why} == {}


def test_every_operation_of_the_toolbox_is_served_or_refused(api: httpx.Client, shared: Sandbox) -> None:
    base = f"/toolbox/{shared.id}"
    wrong = {each: unknown(api, base, *each) for each in sorted(operations(daytona_toolbox_api_client))}
    assert {each for each, why in wrong.items() if why} == _NO_PART_OF_A_SANDBOX | _WEBSOCKETS


def test_a_refusal_says_what_to_do_and_needs_a_key(api: httpx.Client) -> None:
    for path, what in (("/runners", "no runners"), ("/organizations/x/users", "holdfast member"), ("/jobs/1", "jobs")):
        answer = api.get(path)
        assert answer.status_code == 501
        assert what in answer.json()["message"]
        assert api.get(path, headers={"Authorization": ""}).status_code == 401
    assert api.get("/regions/local").json()["id"] == "local"
    assert api.get("/regions/nowhere").status_code == 404
    assert api.get("/no/such/path").json()["message"] == "Cannot GET /compat/daytona/no/such/path"
