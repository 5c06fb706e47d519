"""One counterpart of the Sprites API for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.scratch import scratch_folder

from holdfast.testing.sprites import SpritesCounterpart


@pytest.fixture(scope="module")
def counterpart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpritesCounterpart]:
    with scratch_folder(tmp_path_factory, "sprites") as folder, SpritesCounterpart(folder) as sprites:
        yield sprites
