"""Files of mirrors: checked, kept, gone on with, and asked for again where a mirror stumbles."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from tests.images.conftest import Mirror

from holdfast.images.debian.download import Downloads, Wanted
from holdfast.images.errors import MirrorFailed

DATA = os.urandom(300_000)


@pytest.fixture
async def downloads(tmp_path: Path) -> AsyncIterator[Downloads]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield Downloads(client, tmp_path / "cache")


def wanted(mirror: Mirror, data: bytes = DATA, name: str = "a.deb") -> Wanted:
    (mirror.root / name).write_bytes(data)
    return Wanted(f"{mirror.url}/{name}", len(data), hashlib.sha256(data).hexdigest())


def part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


@pytest.mark.anyio
async def test_a_file_comes_once(mirror: Mirror, downloads: Downloads) -> None:
    moved: list[int] = []
    for _ in range(2):
        path = await downloads.fetch(wanted(mirror), moved.append)
        assert path.read_bytes() == DATA
    assert len(mirror.asked) == 1
    assert sum(moved) == 2 * len(DATA)


@pytest.mark.anyio
async def test_a_file_that_came_halfway_goes_on_where_it_stopped(mirror: Mirror, downloads: Downloads) -> None:
    asked = wanted(mirror)
    broken = [True]

    def break_off(answer: BaseHTTPRequestHandler) -> bool:
        if not broken.pop():
            return False
        answer.send_response(200)
        answer.send_header("Content-Length", str(len(DATA)))
        answer.end_headers()
        answer.wfile.write(DATA[:100_000])
        answer.close_connection = True
        return True

    broken.insert(0, False)
    mirror.answer = break_off
    moved: list[int] = []
    path = await downloads.fetch(asked, moved.append)
    assert path.read_bytes() == DATA
    assert [given for _, given in mirror.asked] == [None, "bytes=100000-"]
    assert sum(moved) == len(DATA)
    assert not part_of(path).exists()


@pytest.mark.anyio
async def test_what_was_kept_of_another_file_is_found_out(mirror: Mirror, downloads: Downloads) -> None:
    asked = wanted(mirror)
    path = await downloads.fetch(asked)
    path.unlink()
    part_of(path).write_bytes(b"x" * 1000)
    assert (await downloads.fetch(asked)).read_bytes() == DATA


@pytest.mark.anyio
async def test_a_kept_file_that_was_damaged_comes_again(mirror: Mirror, downloads: Downloads) -> None:
    path = await downloads.fetch(wanted(mirror))
    path.write_bytes(DATA[:-1] + b"?")
    assert (await downloads.fetch(wanted(mirror))).read_bytes() == DATA


@pytest.mark.anyio
async def test_a_mirror_that_lies_is_refused(mirror: Mirror, downloads: Downloads, tmp_path: Path) -> None:
    asked = wanted(mirror)
    (mirror.root / "a.deb").write_bytes(b"!" + DATA[1:])
    with pytest.raises(MirrorFailed, match="checksum"):
        await downloads.fetch(asked)
    (mirror.root / "a.deb").write_bytes(DATA + b"more")
    with pytest.raises(MirrorFailed, match="larger than"):
        await downloads.fetch(asked)
    assert not [path for path in tmp_path.glob("cache/*/*") if path.suffix != ".part"]


@pytest.mark.anyio
async def test_a_mirror_that_stumbles_is_asked_again_but_not_for_ever(mirror: Mirror, downloads: Downloads) -> None:
    asked = wanted(mirror)
    answers = [200, 503, 429]

    def stumble(answer: BaseHTTPRequestHandler) -> bool:
        status = answers.pop() if answers else 500
        if status == 200:
            return False
        answer.send_error(status)
        return True

    mirror.answer = stumble
    assert (await downloads.fetch(asked)).read_bytes() == DATA
    with pytest.raises(MirrorFailed, match="answers 500"):
        await downloads.fetch(wanted(mirror, b"other", "b.deb"))
    assert len(mirror.asked) == 3 + 4


@pytest.mark.anyio
async def test_what_is_not_there_is_said_at_once(mirror: Mirror, downloads: Downloads) -> None:
    with pytest.raises(MirrorFailed, match="is not there: 404"):
        await downloads.fetch(Wanted(f"{mirror.url}/missing.deb", 1, "0" * 64))
    assert await downloads.read(f"{mirror.url}/missing", 100) is None
    assert len(mirror.asked) == 2


@pytest.mark.anyio
async def test_a_small_file_that_is_not_small_is_refused(mirror: Mirror, downloads: Downloads) -> None:
    wanted(mirror, b"x" * 5000, "InRelease")
    with pytest.raises(MirrorFailed, match="larger than 4096"):
        await downloads.read(f"{mirror.url}/InRelease", 4096)


@pytest.mark.anyio
async def test_two_that_want_the_same_file_both_get_it(mirror: Mirror, downloads: Downloads) -> None:
    asked = wanted(mirror)
    first, second = await downloads.fetch_all([asked, asked])
    assert first == second
    assert first.read_bytes() == DATA


@pytest.mark.anyio
async def test_one_that_fails_ends_them_all(mirror: Mirror, downloads: Downloads) -> None:
    with pytest.raises(MirrorFailed, match="not there"):
        await downloads.fetch_all([wanted(mirror), Wanted(f"{mirror.url}/missing.deb", 1, "0" * 64)])


@pytest.mark.anyio
async def test_a_folder_is_a_mirror_too(downloads: Downloads, tmp_path: Path) -> None:
    (tmp_path / "a b.deb").write_bytes(DATA)
    asked = Wanted(f"file://{tmp_path}/a%20b.deb", len(DATA), hashlib.sha256(DATA).hexdigest())
    moved: list[int] = []
    assert (await downloads.fetch(asked, moved.append)).read_bytes() == DATA
    assert sum(moved) == len(DATA)
    assert await downloads.read(f"file://{tmp_path}/missing", 10) is None


@pytest.mark.anyio
async def test_what_nobody_used_for_months_is_forgotten(mirror: Mirror, downloads: Downloads) -> None:
    old, new = await downloads.fetch_all([wanted(mirror), wanted(mirror, b"new", "b.deb")])
    os.utime(old, (1, 1))
    downloads.forget_old()
    assert (old.exists(), new.exists()) == (False, True)
