"""One counterpart of the Sprites API for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.testing.sprites import SpritesCounterpart


@pytest.fixture(scope="module")
def counterpart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpritesCounterpart]:
    with SpritesCounterpart(tmp_path_factory.mktemp("sprites")) as sprites:
        yield sprites
