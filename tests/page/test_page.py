"""The live page of a thread, in a real browser: what it shows, how it follows, what hostile entries cannot do to it."""

from __future__ import annotations

from typing import Literal

import httpx
import pytest
from playwright.async_api import BrowserContext, Page, expect
from tests.cli.story import hostile, repaired
from tests.page.conftest import Picture, Told, fetched, make_thread, posted

from holdfast import Entry
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


async def test_a_call_without_a_price_is_not_shown_as_free(page: Page, api: httpx.Client) -> None:
    thread = make_thread(api)
    thread.say("signal.run.started", run="r-1", agent="pi", model="m/m", provider="local")
    thread.say("pi.assistant", text="Hello.", usage={"cost": 0})
    thread.say("signal.model.call", run="r-1", model="m/m", cost=None)
    await page.goto(thread.link)
    await expect(page.locator("#cost")).to_have_text("unknown")
    thread.say("signal.model.call", run="r-1", model="m/n", cost=1.5)
    await expect(page.locator("#cost")).to_have_text("at least $1.50")


async def test_a_page_that_is_opened_in_the_middle_of_a_message_shows_its_beginning(
    page: Page, api: httpx.Client, told: Told
) -> None:
    thread = make_thread(api)
    thread.say("signal.run.started", run="r-1", agent="pi", model="m/m", provider="local")
    thread.say("pi.delta", message="1", text="From the ")
    thread.say("pi.delta", message="1", text="beginning ")
    await page.goto(thread.link)
    await expect(page.locator(".prose.live .body")).to_have_text("From the beginning")
    await expect(page.locator("#link")).to_have_text("live")
    thread.say("pi.delta", message="1", text="on.")
    await expect(page.locator(".prose.live .body")).to_have_text("From the beginning on.")
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
    await expect(page.locator("#link")).to_contain_text("ended")
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
        (f"{server.url}/t/{thread.id}", "This address has no key"),
        (f"{server.url}/t/{thread.id}#token=x.y.z", "This link does not open this thread"),
        (f"{server.url}/t/{thread.id}#token={other.token}", "This link does not open this thread"),
        (f"{server.url}/t/t-none#token={server.api_key}", "There is no thread t-none"),
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
        with httpx.Client(base_url=server.url, timeout=240, trust_env=False) as api:
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


MARKDOWN = """# What I found

The discount is applied *twice*, see [the docs](https://example.com/docs):

- first in `price.py`
  - for members
  - for **all**
- then in `cart.py`

3. third
4. fourth

> it said so

| file | line |
|---|---|
| price.py | 12 |

---
```python
print("a | b")
```
2 * 3 * 4 is no emphasis."""


async def test_markdown_is_shown_as_what_it_means(page: Page, api: httpx.Client, told: Told) -> None:
    thread = make_thread(api, "Markdown")
    thread.say("signal.run.started", run="r-1", agent="pi", model="m/m", provider="local")
    thread.say("pi.assistant", message="1", text=MARKDOWN)
    await page.goto(thread.link)
    body = page.locator(".prose .body")
    await expect(body.locator("h2")).to_have_text("What I found")
    await expect(body.locator("em")).to_have_text("twice")
    await expect(body.locator("p").first).to_contain_text("the docs (https://example.com/docs)")
    await expect(body.locator("ul > li > ul > li")).to_have_text(["for members", "for all"])
    await expect(body.locator("ol > li")).to_have_text(["third", "fourth"])
    assert await body.locator("ol").get_attribute("start") == "3"
    await expect(body.locator("blockquote")).to_have_text("it said so")
    await expect(body.locator("td")).to_have_text(["price.py", "12"])
    await expect(body.locator("pre")).to_have_text('print("a | b")')
    await expect(body.locator("p").last).to_have_text("2 * 3 * 4 is no emphasis.")
    assert await body.locator("a").count() == 0, "what an agent wrote leads nowhere"
    assert told.complaints == []


async def test_a_failed_tool_shows_its_first_error_and_exit_code(page: Page, api: httpx.Client) -> None:
    thread = make_thread(api, "Tools")
    thread.say("signal.run.started", run="r-1", agent="pi", model="m/m", provider="local")
    output = "> build\nsrc/a.c:3: error: expected ';'\nmake: Error 2\nLog: /tmp/x\n\nCommand exited with code 2"
    thread.say("pi.tool", call="1", name="bash", arguments={"command": "make"}, result=output, status="error")
    passed = "1 test\nno error found\nOK"
    thread.say("pi.tool", call="2", name="bash", arguments={"command": "make t"}, result=passed, status="ok")
    await page.goto(thread.link)
    results = page.locator("details.tool .result")
    await expect(results).to_have_text(["✗ src/a.c:3: error: expected ';' · exit 2", "OK"])


async def test_a_run_that_was_lost_says_why_and_what_to_do(page: Page, api: httpx.Client) -> None:
    thread = make_thread(api, "Full")
    thread.say("signal.run.started", run="r-1", agent="pi", model="m/m", provider="local")
    thread.say("signal.run.box", run="r-1", box="b-1", provider="local", how="created", ms=1)
    error = {"code": "disk_limit", "message": "what ran in box b-1 was ended by its disk limit", "hint": "give it more"}
    thread.say("signal.run.finished", run="r-1", status="orphaned", error=error)
    await page.goto(thread.link)
    await expect(page.locator("body")).to_contain_text("the run in box b-1 was lost")
    await expect(page.locator("body")).to_contain_text("was ended by its disk limit · give it more")


async def test_times_never_go_back_and_nothing_is_live_after_the_end(page: Page, api: httpx.Client) -> None:
    thread = make_thread(api, "Clocks")
    began = 1_790_000_000_000
    thread.say("chat", ts=began - 20, role="user", text="Go.")
    thread.say("signal.run.started", ts=began, run="r-1", agent="pi", model="m/m", provider="local")
    for number, after in enumerate((900, 5000, 4200, 5100)):
        thread.say("pi.assistant", ts=began + after, message=str(number), text=f"Message {number}.")
    await page.goto(thread.link)
    await expect(page.locator("#link")).to_have_text("live")
    await expect(page.locator(".prose .body")).to_have_count(4)
    shown = await page.locator(".prose .when").all_inner_texts()
    assert [each.replace("\u202f", " ") for each in shown] == ["+900 ms", "+5.0 s", "+5.0 s", "+5.1 s"]
    thread.say("signal.run.finished", ts=began + 6000, run="r-1", status="completed")
    await expect(page.locator("#link")).to_have_text("ended; new entries appear here")
    thread.say("signal.run.started", ts=began + 7000, run="r-2", agent="pi", model="m/m", provider="local")
    await expect(page.locator("#link")).to_have_text("live")


async def test_errors_are_sentences_and_no_json(page: Page, api: httpx.Client) -> None:
    thread = make_thread(api, "Errors")
    said = '401 {"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"},"request_id":"1"}'
    thread.say("signal.run.started", run="r-1", agent="pi", model="m/m", provider="local")
    thread.say("pi.retry", attempt=1, message='529 {"error": {"message": "Overloaded"}}')
    thread.say("signal.run.finished", run="r-1", status="failed", error={"message": said, "hint": "check the key"})
    await page.goto(thread.link)
    await expect(page.locator(".mark.failed code")).to_have_text("401: invalid x-api-key · check the key")
    await expect(page.locator(".remark.warning .body")).to_have_text("⟳ retrying (1): 529: Overloaded")


CONTRAST = """() => {
  const channels = (color) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    const context = canvas.getContext("2d");
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
    .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
  const background = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found[3] > 200) return found;
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest("[aria-hidden=true], noscript")) continue;
    const [high, low] = [light(channels(getComputedStyle(node).color)), light(background(node))].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const what = `${node.localName}.${node.className}: ${node.textContent.slice(0, 30)}`;
    if (ratio < 4.5) poor.push(`${what} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everything_can_be_read(page: Page, api: httpx.Client, scheme: Literal["light", "dark"]) -> None:
    thread = make_thread(api, "Contrast", repaired()[1:])
    thread.say("pi.assistant", message="m", text=MARKDOWN)
    thread.say("pi.notice", level="warning", text="Careful.")
    await page.emulate_media(color_scheme=scheme)
    await page.goto(thread.link)
    await expect(page.locator("#status")).to_have_text("✓ completed")
    await page.keyboard.press("o")
    await page.keyboard.press("t")
    assert await page.evaluate(CONTRAST) == []


async def test_a_phone_shows_long_lines_whole(context: BrowserContext, api: httpx.Client) -> None:
    thread = make_thread(api, "A title that is quite a bit longer than the screen of a phone is wide")
    thread.say("chat", role="user", text="x" * 300)
    thread.say("signal.run.started", run="r-1", agent="pi", model="m/" + "m" * 80, provider="local")
    thread.say("pi.assistant", message="1", text=f"{'word' * 100}\n\n`{'c' * 200}`\n\n{MARKDOWN}")
    thread.say(
        "pi.tool", call="1", name="bash", arguments={"command": "y" * 400}, result="z" * 3000, status="error", ms=10
    )
    page = await context.new_page()
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(thread.link)
    await expect(page.locator("details.tool .result")).to_be_visible()
    await page.keyboard.press("o")
    assert await page.evaluate("() => document.documentElement.scrollWidth <= 390")
    output = page.locator("details.tool .output")
    assert await output.evaluate("node => node.scrollWidth <= node.clientWidth"), "output wraps"
    await page.close()


async def test_the_root_lists_threads_for_who_may_read_them(
    page: Page, api: httpx.Client, server: ServerProcess, told: Told
) -> None:
    thread = make_thread(api, "<b>Listed</b>", repaired()[1:])
    await page.goto(server.url)
    await expect(page.locator("#said")).to_contain_text("holdfast key create")
    await page.locator("#key input").fill("hf_wrong")
    await page.locator("#key button").click()
    await expect(page.locator("#said")).to_have_text("This key is not valid on this server.")
    await page.locator("#key input").fill(server.api_key or "")
    await page.keyboard.press("Enter")
    row = page.locator("#threads li", has_text="<b>Listed</b>")
    await expect(row).to_contain_text(" ago")
    assert await page.evaluate(CONTRAST) == []
    await row.locator("a").click()
    await expect(page.locator("h1")).to_have_text("<b>Listed</b>")
    assert page.url == f"{server.url}/t/{thread.id}"
    assert all((server.api_key or "-") not in url for url in told.requests)


async def test_an_address_that_makes_no_sense_is_explained(page: Page, server: ServerProcess) -> None:
    await page.goto(f"{server.url}/t/%3Cscript%3E")
    await expect(page.locator("#trouble h2")).to_be_visible()
    await expect(page.locator("h1")).to_have_text("<script>")


async def test_a_browser_logs_in_by_a_link_and_out_again(
    page: Page, api: httpx.Client, server: ServerProcess, told: Told
) -> None:
    thread = make_thread(api, "After login", repaired()[1:])
    path = posted(api, "/v1/login/links", {})["path"]
    await page.goto(server.url + path)
    await expect(page.locator("#threads li", has_text="After login")).to_be_visible()
    assert await page.evaluate("() => Object.keys(sessionStorage).length") == 0, "no script can read a login"
    await page.goto(thread.link)
    await expect(page.get_by_label("Message to the agent")).to_be_visible()  # the login counts more than the link
    await page.keyboard.press("Control+k")
    await page.keyboard.type("log out")
    await page.keyboard.press("Enter")
    await page.goto(server.url)
    await expect(page.locator("#said")).to_contain_text("holdfast login")
    assert told.dialogs == []


async def test_a_viewer_reads_and_is_offered_nothing_else(page: Page, api: httpx.Client, server: ServerProcess) -> None:
    thread = make_thread(api, "For viewers", repaired()[1:])
    key = posted(api, "/v1/keys", {"name": "viewer", "role": "viewer"})["key"]
    await page.goto(f"{server.url}/t/{thread.id}#token={key}")
    await expect(page.locator("#status")).to_have_text("✓ completed")
    await expect(page.get_by_role("navigation", name="Threads")).to_be_visible()
    await expect(page.get_by_text("You may read this.")).to_be_visible()
    for name in ("Message to the agent", "Fork"):
        await expect(page.get_by_label(name)).to_have_count(0)
    await expect(page.get_by_role("link", name="Terminal", exact=True)).to_have_count(0)


async def test_the_thread_of_an_interpreter_is_a_notebook(page: Page, api: httpx.Client, picture: Picture) -> None:
    thread = make_thread(api, "Interpreter demo")
    thread.say("interpreter.started", python="3.11.7")
    code = "basket = ['tea', 'cake']\nsum(price_of(each) for each in basket)"
    thread.say("interpreter.execution", id="x1", code=code)
    for item in ("tea", "cake"):
        thread.say("interpreter.call", execution="x1", id=item, name="price_of", status="ok", seconds=0.002)
    thread.say(
        "interpreter.execution", id="x1", code=code, ok=True, stdout="", stderr="", value_text="6.5", seconds=0.1
    )
    failure = {
        "kind": "ZeroDivisionError",
        "message": "division by zero",
        "traceback": "Traceback …\nZeroDivisionError",
    }
    thread.say("interpreter.execution", id="x2", code="1 / 0", ok=False, stdout="<b>x</b>", error=failure, seconds=0.01)
    await page.goto(thread.link)
    cells = page.locator("div.cell")
    await expect(cells).to_have_count(2)
    await expect(cells.first.locator(".value")).to_have_text("6.5")
    await expect(cells.first.locator("summary")).to_have_text("2 calls to the host: price_of")
    await expect(cells.last).to_contain_text("ZeroDivisionError")
    await expect(cells.last).to_contain_text("<b>x</b>")
    await picture("notebook")


async def test_a_long_thread_draws_only_what_is_near(page: Page, api: httpx.Client) -> None:
    thread = make_thread(api, "Long")
    said = [{"type": "pi.assistant", "text": f"Message number {number}."} for number in range(3000)]
    for start in range(0, 3000, 1000):
        thread.append([Entry(f"e-{at}", 1_790_000_000_000 + at, said[at]) for at in range(start, start + 1000)])
    await page.goto(thread.link)
    await expect(page.get_by_text("Message number 2999.")).to_be_in_viewport()
    assert await page.locator("article").count() < 400
    await page.locator(".scroller").evaluate("node => { node.scrollTop = 0; }")
    await expect(page.get_by_text("Message number 0.")).to_be_in_viewport()
    await expect(page.get_by_text("Message number 2000.")).to_have_count(0)
    await page.locator("#jump").click()
    await expect(page.get_by_text("Message number 2999.")).to_be_in_viewport()


async def test_a_search_as_one_types_and_pins_are_kept(page: Page, api: httpx.Client, server: ServerProcess) -> None:
    first = make_thread(api, "Find the needle here")
    make_thread(api, "Something else")
    await page.goto(f"{server.url}/#key={server.api_key}")
    await page.locator("#home-search").fill("needle")
    await expect(page.locator("#threads li")).to_have_count(1)
    await expect(page).to_have_url(f"{server.url}/?q=needle")
    await page.get_by_label("Pin Find the needle here").click()
    await expect(page.get_by_label("Unpin Find the needle here")).to_be_visible()
    assert fetched(api, f"/v1/threads/{first.id}")["labels"] == {"pinned": "true"}
    await page.goto(f"{server.url}/t/{first.id}")
    composer = page.get_by_label("Message to the agent")
    await composer.fill("/rename Found the needle here")
    await composer.press("Enter")
    await expect(page.locator("h1")).to_have_text("Found the needle here")
    await page.goto(f"{server.url}/?q=needle")
    await page.get_by_label("Archive Found the needle here").click()
    await expect(page.locator("#threads li")).to_have_count(0)
    assert fetched(api, f"/v1/threads/{first.id}")["archived"] is True


async def test_with_a_key_a_thread_has_its_composer_and_inspector(
    page: Page, api: httpx.Client, server: ServerProcess, picture: Picture
) -> None:
    thread = make_thread(api, "Repair the discount", repaired()[1:])
    thread.say("signal.thread.checkpoint", ts=1_790_000_005_000, turn=2, run="r-2")
    for title in ("Write the release notes", "Why is the build slow?"):
        make_thread(api, title)
    await page.set_viewport_size({"width": 1280, "height": 860})
    await page.goto(f"{server.url}/t/{thread.id}#token={server.api_key}")
    await expect(page.get_by_label("Message to the agent")).to_be_visible()
    await expect(page.get_by_label("Inspector")).to_contain_text("price.py")
    await expect(page.locator(".mark.lost + .mark.resumed")).to_be_visible()
    await page.locator("details.tool", has_text="price.py").locator("summary").click()
    await expect(page.locator(".diff .plus")).to_be_visible()
    await picture("story")
    await page.emulate_media(color_scheme="dark")
    await picture("story-dark")
