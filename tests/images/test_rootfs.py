"""Packages opened and put together, the friendly and the hostile ones."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.images.packing import ARCHITECTURE, Entry, TestPackage, folder, link, pack_ar, pack_tar

from holdfast.images.debian import deb
from holdfast.images.debian.bootstrap import replacements
from holdfast.images.debian.deb import Deb
from holdfast.images.debian.index import Package, PackageIndex
from holdfast.images.debian.rootfs import RootFilesystem, in_order, in_pieces, is_excluded
from holdfast.images.errors import BadPackage


def read(package: TestPackage) -> Package:
    index = PackageIndex(ARCHITECTURE)
    index.add(f"{package.control}Filename: pool/a.deb\nSize: 1\nSHA256: {'0' * 64}\n", "http://mirror.invalid")
    found = index.get(package.name)
    assert found is not None
    return found


def assemble(folder: Path, *packages: TestPackage) -> tarfile.TarFile:
    """The whole archive of these packages."""
    known = [read(package) for package in packages]
    files = {}
    for package in packages:
        files[package.name] = folder / f"{package.name}.deb"
        files[package.name].write_bytes(package.pack())
    replaces = replacements(known)
    root = RootFilesystem(ARCHITECTURE)
    data = b"".join(root.begin())
    for each in in_order(known, replaces):
        data += b"".join(root.add(files[each.name], each, replaces))
    data += b"".join(root.finish({"etc/extra": (0o600, b"extra")}))
    return tarfile.open(fileobj=io.BytesIO(data))


def text(tar: tarfile.TarFile, name: str) -> str:
    content = tar.extractfile(name)
    assert content is not None, name
    return content.read().decode()


@pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst", ""])
def test_packages_are_read_however_they_are_packed(tmp_path: Path, suffix: str) -> None:
    package = TestPackage("a", [folder("./usr"), Entry("./usr/a", b"x" * 100_000)], suffix=suffix)
    tar = assemble(tmp_path, package)
    assert text(tar, "usr/a") == "x" * 100_000


def test_the_database_is_what_dpkg_would_have_written(tmp_path: Path) -> None:
    package = TestPackage(
        "liba",
        [folder("./etc"), Entry("./etc/a.conf", b"setting\n"), folder("./bin"), Entry("./bin/a", b"#!", mode=0o4755)],
        fields={"Multi-Arch": "same", "Description": "a thing\n more of it"},
        scripts={
            "postinst": b"#!/bin/sh\n",
            "conffiles": b"/etc/a.conf\n",
            "triggers": b"interest-noawait /usr/share/a # why\ninterest update-a\ninterest ../evil\n",
        },
    )
    tar = assemble(tmp_path, package)
    status = text(tar, "var/lib/dpkg/status")
    assert status.startswith("Package: liba\nStatus: install ok unpacked\nVersion: 1.0\n")
    digest = hashlib.md5(b"setting\n", usedforsecurity=False).hexdigest()
    assert status.endswith(f"Conffiles:\n /etc/a.conf {digest}\n")
    assert text(tar, "var/lib/dpkg/info/liba:amd64.list") == "/.\n/etc\n/etc/a.conf\n/bin\n/bin/a\n"
    assert tar.getmember("var/lib/dpkg/info/liba:amd64.postinst").mode == 0o755
    assert text(tar, "var/lib/dpkg/triggers/File") == "/usr/share/a liba:amd64/noawait\n"
    assert text(tar, "var/lib/dpkg/triggers/update-a") == "liba:amd64\n"
    assert text(tar, "etc/extra") == "extra"
    assert not [name for name in tar.getnames() if "evil" in name]


def test_bin_and_lib_are_one_with_those_of_usr(tmp_path: Path) -> None:
    package = TestPackage(
        "a",
        [
            folder("./bin"), Entry("./bin/sh", b"1"), folder("./lib64"), link("./lib64/ld.so", "/lib/ld.so"),
            folder("./lib"), Entry("./lib/ld.so", b"2"), link("./sbin", "usr/sbin"),
        ],
    )  # fmt: skip
    tar = assemble(tmp_path, package)
    assert {name: tar.getmember(name).linkname for name in ("bin", "sbin", "lib", "lib64")} == {
        "bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"
    }  # fmt: skip
    assert {"usr/bin/sh", "usr/lib64/ld.so", "usr/lib/ld.so"} <= set(tar.getnames())
    assert tar.getnames().count("sbin") == 1


def test_files_behind_links_lie_where_the_links_lead_and_never_outside(tmp_path: Path) -> None:
    first = TestPackage("a", [folder("./usr/share/real"), link("./usr/share/alias", "../../../../../usr/share/real")])
    second = TestPackage("b", [folder("./usr/share/alias"), Entry("./usr/share/alias/x", b"x")])
    absolute = TestPackage("c", [link("./usr/out", "/etc"), Entry("./usr/out/c.conf", b"c")])
    names = assemble(tmp_path, first, second, absolute).getnames()
    assert {"usr/share/real/x", "etc/c.conf"} <= set(names)
    assert not [name for name in names if ".." in name.split("/") or name.startswith("/")]


def test_manuals_are_left_out_and_licences_are_not() -> None:
    assert is_excluded("usr/share/doc/a/README", is_folder=False)
    assert is_excluded("usr/share/locale/de/LC_MESSAGES/a.mo", is_folder=False)
    assert is_excluded("usr/share/man/man1/a.1.gz", is_folder=False)
    assert not is_excluded("usr/share/man/man1", is_folder=True)
    assert not is_excluded("usr/share/doc/a/copyright", is_folder=False)
    assert not is_excluded("usr/lib/a", is_folder=False)


def test_a_package_takes_over_files_where_it_says_so(tmp_path: Path) -> None:
    new = TestPackage("a", [Entry("./usr/tool", b"new")], fields={"Replaces": "b (<< 2)"})
    old = TestPackage("b", [Entry("./usr/tool", b"old")])
    assert text(assemble(tmp_path, new, old), "usr/tool") == "new"
    with pytest.raises(BadPackage, match="belongs to package a already"):
        assemble(tmp_path, TestPackage("a", new.entries), old)


def test_hard_links_within_a_package_are_kept(tmp_path: Path) -> None:
    link = Entry("./bin/y", type=tarfile.LNKTYPE, mode=0o600, link="./bin/x")
    package = TestPackage("a", [Entry("./bin/x", b"x", mode=0o755), link])
    member = assemble(tmp_path, package).getmember("usr/bin/y")
    assert (member.islnk(), member.linkname) == (True, "usr/bin/x")
    assert member.mode == 0o755, "as the file: Docker gives it the mode of the link"


HOSTILE: list[tuple[str, Sequence[Entry], str]] = [
    ("up and away", [Entry("./../../etc/cron.d/x", b"x")], "leads out"),
    ("an absolute path", [Entry("/etc/passwd", b"x")], "leads out"),
    ("dots in the middle", [Entry("./usr/../../x", b"x")], "leads out"),
    ("a device", [Entry("./dev/sda", type=tarfile.BLKTYPE)], "a device or a pipe"),
    ("a pipe", [Entry("./run/pipe", type=tarfile.FIFOTYPE)], "a device or a pipe"),
    (
        "a hard link to nowhere",
        [Entry("./x", type=tarfile.LNKTYPE, link="etc/shadow")],
        "hard link to what is not its own",
    ),
    ("a hard link out", [Entry("./x", type=tarfile.LNKTYPE, link="../../etc/shadow")], "leads out"),
    ("a file for a folder", [Entry("./a", b""), Entry("./a/b", b"")], "which is a file"),
    ("a folder for a file", [Entry("./a", b""), folder("./a")], "and a file of"),
    ("links in a circle", [link("./a", "b"), link("./b", "a"), Entry("./a/x", b"")], "circles"),
    ("a link to nothing", [link("./a", "")], "makes no sense"),
]


@pytest.mark.parametrize(("entries", "message"), [pytest.param(*rest, id=name) for name, *rest in HOSTILE])
def test_hostile_packages_are_refused(tmp_path: Path, entries: Sequence[Entry], message: str) -> None:
    with pytest.raises(BadPackage, match=message):
        assemble(tmp_path, TestPackage("evil", entries))


def hard_link_to_another(folder: Path) -> None:
    mine = TestPackage("b", [Entry("./x", type=tarfile.LNKTYPE, link="secret")])
    assemble(folder, TestPackage("a", [Entry("./secret", b"s")]), mine)


def test_a_hard_link_to_a_file_of_another_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadPackage, match="not its own"):
        hard_link_to_another(tmp_path)


GOOD = TestPackage("a", [Entry("./usr/a", b"x" * 10_000)]).pack()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"PK\x03\x04", id="something else"),
        pytest.param(GOOD[:200], id="the beginning"),
        pytest.param(GOOD[:-300], id="without its end"),
        pytest.param(GOOD.replace(b"debian-binary", b"debian-bizarre"[:13]), id="without its format"),
        pytest.param(
            pack_ar({"debian-binary": b"2.0\n", "control.tar.lzma": b"", "data.tar": b""}), id="unknown packing"
        ),
        pytest.param(
            pack_ar({"debian-binary": b"2.0\n", "control.tar": pack_tar([]), "data.tar": b""}), id="no control"
        ),
        pytest.param(pack_ar({"debian-binary": b"2.0\n", "control.tar.xz": b"junk", "data.tar": b""}), id="junk"),
        pytest.param(b"!<arch>\n" + b"x" * 48 + b"-9        `\n", id="a size below zero"),
    ],
)
def test_broken_packages_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.deb"
    path.write_bytes(data)
    root = RootFilesystem(ARCHITECTURE)
    with pytest.raises(BadPackage):
        b"".join(root.add(path, read(TestPackage("a"))))


def test_a_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deb, "_LARGEST_DATA", 1 << 20)
    path = tmp_path / "a.deb"
    path.write_bytes(TestPackage("a", [Entry("./zeros", bytes(8 << 20))]).pack())
    assert path.stat().st_size < 1 << 16
    with Deb(path, "a") as package, pytest.raises(BadPackage, match="larger than any package"):
        list(package.entries())


def test_a_flood_of_files_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deb, "_MOST_ENTRIES", 100)
    with pytest.raises(BadPackage, match="more than 100 files"):
        assemble(tmp_path, TestPackage("a", [folder(f"./d{number}") for number in range(200)]))


def test_a_file_of_another_package_under_this_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.deb"
    path.write_bytes(TestPackage("other").pack())
    with pytest.raises(BadPackage, match="is one of other"):
        b"".join(RootFilesystem(ARCHITECTURE).add(path, read(TestPackage("a"))))


def test_a_control_file_cannot_write_a_second_package(tmp_path: Path) -> None:
    path = tmp_path / "a.deb"
    path.write_bytes(TestPackage("a", fields={"Description": "x\n \t\nPackage: dpkg\nVersion: 99"}).pack())
    root = RootFilesystem(ARCHITECTURE)
    data = b"".join([*root.begin(), *root.add(path, read(TestPackage("a"))), *root.finish({})])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert text(tar, "var/lib/dpkg/status").endswith("Description: x\n")


def test_pieces_are_the_same_bytes() -> None:
    parts = [b"a" * 10, b"", b"b" * 25, b"c"]
    assert list(in_pieces(parts, 20)) == [b"a" * 10 + b"b" * 25, b"c"]
