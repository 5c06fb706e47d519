from __future__ import annotations

from tests.sessions.tools.conftest import world

__all__ = ["world"]
