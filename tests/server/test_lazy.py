"""Lazy parts: opened once, waited for, and closed whatever became of them."""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.server.lazy import Lazy, load_in_thread

pytestmark = pytest.mark.anyio


class Opener:
    """Opens a part when told, and notes what happens."""

    def __init__(self) -> None:
        self.may_open = asyncio.Event()
        self.error: Exception | None = None
        self.events: list[str] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        self.events.append("opening")
        try:
            await self.may_open.wait()
            if self.error is not None:
                raise self.error
            yield "the part"
        finally:
            self.events.append("closed")


async def test_many_who_ask_get_the_same_part_which_is_opened_once_and_closed() -> None:
    opener = Opener()
    part = Lazy("part", opener.open)
    assert part.opened is None
    asking = [asyncio.create_task(part.get()) for _ in range(3)]
    await asyncio.sleep(0)
    assert part.opened is None
    opener.may_open.set()
    assert await asyncio.gather(*asking) == ["the part"] * 3
    assert part.opened == "the part"
    await part.close()
    assert opener.events == ["opening", "closed"]


async def test_one_who_leaves_does_not_keep_others_from_it() -> None:
    opener = Opener()
    part = Lazy("part", opener.open)
    leaving, staying = asyncio.create_task(part.get()), asyncio.create_task(part.get())
    await asyncio.sleep(0)
    leaving.cancel()
    opener.may_open.set()
    assert await staying == "the part"
    await part.close()


async def test_what_keeps_it_from_opening_is_told_to_all_who_ask() -> None:
    opener = Opener()
    opener.error = OSError("no disk")
    part = Lazy("part", opener.open)
    opener.may_open.set()
    for _ in range(2):
        with pytest.raises(OSError, match="no disk"):
            await part.get()
    assert part.opened is None
    await part.close()
    assert opener.events == ["opening", "closed"]


async def test_closed_while_it_is_opened_it_gives_up_and_cleans_up() -> None:
    opener = Opener()
    part = Lazy("part", opener.open)
    part.begin()
    await asyncio.sleep(0)
    await part.close()
    assert opener.events == ["opening", "closed"]


async def test_one_that_nobody_asked_for_is_closed_without_being_opened() -> None:
    opener = Opener()
    await Lazy("part", opener.open).close()
    assert opener.events == []


async def test_a_package_and_a_module_of_it_can_be_loaded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = tmp_path / "outer_package"
    inner = outer / "inner"
    inner.mkdir(parents=True)
    # Long enough for a second thread to lock the part, and then wait for the inner package, if it may.
    (outer / "__init__.py").write_text("import time\ntime.sleep(0.3)\n")
    (inner / "__init__.py").write_text("from outer_package.inner.part import name\n")
    (inner / "part.py").write_text("name = 'part'\n")
    monkeypatch.syspath_prepend(tmp_path)
    loads = [load_in_thread(functools.partial(importlib.import_module, f"outer_package.{name}"))
             for name in ("inner", "inner.part")]  # fmt: skip
    package, part = await asyncio.gather(*loads)
    assert package.name == part.name == "part"
