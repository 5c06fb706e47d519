"""Templates of interpreters at Modal: images that Modal keeps, with names of the home."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interpreter.test_templates import a_wheel, needs_pip, pip_with

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import InvalidSpec, SnapshotInUse
from holdfast.images.build_host import ProviderBuildHost
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.interpreter.workspace.templates import Status, Template, TemplateFiles, Templates
from holdfast.providers.modal import Credentials, ModalProvider
from holdfast.providers.modal.sandboxes import named_image
from holdfast.testing.modal import ModalCloud

pytestmark = [pytest.mark.anyio, pytest.mark.box]


def templates(provider: ModalProvider, folder: Path) -> Templates:
    return Templates(
        ProviderBuildHost(provider),
        TemplateFiles(folder / "declared"),
        cache=folder / "cache",
        environment=pip_with(folder / "wheels"),
    )


@needs_pip
async def test_a_template_is_an_image_and_boxes_start_from_it(
    modal_provider: ModalProvider, cloud: ModalCloud, credentials: Credentials, tmp_path: Path
) -> None:
    known = templates(modal_provider, tmp_path)
    a_wheel(tmp_path / "wheels", "tiny", "1.0")
    known.files.keep(Template("mine", ("tiny",)))
    assert await known.resolve("mine") == "template/mine"
    assert await modal_provider.find() == [], "the box of the build is gone"

    async with ModalProvider(tmp_path / "home", credentials) as later:  # the name is in the home
        again = templates(later, tmp_path)
        assert (await again.inspect(again.files.get("mine"))).status is Status.READY
        box = await later.create(BoxSpec(provider="modal", image="template/mine"), id="b-of-template")
        kernel = await Kernel.start(box, python=["python3"])
        context = await kernel.context()
        assert (await context.execute("import tiny; tiny.version")).value == "1.0"
        await kernel.end()

        [kept] = [each.id for each in await later.snapshots()][-1:]
        with pytest.raises(SnapshotInUse, match="template/mine"):
            await later.delete_snapshot(kept)
        again.files.keep(Template("mine", ("tiny", "more")))
        assert (await again.inspect(again.files.get("mine"))).status is Status.INACTIVE

        await again.remove(again.files.get("mine"))
        await later.delete_snapshot(kept)
        await box.stop()
        await box.start()  # a box keeps the files of its image when the name is gone
        assert (await box.exec(["python3", "-c", "import tiny"])).ok
        await box.delete()


async def test_a_declared_image_is_built_by_modal(modal_provider: ModalProvider) -> None:
    box = await modal_provider.create(BoxSpec(provider="modal", image="packages:tiny other[x]>=2,<3"), id="b-declared")
    assert (await box.exec(["true"])).ok
    await box.delete()
    named_image("packages:", None)
    for wrong in ("--index-url=x", "a;b", "$(x)", "https://e/x.whl"):
        with pytest.raises(InvalidSpec, match="no Python package"):
            await modal_provider.create(BoxSpec(provider="modal", image=f"packages:{wrong}"), id="b-wrong")
    assert await modal_provider.find() == []
