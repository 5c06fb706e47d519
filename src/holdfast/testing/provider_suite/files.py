"""Files of a box: single files, folders and searches."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from time import time

import pytest

from holdfast.api.box.box import Box
from holdfast.api.box.files import MAX_READ, FileKind
from holdfast.api.errors.boxes import FileDenied, FileMissing, FileProblem, InvalidSpec, OutputTooLarge, WrongFileKind
from holdfast.testing.provider_suite.base import (
    MEGABYTE,
    Memory,
    Suite,
    cancelled,
    eventually,
    pieces,
    sh,
    streamed,
    text,
)
from holdfast.time_limit import time_limit

ODD_NAMES = ("two words", "two\nlines", "grüße 🌊", "-rf", "*", "'\"", "n" * 255, os.fsdecode(b"not \xff text"))


class BoxFiles(Suite):
    async def test_a_file_is_read_as_it_was_written(self, box: Box) -> None:
        every = bytes(range(256)) * 10
        for data in (b"", b"x", every):
            await box.files.write("file", data)
            assert await box.files.read("file") == data
        assert (await box.exec(["cat", "file"])).stdout == every
        assert await box.files.read("file", offset=250, length=10) == every[250:260]
        assert await box.files.read("file", offset=2550) == every[2550:]
        assert await box.files.read("file", offset=9999) == b""
        assert await box.files.read("file", length=0) == b""

    async def test_what_the_box_writes_is_read_and_what_is_written_the_box_reads(self, box: Box) -> None:
        await sh(box, "printf inside > inside")
        assert await box.files.read("inside") == b"inside"
        await box.files.write("outside", b"outside")
        assert await text(box, "cat outside") == "outside"

    async def test_writing_makes_the_folders_on_the_way(self, box: Box) -> None:
        await box.files.write("a/b/c/file", b"deep")
        assert await text(box, "cat a/b/c/file") == "deep"

    async def test_a_file_has_the_mode_that_it_was_given(self, box: Box) -> None:
        await box.files.write("script", b"#!/bin/sh\necho runs\n", mode=0o755)
        assert await text(box, "./script") == "runs"
        await box.files.write("plain", b"")
        assert (await box.files.stat("plain")).mode == 0o644
        await box.files.chmod("plain", 0o600)
        assert (await box.files.stat("plain")).mode == 0o600
        await box.files.chmod("script", 0o644)
        assert not (await sh(box, "./script")).ok
        with pytest.raises(FileMissing):
            await box.files.chmod("nothing", 0o644)

    async def test_names_of_every_sort_work(self, box: Box) -> None:
        for name in ODD_NAMES:
            await box.files.write(f"odd/{name}", os.fsencode(name))
            assert await box.files.read(f"odd/{name}") == os.fsencode(name)
        assert [each.name for each in await box.files.list("odd")] == sorted(ODD_NAMES)
        assert {each.name for each in await box.files.find("odd")} == set(ODD_NAMES)
        done = await sh(box, 'cd odd && for each in *; do printf "%s\\0" "$each"; done')
        assert set(done.stdout.split(b"\0")[:-1]) == {os.fsencode(name) for name in ODD_NAMES}
        for name in ODD_NAMES:
            await box.files.move(f"odd/{name}", "moved")
            await box.files.move("moved", f"odd/{name}")
            assert (await box.files.stat(f"odd/{name}")).kind is FileKind.FILE
            await box.files.delete(f"odd/{name}")
        assert await box.files.list("odd") == []

    async def test_names_that_make_no_sense_are_refused(self, box: Box) -> None:
        for wrong in ("a\0b", "", "n" * 300, "d/" * 3000 + "f"):
            with pytest.raises((FileProblem, InvalidSpec)):
                await box.files.write(wrong, b"x")
            with pytest.raises((FileProblem, InvalidSpec)):
                await box.files.read(wrong)

    async def test_what_is_not_there_or_of_another_kind_says_so(self, box: Box) -> None:
        files = box.files
        await files.write("file", b"x")
        await files.mkdir("folder")
        for missing in ("nothing", "nothing/below", "folder/nothing"):
            with pytest.raises(FileMissing):
                await files.read(missing)
            with pytest.raises(FileMissing):
                await anext(files.stream(missing))
            with pytest.raises(FileMissing):
                await files.stat(missing)
            with pytest.raises(FileMissing):
                await files.list(missing)
            with pytest.raises(FileMissing):
                await files.delete(missing)
            with pytest.raises(FileMissing):
                await files.move(missing, "elsewhere")
            with pytest.raises(FileMissing):
                await files.find(missing)
            with pytest.raises(FileMissing):
                await files.search("x", missing)
            with pytest.raises(FileMissing):
                await files.replace("x", "y", [missing])
            assert not await files.exists(missing)
        with pytest.raises(WrongFileKind):
            await files.read("folder")
        with pytest.raises(WrongFileKind):
            await files.write("folder", b"x")
        with pytest.raises(WrongFileKind):
            await files.list("file")
        with pytest.raises(WrongFileKind):
            await files.read("file/below")
        with pytest.raises(FileProblem):
            await files.write("file/below", b"x")
        with pytest.raises(FileProblem):
            await files.mkdir("file")
        assert not await files.exists("file/below")
        assert await files.exists("file")
        assert await files.exists("folder")

    async def test_what_the_user_of_the_box_may_not_read_is_denied(self, box: Box) -> None:
        await box.files.write("shut", b"x", mode=0)
        if await text(box, "id -u") == "0":  # who may read everything
            assert await box.files.read("shut") == b"x"
            return
        with pytest.raises(FileDenied):
            await box.files.read("shut")
        await sh(box, "mkdir closed && chmod 500 closed")
        with pytest.raises(FileDenied):
            await box.files.write("closed/file", b"x")

    async def test_a_pipe_or_a_device_is_no_file_and_holds_nobody_up(self, box: Box) -> None:
        await sh(box, "mkfifo pipe")
        assert (await box.files.stat("pipe")).kind is FileKind.OTHER
        with pytest.raises(FileProblem):
            await box.files.read("pipe")
        await box.files.delete("pipe")

    async def test_a_folder_is_listed_by_name(self, box: Box) -> None:
        before = int(time() * 1000) - 5000
        await sh(box, "mkdir -p f/folder f/empty && printf 123 > f/file && chmod 640 f/file && ln -s file f/link")
        await sh(box, "printf 1 > f/.hidden; ln -s nowhere f/dangling")
        listed = {each.name: each for each in await box.files.list("f")}
        assert list(listed) == [".hidden", "dangling", "empty", "file", "folder", "link"]
        file = listed["file"]
        assert (file.kind, file.size, file.mode, file.target) == (FileKind.FILE, 3, 0o640, None)
        assert before <= file.modified_at <= int(time() * 1000) + 5000
        assert (listed["link"].kind, listed["link"].target) == (FileKind.LINK, "file")
        assert (listed["dangling"].kind, listed["dangling"].target) == (FileKind.LINK, "nowhere")
        assert listed["folder"].kind is FileKind.FOLDER
        assert await box.files.list("f/empty") == []
        for each in listed.values():
            assert await box.files.stat(each.path) == each
        assert await box.files.list("f/") == list(listed.values())

    async def test_the_workdir_is_listed_by_default(self, box: Box) -> None:
        await box.files.write("file", b"")
        listed = await box.files.list()
        assert "file" in [each.name for each in listed]
        for each in listed:
            assert await box.files.stat(each.path) == each

    async def test_a_link_is_described_but_not_followed_at_the_end(self, box: Box) -> None:
        await sh(box, "mkdir folder && printf 1 > folder/file && ln -s folder link")
        assert (await box.files.stat("link")).kind is FileKind.LINK
        assert (await box.files.stat("link/file")).kind is FileKind.FILE
        assert await box.files.read("link/file") == b"1"
        await box.files.delete("link")
        assert await box.files.read("folder/file") == b"1"

    async def test_making_a_folder_twice_is_fine(self, box: Box) -> None:
        await box.files.mkdir("a/b/c")
        await box.files.mkdir("a/b/c")
        assert (await box.files.stat("a/b/c")).kind is FileKind.FOLDER

    async def test_moving_replaces_files_and_never_folders(self, box: Box) -> None:
        files = box.files
        await files.write("one", b"one")
        await files.write("two", b"two")
        await files.move("one", "two")
        assert await files.read("two") == b"two"[:0] + b"one"
        assert not await files.exists("one")
        await files.write("folder/file", b"x")
        await files.move("folder", "other")
        assert await files.read("other/file") == b"x"
        await files.mkdir("empty")
        for source in ("two", "other"):
            with pytest.raises(FileProblem):
                await files.move(source, "empty")
        assert await files.list("empty") == []
        with pytest.raises(FileProblem):
            await files.move("other", "two")
        assert await files.read("two") == b"one"

    async def test_deleting_takes_what_was_named_and_nothing_else(self, box: Box) -> None:
        files = box.files
        await sh(box, "mkdir -p tree/a/b kept && printf 1 > tree/a/b/file && printf 1 > kept/file")
        await sh(box, 'ln -s ../kept tree/link; ln -s "$(pwd)/kept" tree/a/link; mkdir tree/shut; chmod 0 tree/shut')
        with pytest.raises(FileProblem):
            await files.delete("tree")
        assert await files.exists("tree/a/b/file")
        await files.delete("tree", recursive=True)
        assert not await files.exists("tree")
        assert await files.read("kept/file") == b"1"
        await sh(box, "ln -s kept link")
        await files.delete("link", recursive=True)
        assert await files.read("kept/file") == b"1"
        await files.mkdir("empty")
        await files.delete("empty")
        await files.delete("kept/file", recursive=True)
        assert await files.list("kept") == []

    async def test_a_file_is_replaced_whole_or_not_at_all(self, box: Box) -> None:
        await box.files.write("file", b"old")
        begun, go = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"new " * 1000
            begun.set()
            await go.wait()
            yield b"end"

        writing = asyncio.create_task(box.files.write("file", slowly()))
        async with time_limit(20):
            await begun.wait()
        assert await box.files.read("file") == b"old"
        assert await text(box, "cat file") == "old"
        go.set()
        await writing
        assert await box.files.read("file") == b"new " * 1000 + b"end"

    async def test_a_write_that_fails_or_is_cancelled_leaves_nothing(self, box: Box) -> None:
        await box.files.write("f/file", b"old")
        begun = asyncio.Event()

        class Broken(Exception):
            pass

        async def fails() -> AsyncIterator[bytes]:
            yield b"new"
            raise Broken

        async def hangs() -> AsyncIterator[bytes]:
            yield b"new"
            begun.set()
            await asyncio.Event().wait()

        with pytest.raises(Broken):
            await box.files.write("f/file", fails())
        writing = asyncio.create_task(box.files.write("f/file", hangs()))
        async with time_limit(20):
            await begun.wait()
        await cancelled(writing)
        assert await box.files.read("f/file") == b"old"

        async def cleared() -> bool:
            return [each.name for each in await box.files.list("f")] == ["file"]

        await eventually(cleared, "what was written halfway is still there")

    async def test_a_large_file_flows_in_and_out_and_memory_stays_flat(self, box: Box) -> None:
        memory = Memory()
        digest = hashlib.sha256()
        for piece in pieces(256, MEGABYTE // 4):
            digest.update(piece)
        await box.files.write("large", streamed(256, MEGABYTE // 4))
        assert (await text(box, "sha256sum large")).split()[0] == digest.hexdigest()
        read = hashlib.sha256()
        async for piece in box.files.stream("large"):
            read.update(piece)
            memory.look()
        assert read.hexdigest() == digest.hexdigest()
        assert memory.grown < 24 * MEGABYTE
        tail = b"".join([piece async for piece in box.files.stream("large", offset=64 * MEGABYTE - 100)])
        assert len(tail) == 100
        assert tail == (255).to_bytes(8, "big")[4:] + (255).to_bytes(8, "big") * 12

    async def test_more_than_can_be_read_at_once_is_refused(self, box: Box) -> None:
        await sh(box, 'dd if=/dev/zero of=huge bs=1 count=1 seek="$1"', str(MAX_READ))
        with pytest.raises(OutputTooLarge):
            await box.files.read("huge")
        assert await box.files.read("huge", offset=MAX_READ - 3) == bytes(4)
        assert await box.files.read("huge", length=5) == bytes(5)

    async def test_a_stream_may_be_left_early(self, box: Box) -> None:
        await sh(box, "head -c 8388608 /dev/zero > file")
        stream = box.files.stream("file")
        assert await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined] # every stream is a generator, or as good as one
        assert (await box.exec(["true"])).ok

    async def test_many_files_are_written_and_read_at_once(self, box: Box) -> None:
        await asyncio.gather(*(box.files.write(f"many/{number}", b"%d" % number * 1000) for number in range(40)))
        read = await asyncio.gather(*(box.files.read(f"many/{number}") for number in range(40)))
        assert read == [b"%d" % number * 1000 for number in range(40)]

    async def test_of_many_writers_one_wins_whole(self, box: Box) -> None:
        contents = [b"%d" % number * 100_000 for number in range(8)]
        await asyncio.gather(*(box.files.write("file", content) for content in contents))
        assert await box.files.read("file") in contents

    # --- many files at once ---

    async def _project(self, box: Box) -> None:
        for path, content in (
            ("haystack/src/one.py", "import os\nprint('needle')\n"),
            ("haystack/src/deep/two.py", "# a needle\r\nneedle = 2\n"),
            ("haystack/notes", "a Needle, and a needle\n"),
            ("haystack/.hidden", "nothing\n"),
        ):
            await box.files.write(path, content.encode())
        await box.files.write("haystack/binary", b"\0\1needle\n")
        await box.files.write("beside", b"needle\n")
        await sh(box, "ln -s ../../haystack haystack/src/loop; ln -s ../beside haystack/link")

    async def test_files_are_found_by_name_and_by_path(self, box: Box) -> None:
        await self._project(box)

        async def found(pattern: str, **named: int) -> list[str]:
            return [each.path.split("haystack/", 1)[1] for each in await box.files.find("haystack", pattern, **named)]

        every = [".hidden", "binary", "link", "notes", "src", "src/deep", "src/deep/two.py", "src/loop", "src/one.py"]
        assert await found("*") == every
        assert await found("*.py") == ["src/deep/two.py", "src/one.py"]
        assert await found("src/*.py") == ["src/one.py"]
        assert await found("*", limit=3) == every[:3]
        assert await found("nothing*") == []
        kinds = {each.name: each.kind for each in await box.files.find("haystack")}
        assert (kinds["src"], kinds["loop"], kinds["notes"]) == (FileKind.FOLDER, FileKind.LINK, FileKind.FILE)
        for each in await box.files.find("haystack"):
            assert await box.files.stat(each.path) == each

    async def test_lines_are_found_by_text_and_by_expression(self, box: Box) -> None:
        await self._project(box)

        async def found(pattern: str, **named: object) -> list[tuple[str, int, str]]:
            matches = await box.files.search(pattern, "haystack", **named)  # type: ignore[arg-type]
            return [(each.path.split("haystack/", 1)[1], each.line, each.text) for each in matches]

        every = [
            ("notes", 1, "a Needle, and a needle"),
            ("src/deep/two.py", 1, "# a needle"),
            ("src/deep/two.py", 2, "needle = 2"),
            ("src/one.py", 2, "print('needle')"),
        ]
        assert await found("needle") == every
        assert await found("needle", limit=2) == every[:2]
        assert await found("needle", glob="*.py") == every[1:]
        assert await found(r"^needle\s*=", regex=True) == [every[2]]
        assert await found("needle.*=") == []
        assert await found("missing") == []
        with pytest.raises((InvalidSpec, FileProblem)):
            await found("(", regex=True)

    async def test_texts_are_replaced_where_they_are(self, box: Box) -> None:
        await self._project(box)
        await box.files.chmod("haystack/notes", 0o600)
        replaced = await box.files.replace(
            "needle", "thread", ["haystack/src/one.py", "haystack/src/deep/two.py", "haystack/.hidden"]
        )
        counts = {each.path.split("haystack/", 1)[1]: each.count for each in replaced if each.count}
        assert counts == {"src/one.py": 1, "src/deep/two.py": 2}
        assert await box.files.read("haystack/src/deep/two.py") == b"# a thread\r\nthread = 2\n"
        replaced = await box.files.replace(r"[Nn]eed(le)", r"th\1", ["haystack/notes"], regex=True)
        assert [each.count for each in replaced] == [2]
        assert await box.files.read("haystack/notes") == b"a thle, and a thle\n"
        assert (await box.files.stat("haystack/notes")).mode == 0o600
        with pytest.raises((InvalidSpec, FileProblem)):
            await box.files.replace("(", "", ["haystack/notes"], regex=True)
