"""`holdfast env`, and what `holdfast run` asks for on a terminal. Real commands, a real server, the real pi."""

from __future__ import annotations

import json
import os
import pty
import pwd
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.environments.conftest import Scene

from holdfast.testing.model.steps import bash, text

VALUE = "sk-live-0123456789abcdefghij"
FILE = 'agent = "pi"\nmodels = ["scripted"]\n'


@dataclass(frozen=True)
class Outcome:
    exit: int
    out: str
    err: str


class Terminal:
    """What a command shows on a terminal, and what is typed there."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self._process = process
        self._descriptor = descriptor
        self.shown = ""

    def expect(self, words: str | None, seconds: float = 60.0) -> str:
        """Read until these words, or until the end. Returns what is new."""
        deadline, start = time.monotonic() + seconds, len(self.shown)
        while words is None or words not in self.shown[start:]:
            readable, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, self.shown
            try:
                piece = os.read(self._descriptor, 65536)
            except OSError:
                piece = b""
            if not piece:
                assert words is None, self.shown
                break
            self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", piece.decode(errors="replace"))
        return self.shown[start:]

    def type(self, line: str) -> None:
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        """Type Ctrl-D."""
        os.write(self._descriptor, b"\x04")

    def end(self) -> int:
        self.expect(None)
        return self._process.wait(timeout=240)


class Commands:
    """`holdfast` in a folder, as a process of its own."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "HOLDFAST_HOME": str(home), "COLUMNS": "120", "HOME": str(folder.parent)}

    def __call__(self, *arguments: str, stdin: str = "", **variables: str) -> Outcome:
        done = subprocess.run(
            self._command(arguments),
            input=stdin,
            cwd=self.folder,
            env={**self._environment, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.exit == 0, done.err
        return json.loads(done.out)

    @contextmanager
    def on_terminal(self, *arguments: str, **variables: str) -> Iterator[Terminal]:
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            self._command(arguments),
            cwd=self.folder,
            env={**self._environment, **variables},
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        try:
            yield Terminal(process, leader)
        finally:
            process.kill()
            process.wait()
            os.close(leader)

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-P", "-m", "holdfast", *arguments]


@pytest.fixture
def commands(scene: Scene, tmp_path: Path) -> Commands:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "README.md").write_text("A project.\n")
    return Commands(scene.server.home, folder)


@pytest.fixture
def editor(tmp_path: Path) -> Path:
    """An editor that takes another text for the one it is given."""
    program = tmp_path / "editor"
    program.write_text(f'#!/bin/sh\ncat "$1" > {tmp_path}/opened && cat {tmp_path}/typed > "$1"\n')
    program.chmod(0o755)
    return program


# --- holdfast env ---


def test_an_environment_is_stored_shown_changed_and_removed(commands: Commands) -> None:
    file = commands.folder / "web.toml"
    file.write_text('test = "one"\n')
    made = commands("env", "new", "web", "--file", str(file))
    assert made.exit == 0, made.err
    assert "web@1" in made.out
    assert "holdfast env check web" in made.out
    again = commands("env", "new", "web", "--file", str(file))
    assert again.exit == 6, again.err
    assert "web has version 1 now" in again.err
    changed = commands("env", "edit", "web", "--file", "-", stdin='test = "two"\n')
    assert "web@2" in changed.out, changed.err
    assert "unchanged" in commands("env", "edit", "web", "--file", "-", stdin='test = "two"\n').out
    assert commands("env", "show", "web").out == 'test = "two"\n'
    assert commands("env", "show", "web@1").out == 'test = "one"\n'
    assert [each["version"] for each in commands.json("env", "show", "web", "--versions")["versions"]] == [2, 1]
    assert re.search(r"web@1 +.* ago", commands("env", "show", "web", "--versions").out)
    listed = commands("env", "list")
    assert re.search(r"^web +2 +.*ago", listed.out, re.MULTILINE), listed.out
    assert "web" in [each["name"] for each in commands.json("env", "list")["environments"]]
    kept = commands("env", "remove", "web")
    assert kept.exit == 2
    assert "holdfast env remove web --yes" in kept.err
    assert commands.json("env", "remove", "web", "--yes") == {"name": "web", "removed": True}
    gone = commands("env", "show", "web")
    assert gone.exit == 3
    assert "there is no environment web" in gone.err


@pytest.mark.parametrize(
    ("arguments", "stdin", "exit", "said"),
    [
        (("new", "bad", "--file", "-"), "setpu = []\n", 2, "line 1: setpu: there is no such field"),
        (("new", "bad", "--file", "-"), "", 2, "standard input is empty"),
        (("new", "bad", "--file", "nowhere.toml"), "", 3, "nowhere.toml cannot be read"),
        (("new", "bad", "--file", "."), "", 1, "is a directory"),
        (("new", "bad"), "", 2, "give the text with --file PATH"),
        (("new", "../bad", "--file", "-"), 'test = "x"\n', 2, "../bad"),
        (("edit", "nobody", "--file", "-"), 'test = "x"\n', 3, "there is no environment nobody"),
        (("show", "web@x"), "", 2, "web@3"),
        (("check", "nobody"), "", 3, "there is no environment nobody"),
        (("check", "web@x"), "", 2, "web@3"),
        (("build", "web@x"), "", 2, "web@3"),
        (("build", "web@0"), "", 2, "web@3"),
        (("check",), "", 3, "there is no holdfast.toml in"),
        (("build",), "", 3, "there is no holdfast.toml in"),
        (("allow",), "", 3, "there is no holdfast.toml in"),
        (("remove", "nobody", "--yes"), "", 3, "there is no environment nobody"),
    ],
)
def test_a_mistake_is_named(commands: Commands, arguments: tuple[str, ...], stdin: str, exit: int, said: str) -> None:
    done = commands("env", *arguments, stdin=stdin)
    assert (done.exit, said in done.err) == (exit, True), done
    assert "Traceback" not in done.err


def test_check_lists_everything_that_is_missing(commands: Commands) -> None:
    (commands.folder / "holdfast.toml").write_text(
        'agent = "nobody"\nmodels = ["absent"]\nsecrets = ["NO_SUCH"]\noptional_secrets = ["NICE"]\n'
    )
    done = commands("env", "check")
    assert done.exit == 1
    for words in ("asks for model absent", "nobody", "no secret NO_SUCH", "optional", "no secret NICE"):
        assert words in done.out, done.out
    assert "ready" not in done.out
    commands("env", "new", "complete", "--file", "-", stdin=FILE)
    done = commands("env", "check", "complete")
    assert done.exit == 0
    assert "a run can use it" in done.out
    done = commands("env", "check", "complete", "--agent", "unheard-of", "--model", "absent,gone")
    assert done.exit == 1
    for words in ("unheard-of", "absent", "gone"):
        assert words in done.out, done.out


def test_a_setup_is_built_once_and_again_on_request(commands: Commands) -> None:
    commands("env", "new", "built", "--file", "-", stdin='setup = ["cp in.txt out.txt"]\ninputs = ["in.txt"]\n')
    (commands.folder / "in.txt").write_text("in")
    assert "depends on files of the repository" in commands("env", "check", "built").out
    assert "built in" in commands("env", "build", "built").out
    assert "it was built before" in commands("env", "build", "built@1").out
    assert commands.json("env", "build", "built", "--again")["built"] is True
    commands("env", "new", "plain", "--file", "-", stdin='test = "x"\n')
    assert "plain@1 has no setup" in commands("env", "build", "plain").out
    commands("env", "new", "broken", "--file", "-", stdin='setup = ["echo the reason; exit 7"]\n')
    failed = commands("env", "build", "broken")
    assert failed.exit != 0
    assert "the reason" in failed.err


def test_a_setup_is_kept_up_to_date_with_its_inputs(commands: Commands) -> None:
    commands("env", "new", "kept", "--file", "-", stdin='setup = ["cat in.txt"]\ninputs = ["in.txt"]\n')
    inputs = commands.folder / "in.txt"

    def put(text: str) -> None:
        """At once: it is read at any time."""
        half = commands.folder / "half"
        half.write_text(text)
        half.replace(inputs)

    put("one")
    with commands.on_terminal("env", "build", "kept", "--every", "1s") as terminal:
        terminal.expect("built in", 300)
        put("two")
        terminal.expect("built in", 300)
        inputs.unlink()
        terminal.expect("failed", 300)
        put("three")
        terminal.expect("built in", 300)
    assert "it was built before" in commands("env", "build", "kept").out
    assert commands("env", "build", "kept", "--every", "often").exit == 2


def test_allow_asks_on_a_terminal_and_only_there(commands: Commands) -> None:
    file = commands.folder / "holdfast.toml"
    file.write_text('egress = ["allow.example.com"]\n')
    refused = commands("env", "allow")
    assert refused.exit == 2
    assert "holdfast env allow --yes" in refused.err
    with commands.on_terminal("env", "allow") as terminal:
        assert "network access to allow.example.com" in terminal.expect("Allow it?")
        terminal.type("n")
        assert terminal.end() != 0
        assert "nothing was allowed" in terminal.shown
    assert commands("env", "check").out.count("nobody has allowed that") == 1
    with commands.on_terminal("env", "allow") as terminal:
        terminal.expect("Allow it?")
        terminal.type("y")
        assert terminal.end() == 0
        assert "allowed" in terminal.shown
    assert "nobody has allowed that" not in commands("env", "check").out
    assert commands.json("env", "allow")["granted"] is True
    file.write_text('egress = ["allow.example.com"] # changed\n')
    assert "nobody has allowed that" in commands("env", "check").out
    file.write_text('test = "x"\n')
    assert "nothing that has to be allowed" in commands("env", "allow").out


def test_new_and_edit_open_the_editor(commands: Commands, editor: Path) -> None:
    typed, opened = editor.parent / "typed", editor.parent / "opened"
    typed.write_text('test = "typed"\n')
    with commands.on_terminal("env", "new", "edited", VISUAL=str(editor)) as terminal:
        assert terminal.end() == 0, terminal.shown
    assert "docs/environments.md" in opened.read_text()
    typed.write_text('test = "again"\n')
    with commands.on_terminal("env", "edit", "edited", VISUAL=str(editor)) as terminal:
        assert terminal.end() == 0, terminal.shown
    assert opened.read_text() == 'test = "typed"\n'
    assert commands("env", "show", "edited@2").out == 'test = "again"\n'
    with commands.on_terminal("env", "edit", "edited", VISUAL="false") as terminal:
        assert terminal.end() != 0
        assert "nothing was saved" in terminal.shown
    with commands.on_terminal("env", "remove", "edited") as terminal:
        terminal.expect("permanently?")
        terminal.type("y")
        assert terminal.end() == 0, terminal.shown
    assert commands("env", "show", "edited").exit == 3


# --- holdfast run ---


def test_a_run_asks_for_consent_and_for_a_secret_and_goes_on(scene: Scene, commands: Commands) -> None:
    (commands.folder / "holdfast.toml").write_text(FILE + 'secrets = ["TYPED_SECRET"]\n')
    refused = commands("run", "do it")
    assert refused.exit == 6, refused.err
    assert "holdfast env allow" in refused.err
    scene.model.script([bash("echo value $TYPED_SECRET"), text("Done.")])
    with commands.on_terminal("run", "do it") as terminal:
        asked = terminal.expect("Allow it?")
        assert "model scripted" in asked
        assert "secret TYPED_SECRET" in asked
        terminal.type("y")
        terminal.expect("  TYPED_SECRET: ")  # its space is written when nothing is echoed any more
        terminal.type(VALUE)
        terminal.expect("may be sent to")
        terminal.type("api.example.com")
        assert terminal.end() == 0, terminal.shown
    assert "completed in" in terminal.shown
    assert VALUE not in terminal.shown
    assert [each.host for each in scene.client.secrets.get("TYPED_SECRET").bindings] == ["api.example.com"]


def test_no_to_the_question_starts_nothing(scene: Scene, commands: Commands) -> None:
    (commands.folder / "holdfast.toml").write_text(FILE + 'egress = ["refused.example.com"]\n')
    before = {each.id for each in scene.client.threads.list()}
    with commands.on_terminal("run", "do it") as terminal:
        terminal.expect("Allow it?")
        terminal.type("n")
        assert terminal.end() != 0
        assert "--no-env" in terminal.shown
    assert {each.id for each in scene.client.threads.list()} == before


def test_no_value_for_a_secret_starts_nothing(scene: Scene, commands: Commands) -> None:
    commands("env", "new", "secretive", "--file", "-", stdin=FILE + 'secrets = ["NEVER_SET"]\n')
    before = {each.id for each in scene.client.threads.list()}
    with commands.on_terminal("run", "do it", "--env", "secretive", "--empty") as terminal:
        terminal.expect("NEVER_SET: ")  # its space is written when nothing is echoed any more
        terminal.type("")
        assert terminal.end() == 6
        assert "holdfast secret set NEVER_SET" in terminal.shown
    with commands.on_terminal("run", "do it", "--env", "secretive", "--empty") as terminal:
        terminal.expect("NEVER_SET: ")  # its space is written when nothing is echoed any more
        terminal.type(VALUE)
        terminal.expect("may be sent to")
        terminal.close()
        assert terminal.end() == 130, terminal.shown
        assert "Traceback" not in terminal.shown
    assert {each.id for each in scene.client.threads.list()} == before


def test_the_question_shows_all_that_a_yes_allows(commands: Commands) -> None:
    """A yes is for the text, so an option that makes an ask unnecessary today must not hide it."""
    (commands.folder / "holdfast.toml").write_text(FILE + 'egress = ["hidden.example.com"]\n')
    with commands.on_terminal("run", "do it", "--model", "scripted") as terminal:
        asked = terminal.expect("Allow it?")
    assert "model scripted" in asked
    assert "hidden.example.com" in asked


def test_options_make_asking_unnecessary(scene: Scene, commands: Commands) -> None:
    (commands.folder / "holdfast.toml").write_text(FILE + '[limits]\nmemory = "9G"\n')
    scene.model.script([text("Done.")])
    with commands.on_terminal("run", "do it", "--model", "scripted", "--memory", "512M") as terminal:
        assert terminal.end() == 0, terminal.shown
    assert "Allow it?" not in terminal.shown


# --- a clone of a repository ---


def commit(folder: Path) -> None:
    author = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    for command in (("init", "-q", "-b", "master"), ("add", "."), (*author, "commit", "-qm", "One.")):
        subprocess.run(["git", *command], cwd=folder, check=True, timeout=240)


def test_the_file_in_a_clone_asks_as_any_file_does(scene: Scene, commands: Commands) -> None:
    repository = commands.folder / "theirs"
    repository.mkdir()
    (repository / "holdfast.toml").write_text(FILE + 'egress = ["clone.example.com"]\nsecrets = ["CLONE_TOKEN"]\n')
    commit(repository)
    before = {each.id for each in scene.client.threads.list()}
    refused = commands("run", "do it", "--repo", str(repository))
    assert refused.exit == 6, refused.err
    for ask in ("model scripted", "secret CLONE_TOKEN", "network access to clone.example.com"):
        assert ask in refused.err
    with commands.on_terminal("run", "do it", "--repo", str(repository)) as terminal:
        assert "clone.example.com" in terminal.expect("Allow it?")
        terminal.type("n")
        assert terminal.end() != 0
    assert {each.id for each in scene.client.threads.list()} == before


def test_a_run_on_a_clone_uses_its_file_and_leaves_no_clone(scene: Scene, commands: Commands, tmp_path: Path) -> None:
    repository, scratch = commands.folder / "theirs", tmp_path / "scratch"
    repository.mkdir()
    scratch.mkdir()
    (repository / "holdfast.toml").write_text('agent = "pi"\ncheckpoints = "off"\n')
    commit(repository)
    scene.model.script([text("Done.")])
    options = ("run", "do it", "--model", "scripted", "--repo", str(repository), "--json")
    done = commands(*options, TMPDIR=str(scratch))
    assert done.exit == 0, done.err
    thread = json.loads(done.out.splitlines()[-1])["thread"]
    [used] = [each.payload for each in scene.client.thread(thread).entries(types="signal.run.environment")]
    assert used["environment"] == "holdfast.toml"
    [started] = [each.payload for each in scene.client.thread(thread).entries(types="signal.run.started")]
    assert started["options"]["checkpoints"] == "off"
    assert list(scratch.glob("holdfast-clone-*")) == []
    ignored = commands("run", "do it", "--repo", str(repository), "--no-env")
    assert ignored.exit == 2
    assert "the run has no agent" in ignored.err


def test_a_link_in_a_clone_is_not_read(commands: Commands, tmp_path: Path) -> None:
    repository = commands.folder / "theirs"
    repository.mkdir()
    (tmp_path / "private.toml").write_text('agent = "pi"\nprivate = "words"\n')
    (repository / "holdfast.toml").symlink_to(tmp_path / "private.toml")
    commit(repository)
    for options in (("--repo", str(repository)), ("--dir", str(repository))):
        done = commands("run", "do it", *options)
        assert done.exit == 1
        assert "holdfast.toml is a link" in done.err
        assert "--no-env" in done.err
        assert "private" not in done.err
        assert "the run has no agent" in commands("run", "do it", *options, "--no-env").err
    for command in ("check", "build", "allow"):
        assert "holdfast.toml is a link" in commands("env", command, "--dir", str(repository)).err


# --- consent is for one place ---


def test_the_hint_leads_to_the_file_from_a_folder_below_it(scene: Scene, commands: Commands) -> None:
    (commands.folder / "holdfast.toml").write_text(FILE + 'egress = ["below.example.com"]\n')
    commit(commands.folder)
    below = commands.folder / "below"
    below.mkdir()
    refused = Commands(scene.server.home, below)("run", "do it")
    assert f"holdfast env allow --dir {commands.folder} --yes" in refused.err


def test_consent_of_one_user_or_machine_is_none_for_another(scene: Scene, commands: Commands) -> None:
    """A path such as /workspace is another folder on every machine, and users of a server decide for themselves."""
    text_of = 'agent = "pi"\negress = ["mine.example.com"]\n'
    (commands.folder / "holdfast.toml").write_text(text_of)
    assert commands("env", "allow", "--yes").exit == 0
    mine = commands.json("env", "disallow")["place"]
    assert scene.client.environments.allow(text_of, place=mine).granted
    path = commands.folder.resolve()
    for place in (str(path), f"nobody@{os.uname().nodename}:{path}", mine.replace("@", "@another-")):
        assert not scene.client.environments.consent(text_of, place=place).granted


def test_consent_in_one_folder_is_none_for_the_same_text_elsewhere(commands: Commands) -> None:
    """A stranger copies a file that asks for much and that many people allow."""
    own, evil = commands.folder / "own", commands.folder / "evil"
    for each in (own, evil):
        each.mkdir()
        (each / "holdfast.toml").write_text(FILE + 'egress = ["copied.example.com"]\nsecrets = ["COPIED_TOKEN"]\n')
    assert commands("env", "allow", "--dir", str(own), "--yes").exit == 0
    assert "nobody has allowed that" not in commands("env", "check", "--dir", "own").out
    assert "nobody has allowed that" in commands("env", "check", "--dir", "evil").out
    refused = commands("run", "do it", "--dir", "evil")
    assert refused.exit == 6, refused.err
    assert f"holdfast env allow --dir {evil} --yes" in refused.err
    assert "holdfast env allow --dir evil --yes" in commands("env", "build", "--dir", "evil").err
    assert "holdfast env allow --dir evil --yes" in commands("env", "check", "--dir", "evil").out
    (commands.folder / "link").symlink_to(evil)
    assert "nobody has allowed that" in commands("env", "check", "--dir", "link").out


def test_a_text_that_is_stored_on_the_server_is_no_consent_for_a_file(commands: Commands) -> None:
    text = 'egress = ["stored.example.com"]\n'
    assert commands("env", "new", "stored-text", "--file", "-", stdin=text).exit == 0
    (commands.folder / "holdfast.toml").write_text(text)
    assert "nobody has allowed that" in commands("env", "check").out


def test_a_new_consent_replaces_the_older_one_of_the_folder(commands: Commands) -> None:
    file = commands.folder / "holdfast.toml"
    wide, narrow, free = 'egress = "open"\n', 'egress = ["narrow.example.com"]\n', 'test = "x"\n'
    for later in (narrow, free):
        file.write_text(wide)
        assert commands("env", "allow", "--yes").exit == 0
        file.write_text(later)
        assert commands("env", "allow", "--yes").exit == 0
        file.write_text(wide)
        assert "nobody has allowed that" in commands("env", "check").out


def test_disallow_takes_consent_back(commands: Commands) -> None:
    (commands.folder / "holdfast.toml").write_text('egress = ["back.example.com"]\n')
    assert commands("env", "allow", "--yes").exit == 0
    assert "nobody has allowed that" not in commands("env", "check").out
    place = commands.json("env", "disallow")
    user, machine = pwd.getpwuid(os.getuid()).pw_name, os.uname().nodename
    assert place == {"place": f"{user}@{machine}:{commands.folder.resolve()}", "removed": True}
    assert "nobody has allowed that" in commands("env", "check").out
    assert "nothing was allowed" in commands("env", "disallow").out


def test_a_clone_has_the_consent_of_its_address_and_not_of_its_origin(commands: Commands) -> None:
    """Whoever writes a repository can write the address of another one into its configuration."""
    own, evil = commands.folder / "own", commands.folder / "evil"
    for each in (own, evil):
        each.mkdir()
        (each / "holdfast.toml").write_text('agent = "pi"\nprovider = "no-such"\n')
        commit(each)
    origin = ("git", "remote", "add", "origin", str(own))
    subprocess.run(origin, cwd=evil, check=True, timeout=240)
    assert commands("env", "allow", "--repo", "own", "--yes").exit == 0
    options = ("run", "do it", "--model", "scripted", "--repo")
    assert "asks for" not in commands(*options, str(own)).err
    refused = commands(*options, f"{evil}@master")
    assert "asks for: provider no-such" in refused.err
    assert f"holdfast env allow --repo {evil}@master --yes" in refused.err
    assert commands.json("env", "disallow", "--repo", str(own))["removed"] is True
    assert "asks for: provider no-such" in commands(*options, str(own)).err


def test_a_failed_build_does_not_point_at_itself(commands: Commands) -> None:
    (commands.folder / "holdfast.toml").write_text('setup = ["echo the reason; exit 3"]\n')
    failed = commands("env", "build")
    assert failed.exit == 6, failed.err
    assert "the reason" in failed.err
    assert "env build" not in failed.err


def test_check_takes_what_a_run_would_give(commands: Commands) -> None:
    (commands.folder / "holdfast.toml").write_text('test = "true"\n')
    assert "names no agent" in commands("env", "check").out
    assert commands("env", "check", "--agent", "pi", "--model", "scripted,other").exit == 0
