"""A process of its own on a store and a dummy provider: acquires a box when told to, or dies at a point of its work."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.dummy import DummyProvider

SPEC = BoxSpec(provider="dummy")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def race(boxes: Boxes, provider: DummyProvider, key: str) -> None:
    await boxes.join()
    say("ready")
    sys.stdin.readline()
    acquired = await boxes.acquire(key, SPEC)
    say(f"{acquired.row.id} {acquired.how} {provider.calls['create']}")


async def die(boxes: Boxes, provider: DummyProvider, other: DummyProvider, point: str, work: str) -> None:
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    match work:
        case "create":
            provider.at[point] = kill
            await boxes.create(SPEC)
        case "acquire":
            provider.at[point] = kill
            await boxes.acquire("k", SPEC)
        case "delete":
            row = (await boxes.acquire("k", SPEC)).row
            provider.at[point] = kill
            await boxes.delete(row.id)
        case "stop":
            row = (await boxes.acquire("k", SPEC)).row
            provider.at[point] = kill
            await boxes.stop(row.id)
        case "snapshot":
            row = (await boxes.acquire("k", SPEC)).row
            provider.at[point] = kill
            await boxes.snapshot(row.id)
        case "move":
            row = (await boxes.acquire("k", SPEC)).row
            async with await boxes.open(row.id) as box:
                await box.files.write("a.txt", b"one")
            if point in ("commit", "committed"):
                swap_all = boxes.rows.swap_all

                async def swap_and_die(changes: Sequence[tuple[BoxRow, BoxRow]]) -> None:
                    if point == "committed":
                        await swap_all(changes)
                    kill()

                boxes.rows.swap_all = swap_and_die  # type: ignore[method-assign]
            elif point.startswith("remove"):
                provider.at[point] = kill
            else:
                other.at[point] = kill
            await boxes.move(row.id, lambda spec: replace(spec, provider="other"))
        case "work in a one-shot":
            row = await boxes.create(BoxSpec(provider="dummy", lifetime=Lifetime.ONE_SHOT))
            with boxes.working(row.id):
                kill()
    raise AssertionError(f"{point} was never reached")


async def main(folder: Path, what: str, where: str, work: str = "") -> None:
    async with (
        SqliteBoxes(folder / "data.db") as rows,
        DummyProvider(folder / "dummy") as provider,
        DummyProvider(folder / "other", name="other") as other,
    ):
        boxes = Boxes(rows, {"dummy": provider, "other": other}, node="here")
        try:
            if what == "race":
                await race(boxes, provider, where)
            else:
                await die(boxes, provider, other, where, work)
        finally:
            await boxes.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
