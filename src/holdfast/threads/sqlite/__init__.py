"""The embedded stream store: one SQLite file, one writer thread, one commit for many writers."""

from holdfast.threads.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
