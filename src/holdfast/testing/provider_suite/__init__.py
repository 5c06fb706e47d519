"""The contract of boxes as tests. Any provider, ours or a stranger's, runs them with one fixture (pytest and anyio):

    class TestMine(ProviderSuite):
        @pytest.fixture
        async def provider(self, tmp_path):
            async with MyProvider(tmp_path) as provider:
                yield provider

        @pytest.fixture
        def reopen(self, tmp_path):  # optional: how another process comes to the same data; proves restarts
            async def again():
                other = MyProvider(tmp_path)
                await other.open()
                return other
            return again

Its data may be shared between tests and with boxes of others: a test touches only what it made, and removes it. What
the provider does not claim in its `capabilities` is tried once, has to be refused by name, and the tests that build on
it are skipped; an account of both is printed in the end. Fixture `spec` can be overridden where a box needs an image
or more. Boxes need `sh` and the usual commands. The tests of ports need `python3` too, and are skipped without it.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "base", "execs", "processes", "terminals", "channels", "files", "trees", "lifecycle", "isolation", "snapshots",
    "volumes", "images", "unclaimed", "races", "restart", "pool", "networks", "pauses",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from holdfast.testing.provider_suite.channels import Channels  # noqa: E402 - after the rewrite is asked for
from holdfast.testing.provider_suite.execs import Execs  # noqa: E402
from holdfast.testing.provider_suite.files import BoxFiles  # noqa: E402
from holdfast.testing.provider_suite.images import Images  # noqa: E402
from holdfast.testing.provider_suite.isolation import Isolation  # noqa: E402
from holdfast.testing.provider_suite.lifecycle import Lifecycle  # noqa: E402
from holdfast.testing.provider_suite.networks import Networks  # noqa: E402
from holdfast.testing.provider_suite.pauses import Pauses  # noqa: E402
from holdfast.testing.provider_suite.pool import PooledBoxes  # noqa: E402
from holdfast.testing.provider_suite.processes import Processes  # noqa: E402
from holdfast.testing.provider_suite.races import Races  # noqa: E402
from holdfast.testing.provider_suite.restart import Restart  # noqa: E402
from holdfast.testing.provider_suite.snapshots import Snapshots  # noqa: E402
from holdfast.testing.provider_suite.terminals import Terminals  # noqa: E402
from holdfast.testing.provider_suite.trees import Trees  # noqa: E402
from holdfast.testing.provider_suite.unclaimed import Unclaimed  # noqa: E402
from holdfast.testing.provider_suite.volumes import Volumes  # noqa: E402

__all__ = ["ProviderSuite"]


class ProviderSuite(
    Execs, Processes, Terminals, Channels, BoxFiles, Trees, Lifecycle, Isolation, Snapshots, Volumes, Images,
    Unclaimed, Races, Restart, PooledBoxes, Networks, Pauses,
):  # fmt: skip
    """All parts of the contract. Each part is also a suite of its own."""
