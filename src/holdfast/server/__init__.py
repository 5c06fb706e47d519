"""The server: composition, configuration, authentication and errors. `run` is all that the CLI calls."""

from holdfast.server.config import Settings
from holdfast.server.run import run

__all__ = ["Settings", "run"]
