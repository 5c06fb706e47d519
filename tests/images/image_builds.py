"""A small image in a real provider, and what a build there said that it did."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from tests.providers.local.rootfs import busybox_program

from holdfast.api.images import Image
from holdfast.api.progress import Silent
from holdfast.boxes import BoxSpec
from holdfast.images import build, make_plan, parse_recipe
from holdfast.images.build_host import BUILD, ProviderBuildHost
from holdfast.providers.local import LocalProvider

APPLETS: Final = (
    "sh", "cat", "chmod", "echo", "env", "false", "grep", "id", "ls", "mkdir", "printf", "rm", "sleep", "test", "touch",
    "true", "wc",
)  # fmt: skip


def busybox() -> bytes:
    """A root filesystem of one program that is many."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name in ("bin", "etc", "tmp"):
            header = tarfile.TarInfo(name)
            header.type, header.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(header)
        program = busybox_program()
        header = tarfile.TarInfo("bin/busybox")
        header.mode, header.size = 0o755, len(program)
        tar.addfile(header, io.BytesIO(program))
        for name in APPLETS:
            header = tarfile.TarInfo(f"bin/{name}")
            header.type, header.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(header)
    return target.getvalue()


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


class Steps(Silent):
    """What a build said that it did."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.skipped: list[str] = []
        self.said = b""

    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        self.done.append(detail)

    def skip(self, step: str, detail: str = "") -> None:
        self.skipped.append(detail)

    def output(self, data: bytes) -> None:
        self.said += data


class ImageBuilds:
    """A provider with a small image, and a folder of recipes."""

    def __init__(self, provider: LocalProvider, folder: Path) -> None:
        self.provider = provider
        self.host = ProviderBuildHost(provider)
        self.folder = folder

    async def build(self, text: str, name: str = "test/made", *, cache: bool = True) -> tuple[Image, Steps]:
        steps = Steps()
        recipe = parse_recipe(f'base = "test/busybox"\nnetwork = "none"\n{text}')
        plan = make_plan(recipe, await self.host.image(recipe.base), self.folder)
        return await build(self.host, plan, name, recipe.network, steps, cache=cache), steps

    async def run(self, image: str, command: str) -> str:
        async with await self.host.create(BoxSpec(image=image)) as box:
            done = await box.exec(["/bin/sh", "-c", command], timeout=30)
            await box.delete()
        assert done.ok, done.stderr.decode()
        return done.text

    async def kept(self) -> set[str]:
        return {snapshot.labels[BUILD] for snapshot in await self.provider.snapshots()}
