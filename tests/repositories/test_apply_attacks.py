"""What a box tries, to make `apply` write elsewhere than into the checkout. Nothing of it is written."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.repositories.changed import changed, forged
from tests.repositories.repository import ENVIRONMENT, git, new_repository

from holdfast.api.errors.repositories import CannotApply
from holdfast.repositories import changes
from holdfast.repositories.apply import Apply
from holdfast.repositories.changes import read_changed_files
from holdfast.repositories.git import Git
from holdfast.repositories.names import refusal
from holdfast.repositories.plain_folder import beside

HOSTILE_NAMES = [
    b"../outside", b"a/../../outside", b"/etc/outside", b"", b"./x", b"a//b", b"..", b"a/..",
    b".git/hooks/post-checkout", b".git/config", b".GIT/config", b".Git/hooks/x", b"sub/.git/config", b".git",
    b"git~1/config", b"GIT~1/hooks/x", b"git~2/config", b".git./config", b".git /config", b".git::$INDEX_ALLOCATION/x",
    b"a\\..\\.git\\config", b".git\\hooks\\x",
    ".g\u200cit/config".encode(), ".gi\u200dt/hooks/x".encode(), "\ufeff.git/config".encode(), ".git\u202e/x".encode(),
    b".gitmodules", b".GITMODULES", b"GITMOD~1", b"sub/.gitmodules",
]  # fmt: skip
HOSTILE_TARGETS = [
    b"/etc/passwd", b"..", b"../x", b"sub/../../x", b"sub/..", b".git/hooks", b".GIT", b"./.git/config", b"git~1", b"",
    b"a/.git/b", b"x" * 5000, ".g\u200cit".encode(),
]  # fmt: skip


@pytest.fixture
def top(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    new_repository(folder, {"a.txt": "a\n", "sub/b.txt": "b\n"})
    return folder


def everything(folder: Path) -> dict[str, Any]:
    """All files around the checkout and in its `.git`, but not what apply keeps there."""
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each not in ("objects", "worktree", "contents")]
        for name in (*names, *folders):
            path = Path(place) / name
            if path.name != "holdfast-apply.lock":
                found[str(path)] = str(path.readlink()) if path.is_symlink() else path.is_file() and path.read_bytes()
    return found


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_no_name_leads_out_of_the_checkout_or_into_git(name: bytes, top: Path, tmp_path: Path) -> None:
    assert refusal(name, None)
    contents = tmp_path / "contents"
    contents.mkdir()
    was = everything(tmp_path)
    files = [{"path": name, "after": ("100755", 0)}]
    told = read_changed_files(forged(files, [b"#!/bin/sh\ntouch /tmp/owned\n"]), contents)
    assert [each.path for each in told.left_out] == [name]
    done = Apply(Git.of_user(ENVIRONMENT), top, told).apply()
    assert not done.changed
    for each in contents.iterdir():
        each.unlink()
    assert everything(tmp_path) == was


@pytest.mark.parametrize("target", HOSTILE_TARGETS)
def test_no_link_leads_out_of_the_checkout_or_into_git(target: bytes, top: Path, tmp_path: Path) -> None:
    (tmp_path / "contents").mkdir()
    files: list[dict[str, Any]] = [{"path": b"link", "after": ("120000", 0)}]
    told = read_changed_files(forged(files, [target]), tmp_path / "contents")
    assert [each.path for each in told.left_out] == [b"link"]
    Apply(Git.of_user(ENVIRONMENT), top, told).apply()
    assert not os.path.lexists(top / "link")


def test_links_that_stay_inside_are_fine() -> None:
    assert refusal(b"a/b/c", b"../../x") is None
    assert refusal(b"a", b"b/c") is None
    assert refusal(b"a/b", b".github/x") is None


@pytest.mark.parametrize("kind", ["link", "link to parent", "swapped while applying"])
def test_a_link_in_the_checkout_is_never_followed(kind: str, top: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text("b\n")
    files = changed(tmp_path / "contents", {"sub/b.txt": "b\n"}, {"sub/b.txt": "owned\n", "sub/new.txt": "owned\n"})

    def swap(step: str) -> None:
        if kind == "swapped while applying" and step.startswith("file") and not (top / "sub").is_symlink():
            (top / "sub").rename(tmp_path / "sub-was")
            (top / "sub").symlink_to(outside)

    apply = Apply(Git.of_user(ENVIRONMENT), top, files, before_step=swap)
    if kind == "swapped while applying":
        assert set(apply.apply().skipped) == {b"sub/b.txt", b"sub/new.txt"}
    else:
        (top / "sub").rename(tmp_path / "sub-was")
        (top / "sub").symlink_to(outside if kind == "link" else "../outside")
        with pytest.raises(CannotApply, match="cannot be written"):
            apply.apply()
    assert {each.name: each.read_text() for each in outside.iterdir()} == {"b.txt": "b\n"}


def test_a_second_turn_cannot_write_through_a_link_of_the_first(top: Path, tmp_path: Path) -> None:
    first = changed(tmp_path / "c1", {}, {"d": ("link", "sub")})
    Apply(Git.of_user(ENVIRONMENT), top, first).apply()
    assert (top / "d").is_symlink()
    second = changed(tmp_path / "c2", {}, {"d/b.txt": "owned\n"})
    Apply(Git.of_user(ENVIRONMENT), top, second).apply()  # the link becomes a folder, as in the box
    assert (top / "sub" / "b.txt").read_text() == "b\n"


@pytest.mark.parametrize("head", ["HEAD", "head", "HEAD."])
def test_a_box_cannot_plant_a_repository(head: str, top: Path, tmp_path: Path) -> None:
    """Git takes a folder with HEAD, objects and refs for a repository, and its settings name programs."""
    planted = {
        f"vendor/{head}": "ref: refs/heads/x\n",
        "vendor/objects/x": "",
        "vendor/refs/x": "",
        "vendor/config": "",
    }
    files = changed(tmp_path / "c", {}, {**planted, "vendor/head.txt": "fine\n"})
    assert [each.path.decode() for each in files.left_out] == [f"vendor/{head}"]
    Apply(Git.of_user(ENVIRONMENT), top, files).apply()
    assert sorted(each.name for each in (top / "vendor").iterdir()) == ["config", "head.txt", "objects", "refs"]


EVIL = '[core]\n\tbare = false\n\tworktree = ..\n\tfsmonitor = "touch started; false"\n'
OF_REPOSITORY = "git can take its folder for a repository"


@pytest.mark.parametrize("plain", [False, True])
def test_a_repository_in_the_folder_gets_no_settings_and_no_hooks(plain: bool, top: Path, tmp_path: Path) -> None:
    """Such as a bare one for tests. Git runs what its settings name as soon as someone asks for its status."""
    folder = tmp_path / "plain" if plain else top
    bare = folder / "fixtures/sample.git"
    bare.parent.mkdir(parents=True)
    git(tmp_path, "init", "-q", "--bare", str(bare))
    config = (bare / "config").read_text()
    hostile: dict[str, str | bytes | tuple[str, str]] = {
        "fixtures/sample.git/config": EVIL,
        "fixtures/sample.git/hooks/post-receive": ("x", "#!/bin/sh\n"),
        "fixtures/sample.git/info/attributes": "* filter=x\n",
        "fixtures/sample.git/HEAD": "ref: refs/heads/other\n",
    }
    before = {"fixtures/sample.git/config": config, "fixtures/sample.git/HEAD": (bare / "HEAD").read_text()}
    files = changed(tmp_path / "c", before, {**hostile, "fixtures/readme": "fine\n"})
    user = Git.of_user(ENVIRONMENT)
    apply = Apply(beside(user, folder, tmp_path / "applied") if plain else user, folder, files)
    assert apply.apply().changed == (b"fixtures/readme",)
    assert {each.path.decode() for each in apply.changed.left_out} == set(hostile)
    assert all(each.why.startswith(OF_REPOSITORY) for each in apply.changed.left_out)
    assert (bare / "config").read_text() == config
    git(bare, "rev-parse", "--git-dir")
    assert not list(folder.rglob("started"))


@pytest.mark.parametrize("missing", ["refs/heads/x", "Objects/x", "commondir"])
@pytest.mark.parametrize("below", ["", "sub/"])
def test_a_head_of_the_user_does_not_become_a_repository(missing: str, below: str, top: Path, tmp_path: Path) -> None:
    (top / f"{below}HEAD").write_text("ref: refs/heads/x\n")
    hostile = {f"{below}{missing}": "x\n", f"{below}config": EVIL, f"{below}deep/er": "x\n"}
    apply = Apply(Git.of_user(ENVIRONMENT), top, changed(tmp_path / "c", {}, hostile))
    assert apply.apply().changed == ()
    assert {each.path.decode() for each in apply.changed.left_out} == set(hostile)
    # Without that file, nothing is special about the folder.
    again = changed(tmp_path / "c2", {}, {f"{below}config": "x\n"})
    assert Apply(Git.of_user(ENVIRONMENT), top, again).apply().changed == (f"{below}config".encode(),)


def test_what_became_a_repository_since_stays_as_it_is(top: Path, tmp_path: Path) -> None:
    first = changed(tmp_path / "c1", {}, {"sub/config": "x\n"})
    Apply(Git.of_user(ENVIRONMENT), top, first).apply()
    (top / "sub/HEAD").write_text("ref: refs/heads/x\n")
    second = changed(tmp_path / "c2", {}, {"sub/config": EVIL, "sub/refs/x": ""})
    assert Apply(Git.of_user(ENVIRONMENT), top, second).apply().changed == ()
    assert (top / "sub/config").read_text() == "x\n"
    third = changed(tmp_path / "c3", {}, {"sub/config": "y\n"})
    assert Apply(Git.of_user(ENVIRONMENT), top, third).apply().changed == (b"sub/config",)


def test_folders_with_such_names_are_no_repository(top: Path, tmp_path: Path) -> None:
    files = changed(tmp_path / "c", {}, {"web/head/a": "x\n", "web/objects/b": "x\n", "objects/refs/c": "x\n"})
    assert len(Apply(Git.of_user(ENVIRONMENT), top, files).apply().changed) == 3


def test_attributes_from_a_box_start_no_filter_or_merge_driver(top: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    for setting in ("filter.x.smudge", "filter.x.clean", "filter.x.process", "merge.x.driver", "diff.x.textconv"):
        git(top, "config", setting, f"touch {started};")
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "post-merge", "pre-applypatch"):
        (top / ".git" / "hooks").mkdir(exist_ok=True)
        (top / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {started}\n")
        (top / ".git" / "hooks" / hook).chmod(0o755)
    (top / "a.txt").write_text("mine\n")
    before = {"a.txt": "a\n"}
    files = changed(tmp_path / "c", before, {"a.txt": "a\nx\ny\n", ".gitattributes": "* filter=x merge=x diff=x\n"})
    with pytest.raises(CannotApply):  # a conflict, so that lines are merged too
        Apply(Git.of_user(ENVIRONMENT), top, files).apply()
    git(top, "-c", "core.hooksPath=/dev/null", "checkout", "-q", "--", "a.txt")
    Apply(Git.of_user(ENVIRONMENT), top, files).apply()
    assert (top / "a.txt").read_text() == "a\nx\ny\n"
    assert not started.exists()


def test_an_archive_that_lies_is_refused(tmp_path: Path) -> None:
    def refused(archive: io.BytesIO, match: str) -> None:
        folder = tmp_path / hashlib.sha1(match.encode()).hexdigest()
        folder.mkdir()
        with pytest.raises(CannotApply, match=match):
            read_changed_files(archive, folder)

    def members(*given: tuple[str, bytes, bytes]) -> io.BytesIO:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, data, kind in given:
                member = tarfile.TarInfo(name)
                member.size, member.type = len(data), kind
                if kind == tarfile.SYMTYPE:
                    member.size, member.linkname = 0, "/etc/passwd"
                archive.addfile(member, io.BytesIO(data))
        out.seek(0)
        return out

    head = json.dumps(
        {"version": 1, "thread": "t-1", "source": None, "ignored": 0, "refused": [], "files": []}
    ).encode()
    ok = ("changes.json", head, tarfile.REGTYPE)
    refused(members(("../changes.json", head, tarfile.REGTYPE)), "does not begin")
    refused(members(ok, ("blobs/../../x", b"", tarfile.REGTYPE)), "has a member")
    refused(members(ok, ("blobs/" + "a" * 40, b"x", tarfile.REGTYPE)), "is another one")
    refused(members(ok, ("blobs/" + "b" * 40, b"", tarfile.SYMTYPE)), "more than")
    refused(io.BytesIO(b"no tar at all" * 100), "cannot be read")
    refused(forged([{"path": b"x", "after": ("160000", 0)}], [b""]), "no version")
    for name, match in ((b"x/y", "below a file"), (b"x", "twice")):
        refused(forged([{"path": each, "after": ("100644", 0)} for each in (b"x", name)], [b""]), match)
    refused(forged([], [], thread="../../x"), "is not a thread")
    refused(forged([], [], version=2), "version 2 is not known")


def test_a_huge_archive_is_refused_before_it_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST_BYTES", 1000)
    (tmp_path / "c").mkdir()
    with pytest.raises(CannotApply, match="more than"):
        read_changed_files(forged([{"path": b"x", "after": ("100644", 0)}], [b"x" * 2000]), tmp_path / "c")
    assert not list((tmp_path / "c").iterdir())
