"""One Docker daemon for the tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.providers.docker.engine import CannotStart, DockerEngine


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    try:
        with DockerEngine() as engine:
            yield engine
    except CannotStart as error:
        pytest.skip(str(error))
