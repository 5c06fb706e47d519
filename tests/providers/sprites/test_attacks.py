"""A sprite that lies about itself: in its files, and by checkpoints of its own."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast.api.box.network import Network
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import SnapshotNotFound
from holdfast.boxes.labels import KEY
from holdfast.providers.sprites import SpritesProvider
from holdfast.providers.sprites.account import Account
from holdfast.testing.sprites import SpritesCounterpart

pytestmark = pytest.mark.anyio
SPEC = BoxSpec(provider="sprites")
FORGE = """
import json, os, pathlib
for folder in ("/var/tmp", "/tmp", os.environ["HOME"], os.environ["HOME"] + "/.holdfast-guest"):
    for path in pathlib.Path(folder).glob("*.json"):
        found = json.loads(path.read_text())
        found["spec"]["network"] = {"mode": "open"}
        path.write_text(json.dumps(found))
record = {"id": %r, "spec": {"provider": "sprites", "network": {"mode": "open"}}, "labels": {"mine": "all"},
    "createdAt": 1, "snapshot": None, "maker": "", "ready": True, "stopped": False, "deleted": False,
    "home": os.environ["HOME"], "guest": "/x", "python": "/x", "environment": {}, "checkpointed": False,
    "forgotten": []}
pathlib.Path("/var/tmp/holdfast-record.json").write_text(json.dumps(record))
"""


@pytest.fixture
def opened(counterpart: SpritesCounterpart, tmp_path: Path) -> Callable[[], SpritesProvider]:
    """Opens the provider of one home, as a server does that is started again."""
    namespace = secrets.token_hex(4)
    account = Account(counterpart.token, counterpart.url)
    return lambda: SpritesProvider(account, namespace=namespace, folder=tmp_path / "sprites")


@pytest.fixture
async def provider(
    opened: Callable[[], SpritesProvider], counterpart: SpritesCounterpart
) -> AsyncIterator[SpritesProvider]:
    counterpart.faults.clear()
    async with opened() as provider:
        yield provider
        counterpart.faults.clear()
        for info in await provider.find():
            await provider.remove(info.id)


@pytest.mark.parametrize("has_labels", [True, False])
async def test_no_file_of_a_sprite_decides_what_it_may_reach(
    provider: SpritesProvider,
    opened: Callable[[], SpritesProvider],
    counterpart: SpritesCounterpart,
    has_labels: bool,
) -> None:
    if not has_labels:
        counterpart.faults.refuse(422, method="POST", path="/v1/sprites")
    box = await provider.create(SPEC, id=f"b-{secrets.token_hex(4)}", labels={"a": "b"})
    assert (await box.exec(["python3", "-c", FORGE % box.id])).ok
    async with opened() as restarted:
        info = (await restarted.attach(box.id)).info
        assert info.spec.network.mode is Network.NONE
        assert info.labels == {"a": "b"}
        assert await restarted.find({"mine": "all"}) == []


async def test_a_checkpoint_of_a_sprite_itself_is_no_snapshot_of_anybody(provider: SpritesProvider) -> None:
    box = await provider.create(SPEC, id=f"b-{secrets.token_hex(4)}")
    kept = await box.snapshot(labels={KEY: "mine"})
    forged = {
        "id": f"{box.id}.{'0' * 12}",
        "box": box.id,
        "parent": None,
        "size": 1,
        "total": 1,
        "createdAt": kept.created_at + 10_000_000,
        "labels": {KEY: "theirs"},
    }
    sprite = provider.sprite_name(box.id)
    for comment in (
        f"holdfast {json.dumps(forged)}",
        f"holdfast {'0' * 32} {json.dumps(forged)}",
        "holdfast",
        "holdfast x",
    ):
        await provider._api.checkpoint(sprite, comment)
    assert [each.id for each in await provider.snapshots()] == [kept.id]
    assert await provider.snapshots({KEY: "theirs"}) == []
    with pytest.raises(SnapshotNotFound):
        await provider.snapshot(str(forged["id"]))
    await provider.delete_snapshot(kept.id)


async def test_a_repeated_comment_does_not_change_a_snapshot(provider: SpritesProvider) -> None:
    box = await provider.create(SPEC, id=f"b-{secrets.token_hex(4)}")
    await box.files.write("file", b"then")
    kept = await box.snapshot()
    sprite = provider.sprite_name(box.id)
    [comment] = [each.comment for each in await provider._api.checkpoints(sprite) if kept.id in (each.comment or "")]
    await box.files.write("file", b"forged")
    await provider._api.checkpoint(sprite, comment or "")
    restored = await provider.restore(kept.id, SPEC, id=f"b-{secrets.token_hex(4)}")
    assert await restored.files.read("file") == b"then"


async def test_the_comment_of_another_sprite_is_none_of_this_one(provider: SpritesProvider) -> None:
    box, other = [await provider.create(SPEC, id=f"b-{secrets.token_hex(4)}") for _ in range(2)]
    kept = await other.snapshot(labels={KEY: "theirs"})
    [comment] = [
        each.comment for each in await provider._api.checkpoints(provider.sprite_name(other.id)) if each.comment
    ]
    await box.snapshot()  # the checkpoints of a sprite without snapshots are not looked at
    await provider._api.checkpoint(provider.sprite_name(box.id), comment)
    assert [each.id for each in await provider.snapshots({KEY: "theirs"})] == [kept.id]
