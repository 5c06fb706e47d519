"""The knobs of the dummy provider. That it keeps the contract is shown beside the other providers."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxUnreachable, NoSpace
from holdfast.testing.dummy import DummyProvider


@pytest.mark.anyio
async def test_failures_are_made_to_order(tmp_path: Path) -> None:
    async with DummyProvider(tmp_path) as provider:
        provider.fail_next("create", NoSpace("one"))
        provider.fail_next("create", BoxUnreachable("two"))
        for expected in (NoSpace, BoxUnreachable):
            with pytest.raises(expected):
                await provider.create(BoxSpec(provider="dummy"), id="b-1")
        assert (await provider.create(BoxSpec(provider="dummy"), id="b-1")).id == "b-1"
        assert provider.calls["create"] == 3
