"""Runs with environments over HTTP: a real server, real boxes, the real pi, a real package index on loopback."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.environments.conftest import INDEX, Scene

from holdfast.api.errors.environments import EnvironmentChanged, EnvironmentIncomplete, EnvironmentNotAllowed
from holdfast.api.errors.secrets import SecretMissing
from holdfast.api.secrets import Binding
from holdfast.client import HoldfastError
from holdfast.testing.model.steps import bash, text

SETUP = 'setup = ["pip install pytest"]\negress = ["default"]\n'


def entries(scene: Scene, thread: str, kind: str) -> list[dict[str, Any]]:
    return [entry.payload for entry in scene.client.thread(thread).entries(types=kind)]


def run(scene: Scene, command: str, **more: Any) -> tuple[str, str]:
    """Returns a thread, and what a command printed in its box."""
    scene.model.script([bash(command), text("Done.")])
    given = {"agent": "pi", "model": "scripted", **more}
    thread = scene.client.runs.launch("do it", **given).thread
    done = scene.client.runs.wait(thread)
    assert done.status == "completed", done.error
    [tool] = entries(scene, thread, "pi.tool")
    return thread, str(tool["result"])


def boxes_of_setups(scene: Scene) -> list[str]:
    return [each.id for each in scene.client.boxes.list(labels={"environment-setup-box": "1"})]


def threads(scene: Scene) -> set[str]:
    return {each.id for each in scene.client.threads.list()}


def test_how_do_i_get_pytest_in_there(scene: Scene) -> None:
    scene.client.environments.save("py", SETUP)
    first, printed = run(scene, "python3 -m pytest", environment="py")
    assert "this is pytest" in printed
    assert [each.get("built") for each in entries(scene, first, "signal.run.setup")] == [None, True]
    asked = len(scene.index.asked)
    second, printed = run(scene, "python3 -m pytest", environment="py")
    assert "this is pytest" in printed
    assert [each.get("built") for each in entries(scene, second, "signal.run.setup")] == [False]
    assert len(scene.index.asked) == asked
    assert boxes_of_setups(scene) == []
    [used] = entries(scene, second, "signal.run.environment")
    assert used["environment"] == "py@1"
    assert used["digest"] == scene.client.environments.get("py").digest


def test_a_run_records_the_version_that_it_used_and_the_next_run_keeps_it(scene: Scene) -> None:
    for text_of in ('test = "one"\n', 'test = "two"\n'):
        scene.client.environments.save("versioned", text_of)
    thread, _ = run(scene, "true", environment="versioned@1")
    [started] = entries(scene, thread, "signal.run.started")
    kept = started["options"]["environment"]
    assert (kept["reference"], kept["test"]) == ("versioned@1", "one")
    scene.model.script([text("More.")])
    scene.client.runs.wait(scene.client.runs.resume(thread, "go on").run)
    assert entries(scene, thread, "signal.run.started")[-1]["options"]["environment"] == kept


def test_options_take_precedence_over_the_environment(scene: Scene) -> None:
    scene.client.environments.save("wide", 'agent = "claude"\negress = ["registry.test"]\n[limits]\nmemory = "256M"\n')
    box = {"network": {"mode": "none"}}
    thread, _ = run(scene, "true", environment="wide", box=box)
    [started] = entries(scene, thread, "signal.run.started")
    spec = started["options"]["spec"]
    assert started["agent"] == "pi"
    assert spec["network"]["mode"] == "none"
    assert spec["memory"] == 256 << 20


def test_setup_reads_its_inputs_and_is_built_again_when_they_change(scene: Scene, tmp_path: Path) -> None:
    text_of = 'setup = ["cp wanted.txt /workspace/made.txt"]\ninputs = ["wanted.txt"]\n'
    scene.client.environments.save("inputs", text_of)
    built: list[bool] = []
    for content in ("one", "one", "two"):
        (tmp_path / "wanted.txt").write_text(content)
        (tmp_path / "other.txt").write_text(str(len(built)))
        workspace = scene.client.runs.upload(tmp_path)
        thread, printed = run(scene, "cat made.txt other.txt", environment="inputs", workspace=workspace)
        assert f"{content}{len(built)}" in printed
        built.append(entries(scene, thread, "signal.run.setup")[-1]["built"])
    assert built == [True, False, True]


def test_a_missing_input_fails_the_run_by_name(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    workspace = scene.client.runs.upload(tmp_path)
    scene.client.environments.save("lacking", 'setup = ["true"]\ninputs = ["nowhere.txt"]\n')
    launched = scene.client.runs.launch("x", agent="pi", environment="lacking", workspace=workspace)
    done = scene.client.runs.wait(launched.run)
    assert done.error is not None
    assert done.error.code == "setup_failed"
    assert "nowhere.txt" in done.error.message


def test_a_failing_setup_is_an_error_with_its_output_and_leaves_no_box(scene: Scene) -> None:
    scene.client.environments.save("broken", 'setup = ["echo first", "echo the reason >&2; exit 7"]\n')
    done = scene.client.runs.wait(scene.client.runs.launch("x", agent="pi", environment="broken").run)
    assert done.status == "failed"
    assert done.error is not None
    assert done.error.code == "setup_failed"
    assert "ended with 7" in done.error.message
    assert "the reason" in done.error.message
    assert "egress" in (done.error.hint or "")
    assert "holdfast env build broken" in (done.error.hint or "")
    assert boxes_of_setups(scene) == []


def test_ten_runs_at_once_build_one_setup(scene: Scene) -> None:
    asked_before = len(scene.index.asked)
    scene.client.environments.save("crowd", SETUP.replace("pip install", "pip install --no-cache-dir"))

    def build(_: int) -> bool:
        return scene.client.environments.build("crowd").built

    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(build, range(10)))
    assert any(found)
    assert len([each for each in scene.index.asked[asked_before:] if each.endswith(".whl")]) == 1
    snapshots = [each for each in scene.client.boxes.snapshots() if each.labels.get("environment-setup-of") == "crowd"]
    assert len(snapshots) == 1


def test_older_setups_are_collected(scene: Scene) -> None:
    for number in range(5):
        scene.client.environments.save("old", f'setup = ["echo {number}"]\n')
        assert scene.client.environments.build("old").built
    kept = [each for each in scene.client.boxes.snapshots() if each.labels.get("environment-setup-of") == "old"]
    assert len(kept) == 3
    assert not scene.client.environments.build("old@3").built
    scene.client.environments.remove("old")
    assert not [each for each in scene.client.boxes.snapshots() if each.labels.get("environment-setup-of") == "old"]


def test_a_missing_secret_is_409_by_name_before_anything_is_created(scene: Scene) -> None:
    scene.client.environments.save("secretive", 'secrets = ["TEAM_TOKEN"]\noptional_secrets = ["NICE_TOKEN"]\n')
    before = threads(scene)
    with pytest.raises(SecretMissing, match="TEAM_TOKEN") as caught:
        scene.client.runs.launch("x", agent="pi", environment="secretive")
    assert caught.value.status == 409
    assert threads(scene) == before
    scene.client.secrets.set("TEAM_TOKEN", "a-value-that-is-long-enough", [Binding(host="api.test")])
    thread, _ = run(scene, "true", environment="secretive")
    [used] = entries(scene, thread, "signal.run.environment")
    assert used["warnings"] == ["there is no secret NICE_TOKEN"]
    [started] = entries(scene, thread, "signal.run.started")
    network = started["options"]["spec"]["network"]
    assert (network["mode"], network["allow"], network["secrets"]) == ("allow", ["api.test:443"], ["TEAM_TOKEN"])


def test_a_setup_that_was_built_ahead_is_the_one_that_a_run_with_secrets_uses(scene: Scene) -> None:
    """A secret opens its own hosts for the run, and not for the setup."""
    scene.client.secrets.set("AHEAD_TOKEN", "a-value-that-is-long-enough", [Binding(host="ahead.test")])
    for name, egress in (("ahead", ""), ("ahead-open", 'egress = ["registry.test"]\n')):
        file = f'setup = ["echo {name} > /workspace/made"]\nsecrets = ["AHEAD_TOKEN"]\n{egress}'
        scene.client.environments.save(name, file)
        assert scene.client.environments.check(name, agent="pi", model="scripted").setup == "missing"
        assert scene.client.environments.build(name).built
        assert scene.client.environments.check(name, agent="pi", model="scripted").setup == "built"
        thread, printed = run(scene, "cat made", environment=name)
        assert name in printed
        assert [each["built"] for each in entries(scene, thread, "signal.run.setup")] == [False]
        [started] = entries(scene, thread, "signal.run.started")
        assert started["options"]["spec"]["network"]["secrets"] == ["AHEAD_TOKEN"]


def test_a_check_lists_every_gap_at_once(scene: Scene) -> None:
    text_of = 'provider = "moon"\nagent = "nobody"\nmodels = ["unknown"]\nsecrets = ["NEVER_SET"]\n'
    scene.client.environments.save("gaps", text_of)
    found = scene.client.environments.check("gaps")
    assert not found.ok
    assert [each.kind.value for each in found.gaps] == ["provider", "agent", "model", "secret"]
    with pytest.raises(EnvironmentIncomplete, match=r"moon.*nobody.*NEVER_SET"):
        scene.client.runs.launch("x", environment="gaps")
    scene.client.environments.save("image", 'agent = "pi"\nmodels = ["scripted"]\nimage = "no/such:image"\n')
    [gap] = scene.client.environments.check("image").gaps
    assert (gap.kind, gap.name, gap.next_step) == ("image", "no/such:image", "holdfast image pull no/such:image")


def test_branches_are_compared_by_the_test_of_their_environment(scene: Scene) -> None:
    scene.client.environments.save("tested", 'test = "cat state; test $(cat state) = one"\n')
    thread, _ = run(scene, "echo one > state", environment="tested")
    scene.model.script([bash("echo two > state"), text("Done.")])
    forked = scene.client.forks.fork(thread, 1, prompt="otherwise")
    scene.client.runs.wait(forked.run or "")
    for pair in ((thread, forked.thread), (forked.thread, thread)):
        compared = scene.client.forks.compare(*pair)
        assert compared.test == "cat state; test $(cat state) = one"
        results = {each.thread: each.test for each in compared.branches}
        assert [(found.exit_code, found.output) for each in (thread, forked.thread) if (found := results[each])] == [
            (0, "one\n"),
            (1, "two\n"),
        ]
    assert scene.client.forks.compare(thread, forked.thread, test="false").test == "false"
    untested = scene.client.forks.compare(thread, forked.thread, without_test=True)
    assert (untested.test, [each.test for each in untested.branches]) == (None, [None, None])


# --- files of repositories ---


@pytest.mark.parametrize(
    "asks",
    [
        'egress = ["registry.test"]',
        'egress = "open"',
        'secrets = ["TEAM_TOKEN"]',
        'optional_secrets = ["TEAM_TOKEN"]',
        'provider = "process"',
        'models = ["scripted"]',
        '[limits]\nmemory = "512G"',
    ],
)
def test_a_file_gets_nothing_that_nobody_has_allowed(scene: Scene, asks: str) -> None:
    before = threads(scene)
    model = None if asks.startswith("models") else "scripted"
    with pytest.raises(EnvironmentNotAllowed) as caught:
        scene.client.runs.launch("x", agent="pi", environment_file=asks, model=model)
    assert caught.value.status == 409
    assert threads(scene) == before
    if not asks.startswith("models"):
        with pytest.raises(EnvironmentNotAllowed):
            scene.client.environments.build(text=asks)


def test_no_image_is_pulled_for_a_file_that_nobody_has_allowed(scene: Scene) -> None:
    """With `--provider docker`, the daemon would pull it, from wherever its name leads."""
    file, place = 'image = "registry.test/evil:1"\n', "/pulled"
    given: dict[str, Any] = {"agent": "pi", "model": "scripted", "environment_file": file, "environment_place": place}
    before = threads(scene)
    for box in ({"provider": "docker"}, {"provider": "docker", "network": {"mode": "none"}}):
        with pytest.raises(EnvironmentNotAllowed, match=r"image registry\.test/evil:1, if it has to be pulled"):
            scene.client.runs.launch("x", box=box, **given)
        with pytest.raises(EnvironmentNotAllowed):
            scene.client.runs.check(box=box, **given)
    check = scene.client.environments.check(text=file, place=place, agent="pi", model="scripted", provider="docker")
    assert [each.kind.value for each in check.gaps] == ["consent"]
    assert threads(scene) == before
    assert (
        "image registry.test/evil:1, if it has to be pulled"
        in scene.client.environments.consent(file, place=place).asks
    )
    with pytest.raises(EnvironmentIncomplete, match=r"no local image registry\.test/evil:1"):
        scene.client.runs.launch("x", box={"provider": "local"}, **given)
    assert scene.client.environments.allow(file, place=place).granted
    assert scene.client.environments.check(text=file, place=place, agent="pi", model="scripted", provider="docker").ok


def launch_file(scene: Scene, file: str, place: str | None) -> None:
    scene.client.runs.launch("x", agent="pi", model="scripted", environment_file=file, environment_place=place)


def test_consent_is_for_exactly_one_text(scene: Scene) -> None:
    file = 'setup = ["true"]\negress = ["registry.test"]\n'
    consent = scene.client.environments.consent(file, place="/own")
    assert (consent.granted, consent.asks) == (False, ("network access to registry.test",))
    assert scene.client.environments.allow(file, place="/own").granted
    thread, _ = run(scene, "true", environment_file=file, environment_place="/own")
    [started] = entries(scene, thread, "signal.run.started")
    assert started["options"]["spec"]["network"]["allow"] == ["registry.test"]
    assert started["options"]["environment"]["reference"] == "holdfast.toml"
    for other in (file + "# changed\n", file.replace("registry.test", "evil.test")):
        with pytest.raises(EnvironmentNotAllowed):
            launch_file(scene, other, "/own")
    assert scene.client.environments.disallow("/own")
    assert not scene.client.environments.disallow("/own")
    with pytest.raises(EnvironmentNotAllowed):
        launch_file(scene, file, "/own")


def test_consent_is_for_one_place_and_a_stored_text_is_none(scene: Scene) -> None:
    """A stranger's repository has the same text as one that was allowed, or as an environment of the server."""
    file = 'egress = ["registry.test"]\n# copied\n'
    assert scene.client.environments.allow(file, place="/own").granted
    scene.client.environments.save("copied", file)
    assert not scene.client.environments.consent(file, place="/evil").granted
    for place in ("/evil", "/own/", "https://git.example.com/own", None):
        with pytest.raises(EnvironmentNotAllowed):
            launch_file(scene, file, place)
        with pytest.raises(EnvironmentNotAllowed):
            scene.client.environments.build(text=file, place=place)
        assert not scene.client.environments.check(text=file, place=place, agent="pi", model="scripted").ok


def test_a_file_decides_by_itself_what_stays_in_the_box(scene: Scene) -> None:
    file = 'agent = "pi"\nsetup = ["echo from-setup > /workspace/made"]\ntest = "true"\n[limits]\nmemory = "256M"\n'
    _, printed = run(scene, "cat /workspace/made", environment_file=file, agent=None)
    assert "from-setup" in printed


def test_the_setup_of_a_file_reaches_nothing_without_consent(scene: Scene) -> None:
    asked = len(scene.index.asked)
    file = f'setup = ["pip install --retries 0 --index-url {INDEX} pytest"]\n'
    done = scene.client.runs.wait(
        scene.client.runs.launch("x", agent="pi", model="scripted", environment_file=file).run
    )
    assert done.error is not None
    assert done.error.code == "setup_failed"
    assert len(scene.index.asked) == asked


# --- versions ---


def test_each_edit_is_a_version_and_a_lost_race_is_refused(scene: Scene) -> None:
    client = scene.client.environments
    assert client.save("edited", 'test = "1"\n', after=0).version == 1
    assert client.save("edited", 'test = "1"\n').version == 1
    assert client.save("edited", 'test = "2"\n', after=1).version == 2
    with pytest.raises(EnvironmentChanged, match="version 2"):
        client.save("edited", 'test = "3"\n', after=1)
    with pytest.raises(EnvironmentChanged):
        client.save("edited", 'test = "3"\n', after=0)
    assert [each.version for each in client.versions("edited")] == [2, 1]
    client.remove("edited")
    with pytest.raises(HoldfastError, match="there is no environment edited"):
        client.get("edited")
    assert client.save("edited", 'test = "4"\n').version == 3
