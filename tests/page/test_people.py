"""The page for others than the owner: viewers, strangers with a link, and people who are asked to decide."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import Page, expect
from tests.page.conftest import Picture, Told, fetched, make_thread, posted, serious_problems

from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("page")]


@pytest.fixture
def viewer(api: httpx.Client) -> str:
    """The key of a viewer."""
    assert api.put("/v1/members/vera", json={"role": "viewer"}).status_code < 300
    return str(posted(api, "/v1/keys", {"name": "vera", "member": "vera"})["key"])


async def test_an_address_that_is_wrong_gets_a_written_page_with_a_remedy(
    page: Page, api: httpx.Client, server: ServerProcess, picture: Picture
) -> None:
    for path, head, remedy in (
        ("/nope", "There is no such page", "Go to the threads"),
        ("/t/t-1/nope", "There is no such page", "Go to the threads"),
        ("/s/nothing", "This link does not open a thread", "Ask who sent it for a new one."),
    ):
        answer = await page.goto(server.url + path)
        assert answer is not None
        assert answer.status == 404
        await expect(page.locator("h1")).to_have_text(head)
        await expect(page.get_by_text(remedy)).to_be_visible()
        assert await serious_problems(page) == []
        await picture(f"wrong{path.replace('/', '-')}")
        assert "error" in fetched(api, path), "programs get JSON"
    await page.goto(f"{server.url}/login#code=nonsense")
    await expect(page.locator("#said")).to_contain_text("This link was used already, or has expired. ")


async def test_a_viewer_is_offered_nothing_that_is_refused(
    page: Page, api: httpx.Client, server: ServerProcess, viewer: str, told: Told, picture: Picture
) -> None:
    thread = make_thread(api, "Look but do not touch")
    thread.say("signal.run.started", run="r-1", agent="pi", model="m/m", provider="local")
    thread.say("signal.run.finished", run="r-1", status="failed", error={"message": "no"})
    await page.goto(f"{server.url}/#key={viewer}")
    await expect(page.get_by_role("link", name="Look but do not touch").first).to_be_visible()
    await expect(page.get_by_role("link", name="New run")).to_have_count(0)
    await picture("viewer-threads")
    for part in ("models", "environments", "providers", "members", "usage"):
        await page.goto(f"{server.url}/settings/{part}")
        await expect(page.get_by_role("heading", name="Settings")).to_be_visible()
        await page.wait_for_load_state("networkidle")
        buttons = await page.locator(".page").get_by_role("button").all_inner_texts()
        assert buttons == [], f"{part}: {buttons}"
    await expect(page.get_by_role("navigation", name="Settings").get_by_text("secrets")).to_have_count(0)
    await page.goto(f"{server.url}/new")
    await expect(page.get_by_text("Its members start runs.")).to_be_visible()
    await page.goto(f"{server.url}/t/{thread.id}")
    await expect(page.locator(".mark.failed")).to_be_visible()
    await expect(page.get_by_text("You may read this.")).to_be_visible()
    assert await page.locator(".remedies, .composer").count() == 0
    assert told.refusals == []
    assert told.complaints == []
