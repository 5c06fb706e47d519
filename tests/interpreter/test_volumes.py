"""Volumes of interpreters: their names, where boxes have them, and the folders in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.local.rootfs import busybox, pieces

from holdfast.api.box.spec import BoxSpec, VolumeMount, check_name
from holdfast.api.errors.interpreters import InvalidInterpreter, WorkspaceFailed
from holdfast.interpreter.workspace.volumes import (
    FOLDERS,
    MEMORY,
    make_folders,
    mount,
    volume_name,
    volume_of,
    with_volume,
)
from holdfast.providers.local import LocalProvider

pytestmark = pytest.mark.anyio

_NAMES = st.text(min_size=1, max_size=60)


@given(_NAMES, _NAMES)
def test_every_tenant_and_workspace_has_a_volume_name_that_providers_take(tenant: str, workspace: str) -> None:
    name = volume_name(tenant, workspace)
    check_name(name, "volume")
    assert name == volume_name(tenant, workspace), "the same for everybody, at any time"


@given(_NAMES, _NAMES, _NAMES, _NAMES)
def test_no_two_workspaces_share_a_volume(tenant: str, workspace: str, other_tenant: str, other: str) -> None:
    same = (tenant, workspace) == (other_tenant, other)
    assert (volume_name(tenant, workspace) == volume_name(other_tenant, other)) is same


def test_a_name_cannot_be_split_two_ways_and_says_whose_it_is() -> None:
    assert volume_name("a-b", "c") != volume_name("a", "b-c")
    assert volume_name("a", "bc") != volume_name("ab", "c")
    assert volume_name("default", "Sales 2026/Q1").startswith("default-sales-2026-q1-")
    for wrong in ("", "x" * 300):
        with pytest.raises(InvalidInterpreter):
            volume_name("default", wrong)


def test_a_spec_has_one_volume_of_the_interpreter_beside_its_others() -> None:
    other = VolumeMount("cache", "/cache")
    spec = with_volume(BoxSpec(volumes=(other,)), "a")
    assert spec.volumes == (other, mount("a"))
    assert with_volume(spec, "b", "children/1").volumes == (other, mount("b", "children/1"))
    assert with_volume(spec, None).volumes == (other,)
    assert volume_of(spec.volumes) == mount("a")
    assert volume_of((other,)) is None


async def test_boxes_with_and_without_an_image_have_the_volume_and_share_what_is_in_it(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "home") as provider:
        await provider.create_volume("team")
        await provider.images.import_archive("test/busybox", pieces(busybox().done()))
        plain = await provider.create(with_volume(BoxSpec(), "team"), id="plain")
        of_image = await provider.create(with_volume(BoxSpec(image="test/busybox"), "team"), id="image")
        await make_folders(plain)
        await plain.files.write(f"{MEMORY}/artifacts/report.txt", b"kept")
        await make_folders(of_image)
        assert [each.name for each in await of_image.files.list(MEMORY)] == sorted(FOLDERS)
        assert await of_image.files.read(f"{MEMORY}/artifacts/report.txt") == b"kept"
        assert (await of_image.exec(("sh", "-c", f"echo more > {MEMORY}/memory/notes"))).ok
        for box in (plain, of_image):
            await box.delete()
        later = await provider.create(with_volume(BoxSpec(), "team"), id="later")
        assert await later.files.read(f"{MEMORY}/memory/notes") == b"more\n", "it outlives boxes"
        await later.delete()


async def test_a_link_in_the_place_of_a_folder_is_not_used(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "home") as provider:
        await provider.create_volume("team")
        box = await provider.create(with_volume(BoxSpec(), "team"), id="box")
        await box.exec(("ln", "-s", "/workspace", f"{MEMORY}/meta"))
        with pytest.raises(WorkspaceFailed, match=r"meta of the volume .* link"):
            await make_folders(box)
        await box.exec(("rm", f"{MEMORY}/meta"))
        await box.exec(("touch", f"{MEMORY}/meta"))
        with pytest.raises(WorkspaceFailed, match=r"meta of the volume"):
            await make_folders(box)
        await box.delete()
