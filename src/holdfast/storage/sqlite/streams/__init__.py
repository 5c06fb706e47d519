"""The embedded stream store: one writer thread, one commit for many writers."""

from holdfast.storage.sqlite.streams.store import SqliteStreams

__all__ = ["SqliteStreams"]
