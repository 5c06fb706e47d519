"""The patch of a workspace, against git itself: applied to the tree before, it gives the tree after, byte for byte."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.errors.runs import NoFiles
from holdfast.api.run.runs import Changes
from holdfast.runs.workspace.diff import compare

pytestmark = pytest.mark.anyio

Tree = dict[bytes, tuple[str, bytes]]
"""By path: `file`, `program` or `link`, and the content or target."""


def archive(tree: Mapping[bytes, tuple[str, bytes]]) -> bytes:
    """As a box sends its files."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, (kind, content) in tree.items():
            info = tarfile.TarInfo(os.fsdecode(path))
            if kind == "link":
                info.type, info.linkname = tarfile.SYMTYPE, os.fsdecode(content)
                tar.addfile(info)
            else:
                info.size, info.mode = len(content), 0o755 if kind == "program" else 0o644
                tar.addfile(info, io.BytesIO(content))
    return into.getvalue()


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


async def compared(before: Tree | None, after: Tree) -> tuple[Changes, bytes]:
    with tempfile.NamedTemporaryFile() as base:
        if before is not None:
            base.write(archive(before))
            base.flush()
        async with compare(None if before is None else Path(base.name), pieces(archive(after))) as found:
            patch = b"".join([piece async for piece in found.patch()])
            return await found.summary(), patch


def write(tree: Tree, folder: Path) -> None:
    for path, (kind, content) in tree.items():
        place = folder / os.fsdecode(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            place.symlink_to(os.fsdecode(content))
        else:
            place.write_bytes(content)
            place.chmod(0o755 if kind == "program" else 0o644)


def read(folder: Path) -> Tree:
    tree: Tree = {}
    for place, folders, names in os.walk(folder):
        for name in (*names, *(each for each in folders if Path(place, each).is_symlink())):
            found = Path(place, name)
            path = os.fsencode(found.relative_to(folder))
            if found.is_symlink():
                tree[path] = ("link", os.fsencode(os.readlink(found)))  # noqa: PTH115 (a Path leaves out a slash at the end)
            else:
                tree[path] = ("program" if found.stat().st_mode & 0o100 else "file", found.read_bytes())
    return tree


def apply(before: Tree, patch: bytes) -> Tree:
    """What git makes of the tree, in a folder that is no repository, with no settings of this machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(before, folder)
        if patch:
            environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
            environment["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
            done = subprocess.run(["git", "apply"], cwd=folder, input=patch, env=environment, capture_output=True)
            assert done.returncode == 0, (done.stderr.decode("utf-8", "replace"), patch[:3000])
        return read(folder)


def fitting(paths: Mapping[bytes, tuple[str, bytes]]) -> Tree:
    """A tree that can be: nothing is below a file. Those that come first stand."""
    tree: Tree = {}
    for path, what in paths.items():
        parts = path.split(b"/")
        above = {b"/".join(parts[:count]) for count in range(1, len(parts))}
        if not above & tree.keys() and not any(each.startswith(path + b"/") for each in tree):
            tree[path] = what
    return tree


NAMES = st.one_of(
    st.sampled_from(
        [
            b"a", b"b", b"c", b"d", b"-rf", b"--help", b"new\nline", b'quo"te', b"ta\tb", b"back\\slash", b"\xff\xfe",
            "ünï ✓".encode(), b" ", b"a ", b"b/", b"*", b"?", b"[x]", b"!x", b"#x", b"dev", b"null", b":(top)x", b"~",
            b".gitattributes", b".gitmodules", b"gitx", b".gitx", b"\x0c", b"\r", b"a b", b"\x7f", b"\x01", b"=>", b"{",
        ]
    ),
    st.binary(min_size=1, max_size=6),
).map(lambda name: bytes(name).replace(b"/", b"_").replace(b"\0", b"_")).filter(
    lambda name: name not in (b".", b"..", b".git") and name.lower() != b".git"
)  # fmt: skip
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
LINES = st.lists(
    st.sampled_from(
        [b"one", b"two", b"", b"three\r", b"\x0c", b" ", b"\t", b"-- a", b"++ b", b"\xff", b"\xe2\x80\xa8", b"\\"]
    ),
    max_size=30,
).flatmap(lambda lines: st.sampled_from([b"\n".join(lines), b"\n".join(lines) + b"\n"]))  # fmt: skip
CONTENTS = st.one_of(LINES, st.binary(max_size=60), st.just(b""))
TARGETS = st.one_of(
    st.sampled_from([b"/etc/passwd", b"../../x", b"a", b"new\nline", b"."]), st.binary(min_size=1, max_size=8)
).map(lambda target: bytes(target).replace(b"\0", b"_"))
THINGS = st.one_of(
    st.tuples(st.just("file"), CONTENTS),
    st.tuples(st.just("program"), CONTENTS),
    st.tuples(st.just("link"), TARGETS),
)
TREES = st.dictionaries(PATHS, THINGS, max_size=8).map(fitting)
# Half of what a tree has stays in its place: changes, and folders for files and back.
PAIRS = st.tuples(TREES, TREES, st.integers(0, 8)).map(
    lambda pair: (pair[0], fitting({**dict(list(pair[0].items())[: pair[2]]), **pair[1]}))
)


@given(PAIRS)
@settings(max_examples=150, deadline=None)
async def test_git_makes_the_tree_after_of_the_tree_before(pair: tuple[Tree, Tree]) -> None:
    before, after = pair
    found, patch = await compared(before, after)
    left_out = {path for path in (*before, *after) if path.decode("utf-8", "backslashreplace") in found.refused}
    before = {path: what for path, what in before.items() if path not in left_out}
    after = {path: what for path, what in after.items() if path not in left_out}
    assert apply(before, patch) == after
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert {each.path for each in found.files} == {path.decode("utf-8", "backslashreplace") for path in changed}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {b"a": ("file", b"one\n")}, id="added"),
        pytest.param({b"a": ("file", b"one\n")}, {}, id="deleted"),
        pytest.param({}, {b"a": ("file", b"")}, id="empty"),
        pytest.param({}, {b"a": ("file", b"no end")}, id="no newline"),
        pytest.param({b"a": ("file", b"x\n")}, {b"a": ("program", b"x\n")}, id="mode alone"),
        pytest.param({b"a": ("file", b"x\n")}, {b"a": ("link", b"/etc/passwd")}, id="link for a file"),
        pytest.param({b"a": ("link", b"x")}, {b"a": ("link", b"y")}, id="another target"),
        pytest.param({b"a": ("link", b"x")}, {b"a": ("link", b"x/")}, id="a slash at the end"),
        pytest.param({b"a": ("link", b"/etc")}, {b"a/b": ("file", b"x\n")}, id="folder for a link"),
        pytest.param({b"a/b": ("file", b"x\n")}, {b"a": ("link", b"/etc")}, id="link for a folder"),
        pytest.param({b"a/b/c": ("file", b"x\n")}, {b"a": ("file", b"x\n")}, id="file for a folder"),
        pytest.param({b"a": ("file", b"x\n")}, {b"a/b/c": ("file", b"x\n")}, id="folder for a file"),
        pytest.param({b"a": ("file", b"1\x0c2\n\x0c\n")}, {b"a": ("file", b"1\x0c3\n\x0c\n")}, id="form feed"),
        pytest.param({b"a": ("file", b"1\r\n2\r\n")}, {b"a": ("file", b"1\r\n3\r\n")}, id="CRLF"),
        pytest.param({b"a": ("file", bytes(300))}, {b"a": ("file", bytes(301))}, id="binary"),
        pytest.param({}, {b"a": ("file", os.urandom(3_000_000))}, id="large binary"),
        pytest.param({b"a": ("file", b"line\n" * 400_000)}, {b"a": ("file", b"line\n" * 400_001)}, id="large text"),
        pytest.param({}, {b"-n\n\"\t\xff": ("file", b"x\n")}, id="a hostile name"),
        pytest.param({}, {b".gitattributes": ("file", b"* -text filter=x\n"), b"a": ("file", b"x\n")}, id="attributes"),
    ],
)  # fmt: skip
async def test_every_kind_of_change_is_in_the_patch(before: Tree, after: Tree) -> None:
    found, patch = await compared(before, after)
    assert apply(before, patch) == after
    assert found.refused == ()


async def test_a_workspace_that_began_empty_is_all_new() -> None:
    after: Tree = {b"a": ("file", b"x\n"), b"b/c": ("program", b"\0")}
    found, patch = await compared(None, after)
    assert apply({}, patch) == after
    assert [(each.path, each.how, each.binary) for each in found.files] == [
        ("a", "added", False),
        ("b/c", "added", True),
    ]


async def test_new_files_that_are_ignored_are_left_out_and_counted() -> None:
    before: Tree = {
        b".gitignore": ("file", b"*.log\n/build/\n!kept.log\n"),
        b"old.log": ("file", b"1\n"),
    }
    after: Tree = {
        **before,
        b"old.log": ("file", b"2\n"),
        b"new.log": ("file", b"x\n"),
        b"kept.log": ("file", b"x\n"),
        b"build/a": ("file", b"x\n"),
        b"sub/build/a": ("file", b"x\n"),
        b"sub/.gitignore": ("file", b"secret\r\n"),
        b"sub/secret": ("file", b"x\n"),
        b"secret": ("file", b"x\n"),
        b"node_modules/x": ("file", b"x\n"),
        b"p/__pycache__/x.pyc": ("file", b"x\n"),
        b".git/info/exclude": ("file", b"mine\n"),
        b".git/config": ("file", b"[core]\n"),
        b"mine": ("file", b"x\n"),
    }
    found, _ = await compared(before, after)
    assert [each.path for each in found.files] == [
        "kept.log",
        "old.log",
        "secret",
        "sub/.gitignore",
        "sub/build/a",
    ]
    assert found.ignored == 6


@pytest.mark.parametrize(
    "name", [b"git~1", b".GIT", b".git ", b".git.", b".git::$INDEX_ALLOCATION", b"x\\.git", b".g\xe2\x80\x8cit"]
)
async def test_a_name_that_git_refuses_does_not_cost_the_rest_of_the_patch(name: bytes) -> None:
    found, patch = await compared({}, {name + b"/hooks/post-checkout": ("program", b"evil\n"), b"a": ("file", b"x\n")})
    assert apply({}, patch) == {b"a": ("file", b"x\n")}
    assert found.refused == ((name + b"/hooks/post-checkout").decode(),)


async def test_a_path_that_git_refuses_in_one_tree_is_in_no_patch() -> None:
    modules, link = {b".gitmodules": ("file", b"x\n")}, {b".gitmodules": ("link", b"a")}
    for before, after in ((modules, link), (link, modules), ({b".gitmodules/a": ("file", b"x\n")}, link)):
        found, patch = await compared(before, {**after, b"a": ("file", b"x\n")})
        assert b"gitmodules" not in patch
        assert [each.path for each in found.files] == ["a"]
        assert found.refused == (".gitmodules",)


async def test_an_archive_of_a_box_leads_nowhere() -> None:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(NoFiles, match="leads out"):
        async with compare(None, pieces(into.getvalue())):
            pass
    with pytest.raises(NoFiles, match="cannot be compared"):
        async with compare(None, pieces(b"no archive" * 1000)):
            pass


async def test_ignore_files_of_a_box_are_written_nowhere_else(tmp_path: Path) -> None:
    """A tree that has a link and something below it is no tree that could be; nothing is followed for it."""
    target = tmp_path / "target"
    target.mkdir()
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, str(target)
        tar.addfile(link)
        ignore = tarfile.TarInfo("a/.gitignore")
        ignore.size = 2
        tar.addfile(ignore, io.BytesIO(b"*\n"))
    with suppress(NoFiles):
        async with compare(None, pieces(into.getvalue())) as found:
            await found.summary()
    assert list(target.iterdir()) == []


async def test_a_long_patch_is_shown_in_part_and_given_whole() -> None:
    after: Tree = {b"a": ("file", b"a line of text\n" * 300_000)}
    found, patch = await compared({}, after)
    assert found.truncated
    assert len(found.patch) <= 2 * 1024 * 1024 < len(patch)
    assert apply({}, patch) == after
