"""The page for others than the owner: viewers, strangers with a link, and people who are asked to decide."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.async_api import Page, expect
from tests.page.conftest import Picture, Told, fetched, make_thread, posted, put, serious_problems
from tests.server.box_providers import dummies

from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("page")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its boxes are dummies: sessions ask and tell here, and no agent works."""
    with ServerProcess(tmp_path_factory.mktemp("people") / "home", providers=dummies) as server:
        yield server


@pytest.fixture
def viewer(api: httpx.Client) -> str:
    """The key of a viewer."""
    put(api, "/v1/members/vera", {"role": "viewer"})
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


async def test_what_waits_for_a_person_is_in_the_inbox_and_is_answered_there(
    page: Page, api: httpx.Client, server: ServerProcess, viewer: str, told: Told, picture: Picture
) -> None:
    model = {"apis": ["openai-chat"], "baseUrl": "http://127.0.0.1:9/v1", "model": "m"}
    put(api, "/v1/models/mine", model)
    session = posted(api, "/v1/sessions", {"agent": "pi", "model": "mine", "title": "Release", "tools": ["workflows"]})
    tools = f"/v1/sessions/{session['id']}/tools"
    steps = [
        {"id": "gate", "type": "approval", "prompt": "Publish <b>{{variables.what}}</b>?", "items": ["the wheel"]},
        {"id": "again", "type": "approval", "prompt": "Really?"},
    ]
    data = {"steps": steps, "variables": {"what": "x"}}
    flow = posted(api, f"{tools}/sync_workflow", {"name": "A flow", "data": data})
    started = {"workflowId": flow["workflow"]["id"], "variables": {"what": "1.0"}}
    execution = posted(api, f"{tools}/run_workflow", started)["execution"]["executionId"]
    note = {"toHandle": "@ada", "content": "It is ready.", "messageType": "notification"}
    posted(api, f"{tools}/send_notification", note)

    await page.goto(f"{server.url}/#key={server.api_key}")
    rail = page.get_by_role("navigation", name="Threads")
    await expect(rail.get_by_role("link", name="Inbox 2")).to_be_visible()
    await expect(page.locator("#threads li li", has_text="A flow").locator(".state")).to_have_text("◆ needs you")
    await page.keyboard.press("g")
    await page.keyboard.press("i")
    asks = page.get_by_role("article", name="waits for approval")
    await expect(asks).to_contain_text("Publish <b>1.0</b>?")
    await expect(asks).to_contain_text("the wheel")
    await picture("inbox")
    assert await serious_problems(page) == []
    await asks.get_by_label("Reason").fill("looks good")
    await asks.get_by_role("button", name="Approve").click()
    await expect(page.get_by_text("Approved.")).to_be_visible()
    await page.get_by_role("button", name="Mark as read").click()
    await expect(rail.get_by_role("link", name="Inbox 1")).to_be_visible()

    await page.goto(f"{server.url}/t/{execution}")
    await expect(page.locator("#status")).to_have_text("◆ needs approval")
    steps_shown = page.get_by_label("Workflow").locator("li")
    await expect(steps_shown.first).to_contain_text("done")
    await expect(steps_shown.nth(1)).to_contain_text("waits for approval")
    await picture("workflow")
    assert await serious_problems(page) == []
    await page.get_by_role("button", name="Deny").click()
    await expect(page.locator("#status")).to_have_text("✗ failed")
    await expect(page.get_by_label("Workflow")).to_contain_text("step again failed: denied")
    await expect(rail.get_by_role("link", name="Inbox", exact=True)).to_be_visible()
    await page.goto(f"{server.url}/inbox")
    await expect(page.get_by_role("heading", name="Nothing needs you")).to_be_visible()
    assert told.complaints == [], told.refusals


async def test_a_thread_of_another_tenant_does_not_exist(page: Page, api: httpx.Client, server: ServerProcess) -> None:
    ours = make_thread(api, "Only for us")
    ours.say("chat", role="user", text="a secret plan")
    key = posted(api, "/v1/tenants", {"name": "acme"})["key"]["key"]
    await page.goto(f"{server.url}/#key={key}")
    await expect(page.get_by_role("heading", name="There are no threads yet")).to_be_visible()
    for view in ("", "/changes", "/files", "/terminal", "/box"):
        await page.goto(f"{server.url}/t/{ours.id}{view}")
        await expect(page.get_by_role("heading", name=f"There is no thread {ours.id}")).to_be_visible()
        await expect(page.locator("body")).not_to_contain_text("a secret plan")
        await expect(page.locator("body")).not_to_contain_text("Only for us")
