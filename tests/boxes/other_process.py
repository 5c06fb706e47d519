"""A process of its own on a store and a dummy provider: acquires a box when told to, or dies at a point of its work."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from holdfast.api.box.spec import BoxSpec, Lifetime
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


async def die(boxes: Boxes, provider: DummyProvider, point: str, work: str) -> None:
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
        case "work in a one-shot":
            row = await boxes.create(BoxSpec(provider="dummy", lifetime=Lifetime.ONE_SHOT))
            with boxes.working(row.id):
                kill()
    raise AssertionError(f"{point} was never reached")


async def main(folder: Path, what: str, where: str, work: str = "") -> None:
    async with SqliteBoxes(folder / "data.db") as rows, DummyProvider(folder / "dummy") as provider:
        boxes = Boxes(rows, {"dummy": provider}, node="here")
        try:
            if what == "race":
                await race(boxes, provider, where)
            else:
                await die(boxes, provider, where, work)
        finally:
            await boxes.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
