"""A tenant that has one of each noun, and requests to every route about them.

The routes come from the app, their bodies from its OpenAPI document. A route about a noun that is not made here cannot
be asked, which fails the test that asks all routes: make the noun in `furnish`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

import httpx
from starlette.routing import Route, WebSocketRoute

from holdfast.server.routes import roles
from holdfast.server.routes.app import create_app
from holdfast.testing.server import ServerProcess

MARK: Final = "zebra"
"""In the name of everything that the tenant has."""
SECRET: Final = "striped"
"""In the content."""
_STEPS: Final = [{"id": "ask", "type": "approval", "prompt": SECRET}]

PROMPT: Final = f'{{"words": 3, "secret": "{SECRET}"}}'
BODIES: Final[Mapping[tuple[str, str], dict[str, Any]]] = {
    ("PUT", "/v1/environments/{name}"): {"text": "egress = []\n"},
    ("PUT", "/v1/models/{name}"): {"apis": ["openai-chat"], "baseUrl": "http://127.0.0.1:9/v1", "key": "sk-7654321"},
    ("PUT", "/v1/secrets/{name}"): {"value": "a-value-of-somebody", "bindings": [{"host": "elsewhere.example"}]},
    ("POST", "/v1/secrets/{name}/rotate"): {"value": "another-value-of-somebody"},
    ("PUT", "/v1/budgets/{scope}/{id}"): {"cost": 7},
    ("POST", "/v1/sessions/{id}/revert"): {"prompt": "own"},
}
"""Where the schema does not tell what makes sense."""


def all_routes() -> list[tuple[str, str]]:
    found = []
    for route in create_app(cast("Any", SimpleNamespace())).routes:
        if isinstance(route, WebSocketRoute):
            found.append((roles.SOCKET, route.path))
        elif isinstance(route, Route):
            found += [(method, route.path) for method in sorted(route.methods or ()) if method != "HEAD"]
    return found


@dataclass
class Request:
    method: str
    path: str
    body: dict[str, Any] | None


@dataclass
class Furnished:
    """What the tenant has, by the noun that comes before its id in paths."""

    server: ServerProcess
    owner: httpx.Client
    ids: dict[str, str] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)

    def request(self, method: str, pattern: str) -> Request:
        def value(match: re.Match[str]) -> str:
            noun = pattern[: match.start()].rstrip("/").rpartition("/")[2]
            assert noun in self.ids, f"make one of {noun!r} in furnish(): {method} {pattern}"
            return self.ids[noun]

        path = re.sub(r"/\{(?P<name>[^}]+)\}", lambda match: "/" + value(match), pattern)
        documented = self.document["paths"].get(re.sub(r":path\}", "}", pattern), {}).get(method.lower(), {})
        query = [
            f"{each['name']}={self._example(each['schema'])}"
            for each in documented.get("parameters", ())
            if each["in"] == "query" and each.get("required")
        ]
        content = documented.get("requestBody", {}).get("content", {}).get("application/json")
        body = BODIES.get((method, pattern)) or (None if content is None else self._example(content["schema"]))
        return Request(method, path + ("?" + "&".join(query) if query else ""), body)

    def _example(self, schema: dict[str, Any]) -> Any:
        """The least that the schema accepts."""
        if "$ref" in schema:
            return self._example(self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        for name in ("const", "default"):
            if name in schema:
                return schema[name]
        if "enum" in schema:
            return schema["enum"][0]
        if options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
            return self._example(options[0])
        kind = schema.get("type")
        if kind == "object":
            return {name: self._example(schema["properties"][name]) for name in schema.get("required", ())}
        if kind == "array":
            return [self._example(schema["items"])] * schema.get("minItems", 0)
        if kind in ("integer", "number"):
            return int(schema.get("minimum", 1))
        return False if kind == "boolean" else "own"


def furnish(server: ServerProcess, owner: httpx.Client) -> Furnished:
    def ask(method: str, path: str, body: Any = None) -> Any:
        answer = owner.request(method, path, json=body)
        assert answer.status_code < 300, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    model = {"apis": ["openai-chat"], "baseUrl": "http://127.0.0.1:9/v1", "key": "sk-1234567"}
    ask("PUT", f"/v1/models/{MARK}", model)
    work = {"agent": "scripted", "model": f"{MARK}/m"}
    thread = ask("POST", "/v1/threads", {"id": f"t-{MARK}", "title": f"the {MARK}"})["id"]
    ask("POST", f"/v1/threads/{thread}/chat", {"text": SECRET})
    box = ask("POST", "/v1/boxes", {"key": f"{MARK}-box"})["box"]["id"]
    session = ask("POST", "/v1/sessions", {**work, "title": MARK})["id"]
    snapshot = ask("POST", f"/v1/boxes/{box}/snapshots", {})["id"]
    interpreter = ask("POST", "/v1/interpreters", {})["id"]

    def tool(tool: str, /, **body: Any) -> Any:
        return ask("POST", f"/v1/sessions/{session}/tools/{tool}", body)

    ids = {
        "threads": thread,
        "boxes": box,
        "sessions": session,
        "interpreters": interpreter,
        "snapshots": snapshot,
        "prompts": ask("POST", f"/v1/sessions/{session}/prompts", {"prompt": PROMPT})["id"],
        "runs": ask("POST", "/v1/runs", {**work, "prompt": PROMPT})["run"],
        "tasks": ask("POST", f"/v1/threads/{thread}/tasks", {**work, "prompt": PROMPT})["id"],
        "shares": ask("POST", f"/v1/threads/{thread}/shares", {})["share"]["id"],
        "processes": ask("POST", f"/v1/boxes/{box}/processes", {"argv": ["cat"]})["id"],
        "keys": ask("POST", "/v1/keys", {"name": f"{MARK} key"})["id"],
        "webhooks": ask("POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/", "events": ["budget"]})["webhook"]["id"],
        "tunnels": ask("POST", f"/v1/sessions/{session}/tunnels", {"name": MARK, "port": 80})["name"],
    }
    workflow = tool("sync_workflow", name=MARK, data={"steps": _STEPS})["workflow"]["id"]
    ids["workflow-executions"] = tool("run_workflow", workflowId=workflow)["execution"]["executionId"]
    ids["inbox"] = tool("send_notification", content=SECRET, toUserId=MARK)["messageId"]
    code = ask("POST", "/v1/login/links")["path"].partition("#code=")[2]
    with httpx.Client(base_url=server.url, headers={"Origin": server.url}, timeout=240, trust_env=False) as browser:
        assert browser.post("/v1/login", json={"code": code}).status_code < 300
    ids["logins"] = ask("GET", "/v1/logins")["logins"][0]["id"]
    ids |= dict.fromkeys(("images", "volumes", "secrets", "environments", "members", "policies", "models"), MARK)
    ids |= {"prices": MARK, "{name}": "m", "budgets": "thread", "{scope}": thread, "reviews": ids["prompts"]}
    ids |= {"agents": "scripted", "providers": "local", "tenants": "acme", "tools": "list_tasks", "connect": "80"}
    ask("POST", "/v1/volumes", {"name": MARK})
    ask("PUT", f"/v1/secrets/{MARK}", {"value": f"very-{SECRET}-value", "bindings": [{"host": "api.example.com"}]})
    ask("PUT", f"/v1/environments/{MARK}", {"text": "egress = []\n"})
    ask("PUT", f"/v1/members/{MARK}", {"role": "member"})
    ask("PUT", f"/v1/egress/policies/{MARK}", {})
    ask("PUT", f"/v1/budgets/thread/{thread}", {"cost": 1})
    ask("PUT", f"/v1/prices/{MARK}/m", {"input": 1, "output": 1})
    return Furnished(server, owner, ids, ask("GET", "/v1/openapi.json"))
