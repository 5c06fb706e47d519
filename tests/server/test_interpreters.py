"""`/v1/interpreters`: a Python in a box over HTTP, that outlives the server; and whether it would work here at all."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.conftest import api_of

from holdfast.api.interpreters import CallLimits, InterpreterSettings
from holdfast.api.model.models import Api
from holdfast.interpreter.workspace.volumes import volume_name
from holdfast.server.routes.interpreters import read_made, to_made
from holdfast.testing.model import ScriptedModel
from holdfast.testing.server import ServerProcess


@pytest.fixture(scope="module")
def interpreter_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("interpreters") / "home") as server:
        yield server
        with api_of(server) as api:
            for box in api.get("/v1/boxes", params={"limit": 200}).json()["boxes"]:
                assert api.delete(f"/v1/boxes/{box['id']}").status_code == 200


@pytest.fixture
def api(interpreter_server: ServerProcess) -> Iterator[httpx.Client]:
    with api_of(interpreter_server) as api:
        yield api


@pytest.fixture(scope="module")
def made(interpreter_server: ServerProcess) -> str:
    with api_of(interpreter_server) as api:
        answer = api.post("/v1/interpreters", json={"title": "shared", "outputFields": [{"name": "n", "type": "int"}]})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


def execute(api: httpx.Client, interpreter: str, code: str, **more: Any) -> dict[str, Any]:
    answer = api.post(f"/v1/interpreters/{interpreter}/execute", json={"code": code, **more})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def stream(api: httpx.Client, interpreter: str, code: str, **more: Any) -> list[dict[str, Any]]:
    with api.stream("POST", f"/v1/interpreters/{interpreter}/execute/stream", json={"code": code, **more}) as answer:
        assert answer.status_code == 200, answer.read()
        return [json.loads(line) for line in answer.iter_lines() if line]


def test_a_limit_that_was_lifted_stays_lifted_when_the_settings_are_read_from_the_thread() -> None:
    made = to_made(InterpreterSettings(limits=CallLimits(calls=None, tokens=5)))
    assert made.limits.calls is None
    written = json.loads(json.dumps(made.document))
    assert read_made(written).limits == made.limits


def test_state_lives_from_one_request_to_the_next(api: httpx.Client, made: str) -> None:
    assert execute(api, made, "kept = given * 2", variables={"given": 21})["ok"]
    done = execute(api, made, "print('é'); kept")
    assert (done["stdout"], done["value"], done["valueText"]) == ("é\n", 42, "42")
    wrong = execute(api, made, "kept / 0")
    assert (wrong["ok"], wrong["error"]["kind"]) == (False, "ZeroDivisionError")
    assert execute(api, made, "def")["error"]["syntax"]
    assert execute(api, made, "SUBMIT(n=kept)")["submitted"] == {"n": 42}
    assert "n: " in execute(api, made, "SUBMIT(n='x')")["error"]["message"]


def test_what_json_lacks_has_a_form(api: httpx.Client, made: str) -> None:
    given = {"data": {"$": "bytes", "base64": "aGk="}}
    assert execute(api, made, "data", variables=given)["value"] == given["data"]
    answer = api.post(f"/v1/interpreters/{made}/execute", json={"code": "1", "variables": {"x": {"$": "bytes"}}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_interpreter")


def test_what_is_printed_comes_as_it_is_printed(api: httpx.Client, made: str) -> None:
    lines = stream(api, made, "import sys\nprint('one')\nprint('two', file=sys.stderr)\n3")
    assert lines[0]["type"] == "execution"
    assert lines[-1]["type"] == "result"
    assert (lines[-1]["id"], lines[-1]["value"]) == (lines[0]["id"], 3)
    printed = [(line["stream"], line["text"]) for line in lines[1:-1]]
    assert "".join(text for name, text in printed if name == "stdout") == "one\n"
    assert "".join(text for name, text in printed if name == "stderr") == "two\n"


def test_asked_twice_with_one_id_it_runs_once(api: httpx.Client, made: str) -> None:
    execute(api, made, "count = 0")
    first = stream(api, made, "count += 1; print(count); count", id="x-once")
    again = stream(api, made, "count += 1; print(count); count", id="x-once")
    assert again == first
    assert execute(api, made, "count")["value"] == 1


def test_code_that_runs_is_interrupted_and_its_state_stays(
    api: httpx.Client, made: str, interpreter_server: ServerProcess
) -> None:
    execute(api, made, "before = 1")
    ended: list[dict[str, Any]] = []
    began = threading.Event()

    def run() -> None:
        with (
            api_of(interpreter_server) as other,
            other.stream(
                "POST",
                f"/v1/interpreters/{made}/execute/stream",
                json={"code": "import time\nprint('began', flush=True)\nwhile True: time.sleep(0.01)"},
            ) as answer,
        ):
            for line in answer.iter_lines():
                if "began" in line:
                    began.set()
                if line:
                    ended.append(json.loads(line))

    running = threading.Thread(target=run)
    running.start()
    assert began.wait(240)
    assert api.post(f"/v1/interpreters/{made}/interrupt").status_code == 204
    running.join(30)
    assert ended[-1]["error"]["kind"] == "KeyboardInterrupt"
    assert execute(api, made, "before")["value"] == 1


def test_it_is_listed_and_shown_with_what_its_thread_tells(api: httpx.Client, made: str) -> None:
    execute(api, made, "1")
    found = api.get("/v1/interpreters").json()["interpreters"]
    assert made in [each["id"] for each in found if each["isLive"]]
    shown = api.get(f"/v1/interpreters/{made}").json()
    assert (shown["title"], shown["thread"], shown["executions"] > 0) == ("shared", f"t-{made}", True)
    assert shown["transition"]["kind"] == "created"
    assert shown["settings"]["outputFields"] == [{"name": "n", "type": "int"}]
    entries = api.get(f"/v1/threads/t-{made}/entries", params={"type": "interpreter.execution", "limit": 1000}).json()
    assert any(entry["payload"].get("value_text") == "1" for entry in entries["entries"])


SERVE = """
import http.server, threading
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'hello')
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
server.server_address[1]
"""


def test_a_port_that_its_code_listens_on_has_a_url(api: httpx.Client, made: str) -> None:
    port = execute(api, made, SERVE)["value"]
    told = api.get(f"/v1/interpreters/{made}/preview", params={"port": port}).json()
    url = httpx.URL(told["url"])
    box = api.get(f"/v1/interpreters/{made}").json()["box"]
    assert url.host == f"{port}-{box}.localhost"
    for query, status in ((url.query, 200), (None, 401)):
        place = url.copy_with(host="127.0.0.1", query=query)
        answer = httpx.get(place, headers={**told["headers"], "host": f"{url.host}:{url.port}"}, timeout=240)
        assert answer.status_code == status, answer.text
    for id, wanted, status in ((made, 0, 422), (made, 70_000, 422), ("i-nobody", 80, 404)):
        assert api.get(f"/v1/interpreters/{id}/preview", params={"port": wanted}).status_code == status
    gone = api.post("/v1/interpreters", json={}).json()
    api.delete(f"/v1/boxes/{gone['box']}")
    answer = api.get(f"/v1/interpreters/{gone['id']}/preview", params={"port": 80})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "interpreter_without_box")
    api.delete(f"/v1/interpreters/{gone['id']}")
    assert api.get(f"/v1/interpreters/{gone['id']}/preview", params={"port": 80}).status_code == 410


@contextlib.contextmanager
def called(server: ServerProcess, api: httpx.Client, name: str) -> Iterator[tuple[httpx.Client, str]]:
    """A client with a key of this name, and the id of the key."""
    key = api.post("/v1/keys", json={"name": name}).json()
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key['key']}"}, timeout=240) as client:
        yield client, key["id"]


def settings_of(api: httpx.Client, id: str) -> list[dict[str, Any]]:
    entries = api.get(f"/v1/threads/t-{id}/entries", params={"type": "interpreter.settings"}).json()["entries"]
    return [entry["payload"] for entry in entries]


def test_an_interpreter_belongs_to_the_caller_that_its_key_names(
    api: httpx.Client, interpreter_server: ServerProcess
) -> None:
    home = {"tenant": "default", "user": "default", "key": None, "role": "owner"}
    assert api.get("/v1/caller").json() == home
    for claim in ({"user": "ada"}, {"tenant": "other"}, {"creator": home}):
        assert api.post("/v1/interpreters", json=claim).status_code == 422, "nobody says who they are"
    with called(interpreter_server, api, "ada") as (ada, key):
        me = {"tenant": "default", "user": "ada", "key": key, "role": "owner"}
        assert ada.get("/v1/caller").json() == me
        made = ada.post("/v1/interpreters", json={"workspace": "shop", "labels": {"user": "root"}}).json()
        id = made["id"]
        assert made["creator"] == me
        assert [each["creator"] for each in settings_of(api, id)] == [me]
        assert api.get(f"/v1/boxes/{made['box']}").json()["spec"]["volumes"][0]["volume"] == volume_name(
            "default", "shop"
        )
        execute(ada, id, "prices = {'tea': 2}")
        saved = ada.post(f"/v1/interpreters/{id}/sessions/s-1/save").json()
        assert saved == {"names": ["prices"], "unsaved": {}}
        path = "/home/box/memory/meta/workspaces/shop/users/ada/session-s-1.json"
        assert execute(ada, id, f"__import__('os').path.exists({path!r})")["value"] is True

        # Another key of the tenant may use it, and changes nothing about whose it is, also after a restart.
        api.post(f"/v1/interpreters/{id}/workspace", json={"forceNew": True})
        interpreter_server.restart()
        with api_of(interpreter_server) as again:
            assert again.post(f"/v1/interpreters/{id}/sessions/s-1/load").json()["names"] == ["prices"]
            assert execute(again, id, "prices")["value"] == {"tea": 2}
            assert again.get(f"/v1/interpreters/{id}").json()["creator"] == me
            assert [each["creator"] for each in settings_of(again, id)] == [me, me]
            forged = {"type": "interpreter.settings", "settings": {}, "creator": home}
            assert again.post(f"/v1/stream/threads/t-{id}", json=[{"payload": forged}]).status_code == 204
            assert again.get(f"/v1/interpreters/{id}").json()["creator"] == me, "the server did not write that"
            own = again.post("/v1/interpreters", json={"workspace": "shop"}).json()["id"]
            missing = again.post(f"/v1/interpreters/{own}/sessions/s-1/load")
            assert (missing.status_code, "of user default" in missing.json()["error"]["message"]) == (422, True)


def test_a_token_of_its_thread_gives_no_access_to_an_interpreter(api: httpx.Client, made: str) -> None:
    token = api.post(f"/v1/threads/t-{made}/tokens", json={"scope": "write"}).json()["token"]
    bearer = {"authorization": f"Bearer {token}"}
    wanted = (("GET", ""), ("POST", "/execute"), ("GET", "/preview?port=80"), ("POST", "/sessions/s/load"))
    for method, path in wanted:
        answer = api.request(method, f"/v1/interpreters/{made}{path}", headers=bearer, json={"code": "1"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert api.get("/v1/caller", headers=bearer).status_code == 403


def test_what_it_has_in_memory_outlives_the_server(api: httpx.Client, interpreter_server: ServerProcess) -> None:
    id = api.post("/v1/interpreters", json={}).json()["id"]
    execute(api, id, "import os; kept = {'pid': os.getpid()}")
    interpreter_server.kill()
    interpreter_server.start()
    with api_of(interpreter_server) as api:
        assert id in [each["id"] for each in api.get("/v1/interpreters").json()["interpreters"] if not each["isLive"]]
        assert execute(api, id, "kept['pid'] == os.getpid()")["value"] is True
        interpreter_server.restart()
    with api_of(interpreter_server) as api:
        assert execute(api, id, "len(kept)")["value"] == 1
        shown = api.get(f"/v1/interpreters/{id}").json()
        assert (shown["executions"], shown["transition"]["kind"]) == (3, "resumed")
        box = shown["box"]
        assert api.delete(f"/v1/interpreters/{id}").status_code == 204
        assert api.get(f"/v1/boxes/{box}").json()["state"] == "deleted"
        assert api.post(f"/v1/interpreters/{id}/execute", json={"code": "1"}).status_code == 410
        assert id not in [each["id"] for each in api.get("/v1/interpreters").json()["interpreters"]]
        assert id in [each["id"] for each in api.get("/v1/interpreters?deleted=true").json()["interpreters"]]
        assert api.delete(f"/v1/interpreters/{id}").status_code == 204


class Gate:
    """Two pipes on the volume of an interpreter: what it waits for, and what it says, with no server in between."""

    code = "import os\nfor n in ('go', 'gone'): os.mkfifo('/home/box/memory/' + n)"
    wait = "open('/home/box/memory/go').read()"
    tell = "open('/home/box/memory/gone', 'w').close()"

    def __init__(self, server: ServerProcess, volume: str) -> None:
        (self.folder,) = server.home.rglob(f"volumes/{volume}/files")

    def open(self) -> None:
        (self.folder / "go").write_text("")

    def told(self) -> None:
        (self.folder / "gone").read_text()


@pytest.fixture
def gated(api: httpx.Client, interpreter_server: ServerProcess, request: pytest.FixtureRequest) -> tuple[str, Gate]:
    volume = f"gate-{abs(hash(request.node.name))}"
    fields = [{"name": "n", "type": "int"}]
    answer = api.post("/v1/interpreters", json={"volume": volume, "outputFields": fields})
    id = str(answer.json()["id"])
    assert execute(api, id, Gate.code)["ok"]
    return id, Gate(interpreter_server, volume)


def begin(server: ServerProcess, interpreter: str, code: str, execution: str) -> None:
    """Until it has printed something. Who asked is gone then."""
    with (
        api_of(server) as api,
        api.stream(
            "POST", f"/v1/interpreters/{interpreter}/execute/stream", json={"code": code, "id": execution}
        ) as answer,
    ):
        assert any('"output"' in line for line in answer.iter_lines())


def on_thread(api: httpx.Client, interpreter: str, execution: str) -> list[dict[str, Any]]:
    wanted = "type=interpreter.execution&limit=1000"
    entries = api.get(f"/v1/threads/t-{interpreter}/entries?{wanted}").json()["entries"]
    return [each["payload"] for each in entries if each["payload"]["id"] == execution]


def test_what_came_of_an_execution_while_the_server_was_dead_is_on_the_thread_once(
    interpreter_server: ServerProcess, gated: tuple[str, Gate]
) -> None:
    id, gate = gated
    code = f"print('began', flush=True)\n{gate.wait}\nprint('x' * 9000)\n{gate.tell}\nkept = 41\nkept + 1"
    begin(interpreter_server, id, code, "x-alone")
    interpreter_server.kill()
    gate.open()
    gate.told()
    interpreter_server.start()
    with api_of(interpreter_server) as api:
        assert execute(api, id, "kept")["value"] == 41
        begun, ended = on_thread(api, id, "x-alone")
        assert ("ok" in begun, ended["ok"], ended["value_text"]) == (False, True, "42")
        assert ended["stdout"].startswith("began\nxxx"), "also what the dead server had heard"
        assert "left out" in ended["stdout"]
        again = execute(api, id, code, id="x-alone")
        assert (again["value"], again["stdout"], again["seconds"]) == (42, ended["stdout"], ended["seconds"])
    for restart in (interpreter_server.kill, interpreter_server.stop):
        restart()
        interpreter_server.start()
        with api_of(interpreter_server) as api:
            assert execute(api, id, "kept")["value"] == 41
            assert len(on_thread(api, id, "x-alone")) == 2


def test_an_execution_that_outlives_the_server_goes_on_with_the_next_one(
    interpreter_server: ServerProcess, gated: tuple[str, Gate]
) -> None:
    id, gate = gated
    code = f"print('began', flush=True)\n{gate.wait}\nprint('ended')\nSUBMIT(n=7)"
    begin(interpreter_server, id, code, "x-long")
    interpreter_server.kill()
    interpreter_server.start()
    with (
        api_of(interpreter_server) as api,
        api.stream("POST", f"/v1/interpreters/{id}/execute/stream", json={"code": code, "id": "x-long"}) as answer,
    ):
        lines = answer.iter_lines()
        assert json.loads(next(lines)) == {"type": "execution", "id": "x-long"}
        gate.open()
        result = [json.loads(line) for line in lines if line][-1]
    assert (result["type"], result["submitted"], result["stdout"]) == ("result", {"n": 7}, "began\nended\n")
    with api_of(interpreter_server) as api:
        assert on_thread(api, id, "x-long")[1]["submitted"] == {"n": 7}
        assert len(on_thread(api, id, "x-long")) == 2


def test_a_call_that_the_server_was_killed_over_is_carried_out_by_the_next_one(
    interpreter_server: ServerProcess, gated: tuple[str, Gate]
) -> None:
    id, gate = gated
    code = f"print('began', flush=True)\n{gate.wait}\nprint('asks', flush=True)\n{gate.tell}\nSUBMIT(n=8)"
    begin(interpreter_server, id, code, "x-asking")
    interpreter_server.kill()
    gate.open()
    gate.told()  # it calls its host, and there is none
    interpreter_server.start()
    with api_of(interpreter_server) as api:
        assert execute(api, id, code, id="x-asking")["submitted"] == {"n": 8}


def test_code_of_a_dead_server_is_interrupted_by_the_next_one(
    interpreter_server: ServerProcess, gated: tuple[str, Gate]
) -> None:
    id, gate = gated
    code = f"print('began', flush=True)\n{gate.wait}"
    begin(interpreter_server, id, code, "x-held")
    interpreter_server.kill()
    interpreter_server.start()
    with api_of(interpreter_server) as api:
        assert api.post(f"/v1/interpreters/{id}/interrupt").status_code == 204
        assert execute(api, id, code, id="x-held")["error"]["kind"] == "KeyboardInterrupt"


def test_an_execution_whose_result_is_lost_says_so(interpreter_server: ServerProcess, gated: tuple[str, Gate]) -> None:
    id, gate = gated
    begin(interpreter_server, id, f"print('began', flush=True)\n{gate.wait}", "x-lost")
    with api_of(interpreter_server) as api:
        box = api.get(f"/v1/interpreters/{id}").json()["box"]
    interpreter_server.kill()
    interpreter_server.start()
    with api_of(interpreter_server) as api:
        assert api.post(f"/v1/boxes/{box}/stop").status_code == 200
        assert execute(api, id, "1")["value"] == 1
        begun, ended = on_thread(api, id, "x-lost")
        assert (ended["ok"], ended["error"]["kind"], begun["code"]) == (False, "ResultLost", ended["code"])
        told = execute(api, id, "", id="x-lost")
        assert (told["ok"], told["error"]["kind"]) == (False, "ResultLost")


def test_one_that_was_never_used_since_a_restart_is_deleted_with_its_box(
    api: httpx.Client, interpreter_server: ServerProcess
) -> None:
    shown = api.post("/v1/interpreters", json={}).json()
    interpreter_server.restart()
    with api_of(interpreter_server) as api:
        assert api.delete(f"/v1/interpreters/{shown['id']}").status_code == 204
        assert api.get(f"/v1/boxes/{shown['box']}").json()["state"] == "deleted"


def test_code_asks_a_model_and_the_thread_tells_what_it_took(api: httpx.Client) -> None:
    with ScriptedModel() as model:
        model.answer_sides("blue")
        added = {"apis": [Api.OPENAI_CHAT], "baseUrl": model.url, "model": "scripted"}
        assert api.put("/v1/models/main", json=added).status_code == 200
        id = api.post("/v1/interpreters", json={"model": "main"}).json()["id"]
        assert execute(api, id, "llm_query('the sky?')")["value"] == "blue"
        shown = api.get(f"/v1/interpreters/{id}").json()
        assert (shown["calls"], shown["outputTokens"] > 0) == (1, True)
        report = api.post("/v1/runtime/tests/lm", json={"model": "main"}).json()
        assert (report["ok"], report["phases"][0]["name"]) == (True, "model")
        api.delete(f"/v1/interpreters/{id}")
        api.delete("/v1/models/main")
    failed = api.post("/v1/runtime/tests/lm", json={"model": "main"}).json()
    assert (failed["ok"], failed["category"]) == (False, "model")
    assert failed["phases"][0]["error"]["message"]


def test_a_box_is_tried_and_leaves_nothing(api: httpx.Client) -> None:
    before = {each["id"] for each in api.get("/v1/boxes").json()["boxes"]}
    report = api.post("/v1/runtime/tests/box").json()
    assert report["ok"], report
    assert [each["name"] for each in report["phases"]] == [
        "config", "box", "driver", "execute", "state", "cleanup",
    ]  # fmt: skip
    assert {each["id"] for each in api.get("/v1/boxes").json()["boxes"]} == before
    wrong = api.post("/v1/runtime/tests/box", json={"box": {"provider": "nowhere"}}).json()
    assert (wrong["ok"], wrong["category"]) == (False, "config")
    files = api.post("/v1/runtime/tests/box", json={"repoUrl": "/etc"}).json()
    assert (files["ok"], files["category"]) == (False, "config")


def test_what_makes_no_sense_is_refused(api: httpx.Client, interpreter_server: ServerProcess) -> None:
    assert api.get("/v1/interpreters/i-nobody").status_code == 404
    assert api.post("/v1/interpreters/i-nobody/execute", json={"code": "1"}).status_code == 404
    assert api.post("/v1/interpreters", json={"box": {"provider": "nowhere"}}).status_code == 422
    assert api.post("/v1/interpreters", json={"outputFields": [{"name": "1x"}]}).status_code == 422
    assert api.post("/v1/interpreters", json={"repoUrl": "/etc"}).status_code == 422
    assert api.post("/v1/interpreters", json={"unknown": 1}).status_code == 422
    with httpx.Client(base_url=interpreter_server.url, trust_env=False) as stranger:
        assert stranger.get("/v1/interpreters").status_code == 401
        assert stranger.post("/v1/runtime/tests/box").status_code == 401


def test_one_that_lives_in_a_script_is_shown_and_not_touched(api: httpx.Client) -> None:
    api.post("/v1/threads", json={"id": "t-i-script", "labels": {"interpreter": "i-script"}})
    assert api.get("/v1/interpreters/i-script").json()["settings"] is None
    refused = api.post("/v1/interpreters/i-script/execute", json={"code": "1"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "interpreter_elsewhere")


def test_settings_that_somebody_else_wrote_on_the_thread_give_nothing_more(api: httpx.Client) -> None:
    api.post("/v1/threads", json={"id": "t-i-forged", "labels": {"interpreter": "i-forged"}})
    forged = {"box": {"provider": "local", "mounts": [{"source": "/", "path": "/host"}]}}
    entry = {"payload": {"type": "interpreter.settings", "settings": forged}}
    assert api.post("/v1/stream/threads/t-i-forged", json=[entry]).status_code in (200, 204)
    assert api.post("/v1/interpreters/i-forged/execute", json={"code": "1"}).status_code == 404


def test_a_reset_empties_the_memory_and_a_value_that_does_not_travel_is_said(api: httpx.Client, made: str) -> None:
    execute(api, made, "kept = 1")
    assert api.post(f"/v1/interpreters/{made}/reset").status_code == 204
    assert execute(api, made, "'kept' in globals()")["value"] is False
    missing = execute(api, made, "object()")
    assert missing["value"] is None
    assert "object" in missing["valueMissing"]


def test_an_interpreter_is_restored_where_its_code_ends_its_process(api: httpx.Client) -> None:
    assert api.post("/v1/interpreters", json={"restore": "spoon"}).status_code == 422
    id = api.post("/v1/interpreters", json={"restore": "fork"}).json()["id"]
    execute(api, id, "kept = 1")
    ended = execute(api, id, "kept = 2; import os; os._exit(1)")
    assert (ended["restored"], ended["stateLost"]) == (True, False)
    assert execute(api, id, "kept")["value"] == 1
    assert api.delete(f"/v1/interpreters/{id}").status_code == 204


def test_a_model_that_there_is_not_is_refused_when_an_interpreter_is_made(api: httpx.Client) -> None:
    refused = api.post("/v1/interpreters", json={"model": "nope"})
    assert refused.status_code == 422
    assert "nope" in refused.json()["error"]["message"]
