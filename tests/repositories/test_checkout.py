"""Clones for workspaces: from a folder and through a mirror, without running anything of theirs."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from tests.repositories.repository import ENVIRONMENT, commit, git, new_repository

from holdfast.api.errors.repositories import InvalidRepository, RepositoryFailed
from holdfast.repositories.address import parse_address
from holdfast.repositories.checkout import check_out, source_of
from holdfast.repositories.mirrors import Mirrors


@pytest.fixture
def mirrors(tmp_path: Path) -> Mirrors:
    return Mirrors(tmp_path / "mirrors", ENVIRONMENT)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    new_repository(folder, {"a.txt": "one\n", ".gitignore": "*.log\n"})
    return folder


def test_a_clone_of_a_folder_has_its_commits_and_nothing_else(top: Path, mirrors: Mirrors, tmp_path: Path) -> None:
    head = git(top, "rev-parse", "HEAD")
    (top / "a.txt").write_text("not committed\n")
    (top / "new.txt").write_text("untracked\n")
    (top / "secret.log").write_text("ignored\n")
    with check_out(parse_address(str(top), tmp_path), mirrors) as made:
        assert (made.folder / "a.txt").read_text() == "one\n"
        assert {each.name for each in made.folder.iterdir()} == {".git", ".gitignore", "a.txt"}
        assert (made.source.commit, made.source.ref, made.source.changed) == (head, "main", False)
        assert git(made.folder, "status", "--porcelain", "-b") == "## main"
        folder = made.folder
    assert not folder.exists()
    assert source_of(top, ENVIRONMENT).changed  # type: ignore[union-attr]


def test_work_on_a_bare_repository_goes_back_to_it_and_work_on_a_checkout_to_its_origin(
    top: Path, mirrors: Mirrors, tmp_path: Path
) -> None:
    bare = tmp_path / "project.git"
    git(tmp_path, "clone", "-q", "--bare", str(top), str(bare))
    git(tmp_path, "clone", "-q", str(bare), str(tmp_path / "checkout"))
    for folder in (bare, tmp_path / "checkout"):
        with check_out(parse_address(str(folder), tmp_path), mirrors) as made:
            assert made.source.repository == str(bare)


def test_a_branch_a_tag_and_a_commit_can_be_asked_for(top: Path, mirrors: Mirrors, tmp_path: Path) -> None:
    first = git(top, "rev-parse", "HEAD")
    git(top, "tag", "v1")
    git(top, "checkout", "-q", "-b", "feature/x")
    second = commit(top, {"a.txt": "two\n"})
    git(top, "checkout", "-q", "main")
    for url in (str(top), f"file://{top}"):
        for ref, wanted, text in (("v1", first, "one\n"), ("feature/x", second, "two\n"), (second, second, "two\n")):
            with check_out(parse_address(f"{url}@{ref}", tmp_path), mirrors) as made:
                assert made.source.commit == wanted
                assert (made.folder / "a.txt").read_text() == text
        with pytest.raises(InvalidRepository, match="no branch, tag or commit 'nope'"):
            check_out(parse_address(f"{url}@nope", tmp_path), mirrors).__enter__()


def test_a_mirror_is_fetched_again_and_follows_the_remote(top: Path, mirrors: Mirrors, tmp_path: Path) -> None:
    address = parse_address(f"file://{top}", tmp_path)
    with check_out(address, mirrors) as made:
        assert made.source.repository == f"file://{top}"
    second = commit(top, {"a.txt": "two\n"})
    with check_out(address, mirrors) as made:
        assert made.source.commit == second
    assert len(list(mirrors.folder.glob("*.git"))) == 1
    # A history that was rewritten replaces the old one.
    git(top, "commit", "-q", "--amend", "-m", "other")
    with check_out(address, mirrors) as made:
        assert made.source.commit == git(top, "rev-parse", "HEAD")
    # The default branch is that of the remote.
    git(top, "branch", "-m", "main", "trunk")
    with check_out(address, mirrors) as made:
        assert made.source.ref == "trunk"


def test_the_oldest_mirrors_are_removed(tmp_path: Path) -> None:
    mirrors = Mirrors(tmp_path / "mirrors", ENVIRONMENT, most=2)
    for number in range(4):
        new_repository(tmp_path / f"r{number}", {"a": str(number)})
        with check_out(parse_address(f"file://{tmp_path}/r{number}", tmp_path), mirrors):
            pass
    assert len(list(mirrors.folder.glob("*.git"))) == 2
    with check_out(parse_address(f"file://{tmp_path}/r3", tmp_path), mirrors) as made:
        assert (made.folder / "a").read_text() == "3"


def test_a_mirror_in_use_is_waited_for(top: Path, tmp_path: Path) -> None:
    mirrors = Mirrors(tmp_path / "mirrors", ENVIRONMENT, lock_seconds=1.0, sleep=lambda seconds: None)
    address = parse_address(f"file://{top}", tmp_path)
    with check_out(address, mirrors):
        pass
    (lock,) = mirrors.folder.glob("*.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RepositoryFailed, match="another command has been cloning"):
            check_out(address, mirrors).__enter__()


def test_a_clone_that_was_killed_half_way_is_made_anew(top: Path, mirrors: Mirrors, tmp_path: Path) -> None:
    address = parse_address(f"file://{top}", tmp_path)
    with check_out(address, mirrors):
        pass
    (mirror,) = mirrors.folder.glob("*.git")
    mirror.rename(mirror.with_suffix(".half"))
    with check_out(address, mirrors) as made:
        assert (made.folder / "a.txt").exists()
    assert not mirror.with_suffix(".half").exists()


def test_nothing_of_a_repository_runs_here(top: Path, mirrors: Mirrors, tmp_path: Path) -> None:
    started = tmp_path / "started"
    for hook in ("post-checkout", "post-upload", "pre-receive", "reference-transaction", "post-index-change"):
        script = top / ".git" / "hooks" / hook
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/sh\ntouch {started}\n")
        script.chmod(0o755)
    for setting in (
        "core.fsmonitor",
        "uploadpack.packObjectsHook",
        "filter.x.smudge",
        "filter.x.process",
        "core.sshCommand",
    ):
        git(top, "config", setting, f"touch {started};")
    commit_hookless = {".gitattributes": "* filter=x diff=x merge=x\n", "b.txt": "two\n"}
    for name, content in commit_hookless.items():
        (top / name).write_text(content)
    git(top, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "filter.x.process=", "-c",
        "filter.x.clean=cat", "add", "-A")  # fmt: skip
    git(top, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "filter.x.process=", "-c",
        "filter.x.clean=cat", "commit", "-q", "-m", "x")  # fmt: skip
    started.unlink(missing_ok=True)
    for url in (str(top), f"file://{top}"):
        with check_out(parse_address(url, tmp_path), mirrors) as made:
            assert (made.folder / "b.txt").read_text() == "two\n"
            assert not (made.folder / ".git" / "hooks").exists()
            assert "filter" not in (made.folder / ".git" / "config").read_text()
    assert not started.exists()


def test_looking_at_a_folder_starts_no_filter_that_its_repository_defines(top: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    commit(top, {".gitattributes": "* filter=x\n"})
    included = tmp_path / "included"
    included.write_text(f'[filter "y"]\n\tprocess = touch {marker}\n')
    git(top, "config", "filter.x.clean", f"touch {marker}; cat")
    git(top, "config", "filter.x.process", f"touch {marker}")
    git(top, "config", "filter.x.required", "true")
    git(top, "config", "include.path", str(included))
    (top / "a.txt").write_text("two\n")  # of the same size, so that git compares the content
    found = source_of(top, ENVIRONMENT)
    assert found is not None
    assert found.changed
    assert not marker.exists()


def test_a_folder_with_the_layout_of_a_bare_repository_is_a_folder_of_the_one_around_it(
    top: Path, tmp_path: Path
) -> None:
    marker, inner = tmp_path / "ran", top / "packages"
    inner.mkdir()
    git(inner, "init", "-q", "--bare", "--template=", "x")
    for each in (inner / "x").iterdir():
        each.rename(inner / each.name)
    (inner / "f").write_text("hi\n")
    (inner / ".gitattributes").write_text("* filter=x\n")
    (inner / "config").write_text(
        f'[core]\n\tbare = false\n\tworktree = .\n[filter "x"]\n\tclean = touch {marker}; cat\n'
    )
    found = source_of(inner, ENVIRONMENT)
    assert found is None or found.commit == git(top, "rev-parse", "HEAD")
    assert not marker.exists()


def test_submodules_and_lfs_are_counted_and_not_fetched(top: Path, mirrors: Mirrors, tmp_path: Path) -> None:
    inner = new_repository(tmp_path / "inner", {"i": "i"})
    (top / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = ext::sh -c touch% /tmp/never\n')
    (top / "deep").mkdir()
    (top / "deep" / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    git(top, "add", "-A")
    git(top, "update-index", "--add", "--cacheinfo", f"160000,{inner},x")
    git(top, "commit", "-q", "-m", "more")
    with check_out(parse_address(f"file://{top}", tmp_path), mirrors) as made:
        assert (made.submodules, made.lfs) == (1, True)
        assert not list((made.folder / "x").iterdir())


def test_a_url_that_cannot_be_fetched_is_named_without_its_credentials(mirrors: Mirrors, tmp_path: Path) -> None:
    with pytest.raises(RepositoryFailed, match="cannot fetch file:///no/such") as failed:
        check_out(parse_address("file:///no/such/place", tmp_path), mirrors).__enter__()
    assert "git ls-remote" in str(failed.value.hint)
    with pytest.raises(RepositoryFailed) as failed:
        check_out(parse_address("https://me:t0ken@127.0.0.1:1/a", tmp_path), mirrors).__enter__()
    assert "t0ken" not in f"{failed.value}{failed.value.hint}"
