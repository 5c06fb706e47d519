"""A server with real local boxes, the real pi and a scripted model. A package index answers on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from tests.agents import InstalledAgents
from tests.providers.local.registries import pip_site
from tests.providers.local.world import Request
from tests.server.egress_world import names_beside, outside
from tests.serving import serving

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel
from holdfast.testing.server import ServerProcess

PACKAGE = "pytest"
INDEX = "http://registry.test/"


class Index:
    """A package index with one package, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.site = pip_site(PACKAGE, "print('this is pytest')\n")

    @contextmanager
    def serve(self) -> Iterator[int]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                path = f"/simple{self.path}" if self.path == f"/{PACKAGE}/" else self.path
                answer = index.site(Request("GET", path, {}, b"", INDEX))
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@dataclass(frozen=True)
class Scene:
    server: ServerProcess
    client: SyncClient
    model: ScriptedModel
    index: Index


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("environments") / "home"
    installed_agents.install("pi")
    installed_agents.share_with(home)
    index = Index()
    with index.serve() as port:
        names_beside(home).write_text(json.dumps({"registry.test": {"80": port}}))
        with (
            serving(home, outside=outside) as server,
            ScriptedModel() as model,
            SyncClient(server.url, api_key=server.api_key) as client,
        ):
            client.models.add("scripted", apis=[Api.ANTHROPIC], base_url=model.url, model="scripted")
            yield Scene(server, client, model, index)
