"""Trees of files, into a box and out of it, with untrusted archives."""

# Small files of their own, read to check them.
# ruff: noqa: ASYNC240

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import BoxError, FileMissing, FileProblem, HostileArchive
from holdfast.testing.provider_suite.base import MEGABYTE, Memory, Suite, sh, text


async def _archive(*members: tarfile.TarInfo, piece: int = 1000) -> AsyncIterator[bytes]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as writing:
        for member in members:
            writing.addfile(member, io.BytesIO(b"x" * member.size) if member.isreg() else None)
    data = out.getvalue()
    for start in range(0, len(data), piece):
        yield data[start : start + piece]


def _file(name: str, size: int = 3) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member


class Trees(Suite):
    async def test_a_folder_goes_in_and_comes_out_as_it_was(self, box: Box, tmp_path: Path) -> None:
        source = tmp_path / "source"
        (source / "a" / "empty").mkdir(parents=True)
        (source / "a" / "run").write_text("#!/bin/sh\necho runs\n")
        (source / "a" / "run").chmod(0o755)
        (source / "a" / "link").symlink_to("run")
        (source / "grüße 🌊").write_bytes(bytes(range(256)))
        await box.files.upload(source, "in/there")
        assert await text(box, "in/there/a/run && in/there/a/link") == "runs\nruns"
        await box.files.download("in/there", tmp_path / "again")
        assert (tmp_path / "again" / "a" / "link").readlink() == Path("run")
        assert (tmp_path / "again" / "a" / "run").stat().st_mode & 0o777 == 0o755
        assert (tmp_path / "again" / "a" / "empty").is_dir()
        assert (tmp_path / "again" / "grüße 🌊").read_bytes() == bytes(range(256))
        assert sorted(each.name for each in tmp_path.iterdir()) == ["again", "source"]

    async def test_a_file_goes_in_and_comes_out_under_its_new_name(self, box: Box, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"content")
        (tmp_path / "source").chmod(0o750)
        await box.files.upload(tmp_path / "source", "folder/file")
        assert await box.files.read("folder/file") == b"content"
        assert (await box.files.stat("folder/file")).mode == 0o750
        await box.files.download("folder/file", tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == b"content"

    async def test_downloading_never_replaces_and_says_what_is_missing(self, box: Box, tmp_path: Path) -> None:
        await box.files.write("folder/file", b"x")
        (tmp_path / "there").write_text("kept")
        with pytest.raises((FileProblem, FileExistsError)):
            await box.files.download("folder", tmp_path / "there")
        assert (tmp_path / "there").read_text() == "kept"
        with pytest.raises(FileMissing):
            await box.files.download("nothing", tmp_path / "new")
        assert sorted(each.name for each in tmp_path.iterdir()) == ["there"]

    async def test_a_tree_that_leads_out_of_itself_is_not_downloaded(self, box: Box, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("untouched")
        for script in (
            "ln -s /etc evil/link",
            'ln -s "$1" evil/link',
            "ln -s ../secret evil/link",
            "mkdir evil/d; ln -s ../../secret evil/d/link",
            "mkdir evil/d; ln -s d/../../secret evil/link",
        ):
            assert (await sh(box, f"rm -rf evil; mkdir evil; {script}", str(tmp_path))).ok
            with pytest.raises(HostileArchive):
                await box.files.download("evil", tmp_path / "new")
            assert not (tmp_path / "new").exists()
        assert (tmp_path / "secret").read_text() == "untouched"

    async def test_an_archive_that_leads_out_of_its_folder_is_refused(self, box: Box) -> None:
        await sh(box, "mkdir beside; printf untouched > secret")
        outside = (
            [_file("../escaped")],
            [_file("a/../../escaped")],
            [_file("/tmp/holdfast-suite-escaped")],
            [_link("out", "../beside"), _file("out/escaped")],
            [_link("up", ".."), _link("more", "up/beside"), _file("more/escaped")],
            [_link("hard", "../secret", tarfile.LNKTYPE)],
            [_link("pipe", "", tarfile.FIFOTYPE)],
            [_link("device", "", tarfile.CHRTYPE)],
        )
        for members in outside:
            with pytest.raises(HostileArchive):
                await box.files.upload_tar(_archive(*members), "target")
            await sh(box, "rm -rf target")
        await sh(box, "mkdir target; ln -s ../beside target/out")
        with pytest.raises(HostileArchive):
            await box.files.upload_tar(_archive(_file("out/escaped")), "target")
        assert await box.files.list("beside") == []
        assert not await box.files.exists("escaped")
        assert not await box.files.exists("/tmp/holdfast-suite-escaped")
        assert await box.files.read("secret") == b"untouched"

    async def test_what_is_no_archive_is_refused(self, box: Box) -> None:
        async def garbage(data: bytes) -> AsyncIterator[bytes]:
            yield data

        whole = b"".join([piece async for piece in _archive(_file("file", 5000))])
        for wrong in (b"", b"garbage", b"garbage" * 1000, whole[:700], whole[:3000]):
            with pytest.raises(BoxError):
                await box.files.upload_tar(garbage(wrong), "target")
        assert (await box.exec(["true"])).ok

    async def test_an_archive_flows_in_and_out_in_any_pieces(self, box: Box) -> None:
        for piece in (1, 511, 100_000):
            await box.files.upload_tar(_archive(_file("a/one"), _file("two", 700), piece=piece), f"in{piece}")
            assert await box.files.read(f"in{piece}/two") == b"x" * 700
        data = b"".join([each async for each in box.files.download_tar("in1")])
        with tarfile.open(fileobj=io.BytesIO(data)) as reading:
            names = {each.name.removeprefix("./") for each in reading if each.isreg()}
        assert names == {"a/one", "two"}
        with pytest.raises(FileMissing):
            await anext(box.files.download_tar("nothing"))

    async def test_a_large_tree_flows_in_and_out_and_memory_stays_flat(self, box: Box) -> None:
        await sh(box, "mkdir large && for n in 1 2 3 4; do head -c 8388608 /dev/zero > large/$n; done")
        memory = Memory()

        async def looked_at() -> AsyncIterator[bytes]:
            async for piece in box.files.download_tar("large"):
                memory.look()
                yield piece

        await box.files.upload_tar(looked_at(), "again")
        assert [each.size for each in await box.files.list("again")] == [8 * MEGABYTE] * 4
        assert memory.grown < 24 * MEGABYTE

    async def test_a_tree_may_be_left_early(self, box: Box) -> None:
        await sh(box, "mkdir large && head -c 33554432 /dev/zero > large/file")
        stream = box.files.download_tar("large")
        assert await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined] # every stream is a generator, or as good as one
        assert (await box.exec(["true"])).ok
