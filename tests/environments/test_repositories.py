"""Further repositories of an environment: cloned by the real git over a stand-in for ssh, into real boxes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.environments.conftest import Scene
from tests.environments.test_commands import FILE, Commands, Outcome, commands, commit  # noqa: F401
from tests.environments.test_runs import entries

from holdfast.api.errors.environments import InvalidEnvironment
from holdfast.api.run.repositories import ClonedRepository
from holdfast.testing.model.steps import bash, text


@dataclass(frozen=True)
class World:
    commands: Commands
    remote: Path
    """A repository that only git with ssh reaches."""
    log: Path
    """What ssh was asked for."""
    ssh: Path

    @property
    def url(self) -> str:
        return f"ssh://git@git.test{self.remote}"

    def __call__(self, *arguments: str) -> Outcome:
        return self.commands(*arguments, GIT_SSH_COMMAND=str(self.ssh))

    def write(self, more: str) -> None:
        (self.commands.folder / "holdfast.toml").write_text(FILE + more)

    def allow(self) -> None:
        assert self("env", "allow", "--yes").exit == 0

    def change(self, content: str) -> str:
        (self.remote / "version").write_text(content)
        commit(self.remote)
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.remote, check=True, timeout=240, capture_output=True)
        return done.stdout.decode().strip()


@pytest.fixture
def world(commands: Commands, tmp_path: Path) -> World:  # noqa: F811
    remote, ssh, log = tmp_path / "lib", tmp_path / "ssh", tmp_path / "asked"
    remote.mkdir()
    ssh.write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >> {log}\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    made = World(commands, remote, log, ssh)
    made.change("one")
    made.git("tag", "v1")
    (remote / "link").symlink_to("version")
    made.change("two")
    return made


def run(scene: Scene, world: World, command: str, *options: str) -> tuple[str, str]:
    """Returns a thread, and what a command printed in its box."""
    scene.model.script([bash(command), text("Done.")])
    done = world("run", "do it", "--json", *options)
    assert done.exit == 0, done.err
    thread = json.loads(done.out.splitlines()[-1])["thread"]
    [tool] = entries(scene, thread, "pi.tool")
    return thread, str(tool["result"])


def test_a_repository_is_cloned_beside_the_files_and_is_part_of_the_setup(scene: Scene, world: World) -> None:
    world.write(f'repositories = ["{world.url}@v1"]\nsetup = ["cat lib/version > made"]\n')
    world.allow()
    thread, printed = run(scene, world, "cat made lib/version README.md; git -C lib log --oneline")
    assert "oneoneA project." in printed
    assert [each["built"] for each in entries(scene, thread, "signal.run.setup") if "built" in each] == [True]
    [started] = entries(scene, thread, "signal.run.started")
    kept = started["options"]["environment"]["repositories"]
    assert kept == [{"path": "lib", "url": world.url, "commit": world.git("rev-parse", "v1")}]
    thread, _ = run(scene, world, "true")
    assert [each["built"] for each in entries(scene, thread, "signal.run.setup")] == [False]


def test_a_setup_is_built_again_for_another_commit_and_ahead_of_runs(scene: Scene, world: World) -> None:
    file = f'repositories = [{{ url = "{world.url}", ref = "master", path = "deps/lib" }}]\n'
    world.write(f'{file}setup = ["cat deps/lib/link > made"]\n')
    world.allow()
    for content in ("three", "four"):
        world.change(content)
        assert json.loads(world("env", "build", "--json").out)["built"] is True
        thread, printed = run(scene, world, "cat made deps/lib/version")
        assert content * 2 in printed
        assert [each["built"] for each in entries(scene, thread, "signal.run.setup")] == [False]
    assert "depends on files" in world("env", "check").out


def test_an_environment_of_the_server_has_repositories_too_even_without_other_files(scene: Scene, world: World) -> None:
    scene.client.environments.save("further", f'{FILE}repositories = ["{world.url}"]\n')
    _, printed = run(scene, world, "cat lib/version; ls", "--env", "further", "--empty")
    assert "two" in printed
    assert "README.md" not in printed


def test_nothing_is_cloned_for_a_file_that_nobody_has_allowed(scene: Scene, world: World) -> None:
    """The clone has the credentials of the user, who can read more than whoever wrote the file."""
    world.write(f'repositories = ["{world.url}"]\nsetup = ["true"]\n')
    before = {each.id for each in scene.client.threads.list()}
    for arguments in (("run", "do it"), ("run", "do it", "--model", "scripted", "--agent", "pi"), ("env", "build")):
        refused = world(*arguments)
        assert refused.exit == 6, refused.err
        assert f"a clone of {world.url}" in refused.err
        assert "holdfast env allow --yes" in refused.err
    assert not world.log.exists()
    assert {each.id for each in scene.client.threads.list()} == before


def test_a_ref_that_is_not_there_is_refused_by_name(scene: Scene, world: World) -> None:
    world.write(f'repositories = ["{world.url}@v9"]\n')
    world.allow()
    before = {each.id for each in scene.client.threads.list()}
    refused = world("run", "do it")
    assert refused.exit != 0
    assert f"{world.url} has no branch, tag or commit 'v9'" in refused.err
    assert {each.id for each in scene.client.threads.list()} == before


def test_a_folder_that_the_workspace_has_is_not_overwritten(world: World) -> None:
    world.write(f'repositories = [{{ url = "{world.url}", path = "README.md/lib" }}]\n')
    world.allow()
    refused = world("run", "do it")
    assert refused.exit == 2, refused.err
    assert "README.md, where the environment has a repository" in refused.err


def test_changes_of_another_repository_do_not_come_home_with_the_others(scene: Scene, world: World) -> None:
    world.write(f'repositories = ["{world.url}"]\n')
    commit(world.commands.folder)
    world.allow()
    thread, _ = run(scene, world, "echo changed > lib/version; echo new > lib/new; echo mine > README.md")
    assert "lib/version" in world("diff", thread, "--stat").out
    applied = world("apply", thread)
    assert applied.exit == 0, applied.err
    assert "belongs to another repository" in applied.err
    assert (world.commands.folder / "README.md").read_text() == "mine\n"
    assert not (world.commands.folder / "lib").exists()


def test_a_launch_without_the_repositories_of_its_environment_is_refused(scene: Scene) -> None:
    file = 'repositories = ["https://git.example.com/a/lib.git@v1"]\n'
    scene.client.environments.save("lacking-repositories", file)
    cloned = ClonedRepository(path="other", url="https://git.example.com/a/other.git", commit="0" * 40)
    for given in ((), (cloned,)):
        with pytest.raises(InvalidEnvironment, match=r"lib \(https://git.example.com/a/lib.git@v1\)"):
            scene.client.runs.launch(
                "x", agent="pi", model="scripted", environment="lacking-repositories", repositories=given
            )
