"""Importing a session that an agent wrote on someone's own machine, or an exported thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from holdfast.api.document import Document, Limits
from holdfast.api.limits import AgentName, Digest, ThreadId, Title
from holdfast.api.run.repositories import Source

MOST_SESSION: Final = 12 * 1024 * 1024
"""Characters of a session in a request."""
MOST_UPLOADED: Final = 64 * 1024 * 1024
"""Bytes of a session that was uploaded before."""
EXPORTED_THREAD: Final = "holdfast"
"""Stands for an agent in the import of an exported thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewImport(Document):
    agent: AgentName
    """The agent that wrote the session: pi, codex, claude or opencode. `holdfast` for an exported thread."""
    session: Annotated[str, Limits(min_length=1, max_length=MOST_SESSION)] | None = None
    """The content of its session file; for OpenCode, what `opencode export` prints; of a thread, what
    `holdfast export` prints."""
    upload: Digest | None = None
    """Instead of `session`: the digest of that content, which was uploaded before, as a workspace is."""
    new_thread: ThreadId | None = None
    """The id of the new thread. A second request with the same id imports nothing."""
    title: Title | None = None
    """Defaults to the first line of the first prompt, or the title of the exported thread."""
    workspace: Digest | None = None
    """The files that the next run starts with, uploaded before."""
    source: Source | None = None
    """Where these files came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported(Document):
    thread: str
    run: str
    """Stands for all turns of the session. Of an exported thread, the last run."""
    entries: int
