"""Git in a sandbox, by the SDK."""

from __future__ import annotations

import uuid

import pytest
from daytona import DaytonaBadRequestError, Sandbox
from daytona.common.errors import (
    DaytonaFileNotFoundError,
    DaytonaGitBranchExistsError,
    DaytonaGitBranchNotFoundError,
    DaytonaGitPushRejectedError,
    DaytonaGitRepoNotFoundError,
    DaytonaGitTransportFailedError,
)
from daytona_toolbox_api_client import GitApi

from holdfast.compat.daytona.toolbox.git import read_status


@pytest.fixture
def repository(shared: Sandbox) -> str:
    """A repository with one commit on main."""
    path = f"/tmp/repository-{uuid.uuid4()}"
    shared.git.init(path, initial_branch="main")
    shared.fs.upload_file(b"one\n", f"{path}/file.txt")
    shared.git.add(path, ["file.txt"])
    made = shared.git.commit(path, "first", "Ann", "ann@example.com")
    assert len(made.sha) == 40
    return path


def test_changes_are_staged_committed_and_told(shared: Sandbox, repository: str) -> None:
    git = shared.git
    shared.fs.upload_file(b"two\n", f"{repository}/file.txt")
    shared.fs.upload_file(b"new\n", f"{repository}/new file.txt")
    found = {each.name: (each.staging, each.worktree) for each in git.status(repository).file_status}
    assert found == {"file.txt": ("Unmodified", "Modified"), "new file.txt": ("Untracked", "Untracked")}
    git.add(repository, ["."])
    git.reset(repository, files=["file.txt"])
    git.restore(repository, ["new file.txt"], staged=True)
    git.restore(repository, ["file.txt"])
    assert shared.fs.download_file(f"{repository}/file.txt") == b"one\n"
    git.commit(repository, "empty", "Ann", "ann@example.com", allow_empty=True)
    git.reset(repository, mode="hard", target="HEAD~1")
    commits = GitApi(shared._toolbox_api).get_commit_history(path=repository)
    assert [(each.author, each.email, each.message) for each in commits] == [("Ann", "ann@example.com", "first\n")]
    with pytest.raises(DaytonaBadRequestError, match="nothing"):
        git.commit(repository, "nothing", "Ann", "ann@example.com")


def test_branches_come_and_go(shared: Sandbox, repository: str) -> None:
    git = shared.git
    git.create_branch(repository, "topic")
    assert git.branches(repository).branches == ["main", "topic"]
    assert git.status(repository).current_branch == "topic"
    git.checkout_branch(repository, "main")
    with pytest.raises(DaytonaGitBranchExistsError):
        git.create_branch(repository, "topic")
    git.delete_branch(repository, "topic")
    with pytest.raises(DaytonaGitBranchNotFoundError):
        git.checkout_branch(repository, "topic")
    with pytest.raises(DaytonaGitRepoNotFoundError):
        git.branches("/tmp")


def test_commits_go_to_a_remote_and_back(shared: Sandbox, repository: str) -> None:
    git = shared.git
    bare, copy = f"{repository}-bare", f"{repository}-copy"
    git.init(bare, bare=True, initial_branch="main")
    git.remote_add(repository, "origin", "/nowhere")
    git.remote_add(repository, "origin", bare, overwrite=True)
    assert git.remote_get(repository, "origin") == bare
    assert [each.name for each in git.remotes(repository).remotes] == ["origin"]
    git.push(repository, set_upstream=True)
    git.clone(bare, copy, branch="main", username="u", password="p")
    shared.fs.upload_file(b"more\n", f"{copy}/more.txt")
    git.add(copy, ["more.txt"])
    git.commit(copy, "more", "Bob", "bob@example.com")
    assert (git.status(copy).ahead, git.status(copy).behind) == (1, 0)
    git.push(copy)
    git.commit(repository, "aside", "Ann", "ann@example.com", allow_empty=True)
    with pytest.raises(DaytonaGitPushRejectedError):
        git.push(repository)
    git.configure_user("Ann", "ann@example.com")
    git.pull(repository)
    assert shared.fs.download_file(f"{repository}/more.txt") == b"more\n"
    with pytest.raises(DaytonaGitTransportFailedError):
        git.clone("https://host.invalid/repository", f"{repository}-never")


def test_settings_are_kept_by_scope(shared: Sandbox, repository: str) -> None:
    git = shared.git
    git.set_config("holdfast.test", "value")
    git.set_config("holdfast.test", "local", scope="local", path=repository)
    assert git.get_config("holdfast.test") == "value"
    assert git.get_config("holdfast.test", scope="local", path=repository) == "local"
    assert git.get_config("holdfast.none") is None
    with pytest.raises(DaytonaBadRequestError, match="path"):
        git.set_config("a.b", "c", scope="local")


def test_credentials_are_never_arguments(shared: Sandbox) -> None:
    """The box's own git is replaced by one that shows what it was called with."""
    folder = f"/tmp/spy-{uuid.uuid4()}"
    script = f'#!/bin/sh\necho "$@" >> {folder}/arguments\nexec /usr/bin/git "$@"\n'
    shared.fs.upload_file(script.encode(), "/home/daytona/.local/bin/git")
    shared.fs.create_folder(folder, "755")
    shared.fs.set_file_permissions("/home/daytona/.local/bin/git", mode="755")
    with pytest.raises(DaytonaGitTransportFailedError):
        shared.git.clone("https://host.invalid/x", f"{folder}/x", username="ann", password="s3cret")
    shared.git.dangerously_authenticate("ann", "s3cret", "example.com")
    shared.fs.delete_file("/home/daytona/.local/bin/git")
    arguments = shared.fs.download_file(f"{folder}/arguments")
    assert b"clone" in arguments
    assert b"s3cret" not in arguments


def test_what_looks_like_an_option_is_refused(shared: Sandbox, repository: str) -> None:
    with pytest.raises(DaytonaBadRequestError):
        shared.git.checkout_branch(repository, "--orphan=x")
    for url in ("--upload-pack=touch /tmp/pwned", "ext::sh -c 'touch /tmp/pwned'"):
        with pytest.raises(DaytonaBadRequestError):
            shared.git.clone(url, f"{repository}-never")
    assert shared.process.exec("ls /tmp/pwned").exit_code != 0


def test_a_status_is_read() -> None:
    text = (
        "# branch.oid 1234567890abcdef\0# branch.head (detached)\0# branch.ab +2 -3\0"
        "2 R. N... 100644 100644 100644 aaa bbb R100 new name\0old name\0"
        "u UU N... 100644 100644 100644 100644 a b c conflicted\0? untracked\0"
    )
    found = read_status(text)
    assert (found["currentBranch"], found["detached"]) == ("1234567890ab", True)
    assert (found["ahead"], found["behind"]) == (2, 3)
    names = [(each["name"], each["staging"], each["extra"]) for each in found["fileStatus"]]
    assert names == [
        ("new name", "Renamed", "old name"),
        ("conflicted", "Updated but unmerged", ""),
        ("untracked", "Untracked", ""),
    ]


def test_a_commit_of_nothing_and_a_file_that_is_not_there_are_told_apart(shared: Sandbox) -> None:
    repo = f"repos/{uuid.uuid4().hex}"
    shared.git.init(repo, initial_branch="main")
    shared.fs.upload_file(b"1", f"{repo}/file")
    with pytest.raises(DaytonaBadRequestError, match="untracked files"):
        shared.git.commit(repo, "nothing", "Ada", "ada@example.com")
    with pytest.raises(DaytonaFileNotFoundError, match="no-such-file"):
        shared.git.add(repo, ["no-such-file"])
    shared.git.add(repo, ["file"])
    shared.git.commit(repo, "first", "Ada", "ada@example.com")
    with pytest.raises(DaytonaBadRequestError, match="nothing to commit"):
        shared.git.commit(repo, "nothing", "Ada", "ada@example.com")
    assert shared.git.commit(repo, "empty", "Ada", "ada@example.com", allow_empty=True).sha
    with pytest.raises(DaytonaGitBranchNotFoundError):
        shared.git.checkout_branch(repo, "no-such-branch")
