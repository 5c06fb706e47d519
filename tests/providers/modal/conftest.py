"""A cloud for each test, and a provider of its boxes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.providers.modal import Credentials, ModalProvider
from holdfast.testing.modal import ModalCloud


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[ModalCloud]:
    async with ModalCloud(tmp_path / "cloud") as cloud:
        yield cloud


@pytest.fixture
def credentials(cloud: ModalCloud) -> Credentials:
    return Credentials(cloud.token_id, cloud.token_secret, cloud.url)


@pytest.fixture
async def modal_provider(tmp_path: Path, credentials: Credentials) -> AsyncIterator[ModalProvider]:
    async with ModalProvider(tmp_path / "home", credentials) as provider:
        yield provider
