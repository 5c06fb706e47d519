"""Manifests of sessions on a volume that several boxes write to, some of them hostile."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.interpreter.places import Place

from holdfast.api.box.box import Box
from holdfast.api.errors.interpreters import InvalidInterpreter, ManifestConflict, WorkspaceFailed
from holdfast.boxes.provider import Provider
from holdfast.interpreter.workspace.manifest import Manifest, Manifests, exported, imported, name_of
from holdfast.interpreter.workspace.volumes import MEMORY, make_folders, with_volume

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def boxes(provider: Provider, place: Place) -> tuple[Box, Box]:
    await provider.create_volume("team")
    spec = with_volume(place.spec, "team")
    first, second = await provider.create(spec, id="first"), await provider.create(spec, id="second")
    await make_folders(first)
    return first, second


def of(box: Box, user: str) -> Manifests:
    return Manifests(box, workspace="sales", user=user)


async def test_it_is_where_the_layout_says_with_a_revision(boxes: tuple[Box, Box]) -> None:
    manifests = of(boxes[0], "ann")
    assert await manifests.read("s1") is None
    assert await manifests.sessions() == ()
    saved = await manifests.save(Manifest("s1", 0, {"names": ["df"], "text": "naïve\n"}), now=5)
    assert saved == Manifest("s1", 1, {"names": ["df"], "text": "naïve\n"}, 5)
    there = json.loads(await boxes[0].files.read(f"{MEMORY}/meta/workspaces/sales/users/ann/session-s1.json"))
    assert (there["revision"], there["content"]["names"]) == (1, ["df"])
    assert await of(boxes[1], "ann").read("s1") == saved, "another box sees the same"
    assert await of(boxes[1], "ann").sessions() == ("s1",)
    assert await of(boxes[1], "ben").sessions() == ()


async def test_a_newer_revision_on_the_volume_is_a_conflict_and_stays(boxes: tuple[Box, Box]) -> None:
    here, there = of(boxes[0], "cat"), of(boxes[1], "cat")
    first = await here.save(Manifest("s", 0, {"by": "here"}), now=1)
    second = await there.save(replace(first, content={"by": "there"}), now=2)
    assert second.revision == 2
    with pytest.raises(ManifestConflict, match=r"revision 2, and this one is based on 1") as raised:
        await here.save(replace(first, content={"by": "here again"}), now=3)
    assert raised.value.hint is not None
    assert await here.read("s") == second
    with pytest.raises(ManifestConflict):
        await here.save(Manifest("s", 0, {}), now=4)
    third = await here.save(replace(second, content={"by": "here, knowing"}), now=5)
    assert (third.revision, await there.read("s")) == (3, third)


async def test_of_many_who_save_at_once_one_does(boxes: tuple[Box, Box]) -> None:
    async def save(number: int) -> int | None:
        try:
            saved = await of(boxes[number % 2], "dan").save(Manifest("s", 0, {"by": number}), now=1)
        except ManifestConflict:
            return None
        assert saved.revision == 1
        return number

    done = [number for number in await asyncio.gather(*map(save, range(8))) if number is not None]
    assert len(done) == 1
    kept = await of(boxes[0], "dan").read("s")
    assert kept is not None
    assert kept.content == {"by": done[0]}
    names = [each.name for each in await boxes[0].files.list(f"{MEMORY}/meta/workspaces/sales/users/dan")]
    assert names == [".lock", "session-s.json"], "nothing half written is left"


async def test_an_import_replaces_and_never_merges(boxes: tuple[Box, Box]) -> None:
    manifests = of(boxes[0], "eve")
    old = await manifests.save(Manifest("s", 0, {"a": 1, "nested": {"x": 1}}), now=1)
    document = json.loads(json.dumps(exported(Manifest("elsewhere", 7, {"b": 2, "nested": {"y": 1}}, 9))))
    given_ = imported(document, "s")
    assert given_ == Manifest("s", 7, {"b": 2, "nested": {"y": 1}}, 9)
    await manifests.save(replace(given_, revision=old.revision), now=2)
    kept = await manifests.read("s")
    assert kept is not None
    assert kept.content == {"b": 2, "nested": {"y": 1}}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"format": 1, "content": []},
        {"format": 2, "content": {}},
        {"format": 1, "content": {}, "revision": -1},
        {"format": 1, "content": {}, "revision": True},
        {"format": 1, "content": {}, "revision": 1 << 60},
        {"format": 1, "content": {"x": float("nan")}},
    ],
)
def test_what_is_no_state_is_not_imported(document: Any) -> None:
    with pytest.raises(InvalidInterpreter):
        imported(document, "s")


def test_a_state_that_nests_without_end_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"x": deep}
    with pytest.raises(InvalidInterpreter, match="deep"):
        imported({"format": 1, "content": deep}, "s")
    while deep:
        deep = deep["x"]  # taken apart by hand: its destructor would recurse, too


_IDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=13)


@given(_IDS, _IDS)
@example(".", "..")
@example("..", "%2E.")
@example("a/b", "a%2Fb")
def test_ids_become_names_that_lead_nowhere_else(id: str, other: str) -> None:
    name = name_of(id, "user")
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert (name == name_of(other, "user")) is (id == other)


async def test_hostile_ids_stay_in_the_folder_of_their_user(boxes: tuple[Box, Box]) -> None:
    box = boxes[0]
    for id in (
        "..",
        "../../../../../../workspace/x",
        "a/../../b",
        "/etc/passwd",
        ".lock",
        "a\0b",
        "a\nb",
        "-rf",
        "%2e",
    ):
        manifests = Manifests(box, workspace=id, user=id)
        await manifests.save(Manifest(id, 0, {"id": id}), now=1)
        kept = await manifests.read(id)
        assert kept is not None
        assert kept.content == {"id": id}
        assert await manifests.sessions() == (id,)
        assert manifests.path(id).count("/") == f"{MEMORY}/meta/workspaces/w/users/u/session-s.json".count("/")
    assert await box.files.list("/workspace") == []
    for wrong in ("", "x" * 500):
        with pytest.raises(InvalidInterpreter):
            Manifests(box, workspace="w", user=wrong)


async def test_what_a_box_plants_on_the_volume_leads_nobody_astray(boxes: tuple[Box, Box]) -> None:
    box, other = boxes
    users = f"{MEMORY}/meta/workspaces/planted/users"
    await box.exec(("sh", "-c", f"mkdir -p {users}/file {users}/folder && ln -s /workspace {users}/link"))
    await box.exec(("sh", "-c", f"cd {users}/file && ln -s /workspace/secret session-a.json && mkfifo session-b.json"))
    await box.exec(("sh", "-c", f"cd {users}/file && mkdir session-c.json && echo '{{}}' > session-d.json"))
    await box.exec(("sh", "-c", f"cd {users}/file && truncate -s 9000000 session-e.json"))
    await box.exec(("sh", "-c", f"cd {users}/file && python3 -c \"print('['*1000000)\" > session-f.json"))
    await other.files.write("/workspace/secret", b'{"revision": 1, "format": 1, "content": {}}')
    with pytest.raises(ManifestConflict, match="link"):
        await Manifests(other, workspace="planted", user="link").save(Manifest("s", 0, {}), now=1)
    hostile = Manifests(other, workspace="planted", user="file")
    for session in "abcdef":
        with pytest.raises(ManifestConflict, match="is not a valid manifest"):
            await hostile.save(Manifest(session, 99, {}), now=1)
        with pytest.raises(ManifestConflict, match="is not a valid manifest"):
            await hostile.read(session)
    assert [each.name for each in await other.files.list("/workspace")] == ["secret"]
    await other.files.delete("/workspace/secret")


async def test_what_does_not_fit_is_refused_before_it_is_written(boxes: tuple[Box, Box]) -> None:
    manifests = of(boxes[0], "fay")
    with pytest.raises(InvalidInterpreter, match="bytes"):
        await manifests.save(Manifest("s", 0, {"x": "y" * (9 << 20)}), now=1)
    with pytest.raises(InvalidInterpreter, match="plain JSON"):
        await manifests.save(Manifest("s", 0, {"x": {1, 2}}), now=1)
    large = await manifests.save(Manifest("s", 0, {"x": "y" * (7 << 20)}), now=1)
    assert await manifests.read("s") == large


async def test_a_box_without_the_volume_says_so(boxes: tuple[Box, Box]) -> None:
    with pytest.raises(WorkspaceFailed, match="there is no /nowhere"):
        await Manifests(boxes[0], workspace="w", user="u", root="/nowhere").save(Manifest("s", 0, {}), now=1)
