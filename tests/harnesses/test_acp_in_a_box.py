"""An ACP agent by its command, in a real box, on a thread: the real OpenCode, which knows nothing of Holdfast."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agents import InstalledAgents

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.server import ServerProcess

_KEY = "sk-of-the-model"
_QUIET = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")


def test_it_works_goes_on_with_its_session_and_in_another_box_is_told_what_happened(
    tmp_path: Path, installed_agents: InstalledAgents
) -> None:
    program = f"/opt/holdfast/{installed_agents.install('opencode').folder.name}/node_modules/.bin/opencode"
    agent = f"acp:env {' '.join(f'OPENCODE_DISABLE_{each}=1' for each in _QUIET)} {program} acp"
    installed_agents.share_with(tmp_path / "home")
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": "{env:HOLDFAST_MODEL_URL}", "apiKey": "{env:HOLDFAST_MODEL_TOKEN}"},
        "models": {"scripted": {"tool_call": True, "limit": {"context": 128000, "output": 4096}}},
    }
    settings = {
        "model": "holdfast/scripted",
        "small_model": "holdfast/scripted",
        "permission": {"bash": "ask"},
        "provider": {"holdfast": provider},
    }
    (workspace := tmp_path / "workspace").mkdir()
    (workspace / "opencode.json").write_text(json.dumps(settings))
    script = [bash("echo kept > kept.txt; echo from the tool"), text("One."), text("Two."), text("Three.")]
    with (
        ScriptedModel(script, key=_KEY) as model,
        ServerProcess(tmp_path / "home") as server,
        SyncClient(server.url, api_key=server.api_key) as client,
    ):
        client.models.add("scripted", apis=[Api.OPENAI_CHAT], base_url=model.openai_url, model="scripted", key=_KEY)
        thread = client.runs.launch(
            "do it",
            agent=agent,
            model="scripted",
            workspace=client.runs.upload(workspace),
            checkpoints="off",  # with one, the agent's own session would come back with the files
        ).thread
        run = client.runs.wait(thread)
        assert (run.status, run.error, run.agent) == ("completed", None, agent)
        assert [entry.payload["text"] for entry in client.thread(thread).entries(types="acp.assistant")] == ["One."]
        [tool] = [entry.payload for entry in client.thread(thread).entries(types="acp.tool")]
        assert (tool["name"], tool["status"]) == ("bash", "ok")
        assert "from the tool" in tool["result"]
        [asked] = [
            entry.payload["record"]
            for entry in client.thread(thread).entries(types="acp.event")
            if entry.payload["record"].get("type") == "permission"
        ]
        assert asked["chosen"] == "once"
        for loses_its_box in (False, True):
            if loses_its_box:
                assert run.box is not None
                client.boxes.delete(run.box)
            client.runs.resume(thread, "and now")
            run = client.runs.wait(thread)
            assert (run.status, run.error) == ("completed", None)
            seen = json.dumps(model.main_requests[-1].body["messages"])
            assert "do it" in seen
            assert "from the tool" in seen
        told = [entry.payload["session"] for entry in client.thread(thread).entries(types="signal.run.provisioned")]
        assert told == ["new", "continued", "rebuilt"]
        ways = [entry.payload["record"]["how"] for entry in client.thread(thread).entries(types="acp.session")]
        assert ways == ["new", "continued", "handed-over"]
        for box in client.boxes.list():
            client.boxes.delete(box.id)
