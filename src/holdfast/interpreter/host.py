"""What an interpreter needs of its surroundings: boxes, its thread, and a model. Passed in, each of them.

An interpreter lives in the process that has its callbacks: a script, a notebook, or the server. `client_host` is for
the first two, `holdfast.server.interpreter_host` for the last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.service.acquire_rules import How

if TYPE_CHECKING:
    from holdfast.api.progress import Progress


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model answered."""

    text: str
    model: str
    """`NAME/MODEL`."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """In dollars, where somebody knows."""


@dataclass(frozen=True, slots=True)
class Given:
    """A box, and how it came to be."""

    box: Box
    how: How
    why: str = ""


class Record(Protocol):
    """The interpreter's thread."""

    @property
    def thread(self) -> str:
        """Its id."""
        ...

    def note(self, payload: Mapping[str, Any]) -> None:
        """Write an entry: at once, in order, without waiting for the disk."""
        ...

    async def flush(self) -> None:
        """Until all that was noted is on disk. Raises where that cannot be."""
        ...

    def entries(self, types: Sequence[str] = ()) -> AsyncIterator[Mapping[str, Any]]:
        """What is on the thread: `{id, ts, payload}` each."""
        ...


class Host(Protocol):
    async def acquire(self, key: str, spec: BoxSpec, *, fresh: bool = False) -> Given:
        """The box of a key: resumed, restored or made. `fresh`: its old one is deleted first.

        Raises `BoxDiffers` where its old one is of another spec: who asked looks whether that may go."""
        ...

    async def find(self, key: str) -> Box | None:
        """The box of a key as it is, if there is one. Closed by who asked."""
        ...

    async def fork(self, box: Box, key: str, *, idle_seconds: int | None = None) -> Box:
        """Another box with the same files, of that key. With `idle_seconds` it is reaped once it was idle for so
        long."""
        ...

    async def delete(self, box: Box) -> None: ...

    async def ensure_volume(self, name: str, provider: str) -> None: ...

    async def image_of(self, template: str, provider: str, progress: Progress | None = None) -> str:
        """The image of a template, for boxes of that provider. Built first, where there is none of what it says."""
        ...

    async def record(self, thread: str | None, *, title: str, labels: Mapping[str, str]) -> Record:
        """A thread that is there, or a new one."""
        ...

    async def complete(self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float) -> Completion:
        """Ask a model by its name (`NAME` or `NAME/MODEL`), or the only one there is."""
        ...

    async def check_model(self, model: str) -> None:
        """Raises `InvalidInterpreter` where there is no such model, or it cannot be asked. Asks it nothing."""
        ...

    async def close(self) -> None: ...
