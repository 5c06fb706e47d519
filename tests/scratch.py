"""Folders for fixtures that serve many tests: removed with the fixture, because /tmp may be in memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def scratch_folder(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    folder = factory.mktemp(name)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # boxes that are still ending may write there
