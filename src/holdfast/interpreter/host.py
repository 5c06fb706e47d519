"""The ports of an interpreter: boxes, its thread, and models.

An interpreter lives in the process that has its callbacks. In a script or a notebook its host is a `ClientHost`; in the
server it is a `holdfast.server.interpreter.host.ServerHost`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.api.access.keys import Caller
from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.service.acquire_rules import How

if TYPE_CHECKING:
    from holdfast.api.progress import Progress


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer of a model."""

    text: str
    model: str
    """`NAME/MODEL`."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """In dollars. None if unknown."""


@dataclass(frozen=True, slots=True)
class AcquiredBox:
    """A box, and whether it was resumed, restored or created."""

    box: Box
    how: How
    why: str = ""


class Record(Protocol):
    """The thread of an interpreter."""

    @property
    def thread(self) -> str:
        """Its id."""
        ...

    def note(self, payload: Mapping[str, Any]) -> None:
        """Queue an entry. Entries are written in order; the caller does not wait for the disk."""
        ...

    async def flush(self) -> None:
        """Wait until every entry is on disk. Raises `RecordUnwritten` if that fails."""
        ...

    def entries(self, types: Sequence[str] = ()) -> AsyncIterator[Mapping[str, Any]]:
        """The entries of the thread: `{id, ts, payload}` each."""
        ...


class Host(Protocol):
    async def acquire(self, key: str, spec: BoxSpec, *, fresh: bool = False) -> AcquiredBox:
        """Resume, restore or create the box of a key. `fresh` deletes the old one first.

        Raises `BoxDiffers` if the old box has another spec. The caller decides whether it may be deleted."""
        ...

    async def find(self, key: str) -> Box | None:
        """Return the box of a key in its present state, or None. The caller closes it."""
        ...

    async def fork(self, box: Box, key: str, *, idle_seconds: int | None = None) -> Box:
        """Create a box with the same files, under this key. With `idle_seconds`, it is deleted after being idle for
        that long."""
        ...

    async def delete(self, box: Box) -> None: ...

    async def ensure_volume(self, name: str, provider: str) -> None: ...

    async def image_of(self, template: str, provider: str, progress: Progress | None = None) -> str:
        """Return the image of a template for this provider. Builds it if it is missing or outdated."""
        ...

    async def record(self, thread: str | None, *, title: str, labels: Mapping[str, str]) -> Record:
        """Open a thread, or create it."""
        ...

    async def complete(self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float) -> Completion:
        """Ask a model (`NAME` or `NAME/MODEL`). None means the only one that is configured."""
        ...

    async def check_model(self, model: str) -> None:
        """Raises `InvalidInterpreter` if there is no such model, or it has no key. Sends no request to it."""
        ...

    async def caller(self) -> Caller:
        """Who this host acts for: the tenant and user of its credential."""
        ...

    async def close(self) -> None: ...
