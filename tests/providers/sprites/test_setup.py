"""`holdfast provider setup sprites`: a sprite of the user's own, made ready by the real command and server.

The sprite is created and looked at with the vendor's unmodified SDK.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sprites import Sprite, SpritesClient
from tests.agents import InstalledAgents
from tests.cli.conftest import Cli, bare_cli  # noqa: F401 - a fixture

from holdfast.api.box.records import Step
from holdfast.cli.errors import CommandError
from holdfast.cli.provider.setup import read_variables
from holdfast.client import SyncClient
from holdfast.providers.sprites.setup import problem_of
from holdfast.providers.sprites.setup_files import check_variable, masked, merge_environment
from holdfast.testing.server import ServerProcess
from holdfast.testing.sprites import SpritesCounterpart

VALUE = "ghp_a-value-that-nobody-may-see"


@pytest.fixture(scope="module")
def server(
    counterpart: SpritesCounterpart, installed_agents: InstalledAgents, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("setup") / "home"
    installed_agents.install("pi")
    installed_agents.share_with(home)
    settings = {"sprites_token": counterpart.token, "sprites_url": counterpart.url}
    with ServerProcess(home, provider_settings=settings) as server:
        yield server


@pytest.fixture(scope="module")
def vendor(counterpart: SpritesCounterpart) -> Iterator[SpritesClient]:
    client = SpritesClient(counterpart.token, base_url=counterpart.url)
    yield client
    client.close()


@pytest.fixture
def client(server: ServerProcess, counterpart: SpritesCounterpart) -> Iterator[SyncClient]:
    counterpart.faults.clear()
    with SyncClient(server.url, api_key=server.api_key) as client:
        yield client


def said(sprite: Sprite, script: str) -> str:
    done = sprite.run("sh", "-c", script, capture_output=True)
    assert done.stdout is not None
    return str(done.stdout.decode()) if isinstance(done.stdout, bytes) else str(done.stdout)


def words(steps: tuple[Step, ...]) -> dict[str, str]:
    return {step.name: step.detail for step in steps}


@pytest.mark.sampled
def test_a_users_own_sprite_is_made_ready_and_what_is_there_stays(
    bare_cli: Cli,  # noqa: F811
    server: ServerProcess,
    vendor: SpritesClient,
    counterpart: SpritesCounterpart,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", server.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", server.api_key or "")
    monkeypatch.setenv("EDITOR", "mine-is-not-taken")
    sprite = vendor.create_sprite("mine")
    said(sprite, 'echo "export MINE=1" > ~/.profile; mkdir -p ~/.config/holdfast ~/.config/fish;'
                 ' printf "# my own\\nexport EDITOR=vi\\n" > ~/.config/holdfast/environment')  # fmt: skip
    variables = tmp_path / "sprite.env"
    variables.write_text(f"# secret\nGITHUB_TOKEN='{VALUE}'\nEMPTY=\n")
    command = ("provider", "setup", "sprites", "mine", "--env-file", str(variables), "--env", "EDITOR")

    first = bare_cli(*command)
    assert first.exit == 0, first.out + first.err
    for step in ("reach", "authorize", "install", "sprite", "probe", "node", "pi", "environment", "health"):
        assert f"✓ {step} " in first.out
    assert "added GITHUB_TOKEN=•••; kept EDITOR=•••" in first.out
    assert "mine was there" in first.out
    assert VALUE not in first.out + first.err + server.read_log() + "".join(counterpart.faults.requests)
    login = said(sprite, '. ~/.profile; echo "$MINE $EDITOR $GITHUB_TOKEN [$EMPTY]"; pi --version')
    assert login.startswith(f"1 vi {VALUE} []\n")
    assert len(login.splitlines()[1].split(".")) == 3
    assert said(sprite, "stat -c %a ~/.config/holdfast/environment; cat ~/.config/fish/conf.d/*").startswith("600\n")

    before = said(sprite, "cd; cat .profile .config/holdfast/environment; ls -l --time-style=full-iso .local/bin")
    again = bare_cli(*command)
    assert again.exit == 0, again.out + again.err
    assert "was there, ~/.local/bin/pi" in again.out
    assert "kept GITHUB_TOKEN=•••, EDITOR=•••" in again.out
    after = said(sprite, "cd; cat .profile .config/holdfast/environment; ls -l --time-style=full-iso .local/bin")
    assert [line.split()[-1] for line in after.splitlines()] == [line.split()[-1] for line in before.splitlines()]

    # The user's own program of the name is not replaced.
    said(sprite, 'printf "#!/bin/sh\\necho 9.9.9\\n" > ~/.local/bin/pi')
    other = bare_cli(*command)
    assert "is kept" in other.out
    assert "ok: pi 9.9.9" in other.out


@pytest.mark.sampled
def test_a_sprite_that_is_missing_is_created_and_each_failure_has_its_word(
    client: SyncClient,
    counterpart: SpritesCounterpart,
    vendor: SpritesClient,
    installed_agents: InstalledAgents,
) -> None:
    pi = installed_agents.install("pi")
    tool_folders = (pi.folder.name, pi.node.parent.parent.name)
    faults = counterpart.faults
    faults.refuse(429, retry_after="0", path="/v1/sprites/new")
    faults.refuse(500, method="POST", path="/v1/sprites", after=True)  # created, but the answer was lost
    made = client.providers.set_up("sprites", "new", agents=())
    assert made.ok, made
    assert words(made.steps)["sprite"] == "new created"
    assert faults.pending == 0

    faults.refuse(403, path="/v1/sprites/new")
    refused = client.providers.set_up("sprites", "new", agents=())
    assert (refused.ok, refused.steps[-1].name) == (False, "sprite")
    assert refused.steps[-1].detail.startswith("probe-failed: ")
    assert "organization" in (refused.steps[-1].next_step or "")

    faults.refuse(503, times=20, path="/v1/sprites/new")
    away = client.providers.set_up("sprites", "new", agents=())
    faults.clear()
    assert away.steps[-1].detail.startswith("unreachable: ")

    sprite = vendor.sprite("new")
    said(sprite, "mkdir -p ~/.holdfast; touch ~/.holdfast/incoming")  # nothing can be copied there
    stuck = client.providers.set_up("sprites", "new", agents=("pi",))
    assert stuck.steps[-1].name in ("node", "pi")
    assert stuck.steps[-1].detail.startswith("agent-missing: ")
    assert "run the setup again" in (stuck.steps[-1].next_step or "")
    said(sprite, "rm ~/.holdfast/incoming")
    for name in tool_folders:
        said(sprite, f"mkdir -p ~/.holdfast/incoming/{name}; ln -s /dev/full ~/.holdfast/incoming/{name}/000000.new")
    full = client.providers.set_up("sprites", "new", agents=("pi",))
    assert full.steps[-1].detail.startswith("agent-missing: the disk of the sprite is full: ")
    said(sprite, "rm -r ~/.holdfast/incoming")
    faults.cut(after=10)  # while a part is copied
    whole = client.providers.set_up("sprites", "new", agents=("pi",))
    assert whole.ok, whole
    assert faults.pending == 0


def test_other_providers_have_no_machines_to_set_up(client: SyncClient) -> None:
    from holdfast.api.errors.boxes import Unsupported

    with pytest.raises(Unsupported, match="no machines to set up"):
        client.providers.set_up("local", "mine", agents=())


# --- decisions ---


def test_variables_are_merged_and_never_replaced() -> None:
    first = merge_environment("", {"A": "1", "B": "it's $x", "C": ""})
    assert first.added == ("A", "B")
    assert first.text.splitlines()[1:] == [
        'export PATH="$HOME/.local/bin:$PATH"', "export A=1", "export B='it'\"'\"'s $x'",
    ]  # fmt: skip
    again = merge_environment(first.text, {"A": "2", "B": "3"})
    assert (again.text, again.added, again.kept) == (first.text, (), ("A", "B"))
    assert merge_environment("mine\nexport A=x", {"B": "y"}).text.startswith("mine\nexport A=x\n")
    assert masked(("A", "B")) == "A=•••, B=•••"


def test_what_cannot_be_a_variable_is_refused_without_its_value() -> None:
    for name, value in (("A-B", VALUE), ("A", f"{VALUE}\nB=2"), ("A", f"{VALUE}\0"), ("A", VALUE * 2000)):
        problem = check_variable(name, value)
        assert problem is not None
        assert VALUE not in problem
    assert check_variable("A", VALUE) is None


def test_variables_come_from_files_and_by_name(tmp_path: Path) -> None:
    file = tmp_path / "a.env"
    file.write_text("export A=1\nB='two words'\nC=\n\n# no\n")
    assert read_variables([file], ["D"], {"D": "4"}) == {"A": "1", "B": "two words", "D": "4"}
    file.write_text(f"what is {VALUE}")
    for files, names in (([file], []), ([], [f"A={VALUE}"]), ([], ["MISSING"]), ([tmp_path / "none"], [])):
        with pytest.raises(CommandError) as refused:
            read_variables(files, names, {})
        assert VALUE not in str(refused.value)


def test_a_full_disk_is_named() -> None:
    full = problem_of(1, "cat: write error: No space left on device")
    assert full.message.startswith("the disk of the sprite is full")
    assert problem_of(3, "").message == "exit code 3"
