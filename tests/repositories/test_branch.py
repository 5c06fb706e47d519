"""The changes of a thread on a branch, pushed, and as a pull request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.repositories.changed import Tree, changed
from tests.repositories.repository import ENVIRONMENT, commit, git, new_repository

from holdfast.api.errors.repositories import CannotApply, InvalidRepository, RepositoryFailed
from holdfast.repositories.apply import Apply
from holdfast.repositories.branch import Branch, Work, make_branch, push
from holdfast.repositories.checkout import source_of
from holdfast.repositories.forge import Forge as Client
from holdfast.repositories.forge import api_of, place_of
from holdfast.repositories.git import Git
from holdfast.testing.forge import Forge

BASE = {"a.txt": "one\ntwo\nthree\n", "gone.txt": "old\n"}
AFTER: Tree = {"a.txt": "one\ntwo\nTHREE\n", "new.sh": ("x", "#!/bin/sh\n")}
USER = {**ENVIRONMENT, "EMAIL": "a@example.com", "HOME": "/nonexistent"}
WORK = Work("Do it\nwell", 1_700_000_000_000)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    new_repository(folder, BASE)
    git(folder, "config", "user.name", "Me")
    git(folder, "config", "user.email", "me@example.com")
    return folder


@pytest.fixture
def make(top: Path, tmp_path: Path) -> Callable[..., Branch]:
    base = git(top, "rev-parse", "HEAD")
    made = iter(range(100))

    def new(after: Tree = AFTER, before: Tree = BASE, name: str = "fix", thread: str = "t-1") -> Branch:
        about = {"source": {"commit": base}, "thread": thread}
        files = changed(tmp_path / f"c{next(made)}", before, after, **about)
        return make_branch(Git.of_user(USER, "file"), top, files, name, WORK)

    return new


def test_a_repository_among_the_committed_files_gets_no_settings(top: Path, tmp_path: Path) -> None:
    bare = {"x.git/HEAD": "ref: refs/heads/x\n", "x.git/refs/.keep": "", "x.git/config": "[core]\n"}
    commit(top, bare)
    after = {**bare, "x.git/config": "[core]\nfsmonitor=x\n", "X.git/hooks/update": "x\n", "fine.txt": "x\n"}
    files = changed(tmp_path / "c", bare, after, source={"commit": git(top, "rev-parse", "HEAD")})
    make_branch(Git.of_user(USER, "file"), top, files, "fix", WORK)
    assert git(top, "diff", "--name-status", "fix^", "fix") == "A\tfine.txt"


def test_a_branch_has_one_commit_on_the_one_the_thread_began_with(top: Path, make: Callable[..., Branch]) -> None:
    base = git(top, "rev-parse", "HEAD")
    commit(top, {"later.txt": "of the user\n"})
    (top / "a.txt").write_text("not committed\n")
    made = make()
    assert git(top, "rev-parse", "fix") == made.commit
    assert git(top, "rev-parse", "fix^") == base
    assert git(top, "log", "-1", "--format=%an|%ae|%ct|%B", "fix") == (
        "Me|me@example.com|1700000000|Do it well\n\nHoldfast-Thread: t-1"
    )
    assert git(top, "diff", "--name-status", "fix^", "fix") == "M\ta.txt\nD\tgone.txt\nA\tnew.sh"
    assert git(top, "ls-tree", "fix", "new.sh").startswith("100755")
    assert git(top, "status", "--porcelain") == "M a.txt"  # the working tree is as it was
    assert git(top, "branch", "--show-current") == "main"


def test_a_second_time_is_no_second_commit_and_another_turn_is_one(top: Path, make: Callable[..., Branch]) -> None:
    first = make()
    assert make() == Branch("fix", first.commit, False)
    second = make({**AFTER, "a.txt": "all new\n"})
    assert git(top, "rev-parse", f"{second.commit}^") == first.commit
    assert git(top, "show", "fix:a.txt") == "all new"
    git(top, "branch", "-D", "fix")
    assert make().commit == first.commit  # the same commit, wherever it is made


def test_a_branch_of_someone_else_is_left_alone(top: Path, make: Callable[..., Branch]) -> None:
    with pytest.raises(CannotApply, match="there is a branch main already"):
        make(name="main")
    make()
    with pytest.raises(CannotApply, match="thread t-2 did not make it"):
        make(thread="t-2")
    with pytest.raises(InvalidRepository):
        make(name="--force")
    with pytest.raises(CannotApply, match="changed no file"):
        make(BASE, name="nothing")


def test_uncommitted_work_that_the_run_began_with_is_not_committed_with_it(
    top: Path, make: Callable[..., Branch]
) -> None:
    before = {**BASE, "a.txt": "ONE, not committed\ntwo\nthree\n"}
    with pytest.raises(CannotApply, match="had changes that were not committed"):
        make({**before, "a.txt": "ONE, by the agent\ntwo\nthree\n"}, before)
    make({**before, "b.txt": "new\n"}, before)
    assert git(top, "diff", "--name-only", "main", "fix") == "b.txt"


def test_files_of_lfs_are_left_to_git(top: Path, make: Callable[..., Branch], tmp_path: Path) -> None:
    base = commit(top, {".gitattributes": "*.bin filter=lfs\n", "x.bin": "pointer\n"})
    before = {**BASE, ".gitattributes": "*.bin filter=lfs\n", "x.bin": "real content\n"}
    files = changed(tmp_path / "c", before, {**before, "x.bin": "other content\n"}, source={"commit": base})
    with pytest.raises(CannotApply, match=r"x\.bin is stored by a filter"):
        make_branch(Git.of_user(USER), top, files, "fix", WORK)


def test_a_folder_of_a_repository_comes_home_to_that_folder(top: Path, tmp_path: Path) -> None:
    base = commit(top, {"sub/in.txt": "in\n"})
    (top / "sub" / "more.txt").write_text("not committed\n")
    source = source_of(top / "sub", USER)
    assert source is not None
    assert (source.folder, source.commit, source.changed) == ("sub", base, True)
    files = changed(
        tmp_path / "c", {"in.txt": "in\n"}, {"in.txt": "IN\n", "new.txt": "n\n"}, source=source.to_request()
    )
    made = make_branch(Git.of_user(USER), top, files, "fix", WORK)
    assert git(top, "diff", "--name-only", base, made.commit) == "sub/in.txt\nsub/new.txt"
    Apply(Git.of_user(USER), top / "sub", files).apply()
    assert (top / "sub" / "in.txt").read_text() == "IN\n"
    with pytest.raises(CannotApply, match="not a folder of a repository"):
        changed(tmp_path / "d", {}, {"a": "b"}, source={"folder": "../outside"})


# --- push and pull requests ---


@pytest.fixture
def forge(tmp_path: Path, top: Path) -> Iterator[Forge]:
    with Forge(tmp_path / "forge", token="t0ken") as forge:
        remote = forge.create("owner", "name")
        git(top, "remote", "add", "origin", str(remote))
        git(top, "push", "-q", "origin", "main")
        yield forge


def test_a_push_is_done_once_and_never_forced(top: Path, make: Callable[..., Branch], forge: Forge) -> None:
    user = Git.of_user(USER, "file")
    made = make()
    assert push(user, top, made, "origin") is True
    assert push(user, top, made, "origin") is False
    assert git(forge.folder / "owner" / "name.git", "rev-parse", "fix") == made.commit
    other = make({**AFTER, "a.txt": "other\n"}, name="second", thread="t-2")
    with pytest.raises(RepositoryFailed, match="cannot push fix"):
        push(user, top, Branch("fix", other.commit, True), "origin")
    for remote in ("--receive-pack=touch x", "", "ext::sh -c true"):
        with pytest.raises((RepositoryFailed, InvalidRepository)):
            push(user, top, made, remote)


def test_a_push_runs_no_hook_of_the_checkout(
    top: Path, make: Callable[..., Branch], forge: Forge, tmp_path: Path
) -> None:
    hook = top / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    hook.chmod(0o755)
    push(Git.of_user(USER, "file"), top, make(), "origin")
    assert not (tmp_path / "started").exists()


def test_a_pull_request_is_opened_once(top: Path, make: Callable[..., Branch], forge: Forge) -> None:
    push(Git.of_user(USER, "file"), top, make(), "origin")
    _, owner, name = place_of(str(forge.folder / "owner" / "name.git"))
    client = Client(forge.api, owner, name, "t0ken")
    assert client.default_branch() == "main"
    first = client.open_pull_request("fix", "main", "Title", "Body", draft=True)
    again = client.open_pull_request("fix", "main", "Title", "Body", draft=True)
    assert (first.number, first.is_new, again.number, again.is_new) == (1, True, 1, False)
    assert [(pull["title"], pull["body"], pull["draft"]) for pull in forge.pulls] == [("Title", "Body", True)]
    with pytest.raises(RepositoryFailed, match="422 Validation Failed"):
        client.open_pull_request("no-such-branch", "main", "T", "", draft=False)


def test_mistakes_are_told_with_what_to_do_and_without_the_token(forge: Forge) -> None:
    with pytest.raises(RepositoryFailed, match="401 Bad credentials") as refused:
        Client(forge.api, "owner", "name", "wr0ng").default_branch()
    assert "GH_TOKEN" in str(refused.value.hint)
    with pytest.raises(RepositoryFailed, match="404 Not Found"):
        Client(forge.api, "owner", "other", "t0ken").default_branch()
    for api in ("http://forge.example", "ftp://x"):
        with pytest.raises(InvalidRepository, match="not an https URL"):
            Client(api, "owner", "name", "t0ken").default_branch()
    with pytest.raises(RepositoryFailed, match="cannot reach"):
        Client("http://127.0.0.1:1", "owner", "name", "t0ken").default_branch()
    assert "t0ken" not in repr(Client(forge.api, "o", "n", "t0ken"))


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://github.com/owner/name.git", ("github.com", "owner", "name")),
        ("git@github.com:owner/name", ("github.com", "owner", "name")),
        ("ssh://git@host.example:22/owner/name.git", ("host.example", "owner", "name")),
        ("/srv/forge/owner/name.git", ("", "owner", "name")),
    ],
)
def test_a_repository_is_known_by_its_url(url: str, place: tuple[str, str, str]) -> None:
    assert place_of(url) == place


def test_a_url_without_an_owner_is_refused() -> None:
    with pytest.raises(InvalidRepository):
        place_of("https://host/name")
    assert api_of("github.com") == "https://api.github.com"
    assert api_of("git.corp.example") == "https://git.corp.example/api/v3"
