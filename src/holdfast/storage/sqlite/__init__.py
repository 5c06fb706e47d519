"""All stores in one SQLite file, which one server uses at a time."""

from typing import Final

DATABASE: Final = "holdfast.db"
"""The name of the file in a home. SQLite and `reserve` keep a few more beside it."""
SECRET: Final = "secret"
"""The name of the file with the root secret. It is not in the database: a copy of that alone opens nothing."""
