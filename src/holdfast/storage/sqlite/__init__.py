"""All stores in one SQLite file, used by one server at a time."""

from typing import Final

DATABASE: Final = "holdfast.db"
"""The name of the database file in a home. SQLite and `reserve` keep a few more files beside it."""
SECRET: Final = "secret"
"""The name of the file with the root secret. It is not in the database, so a copy of the database alone gives no
access.
"""
