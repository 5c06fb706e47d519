"""Trees as tar streams: what goes in comes out, and no archive reaches beyond its target."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.guest.init import tree
from holdfast.guest.init.tree import BadArchive, HostileArchive, pack, unpack, unpack_item


def packed(path: Path) -> bytes:
    out = io.BytesIO()
    pack(str(path), out)
    return out.getvalue()


def picture(path: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything that a tree is, to compare two by."""
    seen: dict[bytes, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(os.fsencode(path)):
        for name in [b".", *folders, *files]:
            whole = folder + b"/" + name
            about = os.lstat(whole)
            content: object = None
            if stat.S_ISREG(about.st_mode):
                content = Path(os.fsdecode(whole)).read_bytes()
            if stat.S_ISLNK(about.st_mode):
                content = Path(os.fsdecode(whole)).readlink()
            mode = None if stat.S_ISLNK(about.st_mode) else stat.S_IMODE(about.st_mode)
            seen[os.path.relpath(whole, os.fsencode(path))] = (mode, int(about.st_mtime), content)
    return seen


Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, data: bytes = b"", **fields: object) -> Member:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def archive(*members: Member, form: int = tarfile.PAX_FORMAT) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as writing:
        for info, data in members:
            # TarFile.add would correct what is wrong on purpose.
            writing.addfile(info, io.BytesIO(data) if data else None)
    out.seek(0)
    return out


def link(name: str, target: str) -> Member:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> Member:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def folder(name: str, mode: int = 0o755) -> Member:
    return member(name, type=tarfile.DIRTYPE, mode=mode)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a target in it and a secret beside it, which nothing may touch."""
    (tmp_path / "secret").write_text("untouched")
    (tmp_path / "target").mkdir()
    return tmp_path


# --- round trips ---


def test_a_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "empty").mkdir(mode=0o700)
    (source / "a" / "run").write_bytes(b"#!/bin/sh\n")
    (source / "a" / "run").chmod(0o751)
    (source / "a" / "none").touch()
    (source / "a" / "link").symlink_to("run")
    (source / "a" / "b" / "up").symlink_to("../run")
    (source / "dangling").symlink_to("nowhere")
    (source / ("n" * 255)).write_bytes(b"x" * 513)
    (source / "a" / "long").symlink_to("b/" * 90 + "c")
    os.utime(source / "a" / "run", (1_000_000_000, 1_000_000_000))
    os.utime(source / "a" / "none", (-5, -5))
    os.utime(source / "a", (9_000_000_000, 9_000_000_000))

    unpack(io.BytesIO(packed(source)), str(tmp_path / "again"))

    assert picture(tmp_path / "again") == picture(source)


_names = st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name and b"\0" not in name)
_names = _names.filter(lambda name: name not in (b".", b".."))


@given(
    st.dictionaries(
        st.lists(_names, min_size=1, max_size=4).map(tuple),
        st.tuples(st.binary(max_size=2000), st.integers(0, 0o777), st.integers(-(1 << 33), 1 << 34)),
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_and_contents_come_back(
    tmp_path_factory: pytest.TempPathFactory, files: dict[tuple[bytes, ...], tuple[bytes, int, int]]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    source = root / "source"
    source.mkdir()
    for parts, (content, mode, modified) in files.items():
        place = source.joinpath(*map(os.fsdecode, parts))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        except (NotADirectoryError, FileExistsError, IsADirectoryError):
            continue  # one file's folder is another one's name
        place.chmod(mode | 0o400)
        os.utime(place, (modified, modified))

    unpack_item(io.BytesIO(packed(source)), str(root / "again"))

    assert picture(root / "again") == picture(source)


def test_a_file_alone_comes_back_as_the_target(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"content")
    unpack_item(io.BytesIO(packed(tmp_path / "one")), str(tmp_path / "two"))
    assert (tmp_path / "two").read_bytes() == b"content"
    with pytest.raises(FileExistsError):
        unpack_item(io.BytesIO(packed(tmp_path / "one")), str(tmp_path / "two"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["one", "two"]


def test_a_folder_that_nobody_may_write_to_comes_back_so(tmp_path: Path) -> None:
    (tmp_path / "source" / "inner").mkdir(parents=True)
    (tmp_path / "source" / "inner" / "file").touch()
    (tmp_path / "source" / "inner").chmod(0o555)
    (tmp_path / "source").chmod(0o555)
    unpack_item(io.BytesIO(packed(tmp_path / "source")), str(tmp_path / "again"))
    assert picture(tmp_path / "again") == picture(tmp_path / "source")
    for each in ("source", "again"):
        (tmp_path / each).chmod(0o755)
        (tmp_path / each / "inner").chmod(0o755)


def test_files_with_two_names_are_stored_once_and_stay_one_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "one").write_bytes(b"x" * 100_000)
    (source / "deep" / "two").hardlink_to(source / "one")
    data = packed(source)
    assert len(data) < 150_000
    unpack(io.BytesIO(data), str(tmp_path / "again"))
    assert (tmp_path / "again" / "one").samefile(tmp_path / "again" / "deep" / "two")


def test_sockets_and_pipes_are_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").touch()
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(source / "socket"))
    unpack(io.BytesIO(packed(source)), str(tmp_path / "again"))
    assert [each.name for each in (tmp_path / "again").iterdir()] == ["file"]


def test_packing_never_follows_a_link(root: Path) -> None:
    (root / "target" / "out").symlink_to(root)
    (root / "target" / "secret").symlink_to(root / "secret")
    assert b"untouched" not in packed(root / "target")
    assert b"untouched" not in packed(root / "target" / "secret")


class Meddling(io.BytesIO):
    """A stream that does something to the tree as soon as a text goes by."""

    def __init__(self, text: bytes, deed: Callable[[], object]) -> None:
        super().__init__()
        self._text = text
        self._deed: Callable[[], object] | None = deed

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        if self._deed is not None and self._text in data:
            self._deed()
            self._deed = None
        return super().write(data)


@pytest.mark.parametrize("size", [0, 100, 1_000_000, 3_000_000])
def test_a_file_that_changes_its_size_while_it_is_read_does_not_break_the_stream(tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(b"x" * 1_000_000)
    (source / "b").write_bytes(b"after")
    out = Meddling(b"./a\0", lambda: os.truncate(source / "a", size))
    pack(str(source), out)
    out.seek(0)
    unpack(out, str(tmp_path / "again"))
    read = (tmp_path / "again" / "a").read_bytes()
    assert len(read) == 1_000_000
    assert read.rstrip(b"\0") == b"x" * min(size, 1_000_000)
    assert (tmp_path / "again" / "b").read_bytes() == b"after"


def test_what_vanishes_or_becomes_a_link_while_it_is_packed_is_left_out(root: Path) -> None:
    source = root / "source"
    (source / "z").mkdir(parents=True)
    (source / "z" / "inner").touch()
    (source / "a").touch()
    (source / "zz").touch()
    (source / "y").mkdir()

    def meddle() -> None:
        (source / "z" / "inner").unlink()
        (source / "z").rmdir()
        (source / "z").symlink_to(root)
        (source / "y").rmdir()

    out = Meddling(b"./zz\0", meddle)
    pack(str(source), out)
    assert b"untouched" not in out.getvalue()
    out.seek(0)
    unpack(out, str(root / "again"))
    assert sorted(each.name for each in (root / "again").iterdir()) == ["a", "zz"]


def test_a_folder_deeper_than_any_path_can_name_is_packed(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("source", dir_fd=here)
    top = at = os.open("source", os.O_RDONLY, dir_fd=here)
    for _ in range(400):
        os.mkdir("a-rather-long-name", dir_fd=at)
        below = os.open("a-rather-long-name", os.O_RDONLY, dir_fd=at)
        if at != top:
            os.close(at)
        at = below
    os.close(at)
    os.close(top)
    os.close(here)
    data = packed(tmp_path / "source")
    with pytest.raises(BadArchive, match="name of"):
        unpack(io.BytesIO(data), str(tmp_path / "again"))
    unpack(io.BytesIO(data), str(tmp_path / "again"), max_name=1 << 16)


def test_what_may_not_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        packed(tmp_path / "nothing")
    if os.geteuid() != 0:  # who may read everything
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "shut").touch(mode=0)
        with pytest.raises(PermissionError, match=r"folder/shut"):
            packed(tmp_path)
        (tmp_path / "folder").chmod(0o600)
        with pytest.raises(PermissionError, match=r"folder"):
            packed(tmp_path)
        (tmp_path / "folder").chmod(0o700)


def test_streams_that_take_and_give_little_at_a_time_are_fine(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(os.urandom(300_000))

    class Slow(io.RawIOBase):
        def __init__(self, data: bytes = b"") -> None:
            self.data = data
            self.turn = 0

        def write(self, data: bytes, /) -> int:  # type: ignore[override]
            self.data += bytes(data[:7001])
            return min(len(data), 7001)

        def read(self, size: int = -1, /) -> bytes:
            self.turn += 1
            piece = self.data[: min(size, 1 + self.turn % 999)]
            self.data = self.data[len(piece) :]
            return piece

    stream = Slow()
    pack(str(tmp_path / "source"), stream)  # type: ignore[arg-type]
    unpack_item(stream, str(tmp_path / "again"))  # type: ignore[arg-type]
    assert (tmp_path / "again").read_bytes() == (tmp_path / "source").read_bytes()


def test_sizes_beyond_eight_gigabytes_are_written_as_others_read_them() -> None:
    block = tree._block(b"large", b"0", 1 << 40)
    assert tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape").size == 1 << 40


# --- other tools ---


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_other_tools_are_read(tmp_path: Path, form: int) -> None:
    deep = "folder/" * 20 + "file"
    made = archive(
        folder("folder/"),
        member(deep, b"content", mtime=1_234_567_890, mode=0o640),
        member("grüße", b"hello"),
        link("folder/link", "../grüße"),
        hard("folder/hard", deep if len(deep) < 100 else "grüße"),
        form=form,
    )
    unpack(made, str(tmp_path / "again"))
    about = (tmp_path / "again" / deep).stat()
    assert (int(about.st_mtime), stat.S_IMODE(about.st_mode)) == (1_234_567_890, 0o640)
    assert (tmp_path / "again" / "folder" / "link").read_text() == "hello"


def test_our_archives_are_read_by_other_tools(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    (source / "a" / ("n" * 200)).write_bytes(b"content")
    (source / "a" / "link").symlink_to("x" * 200)
    (source / os.fsdecode(b"not-\xff-text")).write_bytes(b"more")
    (source / "b" / "c").mkdir(parents=True)
    (source / "b" / "c" / "deep").write_bytes(b"down")
    for folder in ("b/c", "b", "a", "."):
        os.utime(source / folder, (1_000_000, 1_000_000))
    data = packed(source)
    with tarfile.open(fileobj=io.BytesIO(data)) as reading:
        names = {each.name for each in reading}
    assert names == {
        *(".", "./a", "./a/" + "n" * 200, "./a/link", "./" + os.fsdecode(b"not-\xff-text")),
        *("./b", "./b/c", "./b/c/deep"),
    }
    (tmp_path / "again").mkdir()
    subprocess.run(["tar", "-x", "-C", tmp_path / "again"], input=data, check=True, timeout=240)
    assert picture(tmp_path / "again") == picture(source)


def test_an_archive_of_gnu_tar_is_read(tmp_path: Path) -> None:
    (tmp_path / "source" / "a").mkdir(parents=True)
    (tmp_path / "source" / "a" / ("n" * 120)).write_bytes(b"content")
    done = subprocess.run(["tar", "-c", "-C", tmp_path / "source", "."], capture_output=True, check=True, timeout=240)
    unpack(io.BytesIO(done.stdout), str(tmp_path / "again"))
    assert picture(tmp_path / "again") == picture(tmp_path / "source")


def test_the_module_works_alone() -> None:
    program = (
        f"import runpy, sys; runpy.run_path({tree.__file__!r}); print(sorted(n for n in sys.modules if 'holdf' in n))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True, timeout=240)
    assert done.stdout == b"[]\n"


# --- attacks ---

ATTACKS: dict[str, tuple[Member, ...]] = {
    "an absolute name": (member("/tmp/holdfast-escaped", b"x"),),
    "an absolute folder": (folder("/tmp/holdfast-escaped"),),
    "a name that climbs": (member("../escaped", b"x"),),
    "a name that climbs later": (member("a/../../escaped", b"x"),),
    "a name that climbs and returns": (member("a/../b", b"x"),),
    "a folder that climbs": (folder("a/.."),),
    "an absolute link": (link("a", "/etc"),),
    "a link that climbs": (link("a", ".."),),
    "a link that climbs from below": (folder("d"), link("d/a", "../../secret")),
    "a link that climbs behind a name": (link("a", "b/../../secret"),),
    "a link that climbs through a link": (link("here", "."), link("a", "here/../secret")),
    "a way through a link that is fine": (folder("d"), link("a", "d"), member("a/x", b"x")),
    "a folder through a link": (folder("d"), link("a", "d"), folder("a/x")),
    "a folder that is a link": (folder("d"), link("a", "d"), folder("a")),
    "a hard link to an absolute name": (hard("a", "/etc/passwd"),),
    "a hard link that climbs": (hard("a", "../secret"),),
    "a hard link through a link": (folder("d"), member("d/x", b"x"), link("l", "d"), hard("a", "l/x")),
    "a hard link to a link": (link("l", "d"), hard("a", "l")),
    "a hard link to a folder": (folder("d"), hard("a", "d")),
    "a hard link to the folder that all goes into": (hard("a", "./"),),
    "a hard link to itself": (hard("a", "./a"),),
    "a character device": (member("a", type=tarfile.CHRTYPE, devmajor=1, devminor=3),),
    "a block device": (member("a", type=tarfile.BLKTYPE, devmajor=8, devminor=0),),
    "a pipe": (member("a", type=tarfile.FIFOTYPE),),
    "a climbing name in an extended header": (member("a", b"x", pax_headers={"path": "../escaped"}),),
    "a climbing link in an extended header": (
        member("a", type=tarfile.SYMTYPE, linkname="b", pax_headers={"linkpath": "../secret"}),
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("into", ["a folder", "an item"])
def test_an_archive_that_reaches_outside_is_refused(root: Path, attack: str, into: str) -> None:
    before = picture(root)
    if into == "a folder":
        with pytest.raises(HostileArchive):
            unpack(archive(*ATTACKS[attack]), str(root / "target"))
        for each in list((root / "target").iterdir()):
            assert each.resolve().is_relative_to(root / "target")
        beside = {name: seen for name, seen in picture(root).items() if not name.startswith((b"target", b"."))}
        assert beside == {name: seen for name, seen in before.items() if not name.startswith((b"target", b"."))}
    else:
        with pytest.raises(HostileArchive):
            unpack_item(archive(folder("./"), *ATTACKS[attack]), str(root / "item"))
        assert picture(root).keys() == before.keys()
    assert (root / "secret").read_text() == "untouched"
    assert not Path("/tmp/holdfast-escaped").exists()


def test_what_is_put_through_a_link_that_was_there_before_is_refused(root: Path) -> None:
    (root / "target" / "out").symlink_to(root)
    for attack in (member("out/secret", b"x"), folder("out"), folder("out/more"), hard("a", "out/secret")):
        with pytest.raises(HostileArchive):
            unpack(archive(attack), str(root / "target"))
    assert (root / "secret").read_text() == "untouched"
    assert sorted(each.name for each in root.iterdir()) == ["secret", "target"]


def test_a_file_replaces_a_link_and_a_shared_file_instead_of_writing_through_them(root: Path) -> None:
    (root / "target" / "soft").symlink_to(root / "secret")
    (root / "target" / "hard").hardlink_to(root / "secret")
    unpack(archive(member("soft", b"new"), member("hard", b"new")), str(root / "target"))
    assert (root / "secret").read_text() == "untouched"
    assert (root / "target" / "soft").read_bytes() == (root / "target" / "hard").read_bytes() == b"new"


def test_a_link_put_in_the_way_while_unpacking_is_not_followed(root: Path) -> None:
    """The race: the folder is checked, then somebody puts a link in its place."""
    made = archive(folder("d"), member("d/one", b"1"), member("other", b"1"), member("d/secret", b"2")).getvalue()

    class Racing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if (root / "target" / "other").exists() and not (root / "target" / "d").is_symlink():
                (root / "target" / "d").rename(root / "moved")
                (root / "target" / "d").symlink_to(root)
            return super().read(size)

    with pytest.raises(HostileArchive):
        unpack(Racing(made), str(root / "target"))
    assert (root / "secret").read_text() == "untouched"


def test_outward_links_are_made_but_not_followed_where_they_are_allowed(root: Path) -> None:
    unpack(archive(link("a", "/etc")), str(root / "target"), links="anywhere")
    assert (root / "target" / "a").readlink() == Path("/etc")
    with pytest.raises(HostileArchive):
        unpack(archive(link("up", ".."), member("up/secret", b"x")), str(root / "target"), links="anywhere")
    assert (root / "secret").read_text() == "untouched"


def test_setuid_setgid_and_sticky_bits_are_dropped(root: Path) -> None:
    unpack(archive(member("a", b"x", mode=0o6755), folder("d", 0o3777)), str(root / "target"))
    assert stat.S_IMODE((root / "target" / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "target" / "d").stat().st_mode) == 0o777


def test_the_owner_in_an_archive_means_nothing(root: Path) -> None:
    unpack(archive(member("a", b"x", uid=12345, gid=12345)), str(root / "target"))
    assert (root / "target" / "a").stat().st_uid == os.geteuid()


def test_folders_that_were_there_keep_their_mode(root: Path) -> None:
    (root / "target").chmod(0o700)
    unpack(archive(folder("./", 0o777), member("a", b"x")), str(root / "target"))
    assert stat.S_IMODE((root / "target").stat().st_mode) == 0o700


@pytest.mark.parametrize("count", [1, 100, 511, 512, 700, 1024, 1200, 1536, 2000])
def test_an_archive_cut_short_is_refused(root: Path, count: int) -> None:
    whole = archive(member("a", b"x" * 600), member("b", b"y")).getvalue()
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(whole[:count]), str(root / "target"))
    with pytest.raises(BadArchive):
        unpack_item(io.BytesIO(whole[:count]), str(root / "item"))
    assert not (root / "item").exists()


@given(st.binary(max_size=3000))
def test_garbage_is_refused_by_one_class(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(b"\1" + garbage), str(tmp_path_factory.getbasetemp() / "garbage"))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_archive_does_nothing_but_raise(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(
        archive(
            folder("d"), member("d/" + "n" * 150, b"x" * 700), link("d/l", "x" * 120), hard("h", "d/" + "n" * 150)
        ).getvalue()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 5000))
        whole[at] = data.draw(st.integers(0, 255))
        # A right checksum, so that the damage is looked at.
        start = at - at % 512
        block = whole[start : start + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            whole[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    root = tmp_path_factory.mktemp("damaged")
    with contextlib.suppress(BadArchive, OSError):
        unpack(io.BytesIO(bytes(whole)), str(root / "inner" / "target"))
    assert [each.name for each in root.iterdir()] in ([], ["inner"])
    assert [each.name for each in (root / "inner").iterdir()] == ["target"]


def test_nothing_is_no_archive(root: Path) -> None:
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(), str(root / "target"))
    with pytest.raises(BadArchive):
        unpack_item(io.BytesIO(bytes(1024)), str(root / "item"))
    unpack(io.BytesIO(bytes(10240)), str(root / "target"))


def test_more_entries_bytes_or_name_than_the_limits_are_refused(root: Path) -> None:
    three = [member(f"f{number}", b"x" * 100) for number in range(3)]
    target = str(root / "target")
    unpack(archive(*three), target, max_entries=3, max_bytes=300, max_name=2)
    with pytest.raises(BadArchive, match="2 entries"):
        unpack(archive(*three), target, max_entries=2)
    with pytest.raises(BadArchive, match="299 bytes"):
        unpack(archive(*three), target, max_bytes=299)
    with pytest.raises(BadArchive, match="name of 2 bytes"):
        unpack(archive(*three), target, max_name=1)
    with pytest.raises(BadArchive, match="255"):
        unpack(archive(member("n" * 256)), target)
    with pytest.raises(BadArchive, match="deep"):
        unpack(archive(member("d/" * 600 + "f")), target)


def header(kind: bytes, size: int, name: bytes = b"x") -> bytes:
    return tree._block(name, kind, size)


@pytest.mark.parametrize("size", [1 << 21, 1 << 40, -1])
@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_header_that_promises_gigabytes_is_refused_before_it_is_read(root: Path, kind: bytes, size: int) -> None:
    class Endless(io.BytesIO):
        given = 0

        def read(self, count: int | None = -1, /) -> bytes:
            assert count is not None
            assert count <= 1 << 20
            self.given += count
            assert self.given < 1 << 22
            return super().read(count) or bytes(count)

    with pytest.raises(BadArchive):
        unpack(Endless(header(kind, size)), str(root / "target"))


def test_headers_without_end_are_refused(root: Path) -> None:
    stream = (header(b"L", 4) + b"abc\0".ljust(512, b"\0")) * 1000
    with pytest.raises(BadArchive, match="more headers"):
        unpack(io.BytesIO(stream), str(root / "target"))


def test_padding_without_end_is_refused(root: Path) -> None:
    class Endless(io.BytesIO):
        def read(self, count: int | None = -1, /) -> bytes:
            return bytes(count or 0)

    with pytest.raises(BadArchive):
        unpack(Endless(), str(root / "target"))


def test_sparse_files_are_refused(root: Path) -> None:
    with pytest.raises(BadArchive, match="sparse"):
        unpack(archive(member("a", b"x", pax_headers={"GNU.sparse.realsize": "1099511627776"})), str(root / "target"))
    with pytest.raises(BadArchive, match="sparse"):
        unpack(io.BytesIO(header(b"S", 0) + bytes(1024)), str(root / "target"))


@pytest.mark.parametrize(
    "record",
    [
        b"5 path",
        b"99 path=x\n",
        b"0 path=x\n",
        b"-9 path=x\n",
        b"9 path=xy",
        b"\xff",
        b"1 \n",
        b"11 path=a\0b\n",
        b"12 size=1e99\n",
    ],
)
def test_an_extended_header_that_is_none_is_refused(root: Path, record: bytes) -> None:
    stream = header(b"x", len(record)) + record.ljust(512, b"\0") + header(b"0", 0) + bytes(1024)
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(stream), str(root / "target"))


def test_a_file_where_a_folder_is_stays_out(root: Path) -> None:
    with pytest.raises(OSError, match="d"):
        unpack(archive(folder("d"), member("d", b"x")), str(root / "target"))
    with pytest.raises(NotADirectoryError):
        unpack(archive(member("f", b"x"), member("f/g", b"x")), str(root / "target"))


def test_an_item_is_one_file_or_one_folder(root: Path) -> None:
    for wrong in (
        archive(member("a", b"x"), member("b", b"x")),
        archive(member("a/b", b"x")),
        archive(folder("a")),
        archive(hard("a", "b")),
        archive(link("a", "secret")),
    ):
        with pytest.raises(BadArchive):
            unpack_item(wrong, str(root / "item"))
    assert sorted(each.name for each in root.iterdir()) == ["secret", "target"]
