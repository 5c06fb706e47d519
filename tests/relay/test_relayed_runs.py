"""The real pi in a sprite that may reach one host: a relay. Its run is mirrored and ends through that alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agents import InstalledAgents
from tests.providers.local.world import Authority

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.outside import LoopbackConnector, StaticNames
from holdfast.testing.server import ServerProcess
from holdfast.testing.sprites import SpritesCounterpart

NAME = "relay.example.com"
ADDRESS = "93.184.215.14"
SECRET = "sk-the-real-key"


@contextmanager
def relay(server: str, authority: Authority, folder: Path, *, port: int = 0) -> Iterator[int]:
    """The command itself, with TLS. Yields its port."""
    pem = folder / "relay.pem"
    pem.write_bytes(authority.issue(NAME))
    command = [sys.executable, "-P", "-m", "holdfast", "relay", server, "--port", str(port), "--json",
               "--certificate", str(pem), "--key", str(pem)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert told["server"] == server
            yield int(told["url"].rpartition(":")[2])
        finally:
            process.terminate()
    assert process.returncode == 0


def test_a_run_whose_box_reaches_only_a_relay_is_mirrored_and_finished(
    installed_agents: InstalledAgents, tmp_path: Path
) -> None:
    home, cloud, project = tmp_path / "home", tmp_path / "cloud", tmp_path / "project"
    for folder in (cloud, project):
        folder.mkdir()
    installed_agents.install("pi")
    installed_agents.share_with(home)
    authority, connector = Authority(), LoopbackConnector()
    (project / "ca.pem").write_bytes(authority.pem)
    sprites = SpritesCounterpart(
        cloud,
        resolver=StaticNames({NAME: [ADDRESS]}),
        connector=connector,
        environment=dict.fromkeys(("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"), "/workspace/ca.pem"),
    )
    with sprites, ScriptedModel(key=SECRET) as model:
        settings = {
            "sprites_token": sprites.token,
            "sprites_url": sprites.url,
            "sprites_relay": f"https://{NAME}",
        }
        with (
            ServerProcess(home, provider_settings=settings) as server,
            SyncClient(server.url, api_key=server.api_key) as client,
        ):
            client.models.add("scripted", apis=[Api.ANTHROPIC], base_url=model.url, model="scripted", key=SECRET)
            model.script([bash("cat ca.pem | head -1; echo relayed"), text("It went through the relay.")])
            with relay(server.url, authority, tmp_path) as port:
                connector.servers[ADDRESS, 443] = port
                launched = client.runs.launch(
                    "say something",
                    agent="pi",
                    model="scripted",
                    workspace=client.runs.upload(project),
                    box={"provider": "sprites"},
                )
                info = client.runs.wait(launched.run)
                assert info.status == "completed", info.error
                results = [each.payload["result"] for each in client.thread(launched.thread).entries(types="pi.tool")]
                assert "relayed" in results[-1]
                # Only the relay is reached, although the box may have tried more.
                assert set(connector.connected) == {(ADDRESS, 443)}

                # The relay goes away while the agent works, and comes back.
                asked = len(model.main_requests)
                model.script([bash("until [ -e go ]; do echo; sleep 0.1; done; echo again"), text("Done.")])
                resumed = client.runs.resume(launched.thread, "and once more")
                while len(model.main_requests) == asked:
                    time.sleep(0.05)
            while not (told := [each for each in client.runs.diagnose(resumed.run).findings if each.stage == "egress"]):
                time.sleep(0.1)
            assert "the runner was blocked" in told[0].detail
            assert "holdfast relay" in (told[0].next_step or "")
            with relay(server.url, authority, tmp_path, port=port):
                with client.boxes.open(info.box or "") as opened:
                    opened.files.write("/workspace/go", b"")
                again = client.runs.wait(resumed.run)
                assert "egress" not in [each.stage for each in client.runs.diagnose(resumed.run).findings]
                assert (again.status, again.box) == ("completed", info.box), again.error
            for box in client.boxes.list():
                client.boxes.delete(box.id)
