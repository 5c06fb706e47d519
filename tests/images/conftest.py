"""A key to sign repositories with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.images.packing import Key


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    # Short: gpg talks to its agent over a socket there.
    key = Key(tmp_path_factory.mktemp("k") / "g")
    yield key
    key.close()
