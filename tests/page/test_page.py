"""The live page of a thread, in a real browser: what it shows, how it follows, what hostile entries cannot do to it."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import BrowserContext, Page, expect
from tests.cli.story import hostile, repaired
from tests.page.conftest import Told, make_thread

from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("page")]


async def test_a_finished_thread_reads_like_its_story(page: Page, api: httpx.Client, told: Told) -> None:
    thread = make_thread(api, "Repair the discount", repaired()[1:])
    await page.goto(thread.link)
    await expect(page.locator("#status")).to_have_text("✓ completed")
    await expect(page.locator("h1")).to_have_text("Repair the discount")
    await expect(page.locator("#agent")).to_have_text("pi 0.87.1")
    await expect(page.locator("#model")).to_have_text("scripted/demo")
    await expect(page.locator("#cost")).to_have_text("$0.00")
    await expect(page.locator("#elapsed")).to_have_text("4 s")
    await expect(page.locator("#boxes")).to_have_text("2")
    assert await page.title() == "✓ Repair the discount · Holdfast"
    await expect(page.locator(".mark.lost")).to_contain_text("✗ box b-7fq2 is gone")
    await expect(page.locator(".mark.lost + .mark.resumed")).to_contain_text("session rebuilt from the thread")
    await expect(page.locator(".mark.completed")).to_contain_text("✓ completed in 4.3 s")
    await expect(page.locator(".thinking summary")).to_have_text("∴ Where to begin? (2 lines)")
    await expect(page.locator(".prose")).to_have_count(3)
    tool = page.locator("details.tool").first
    await expect(tool.locator(".output")).to_be_hidden()
    await tool.locator("summary").click()
    await expect(tool.locator(".output .c1")).to_have_text("FAILED")
    edit = page.locator("details.tool", has_text="price.py")
    await expect(edit.locator(".result")).to_have_text("+1 −2")
    assert told.complaints == []


async def test_words_stream_in_place_and_tools_end_where_they_began(page: Page, api: httpx.Client, told: Told) -> None:
    thread = make_thread(api)
    await page.goto(thread.link)
    await expect(page.locator("#link")).to_have_text("live")
    thread.say("chat", role="user", text="Please look.")
    thread.say("signal.run.started", run="r-1", agent="pi", model="m/m", provider="local")
    await expect(page.locator("#status")).to_have_text("● running")
    await expect(page.locator("#doing")).to_contain_text("getting a box")
    await expect(page.locator("h1")).to_have_text("Please look.")
    thread.say("pi.delta", message="1", text="I will ")
    await expect(page.locator(".prose.live .body")).to_have_text("I will")
    thread.say("pi.delta", message="1", text="look **now**.")
    await expect(page.locator(".prose.live strong")).to_have_text("now")
    await page.locator(".prose").evaluate("node => node.dataset.same = 'yes'")
    thread.say("pi.assistant", message="1", text="I will look **now**.")
    await expect(page.locator(".prose:not(.live)")).to_have_attribute("data-same", "yes")
    thread.say("pi.call", call="c", name="bash", arguments={"command": "make test"})
    await expect(page.locator("details.tool.running .what")).to_have_text("make test")
    thread.say(
        "pi.tool", call="c", name="bash", arguments={"command": "make test"}, result="12 passed", status="ok", ms=81
    )
    await expect(page.locator("details.tool:not(.running) .result")).to_have_text("12 passed")
    await expect(page.locator("details.tool .took")).to_have_text("81 ms")
    thread.say("signal.run.finished", run="r-1", status="failed", error={"message": "no more money", "hint": "pay"})
    await expect(page.locator("#status")).to_have_text("✗ failed")
    await expect(page.locator(".mark.failed code")).to_have_text("no more money · pay")
    await expect(page.locator("#now")).to_be_hidden()
    thread.say("signal.run.started", run="r-2", agent="pi", model="m/m", provider="local", resumes="r-1")
    thread.say("signal.run.cancel_requested", run="r-2", interrupt=True)
    thread.say("chat", role="user", text="Rather this.", queued=True, interrupt=True)
    thread.say("signal.run.finished", run="r-2", status="cancelled")
    await expect(page.locator(".prompt .tag")).to_have_text("interrupts")
    await expect(page.locator(".mark.cancelled b")).to_contain_text("■ interrupted after")
    assert told.complaints == []


async def test_hostile_entries_are_text_and_nothing_else(page: Page, api: httpx.Client, told: Told) -> None:
    thread = make_thread(api, "<script>window.hurt=1</script>", hostile())
    await page.goto(thread.link)
    await expect(page.locator("#link")).to_have_text("live")
    await page.keyboard.press("o")
    await page.keyboard.press("t")
    timeline = page.locator("#timeline")
    await expect(timeline).to_contain_text("<img src=x onerror=alert(1)>")
    await expect(page.locator("h1")).to_have_text("<script>window.hurt=1</script>")
    assert await timeline.locator("img, script, iframe, a, style, link, svg, object, form, input").count() == 0
    assert await timeline.evaluate(
        "node => [...node.querySelectorAll('*')].every(each => !each.hasAttribute('onerror'))"
    )
    assert await page.evaluate("() => window.hurt === undefined")
    shown = await timeline.inner_text()
    assert not any(character in shown for character in "\x1b\x9b\x07\u202e")
    assert "owned" not in shown.replace("\\u001b]0;owned", "")
    assert "native code" not in shown
    assert told.dialogs == []
    assert told.complaints == []


async def test_the_page_runs_no_script_but_its_own(page: Page, api: httpx.Client) -> None:
    thread = make_thread(api)
    await page.goto(thread.link)
    refused = await page.evaluate(
        """() => {
            const script = document.createElement("script");
            let refused = 0;
            try { script.textContent = "window.hurt = 1"; } catch { refused += 1; }
            document.head.append(script);
            try { document.body.innerHTML = "<p>x</p>"; } catch { refused += 1; }
            try { document.body.setAttribute("onclick", "window.hurt = 2"); } catch { refused += 1; }
            document.body.click();
            return [refused, window.hurt ?? null];
        }"""
    )
    assert refused == [3, None]


async def test_the_credential_is_sent_as_one_and_is_in_no_address(
    page: Page, api: httpx.Client, told: Told, server: ServerProcess
) -> None:
    thread = make_thread(api, "Quiet", repaired()[1:])
    asked: list[str | None] = []
    page.on(
        "request", lambda request: asked.append(request.headers.get("authorization")) if "/v1/" in request.url else None
    )
    await page.goto(thread.link)
    await expect(page.locator("#status")).to_have_text("✓ completed")
    assert set(asked) == {f"Bearer {thread.token}"}
    assert page.url == f"{server.url}/t/{thread.id}"
    assert all(thread.token not in url.partition("#")[0] for url in told.requests)
    assert all(url.startswith(server.url) for url in told.requests)
    assert thread.token not in server.read_log()
    await page.reload()
    await expect(page.locator("#status")).to_have_text("✓ completed")


async def test_a_link_that_opens_nothing_says_what_to_do(
    context: BrowserContext, api: httpx.Client, server: ServerProcess
) -> None:
    thread, other = make_thread(api), make_thread(api)
    for link, said in (
        (f"{server.url}/t/{thread.id}", "The address alone does not open the thread"),
        (f"{server.url}/t/{thread.id}#token=x.y.z", "This link does not open the thread any more"),
        (f"{server.url}/t/{thread.id}#token={other.token}", "This link does not open the thread any more"),
        (f"{server.url}/t/t-none#token={server.api_key}", "There is no thread t-none here"),
    ):
        page = await context.new_page()
        await page.goto(link)
        await expect(page.locator("#trouble h2")).to_have_text(said)
        await expect(page.locator("#trouble code")).to_contain_text("holdfast ")
        await page.close()


async def test_it_follows_until_you_scroll_up_and_jumps_to_now(page: Page, api: httpx.Client) -> None:
    thread = make_thread(api, "Long", repaired()[1:])
    for number in range(60):
        thread.say("pi.assistant", message=str(number), text=f"Message number {number}.")
    await page.goto(thread.link)
    last = page.locator(".prose", has_text="Message number 59.")
    await expect(last).to_be_in_viewport()
    thread.say("pi.assistant", message="a", text="And one more.")
    await expect(page.locator(".prose", has_text="And one more.")).to_be_in_viewport()
    await expect(page.locator("#jump")).to_be_hidden()
    await page.mouse.move(500, 400)
    await page.mouse.wheel(0, -3000)
    await expect(page.locator("#jump")).to_be_visible()
    thread.say("pi.assistant", message="b", text="Far below.")
    await expect(page.locator(".prose", has_text="Far below.")).to_be_attached()
    await expect(page.locator(".prose", has_text="Far below.")).not_to_be_in_viewport()
    await page.locator("#jump").click()
    await expect(page.locator(".prose", has_text="Far below.")).to_be_in_viewport()
    await expect(page.locator("#jump")).to_be_hidden()


async def test_it_goes_on_when_the_server_comes_back(page: Page, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("restarted") / "home"
    with ServerProcess(home, auth=False) as server:
        with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as api:
            thread = make_thread(api, "Held fast")
            await page.goto(f"{server.url}/t/{thread.id}")
            await expect(page.locator("#link")).to_have_text("live")
            thread.say("pi.assistant", message="1", text="Before.")
            await expect(page.locator(".prose .body")).to_have_text("Before.")
            server.kill()
            await expect(page.locator("#link")).to_contain_text("does not answer")
            server.start()
            thread.say("pi.assistant", message="2", text="After.")
        await expect(page.locator(".prose .body")).to_have_text(["Before.", "After."])
        await expect(page.locator("#link")).to_have_text("live")


async def test_it_is_dark_where_that_is_wanted_and_fits_a_phone(context: BrowserContext, api: httpx.Client) -> None:
    thread = make_thread(api, "Repair", repaired()[1:])
    page = await context.new_page()
    await page.goto(thread.link)
    await expect(page.locator("#status")).to_have_text("✓ completed")
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    light = await page.evaluate(background)
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate(background) != light
    await page.set_viewport_size({"width": 360, "height": 700})
    assert await page.evaluate("() => document.documentElement.scrollWidth <= 360")
    await page.close()


def test_the_page_says_what_it_may_load(server: ServerProcess) -> None:
    headers = httpx.get(f"{server.url}/t/t-any", trust_env=False).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"


def test_there_are_no_other_files(server: ServerProcess) -> None:
    for path in ("/page/thread.html", "/page/..%2fapp.py", "/page/x", "/t/a%2fb", "/t/%3Cscript%3E"):
        answer = httpx.get(server.url + path, trust_env=False)
        assert answer.status_code in (404, 422), path
        assert answer.headers["content-type"] == "application/json"
    first = httpx.get(f"{server.url}/page/thread.js", trust_env=False)
    again = httpx.get(f"{server.url}/page/thread.js", headers={"if-none-match": first.headers["etag"]}, trust_env=False)
    assert (first.status_code, again.status_code) == (200, 304)
