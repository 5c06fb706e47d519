"""A snapshot of one provider is refused by another, and nothing of it is left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import SnapshotNotFound, WrongSnapshot
from holdfast.boxes.provider import Provider
from holdfast.providers.local import LocalProvider
from holdfast.testing.dummy import DummyProvider


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Provider]:
    async with LocalProvider(tmp_path / "local") as provider:
        yield provider


@pytest.fixture
async def dummy(tmp_path: Path) -> AsyncIterator[Provider]:
    async with DummyProvider(tmp_path / "dummy") as provider:
        yield provider


@pytest.mark.anyio
async def test_what_one_provider_exported_another_does_not_import(local: Provider, dummy: Provider) -> None:
    for source, target in ((local, dummy), (dummy, local)):
        async with await source.create(BoxSpec(provider=source.name), id="box-one") as box:
            await box.files.write("file", b"content")
            snapshot = await box.snapshot()
            await box.delete()
        before = await target.snapshots()
        with pytest.raises(SnapshotNotFound):
            await target.restore(snapshot.id, BoxSpec(provider=target.name), id="box-two")
        with pytest.raises(WrongSnapshot):
            await target.import_snapshot(source.export_snapshot(snapshot.id))
        assert await target.snapshots() == before
        assert await target.find() == []
