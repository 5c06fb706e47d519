"""What tests of workspaces share: real boxes by a real service, and real repositories of git."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.api.access.keys import Caller
from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import VolumeExists
from holdfast.api.progress import Progress
from holdfast.boxes.rows import BoxFilter
from holdfast.boxes.service.boxes import Boxes
from holdfast.interpreter.host import AcquiredBox, Completion, Record
from holdfast.interpreter.workspace.workspace import OnChange, Workspace
from holdfast.providers.local import LocalProvider
from holdfast.storage.sqlite.boxes import SqliteBoxes

_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.com",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.com",
}


class Repository:
    """A repository on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env=_ENVIRONMENT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout.strip()

    def commit(self, message: str = "change", **files: str) -> str:
        """Files by their names, `_` for a dot. Says the commit."""
        for name, text in files.items():
            path = self.folder / name.replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


@dataclass
class BoxesHost:
    """A host of boxes alone, by the service that a server has, too."""

    boxes: Boxes
    given: list[Box] = field(default_factory=list)

    async def acquire(self, key: str, spec: BoxSpec, *, fresh: bool = False) -> AcquiredBox:
        acquired = await self.boxes.acquire(key, spec, fresh=fresh, replaces=False)
        box = await self.boxes.open(acquired.row.id)
        self.given.append(box)
        return AcquiredBox(box, acquired.how, acquired.why)

    async def find(self, key: str) -> Box | None:
        for row in (await self.boxes.list(BoxFilter(key=key))).rows:
            return await self.boxes.open(row.id)
        return None

    async def fork(self, box: Box, key: str, *, idle_seconds: int | None = None) -> Box:
        raise NotImplementedError

    async def delete(self, box: Box) -> None:
        await self.boxes.delete(box.id)

    async def ensure_volume(self, name: str, provider: str) -> None:
        with contextlib.suppress(VolumeExists):
            await self.boxes.create_volume(name, provider)

    async def image_of(self, template: str, provider: str, progress: Progress | None = None) -> str:
        raise NotImplementedError

    async def record(self, thread: str | None, *, title: str, labels: Mapping[str, str]) -> Record:
        raise NotImplementedError

    async def complete(self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float) -> Completion:
        raise NotImplementedError

    async def caller(self) -> Caller:
        raise NotImplementedError

    async def check_model(self, model: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for box in self.given:
            await box.close()


@dataclass
class Shop:
    """Workspaces, each in a box of its own, and repositories."""

    folder: Path
    provider: LocalProvider
    boxes: Boxes
    host: BoxesHost
    _numbers: Any = field(default_factory=itertools.count)

    def workspace(self, key: str | None = None, *, on_change: OnChange | None = None, **more: Any) -> Workspace:
        return Workspace(self.host, key or f"w{next(self._numbers)}", BoxSpec(), on_change, **more)

    def repository(self) -> Repository:
        made = Repository(self.folder / f"repository-{next(self._numbers)}")
        made.commit("first", a_txt="one\n", b_txt="same\n")
        return made

    def place(self, name: str) -> Path:
        folder = self.folder / f"place-{next(self._numbers)}"
        folder.mkdir()
        return folder / name


@asynccontextmanager
async def opened(folder: Path, **more: Any) -> AsyncIterator[Shop]:
    home = folder / "home"
    home.mkdir()
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(LocalProvider(home, **more))
        rows = await stack.enter_async_context(SqliteBoxes(home / "data.db"))
        boxes = Boxes(rows, {"local": provider}, node="here")
        stack.push_async_callback(boxes.close)
        host = BoxesHost(boxes)
        stack.push_async_callback(host.close)
        yield Shop(folder, provider, boxes, host)
        for info in await provider.find():
            await provider.remove(info.id)


async def sh(box: Box | None, line: str) -> str:
    assert box is not None
    done = await box.exec(("sh", "-ec", line), env={"HOME": "/home/box"}, timeout=60)
    assert done.ok, done.stderr.decode()
    return done.text.strip()


AS_SOMEBODY = "git -c user.name=Box -c user.email=box@example.com"
