"""What the daytona provider asks Daytona for: settings of sandboxes, previews, volumes, and who it says it is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from daytona import Image
from tests.providers.daytona.conftest import account_of
from tests.providers.daytona.faulty_proxy import Fault, FaultyProxy
from tests.stores import open_records

from holdfast.api.box.box import Box, Liveness
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.errors.boxes import BoxError, ImageNotFound, Unsupported
from holdfast.api.guest_url import GuestUrl
from holdfast.egress import EgressProxy
from holdfast.providers.daytona import DaytonaProvider
from holdfast.providers.daytona.box import DaytonaBox
from holdfast.providers.daytona.sandboxes import AUTO_STOP_MINUTES, ONE_SHOT_MINUTES
from holdfast.testing.outside import Nowhere
from holdfast.testing.provider_suite.base import eventually
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio
SPEC = BoxSpec(provider="daytona")
CREATE = "/compat/daytona/sandbox"


def asked(proxy: FaultyProxy) -> dict[str, Any]:
    """The last request for a sandbox."""
    found: dict[str, Any] = json.loads(proxy.bodies[CREATE])
    return found


async def test_a_sandbox_outlives_its_runs_and_only_one_shot_boxes_delete_themselves(
    provider: DaytonaProvider, proxy: FaultyProxy
) -> None:
    await provider.create(SPEC, id="b-1")
    assert asked(proxy)["autoStopInterval"] == AUTO_STOP_MINUTES > 3 * 24 * 60
    assert asked(proxy).get("autoDeleteInterval") is None
    assert asked(proxy)["networkBlockAll"] is True
    assert asked(proxy)["target"] == "local"
    await provider.create(replace(SPEC, lifetime=Lifetime.ONE_SHOT), id="b-2")
    assert asked(proxy)["autoDeleteInterval"] == ONE_SHOT_MINUTES


async def test_the_organization_is_named_to_both_hosts(
    daytona_server: ServerProcess, proxy: FaultyProxy, tmp_path: Path
) -> None:
    account = replace(account_of(daytona_server, proxy.url), organization="org-1")
    async with DaytonaProvider(tmp_path, account) as provider:
        await provider.find()
        assert proxy.headers["x-daytona-organization-id"] == "org-1"
        box = await provider.create(SPEC, id="b-1")
        await box.delete()
    assert proxy.headers["x-daytona-organization-id"] == "org-1"


async def test_secrets_are_variables_of_the_sandbox_and_not_labels(
    provider: DaytonaProvider, proxy: FaultyProxy
) -> None:
    box = await provider.create(replace(SPEC, env={"TOKEN": "hush"}), id="b-1")
    assert (await box.exec(["sh", "-c", "echo $TOKEN"])).text == "hush\n"
    assert asked(proxy)["env"] == {"TOKEN": "hush"}
    assert "hush" not in str(asked(proxy)["labels"])
    assert [info.spec.env for info in await provider.find()] == [{"TOKEN": "hush"}]
    assert (await provider.attach("b-1")).info.spec.env == {"TOKEN": "hush"}


async def test_what_a_box_begins_with_is_a_snapshot_an_image_or_a_build(
    provider: DaytonaProvider, proxy: FaultyProxy, daytona_server: ServerProcess, tmp_path: Path
) -> None:
    proxy.add(Fault("POST", f"{CREATE}$", 4, 404))
    for image in ("snapshot:mine", "python:3.12-slim"):
        with pytest.raises(ImageNotFound):
            await provider.create(replace(SPEC, image=image), id="b-1")
        if image.startswith("snapshot:"):
            assert asked(proxy)["snapshot"] == "mine"
        else:
            assert asked(proxy)["buildInfo"]["dockerfileContent"] == "FROM python:3.12-slim\n"
    built = Image.base("debian:13").run_commands("true")
    async with DaytonaProvider(tmp_path / "other", account_of(daytona_server, proxy.url), image=built) as other:
        with pytest.raises(ImageNotFound):
            await other.create(SPEC, id="b-1")
    assert asked(proxy)["buildInfo"]["dockerfileContent"] == "FROM debian:13\nRUN true\n"


async def test_ports_have_addresses_at_daytona_signed_or_with_a_header(provider: DaytonaProvider) -> None:
    box = await provider.create(SPEC, id="b-1")
    assert isinstance(box, DaytonaBox)
    await box.files.write("index.html", b"hello from the box")
    await box.spawn(["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"])
    plain, signed = await box.preview(8000), await box.signed_preview(8000, 60)
    assert not signed.headers
    async with httpx.AsyncClient(timeout=240, trust_env=False, follow_redirects=True) as client:

        async def answers() -> bool:
            return (await client.get(f"{plain.url}/", headers=plain.headers)).text == "hello from the box"

        await eventually(answers, "the port does not answer")
        assert (await client.get(signed.url)).text == "hello from the box"
        assert (await client.get(f"{plain.url}/")).status_code in (401, 403)


@pytest.fixture
async def direct(daytona_server: ServerProcess, proxy: FaultyProxy, tmp_path: Path) -> AsyncIterator[DaytonaProvider]:
    async with DaytonaProvider(tmp_path / "direct", account_of(daytona_server, proxy.url), direct=True) as provider:
        yield provider
        for info in await provider.find():
            await provider.remove(info.id)


async def test_with_direct_networking_daytona_keeps_the_policy(direct: DaytonaProvider, proxy: FaultyProxy) -> None:
    allowed = NetworkPolicy(Network.ALLOW, ("example.org", "203.0.113.7"))
    box = await direct.create(replace(SPEC, network=allowed), id="b-1")
    assert not asked(proxy).get("networkBlockAll")
    assert asked(proxy)["domainAllowList"] == "example.org"
    assert asked(proxy)["networkAllowList"] == "203.0.113.7/32"
    await box.set_network(NetworkPolicy(Network.NONE))
    path = f"{CREATE}/{(await _sandbox(direct, box)).id}/network-settings"
    assert json.loads(proxy.bodies[path])["networkBlockAll"] is True
    assert (await box.exec(["true"])).ok
    with pytest.raises(Unsupported, match="ports"):
        await box.set_network(NetworkPolicy(Network.ALLOW, ("example.org:8080",)))


async def test_with_a_relay_a_sandbox_reaches_that_alone(
    daytona_server: ServerProcess, proxy: FaultyProxy, tmp_path: Path
) -> None:
    async with (
        open_records(tmp_path / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records) as egress,
        DaytonaProvider(
            tmp_path / "relayed",
            account_of(daytona_server, proxy.url),
            egress=egress,
            relay=GuestUrl.parse("https://relay.example.com"),
        ) as provider,
    ):
        box = await provider.create(SPEC, id="b-relayed")
        assert not asked(proxy).get("networkBlockAll")
        assert asked(proxy)["domainAllowList"] == "relay.example.com"
        assert await box.open_guest_api() == "https://relay.example.com/guest"
        path = f"{CREATE}/{(await _sandbox(provider, box)).id}/network-settings"
        assert json.loads(proxy.bodies[path])["domainAllowList"] == "relay.example.com"
        await provider.remove(box.id)


async def _sandbox(provider: DaytonaProvider, box: Box) -> Any:
    return await provider._api.get(provider.sandbox_name(box.id))


async def test_a_box_that_was_not_finished_is_swept_away(
    provider: DaytonaProvider, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.add(Fault("POST", "/process/execute", 100, 500))
    proxy.add(Fault("DELETE", "/daytona/sandbox/", 100, 500))
    with pytest.raises(BoxError):
        await provider.create(SPEC, id="b-1")
    proxy.clear()
    assert await provider.probe("b-1") is Liveness.GONE
    assert (await provider.sweep()).removed == ()  # another process may be creating it
    monkeypatch.setattr("holdfast.providers.daytona.provider._UNFINISHED_MS", -1)
    assert (await provider.sweep()).removed == ("box b-1: its creation was interrupted",)


async def test_a_fork_that_was_not_finished_is_swept_away(
    provider: DaytonaProvider, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await provider.create(SPEC, id="b-1")
    proxy.add(Fault("POST", "/files", 100, 500))
    proxy.add(Fault("DELETE", "/daytona/sandbox/", 100, 500))
    with pytest.raises(BoxError):
        await box.fork(id="b-2")
    proxy.clear()
    assert [info.id for info in await provider.find()] == ["b-1"]
    assert (await provider.sweep()).removed == ()
    monkeypatch.setattr("holdfast.providers.daytona.provider._UNFINISHED_MS", -60_000)
    assert (await provider.sweep()).removed == (
        f"sandbox {provider.sandbox_name('b-2')}: a fork that was never finished",
    )
    assert (await box.exec(["true"])).ok


async def test_the_home_without_boxes_asks_for_nothing(provider: DaytonaProvider, proxy: FaultyProxy) -> None:
    assert proxy.requests == []
