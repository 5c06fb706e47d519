"""What interpreters need of Daytona beyond boxes: templates as snapshots, and the end of a stream or a sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from tests.interpreter.test_templates import a_wheel, needs_pip, pip_with
from tests.providers.daytona.faulty_proxy import Fault, FaultyProxy

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import InvalidSpec, SnapshotInUse
from holdfast.api.errors.interpreters import KernelLost
from holdfast.images.build_host import ProviderBuildHost
from holdfast.interpreter.bridge.calls import Call, ToolName
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.interpreter.workspace.templates import Status, Template, TemplateFiles, Templates
from holdfast.providers.daytona import DaytonaProvider
from holdfast.providers.daytona.images import origin_of
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio
WAIT = 120.0


def templates(provider: DaytonaProvider, folder: Path) -> Templates:
    return Templates(
        ProviderBuildHost(provider),
        TemplateFiles(folder / "declared"),
        cache=folder / "cache",
        environment=pip_with(folder / "wheels"),
    )


@needs_pip
async def test_a_template_is_a_snapshot_and_boxes_start_from_it(provider: DaytonaProvider, tmp_path: Path) -> None:
    known = templates(provider, tmp_path)
    a_wheel(tmp_path / "wheels", "tiny", "1.0")
    known.files.keep(Template("mine", ("tiny",)))
    assert await known.resolve("mine") == "template/mine"
    assert (await known.inspect(known.files.get("mine"))).status is Status.READY
    box = await provider.create(BoxSpec(provider="daytona", image="template/mine"), id="b-of-template")
    kernel = await Kernel.start(box, python=["python3"])
    context = await kernel.context()
    assert (await context.execute("import tiny; tiny.version")).value == "1.0"
    await kernel.end()
    [kept] = [each.id for each in await provider.snapshots()][-1:]
    with pytest.raises(SnapshotInUse, match="template/mine"):
        await provider.delete_snapshot(kept)
    known.files.keep(Template("mine", ("tiny", "more")))
    assert (await known.inspect(known.files.get("mine"))).status is Status.INACTIVE
    await known.remove(known.files.get("mine"))
    await provider.delete_snapshot(kept)


@needs_pip
@pytest.mark.parametrize("status", [403, 404])
async def test_where_there_are_no_snapshots_a_template_is_declared(
    provider: DaytonaProvider, proxy: FaultyProxy, tmp_path: Path, status: int
) -> None:
    known = templates(provider, tmp_path)
    a_wheel(tmp_path / "wheels", "tiny", "1.0")
    known.files.keep(Template("mine", ("tiny", "other[x]>=2")))
    a_wheel(tmp_path / "wheels", "other", "2.0")
    proxy.add(Fault("POST", "/snapshot$", 1, status))
    assert await known.resolve("mine") == "packages:tiny other[x]>=2"
    assert await provider.find() == [], "the box of the build is gone"


def test_a_declared_image_has_its_packages_and_nothing_else() -> None:
    image = origin_of("packages:tiny other[x]>=2,<3").image
    assert image is not None
    assert not isinstance(image, str)
    assert image.dockerfile().rstrip().endswith("pip install 'other[x]>=2,<3' tiny")
    for wrong in ("--index-url=x", "a;b", "$(x)", "https://e/x.whl"):
        with pytest.raises(InvalidSpec, match="no Python package"):
            origin_of(f"packages:{wrong}")


async def test_a_cut_stream_repeats_no_code_and_loses_no_result(provider: DaytonaProvider, proxy: FaultyProxy) -> None:
    box = await provider.create(BoxSpec(provider="daytona"), id="b-cut")
    kernel = await Kernel.start(box)
    context = await kernel.context()
    await context.define([ToolName("wait")])
    reached, calls = asyncio.Event(), []

    async def wait(call: Call) -> int:
        calls.append(call.id)
        reached.set()
        return 5

    code = "went = open('went', 'a').write('x')\nwait()\nimport time\ntime.sleep(1)\nopen('went').read()"
    running = asyncio.create_task(context.execute(code, handler=wait))
    async with asyncio.timeout(WAIT):
        await reached.wait()
        assert proxy.cut() > 0
        assert (await running).value == "x"
    assert len(calls) == 1
    await kernel.end()


async def test_a_sandbox_that_another_one_stops_has_lost_its_memory(
    provider: DaytonaProvider, daytona_server: ServerProcess
) -> None:
    box = await provider.create(BoxSpec(provider="daytona"), id="b-stopped")
    kernel = await Kernel.start(box)
    context = await kernel.context()
    running = asyncio.create_task(context.execute("import time; time.sleep(600)"))
    name = provider.sandbox_name("b-stopped")
    async with asyncio.timeout(WAIT):
        headers = {"Authorization": f"Bearer {daytona_server.api_key}"}
        async with httpx.AsyncClient(base_url=daytona_server.url, headers=headers, trust_env=False) as api:
            answer = await api.post(f"/compat/daytona/sandbox/{name}/stop")
            assert answer.status_code == 200, answer.text
        with pytest.raises(KernelLost):
            await running
    await kernel.close()
