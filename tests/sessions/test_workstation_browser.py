"""The workstation of a session in a real browser: keys and clicks on its desktop, and a file written in its editor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright, expect
from tests.gateway.conftest import Session
from tests.page.conftest import CHROMIUM
from tests.sessions.workstation_image import workstation_home
from tests.sessions.workstations import a_server, end, needs_desktop, new_workstation, ready, run, until

pytestmark = [pytest.mark.anyio, pytest.mark.box, pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
async def context() -> AsyncIterator[BrowserContext]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt install chromium")
    flags = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        context = await browser.new_context(viewport={"width": 1200, "height": 800})
        context.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield context
        await browser.close()


async def opened(session: Session, context: BrowserContext) -> Page:
    page = await context.new_page()
    await page.goto(session.api.post(f"/v1/sessions/{session.id}/links", json={}).json()["url"])
    return page


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with a_server(tmp_path / "home") as served:
        made = new_workstation(*served)
        yield made
        end(made)


@needs_desktop
async def test_keys_and_clicks_on_the_desktop_reach_a_program(session: Session, context: BrowserContext) -> None:
    page = await opened(session, context)
    # The page looks again by itself until the desktop is there.
    await page.get_by_role("link", name="Desktop").click()
    canvas = page.locator("#noVNC_container canvas")
    await expect(canvas).to_be_visible()
    await expect(page.locator("html")).to_have_class("noVNC_connected")
    ready(session)
    listen = 'printf "name? "; while read name; do echo "$name" >> /workspace/typed; done'
    run(session, f"(setsid xterm -geometry 100x30+200+200 -e sh -c '{listen}' >/dev/null 2>&1 &)")
    until(lambda: "sh -c" in run(session, "ps ax -o args | grep '[p]rintf' || true"))
    box = await canvas.bounding_box()
    assert box is not None
    scale = box["width"] / 1920

    async def typed() -> bool:
        # The window may appear a moment after its program has started.
        await page.mouse.click(box["x"] + 400 * scale, box["y"] + 350 * scale)
        await page.keyboard.type("ada lovelace", delay=20)
        await page.keyboard.press("Enter")
        return "ada lovelace" in run(session, "sleep 0.3; cat /workspace/typed 2>/dev/null || true")

    for _ in range(20):
        if await typed():
            break
    else:
        raise AssertionError("what was typed did not arrive")


@pytest.fixture
def built() -> Iterator[Session]:
    """A session with the image of a workstation."""
    with workstation_home() as home, a_server(home) as served:
        made = new_workstation(*served)
        yield made
        end(made)


async def test_what_is_typed_in_the_editor_is_a_file_in_the_box(built: Session, context: BrowserContext) -> None:
    assert {each["state"] for each in ready(built)["steps"].values()} <= {"running", "done"}
    run(built, "printf 'first\\n' > /workspace/notes.txt")
    page = await opened(built, context)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.get_by_role("link", name="Editor").click()
    await expect(page.locator(".monaco-workbench")).to_be_visible()
    await page.get_by_role("treeitem", name="notes.txt").dblclick()
    lines = page.locator(".editor-instance .view-lines")
    await expect(lines).to_contain_text("first")
    await lines.click()
    await page.keyboard.press("Control+Home")
    await page.keyboard.type("typed in a browser ")
    await page.keyboard.press("Control+S")
    await expect(page.locator(".tab.dirty")).to_have_count(0)
    assert until(lambda: "typed" in (text := run(built, "cat /workspace/notes.txt")) and text) == (
        "typed in a browser first\n"
    )
    # Its own way to other ports is closed: tunnels have origins of their own.
    assert built.visit("/vscode/proxy/6080/", headers=built.cookie()).status_code == 403
    assert complaints == []
