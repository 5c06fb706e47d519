"""Repositories at a host, over https and over ssh, by the credentials of the user: cloned, and pushed to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.repositories.changed import changed
from tests.repositories.git_servers import HttpsGit, SshGit, with_home
from tests.repositories.repository import ENVIRONMENT, commit, git, new_repository

from holdfast.api.errors.repositories import RepositoryFailed
from holdfast.repositories.address import parse_address
from holdfast.repositories.branch import PROTOCOLS, Work, make_branch, push, remote_url
from holdfast.repositories.checkout import check_out
from holdfast.repositories.git import Git
from holdfast.repositories.mirrors import Mirrors

TOKEN = "hunter2-hunter2-hunter2"
WORK = Work("Fix it", 1_767_312_000_000)


@dataclass(frozen=True)
class Remote:
    """A private repository at a host, and a user who may read and write it."""

    url: str
    bare: Path
    user: dict[str, str]
    """The environment of the user's commands."""
    stranger: dict[str, str]
    """That of somebody without credentials."""
    refused: str
    """What git tells the stranger."""
    mirrors: Path


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    top = tmp_path / "origin"
    new_repository(top, {"a.txt": "one\n", ".gitignore": "*.log\n"})
    git(top, "tag", "v1")
    git(top, "checkout", "-q", "-b", "feature/x")
    commit(top, {"a.txt": "two\n"})
    git(top, "checkout", "-q", "main")
    place = tmp_path / "srv" / "owner" / "name.git"
    place.parent.mkdir(parents=True)
    git(tmp_path, "clone", "-q", "--bare", str(top), str(place))
    git(place, "config", "http.receivepack", "true")
    return place


@pytest.fixture
def https(bare: Path, tmp_path: Path) -> Iterator[HttpsGit]:
    with HttpsGit(bare.parent.parent, password=TOKEN) as server:
        (tmp_path / "ca.pem").write_bytes(server.certificate())
        yield server


def user_of(folder: Path, *, host: str | None, ca: Path) -> dict[str, str]:
    kept = {name: value for name, value in ENVIRONMENT.items() if name != "GIT_ALLOW_PROTOCOL"}
    return {**kept, **with_home(folder, host=host, password=TOKEN), "GIT_SSL_CAINFO": str(ca)}


@pytest.fixture(params=["https", "ssh", "scp"])
def remote(request: pytest.FixtureRequest, bare: Path, tmp_path: Path) -> Remote:
    if request.param == "https":
        server: HttpsGit = request.getfixturevalue("https")
        user = user_of(tmp_path / "me", host=server.host, ca=tmp_path / "ca.pem")
        stranger = user_of(tmp_path / "stranger", host=None, ca=tmp_path / "ca.pem")
        return Remote(
            server.url("owner/name.git"), bare, user, stranger, "could not read Username", tmp_path / "mirrors"
        )
    ssh = SshGit(bare.parent.parent, tmp_path)
    user = {**ENVIRONMENT, **ssh.environment}
    url = "ssh://git@git.example/owner/name.git" if request.param == "ssh" else "git@git.example:owner/name.git"
    stranger = {**user, "SSH_AUTH_SOCK": ""}
    return Remote(url, bare, user, stranger, "Could not read from remote repository", tmp_path / "mirrors")


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def test_a_private_repository_is_cloned_by_the_credentials_of_the_user(remote: Remote, tmp_path: Path) -> None:
    first, second = git(remote.bare, "rev-parse", "v1"), git(remote.bare, "rev-parse", "feature/x")
    for ref, wanted, text in ((None, first, "one\n"), ("feature/x", second, "two\n"), ("v1", first, "one\n"),
                              (second, second, "two\n")):  # fmt: skip
        address = parse_address(remote.url if ref is None else f"{remote.url}@{ref}", tmp_path)
        with check_out(address, Mirrors(remote.mirrors, remote.user)) as made:
            assert (made.source.repository, made.source.commit) == (remote.url, wanted)
            assert (made.folder / "a.txt").read_text() == text
            assert TOKEN.encode() not in everything_in(made.folder)
    assert TOKEN.encode() not in everything_in(remote.mirrors)


def test_without_credentials_the_repository_is_named_and_the_next_step(remote: Remote, tmp_path: Path) -> None:
    with pytest.raises(RepositoryFailed, match="cannot fetch") as failed:
        check_out(parse_address(remote.url, tmp_path), Mirrors(remote.mirrors, remote.stranger)).__enter__()
    assert remote.url in failed.value.message
    assert remote.refused in failed.value.message
    assert failed.value.hint == f"try it yourself, with the same credentials: git ls-remote {remote.url}"


def test_a_branch_is_pushed_once_and_never_over_the_work_of_others(remote: Remote, tmp_path: Path) -> None:
    top = tmp_path / "origin"
    git(top, "remote", "add", "origin", remote.url)
    base = {"a.txt": "one\n", ".gitignore": "*.log\n"}
    files = changed(tmp_path / "c1", base, {**base, "a.txt": "agent\n"}, source={"commit": git(top, "rev-parse", "v1")})
    user = Git.of_user(remote.user, PROTOCOLS)
    made = make_branch(user, top, files, "fix", WORK)
    assert push(user, top, made, "origin") is True
    assert push(user, top, made, "origin") is False
    assert git(remote.bare, "rev-parse", "fix") == made.commit

    with pytest.raises(RepositoryFailed, match=r"cannot push fix to origin") as failed:
        push(Git.of_user(remote.stranger, PROTOCOLS), top, made, "origin")
    assert remote.refused in failed.value.message

    theirs = git(remote.bare, "commit-tree", "fix^{tree}", "-p", made.commit, "-m", "theirs")
    git(remote.bare, "update-ref", "refs/heads/fix", theirs)
    more = changed(
        tmp_path / "c2", base, {**base, "a.txt": "agent\nmore\n"}, source={"commit": git(top, "rev-parse", "v1")}
    )
    second = make_branch(user, top, more, "fix", WORK)
    with pytest.raises(RepositoryFailed) as failed:
        push(user, top, second, "origin")
    assert failed.value.message == "cannot push fix to origin: it has commits there that are not in yours"
    assert failed.value.hint == "look at them with git fetch origin fix, or push to another branch with --branch NAME"
    assert git(remote.bare, "rev-parse", "fix") == theirs
    assert remote_url(user, top, "origin") == remote.url


# --- attacks ---


def test_a_host_that_sends_git_on_to_another_one_does_not_send_the_credentials_there(
    https: HttpsGit, bare: Path, tmp_path: Path
) -> None:
    user = user_of(tmp_path / "me", host=https.host, ca=tmp_path / "both.pem")
    with HttpsGit(bare.parent.parent, password="another") as evil:
        (tmp_path / "both.pem").write_bytes(https.certificate() + evil.certificate())
        https.redirect = f"https://{evil.host}"
        address = parse_address(https.url("owner/name.git"), tmp_path)
        with pytest.raises(RepositoryFailed, match="cannot fetch"):
            check_out(address, Mirrors(tmp_path / "mirrors", user)).__enter__()
        assert all(authorization is None for _, _, authorization in evil.requests)


def test_a_host_whose_certificate_is_not_trusted_gets_nothing(https: HttpsGit, tmp_path: Path) -> None:
    user = user_of(tmp_path / "me", host=https.host, ca=tmp_path / "other.pem")
    with HttpsGit(tmp_path, password="x") as other:
        (tmp_path / "other.pem").write_bytes(other.certificate())
    with pytest.raises(RepositoryFailed, match="certificate"):
        check_out(parse_address(https.url("owner/name.git"), tmp_path), Mirrors(tmp_path / "m", user)).__enter__()
    assert https.requests == []


def test_a_token_in_a_url_goes_to_its_host_and_nowhere_else(https: HttpsGit, tmp_path: Path) -> None:
    stranger = user_of(tmp_path / "stranger", host=None, ca=tmp_path / "ca.pem")
    url = f"https://me:{TOKEN}@{https.host}/owner/name.git"
    with check_out(parse_address(url, tmp_path), Mirrors(tmp_path / "mirrors", stranger)) as made:
        assert made.source.repository == https.url("owner/name.git")
        assert TOKEN.encode() not in everything_in(made.folder)
    assert TOKEN.encode() not in everything_in(tmp_path / "mirrors")
    assert https.requests[-1][2] == https.authorization
    wrong = f"https://me:wr0ng-t0ken@{https.host}/owner/name.git"
    with pytest.raises(RepositoryFailed) as failed:
        check_out(parse_address(wrong, tmp_path), Mirrors(tmp_path / "mirrors", stranger)).__enter__()
    assert "wr0ng" not in f"{failed.value}{failed.value.hint}"


def test_ssh_is_asked_for_git_and_for_nothing_else(bare: Path, tmp_path: Path) -> None:
    ssh = SshGit(bare.parent.parent, tmp_path)
    url = "ssh://git@git.example:2222/owner/name.git"
    with check_out(parse_address(url, tmp_path), Mirrors(tmp_path / "mirrors", {**ENVIRONMENT, **ssh.environment})):
        pass
    assert {line.partition("git@")[2] for line in ssh.calls()} == {"git.example git-upload-pack '/owner/name.git'"}
    assert all(line.startswith("-o SendEnv=GIT_PROTOCOL -p 2222 ") for line in ssh.calls())
