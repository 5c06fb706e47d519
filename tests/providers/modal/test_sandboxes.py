"""What a box is at Modal: how its sandbox is made, and found by a later version of Holdfast."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.modal import Credentials, ModalProvider, guest
from holdfast.providers.modal.sandboxes import LIFETIME_SECONDS
from holdfast.testing.modal import ModalCloud

pytestmark = [pytest.mark.anyio, pytest.mark.box]


async def test_boxes_are_named_sandboxes_with_tags_in_one_app_which_modal_does_not_end_for_idleness(
    modal_provider: ModalProvider, cloud: ModalCloud
) -> None:
    labels = {"team": "blue", "holdfast.key": "a/b", "long": "x" * 60}
    for id in ("b-1", "b-2"):
        await modal_provider.create(BoxSpec(provider="modal"), id=id, labels=labels)
    first, second = sorted(cloud.running, key=lambda sandbox: sandbox.name)
    assert first.app_id == second.app_id
    assert (first.name.endswith("-b-1"), second.name.endswith("-b-2")) == (True, True)
    assert (first.tags["team"], first.tags["holdfast-box"]) == ("blue", "b-1")
    assert "long" not in first.tags, "Modal takes no such value"
    [info] = [each for each in await modal_provider.find(labels) if each.id == "b-1"]
    assert info.labels == labels, "the record has them all"
    assert (first.definition.idle_timeout_secs, first.definition.timeout_secs) == (0, LIFETIME_SECONDS)


async def test_a_box_that_another_version_started_is_reached(
    modal_provider: ModalProvider, credentials: Credentials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await modal_provider.create(BoxSpec(provider="modal"), id="b-1")
    monkeypatch.setattr(guest, "_files", lambda: (f"{guest.PLACE}/guest-of-a-later-version", {}))
    async with ModalProvider(tmp_path / "home", credentials) as later:
        assert (await (await later.attach("b-1")).exec(["echo", "here"])).text == "here\n"
