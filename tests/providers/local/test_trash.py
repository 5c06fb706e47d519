"""A box can leave more files than anybody should wait for: deleting it, and stopping the server, take seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.ids import new_id
from holdfast.providers.host.disk import trash
from holdfast.providers.host.disk.data_dir import DataDir
from holdfast.providers.local.provider import LocalProvider

pytestmark = pytest.mark.anyio

FOLDERS = 200


async def full_box(provider: LocalProvider) -> Box:
    box = await provider.create(BoxSpec(), id=new_id("b"))
    assert (await box.exec(["sh", "-ec", f"for i in $(seq {FOLDERS}); do mkdir -p $i/a; echo x > $i/a/file; done"])).ok
    return box


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """What goes on in the background waits for this."""
    go_on = asyncio.Event()
    clear = trash.Trash.clear

    async def clear_later(self: trash.Trash) -> int:
        await go_on.wait()
        return await clear(self)

    monkeypatch.setattr(trash.Trash, "clear", clear_later)
    return go_on


def left(home: Path) -> list[Path]:
    return list((home / "local" / "trash").iterdir())


async def test_a_removal_that_takes_long_goes_on_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: asyncio.Event
) -> None:
    async with LocalProvider(tmp_path) as provider:
        box = await full_box(provider)
        monkeypatch.setattr(trash, "SECONDS", 0.0)
        await box.delete()
        assert left(tmp_path), "with no time at all, something is left"
        monkeypatch.setattr(trash, "SECONDS", 60.0)
        held.set()
        await asyncio.wait_for(provider.sandbox.workers.wait(), 60)
        assert left(tmp_path) == []


async def test_who_ends_meanwhile_leaves_the_rest_to_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: asyncio.Event
) -> None:
    async with LocalProvider(tmp_path) as provider:
        box = await full_box(provider)
        monkeypatch.setattr(trash, "SECONDS", 0.0)
        await box.delete()
    assert left(tmp_path)
    monkeypatch.setattr(trash, "SECONDS", 60.0)
    held.set()
    async with LocalProvider(tmp_path) as provider:
        assert (await provider.sweep()).freed >= FOLDERS * 4096
    assert left(tmp_path) == []


async def test_a_removal_counts_a_file_with_several_names_once(tmp_path: Path) -> None:
    (tmp_path / "doomed").mkdir()
    (tmp_path / "doomed" / "a").write_bytes(bytes(1 << 20))
    (tmp_path / "doomed" / "b").hardlink_to(tmp_path / "doomed" / "a")
    (tmp_path / "doomed" / "kept").write_bytes(bytes(1 << 20))
    (tmp_path / "kept").hardlink_to(tmp_path / "doomed" / "kept")
    emptied = DataDir(tmp_path / "local", 0, 0).empty([tmp_path / "doomed", tmp_path / "missing"], 60)
    assert emptied.finished
    assert 1 << 20 <= emptied.freed < 2 << 20
    assert (tmp_path / "kept").stat().st_size == 1 << 20
