"""What interpreters keep: their volume, manifests and context files, in boxes at a real Docker daemon."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from tests.providers.docker.engine import BUSYBOX_IMAGE, PYTHON_IMAGE, DockerEngine

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.interpreters import ManifestConflict
from holdfast.interpreter.workspace import context_files
from holdfast.interpreter.workspace.manifest import Manifest, Manifests
from holdfast.interpreter.workspace.volumes import FOLDERS, MEMORY, make_folders, volume_name, with_volume
from holdfast.providers.docker import DockerHost, DockerProvider

pytestmark = pytest.mark.anyio


async def test_a_volume_with_manifests_outlives_boxes_and_is_shared_by_them(engine: DockerEngine) -> None:
    async with DockerProvider(DockerHost(engine.url), namespace=secrets.token_hex(4)) as provider:
        name = volume_name("default", f"sales {secrets.token_hex(4)}")
        await provider.create_volume(name)
        spec = with_volume(BoxSpec(provider="docker", image=PYTHON_IMAGE), name)
        first = await provider.create(spec, id=f"b-{secrets.token_hex(4)}")
        # No Python of its own: ours is there.
        other = with_volume(BoxSpec(provider="docker", image=BUSYBOX_IMAGE), name)
        second = await provider.create(other, id=f"b-{secrets.token_hex(4)}")

        def of(box: Box) -> Manifests:
            return Manifests(box, workspace="sales", user="ann")

        try:
            await make_folders(first)
            assert [each.name for each in await second.files.list(MEMORY)] == sorted(FOLDERS)
            saved = await of(first).save(Manifest("s", 0, {"a": 1}), now=1)
            await first.delete()
            assert await of(second).read("s") == saved
            newer = await of(second).save(Manifest("s", 1, {"b": 2}), now=2)
            with pytest.raises(ManifestConflict, match="revision 2"):
                await of(second).save(Manifest("s", 1, {"c": 3}), now=3)
            assert await of(second).read("s") == newer
        finally:
            for box in (first, second):
                await box.delete()
            await provider.delete_volume(name)


async def test_context_files_are_staged_and_replaced(engine: DockerEngine, tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "one.txt").write_text("one")
    async with DockerProvider(DockerHost(engine.url), namespace=secrets.token_hex(4)) as provider:
        box = await provider.create(BoxSpec(provider="docker", image=PYTHON_IMAGE), id=f"b-{secrets.token_hex(4)}")
        try:
            first = await context_files.survey([folder], None, {})
            await context_files.stage(box, "/workspace", first)
            await context_files.link(box, "/workspace")
            assert await context_files.staged(box, "/workspace") == first.digest
            assert await box.files.read("/workspace/context/papers/one.txt") == b"one"
            (folder / "one.txt").rename(folder / "two.txt")
            await context_files.stage(box, "/workspace", await context_files.survey([folder], None, {}))
            assert [each.name for each in await box.files.list("/workspace/context/papers")] == ["two.txt"]
        finally:
            await box.delete()
