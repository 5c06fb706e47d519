"""A real browser, Debian's chromium, and threads for it to show. It reaches this machine and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext, Page, Response, async_playwright, expect
from tests.agents import InstalledAgents
from tests.page.workbench import Workbench
from tests.serving import serving

from holdfast import Entry, SyncClient
from holdfast.api.model.models import Api
from holdfast.testing.model import ScriptedModel
from holdfast.testing.server import ServerProcess

expect.set_options(timeout=60_000)  # agents and browsers start beside other tests
CHROMIUM = shutil.which("chromium")
_FLAGS = (
    "--no-sandbox",  # of its own, which root has no use for; it shows nothing but our page
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE *.localhost",
)
AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
Picture = Callable[[str], Awaitable[None]]


@pytest.fixture(scope="module")
async def browser(anyio_backend: str) -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        yield browser
        await browser.close()


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context(viewport={"width": 1100, "height": 800}, color_scheme="light")
    context.set_default_timeout(60_000)
    yield context
    await context.close()


class Told:
    """What a page asked for, and what it complained about."""

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.dialogs: list[str] = []
        self.refusals: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: self.dialogs.append(dialog.message))
        page.on("response", self._note)

    def _note(self, answer: Response) -> None:
        if answer.status >= 400:
            self.refusals.append(f"{answer.status} {answer.request.method} {answer.url}")


@pytest.fixture
async def page(context: BrowserContext) -> Page:
    return await context.new_page()


@pytest.fixture
def told(page: Page) -> Told:
    return Told(page)


@pytest.fixture
def picture(page: Page, tmp_path: Path) -> Picture:
    """Takes a picture of the page. HOLDFAST_TEST_PICTURES names the folder to keep them in."""
    folder = Path(os.environ.get("HOLDFAST_TEST_PICTURES") or tmp_path)

    async def take(name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=folder / f"{name}.png")

    return take


async def serious_problems(page: Page) -> list[str]:
    """What axe finds on a page: rules of accessibility that are broken, with the first element that breaks each."""
    if not AXE.is_file():
        pytest.skip("the node packages of web/ are not installed")
    # By way of the debugger, because the policy of the page runs no script but its own.
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['id']} ({each['impact']}): {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary'][:300]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


@dataclass(frozen=True)
class ShownThread:
    """A thread, and the link that opens its page."""

    api: httpx.Client
    id: str
    link: str
    token: str

    def append(self, entries: Sequence[Entry]) -> None:
        answer = self.api.post(f"/v1/stream/threads/{self.id}", json=[entry.to_json() for entry in entries])
        assert answer.status_code < 300, answer.text

    def say(self, kind: str, ts: int = 1_790_000_000_000, **fields: Any) -> None:
        answer = self.api.post(f"/v1/stream/threads/{self.id}", json=[{"ts": ts, "payload": {"type": kind, **fields}}])
        assert answer.status_code < 300, answer.text


def make_thread(api: httpx.Client, title: str | None = None, entries: Sequence[Entry] = ()) -> ShownThread:
    made = api.post("/v1/threads", json={"title": title} if title else {})
    assert made.status_code == 201, made.text
    id = made.json()["id"]
    path, _, key = api.post(f"/v1/threads/{id}/links", json={}).json()["path"].partition("#key=")
    thread = ShownThread(api, id, f"{api.base_url.copy_with(path=path)}#key={key}", f"hfl_{id}.{key}")
    if entries:
        thread.append(entries)
    return thread


def posted(api: httpx.Client, path: str, body: Any) -> Any:
    answer = api.post(path, json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


def put(api: httpx.Client, path: str, body: Any) -> None:
    answer = api.put(path, json=body)
    assert answer.status_code < 300, answer.text


def fetched(api: httpx.Client, path: str) -> Any:
    return api.get(path).json()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[Workbench]:
    home = tmp_path_factory.mktemp("bench") / "home"
    home.mkdir()
    installed_agents.install("pi")
    installed_agents.share_with(home)
    with serving(home) as server, ScriptedModel() as model:
        with SyncClient(server.url, api_key=server.api_key) as owner:
            key = owner.keys.create("page").key
        with SyncClient(server.url, api_key=key) as client:
            client.models.add("mine", apis=[Api.OPENAI_CHAT], base_url=model.openai_url, model="scripted")
            yield Workbench(server, model, client, key)
