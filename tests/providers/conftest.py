"""What a provider does not claim is refused by name in one test; those that build on it are left out, not skipped."""

from __future__ import annotations

import pytest

from holdfast.testing.provider_suite.base import leave_out_unclaimed


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out_unclaimed(config, items)
