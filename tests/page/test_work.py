"""Working in the page, in a real browser: real agents in real boxes, with a model that answers as scripted."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import BrowserContext, FilePayload, Page, expect
from tests.page.conftest import Picture, Told, serious_problems
from tests.page.workbench import Workbench, enter

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.testing.model import Gate, bash, error, held, text, write

pytestmark = [pytest.mark.anyio, pytest.mark.agent, pytest.mark.box, pytest.mark.slow, pytest.mark.xdist_group("page")]


@pytest.fixture(scope="module")
def repaired(bench: Workbench) -> str:
    """A thread with two turns, which changed files. Its box is used by several tests."""
    return repair(bench)


def repair(bench: Workbench) -> str:
    prices = "def price(amount):\n    discount = 0.1\n    return amount * (1 - discount)\n"
    thread = bench.run(
        "Write the prices.",
        write("price.py", prices),
        bash("mkdir docs; echo '# Prices' > docs/a.md; ls"),
        text("One."),
    )
    bench.model.script([bash("echo 'import price' > test_price.py"), text("Two.")], when="Write the prices.")
    bench.client.runs.resume(thread, "Now the tests.")
    bench.client.runs.wait(thread)
    return thread


async def test_a_run_is_started_followed_steered_and_stopped(
    page: Page, bench: Workbench, told: Told, picture: Picture
) -> None:
    gate, second, third = Gate(2), Gate("start"), Gate("start")
    steps = [
        held(text("I will look at the files first."), gate),
        held(text("Then this."), second),
        held(text("Never said."), third),
    ]
    bench.model.script(steps, when="Look around")
    await enter(page, bench, "/new")
    await page.get_by_label("What should the agent do?").fill("Look around, please.")
    await page.get_by_label("Agent", exact=True).select_option("pi")
    await picture("new-run")
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator("#status")).to_have_text("● running")
    # The words arrive while they are said: the model is held in the middle of its message.
    await gate.reached()
    await expect(page.locator(".prose.live")).to_contain_text("I will")
    await expect(page.locator(".prose.live")).not_to_contain_text("first")
    await page.get_by_label("Message to the agent").fill("After that, go on.")
    await page.keyboard.press("Enter")
    await expect(page.locator(".prompt", has_text="After that").locator(".tag")).to_have_text("queued")
    await expect(page.get_by_text("1 prompt waits")).to_be_visible()
    await picture("thread-running")
    gate.release()
    await expect(page.locator(".prose", has_text="files first.")).to_be_visible()
    await second.reached()
    await expect(page.get_by_text("1 prompt waits")).to_be_hidden()
    await page.get_by_label("Message to the agent").fill("Rather this.")
    await page.get_by_role("button", name="Interrupt").click()
    await third.reached()
    await expect(page.locator(".mark.cancelled b").first).to_contain_text("interrupted")
    second.release()
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator("#status")).to_have_text("■ cancelled")
    third.release()
    await expect(page.get_by_text("Never said.")).to_have_count(0)
    await expect(page.locator("#context")).to_have_text(re.compile(r"^\d+ %$"))
    assert told.complaints == [], told.refusals


async def test_the_server_dies_in_mid_run_and_the_page_catches_up_whole(page: Page, bench: Workbench) -> None:
    gate = Gate(1)
    bench.model.script(
        [bash("echo before"), held(text("Cut off in the middle."), gate), text("Said again.")], when="Outlive it"
    )
    thread = bench.client.runs.launch("Outlive it.", agent="pi", model="mine").thread
    await enter(page, bench, f"/t/{thread}")
    await gate.reached()
    await expect(page.locator("details.tool .result")).to_have_text("before")
    bench.server.kill()
    await expect(page.locator("#link")).to_contain_text("does not answer")
    bench.server.start()
    gate.release()
    await expect(page.locator("#status")).not_to_have_text("● running", timeout=60_000)
    await expect(page.locator(".checkpoint")).to_be_visible(timeout=60_000)
    shown = await page.locator("#timeline .body").all_inner_texts()
    await page.reload()
    await expect(page.locator(".checkpoint")).to_be_visible()
    assert await page.locator("#timeline .body").all_inner_texts() == shown, "as it is read from the start"
    assert sum("echo before" in each for each in shown) == 1


async def test_a_thread_is_forked_at_a_checkpoint_and_rewound(page: Page, bench: Workbench, picture: Picture) -> None:
    repaired = await asyncio.to_thread(repair, bench)  # one of its own: a rewind replaces the box
    await enter(page, bench, f"/t/{repaired}")
    first = page.locator(".checkpoint", has_text="turn 1")
    await expect(first).to_be_visible()
    await picture("thread")
    await first.get_by_role("button", name="Fork from here").click()
    bench.model.script([bash("ls"), text("On the branch.")], when="Write the prices.")
    await page.get_by_label("What to do there").fill("Branch off.")
    await page.get_by_role("button", name="Fork", exact=True).last.click()
    await expect(page).not_to_have_url(re.compile(repaired))
    await expect(page.locator(".mark.forked")).to_contain_text(f"forked from {repaired} after turn 1")
    await expect(page.locator(".prose", has_text="On the branch.")).to_be_visible()
    await expect(page.locator("#timeline")).not_to_contain_text("Two.")
    branch = page.url.rpartition("/")[2]
    await expect(page.locator("#status")).to_have_text("✓ completed")

    await page.goto(f"{bench.server.url}/compare/{repaired}/{branch}")
    await expect(page.get_by_text("They part after turn 1")).to_be_visible(timeout=30_000)
    await expect(page.locator("section.card")).to_have_count(2)
    await expect(page.locator(".said", has_text="On the branch.")).to_be_visible()
    await picture("compare")
    assert await serious_problems(page) == []

    await page.goto(f"{bench.server.url}/t/{repaired}")
    rewind = page.locator(".checkpoint", has_text="turn 1").get_by_role("button", name="Rewind to here")
    await rewind.click()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.locator(".mark.rewound")).to_have_count(0)
    await rewind.click()
    await page.get_by_role("dialog").get_by_role("button", name="Rewind").click()
    await expect(page.locator(".mark.rewound")).to_contain_text("rewound to the end of turn 1")
    await expect(page.locator(".prose.dimmed")).to_contain_text("Two.")
    await expect(page.get_by_text("Rewound to the end of turn 1.")).to_be_visible()  # the request has ended
    await page.get_by_role("button", name="Undo rewind").click()
    await expect(page.get_by_text("The rewind is undone.")).to_be_visible()
    await expect(page.locator(".prose.dimmed")).to_have_count(0)


async def test_a_comment_on_a_line_reaches_the_agent(
    page: Page, bench: Workbench, repaired: str, told: Told, picture: Picture
) -> None:
    bench.model.script([text("I will name it better.")], when="Write the prices.")
    await enter(page, bench, f"/t/{repaired}/changes")
    file = page.locator("details.file", has_text="price.py").first
    await expect(file.locator(".line.plus").first).to_be_visible()
    await file.get_by_label("Comment on line 2 of price.py").click()
    await page.get_by_label("Comment", exact=True).fill("Why ten per cent?")
    await page.get_by_role("button", name="Add comment").click()
    await file.get_by_label("Comment on line 1 of price.py").click()
    await page.get_by_label("Comment", exact=True).fill("Say what it returns.")
    await page.keyboard.press("Control+Enter")
    await picture("changes")
    assert await serious_problems(page) == []
    await page.get_by_role("button", name="Send 2 comments to the agent").click()
    await expect(page.locator(".prose", has_text="I will name it better.")).to_be_visible()
    [asked] = [each for each in bench.model.main_requests if each.saw("Why ten per cent?")][-1:]
    said = "\n".join(asked.user_texts)
    assert "price.py:2\n> discount = 0.1\nWhy ten per cent?" in said
    assert "price.py:1" in said
    assert told.complaints == [], told.refusals


async def test_a_terminal_runs_on_when_its_page_is_closed(
    page: Page, bench: Workbench, repaired: str, told: Told, picture: Picture
) -> None:
    await enter(page, bench, f"/t/{repaired}/terminal")
    await page.get_by_role("button", name="Open a terminal").click()
    screen = page.locator(".xterm-rows")
    await expect(screen).to_contain_text("$")
    await page.locator(".xterm-helper-textarea").focus()
    await page.keyboard.type("echo $((6 * 7)) > answer; printf '\\033[31mred\\033[0m %s\\n' $(cat answer)\n")
    await expect(screen).to_contain_text("red 42")
    await picture("terminal")
    await page.reload()
    await expect(screen).to_contain_text("red 42")
    await page.locator(".xterm-helper-textarea").focus()
    await page.keyboard.type("exit 3\n")
    await expect(page.get_by_text("This terminal has ended with 3.")).to_be_visible()
    assert told.complaints == [], told.refusals


async def test_old_output_makes_no_terminal_type(page: Page, bench: Workbench, repaired: str) -> None:
    box = bench.client.runs.get(repaired).box
    assert box is not None
    asks = ["sh", "-c", "printf 'ready\\033[5n\\033[6n\\033[c'; exec cat -v"]
    process = bench.client.boxes.open(box).spawn(asks, pty=True)
    while b"ready" not in process.read("stdout"):
        await page.wait_for_timeout(50)
    await enter(page, bench, f"/t/{repaired}/terminal?process={process.id}")
    screen = page.locator(".xterm-rows")
    await expect(screen).to_contain_text("ready")
    await page.locator(".xterm-helper-textarea").focus()
    await page.keyboard.type("mine\n")
    await expect(screen).to_contain_text("minemine")  # as it was typed, and from cat
    assert process.read("stdout").partition(b"[c")[2].replace(b"\r", b"") == b"mine\nmine\n"
    process.signal(9)


async def test_files_are_edited_where_the_agent_sees_them(
    page: Page, bench: Workbench, repaired: str, told: Told, picture: Picture
) -> None:
    await enter(page, bench, f"/t/{repaired}/files")
    await page.get_by_role("button", name="docs").click()
    await page.get_by_role("link", name="a.md").click()
    editor = page.locator(".cm-content")
    await expect(editor).to_contain_text("# Prices")
    await picture("files")
    await editor.click()
    await page.keyboard.press("Control+End")
    await page.keyboard.type("written by hand")
    await page.keyboard.press("Control+s")
    await expect(page.get_by_text("Saved docs/a.md")).to_be_visible()
    box = bench.client.runs.get(repaired).box
    assert box is not None
    assert b"written by hand" in bench.client.boxes.open(box).files.read("docs/a.md")
    assert told.complaints == [], told.refusals


async def test_the_composer_knows_the_files_and_takes_more(page: Page, bench: Workbench, repaired: str) -> None:
    await enter(page, bench, f"/t/{repaired}")
    composer = page.get_by_label("Message to the agent")
    await composer.fill("Look at @pri")
    await expect(page.get_by_role("option", name="price.py", exact=True)).to_be_visible()
    await page.keyboard.press("Tab")
    await expect(composer).to_have_value(re.compile(r"Look at @\S*price\.py "))
    notes = FilePayload(name="my notes.txt", mimeType="text/plain", buffer=b"remember")
    await page.locator(".composer input[type=file]").set_input_files(notes)
    await expect(composer).to_have_value(re.compile("@attachments/my_notes.txt "))
    box = bench.client.runs.get(repaired).box
    assert box is not None
    assert bench.client.boxes.open(box).files.read("attachments/my_notes.txt") == b"remember"


async def test_a_box_leads_to_its_session(page: Page, context: BrowserContext, bench: Workbench, repaired: str) -> None:
    await enter(page, bench, f"/t/{repaired}/box")
    async with context.expect_page() as opened:
        await page.get_by_role("button", name="Open its session in a tab").click()
    tab = await opened.value
    await expect(tab).to_have_url(re.compile(rf"http://{repaired}\.localhost"))
    assert "token" not in tab.url


async def test_a_refused_host_is_allowed_from_the_page(page: Page, bench: Workbench, picture: Picture) -> None:
    fetch = "python3 -c \"import urllib.request as u; u.urlopen('http://files.example.com/')\" 2>&1 | tail -1"
    bench.model.script([bash(fetch), text("It was refused.")], when="Fetch it.")
    network = NetworkPolicy(Network.ALLOW, ("other.example.com",))
    thread = bench.client.runs.launch("Fetch it.", agent="pi", model="mine", box={"network": network.to_json()}).thread
    bench.client.runs.wait(thread)
    await enter(page, bench, f"/t/{thread}")
    refused = page.get_by_label("Inspector").get_by_text("files.example.com")
    await page.keyboard.press("Escape")
    toggle = page.get_by_role("button", name="Inspector", exact=True)
    await expect(toggle).to_be_visible()
    if await toggle.get_attribute("aria-pressed") == "false":
        await page.keyboard.press("i")
    await expect(refused).to_be_visible(timeout=15_000)
    await page.get_by_role("button", name="Allow").click()
    await expect(page.get_by_text("The box may now reach files.example.com.")).to_be_visible()
    box = bench.client.runs.get(thread).box
    assert box is not None
    assert bench.client.boxes.get(box).spec.network.allow == ("other.example.com", "files.example.com")
    await page.goto(f"{bench.server.url}/t/{thread}/box")
    await expect(page.get_by_text("may reach other.example.com, files.example.com")).to_be_visible()
    await picture("box")
    assert await serious_problems(page) == []


async def test_a_port_of_the_box_opens_in_a_tab_of_its_own_origin(
    page: Page, context: BrowserContext, bench: Workbench, repaired: str, picture: Picture
) -> None:
    box = bench.client.runs.get(repaired).box
    assert box is not None
    process = bench.client.boxes.open(box).spawn(["python3", "-m", "http.server", "3456", "--bind", "127.0.0.1"])
    await enter(page, bench, f"/t/{repaired}/ports")
    button = page.get_by_role("button", name="Open port 3456 in a tab")
    look = page.get_by_role("button", name="Look again")
    await look.click()
    while not await button.is_visible():  # until the program listens
        await look.click()
        await page.wait_for_timeout(50)
    await picture("ports")
    async with context.expect_page() as opened:
        await button.click()
    tab = await opened.value
    await expect(tab.get_by_text("price.py").first).to_be_visible()
    assert ".localhost" in tab.url
    assert await tab.evaluate("() => window.opener") is None
    process.signal(9)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_can_be_used_by_everybody(
    context: BrowserContext, bench: Workbench, repaired: str, scheme: str, page: Page, picture: Picture, told: Told
) -> None:
    await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    if not bench.client.environments.list():
        bench.client.environments.save("web", 'setup = ["pip install pytest"]\nsecrets = ["DEPLOY_TOKEN"]\n')
    await enter(page, bench, "/")
    await expect(page.locator("#threads li").first).to_be_visible()
    views = ("", "/changes", "/files", "/ports", "/box")
    parts = ("models", "environments", "secrets", "providers", "members", "keys", "usage")
    paths = ("/", "/new", "/inbox", "/boxes", *(f"/t/{repaired}{each}" for each in views),
             *(f"/settings/{each}" for each in parts))  # fmt: skip
    problems: dict[str, list[str]] = {}
    for path in paths:
        await page.goto(bench.server.url + path)
        await page.wait_for_load_state("networkidle" if not path.startswith("/t/") else "load")
        await expect(page.locator("h1")).to_be_visible()
        await picture(f"{scheme}{path.replace('/', '-').replace(repaired, 'thread')}")
        if found := await serious_problems(page):
            problems[path] = found
        await page.set_viewport_size({"width": 390, "height": 844})
        await picture(f"phone-{scheme}{path.replace('/', '-').replace(repaired, 'thread')}")
        if scheme == "light" and (found := await serious_problems(page)):
            problems[f"{path} on a phone"] = found
        if await page.evaluate("() => document.documentElement.scrollWidth > 390"):
            problems.setdefault(path, []).append("is wider than a phone")
        await page.set_viewport_size({"width": 1280, "height": 800})
    assert problems == {}
    assert told.complaints == [], told.refusals


async def test_a_sleeping_box_is_said_to_sleep_and_wakes_for_a_prompt(page: Page, bench: Workbench) -> None:
    thread = bench.run("Rest after this.", bash("echo kept > note"), text("Resting."))
    box = bench.client.runs.get(thread).box
    assert box is not None
    bench.client.boxes.stop(box)
    bench.model.script([bash("cat note"), text("Awake.")], when="Rest after this.")
    await enter(page, bench, f"/t/{thread}")
    await expect(page.get_by_text("Its box is asleep, with its files kept.")).to_be_visible()
    await page.get_by_label("Message to the agent").fill("Wake up.")
    await page.keyboard.press("Enter")
    await expect(page.locator(".prose", has_text="Awake.")).to_be_visible()
    await expect(page.locator("details.tool .result").last).to_have_text("kept")
    assert bench.client.runs.get(thread).box == box


async def test_a_real_interpreter_is_a_notebook_with_its_artifacts(page: Page, bench: Workbench, told: Told) -> None:
    made = bench.client.interpreters.create()
    bench.client.interpreters.execute(made.id, "words = ['tea'] * 9000; print(' '.join(words))")
    bench.client.interpreters.execute(made.id, "len(words)")
    await enter(page, bench, f"/t/{made.thread}")
    cells = page.locator("div.cell")
    await expect(cells).to_have_count(2)
    await expect(cells.last.locator(".value")).to_have_text("9000")
    artifact = cells.first.get_by_label("Artifacts").locator("li", has_text="stdout")
    async with page.expect_download() as downloading:
        await artifact.get_by_role("button", name="Download").click()
    assert (await (await downloading.value).path()).read_text().count("tea") == 9000
    assert await serious_problems(page) == []
    await page.get_by_role("link", name="Box", exact=True).click()
    await expect(page.get_by_text("Running.")).to_be_visible()
    assert told.complaints == [], told.refusals
    bench.client.interpreters.delete(made.id)


async def test_the_keys_of_a_thread_work_however_it_was_opened(page: Page, bench: Workbench, repaired: str) -> None:
    # Parts of the page add their actions in the same moment as the page itself: none may lose those of another.
    await enter(page, bench, "/")
    for view in ("", "/changes", "", "/box", ""):
        await page.goto(f"{bench.server.url}/t/{repaired}{view}")
        await expect(page.get_by_role("button", name="Inspector", exact=True)).to_be_visible()
        await page.keyboard.press("?")
        keys = page.get_by_role("dialog")
        for name in ("Show: Terminal", "Open or close all tool calls", "Go to settings", "Write to the agent"):
            await expect(keys).to_contain_text(name)
        await page.keyboard.press("Escape")


async def test_a_thread_is_renamed_in_a_dialog(page: Page, bench: Workbench, told: Told) -> None:
    thread = bench.client.threads.create(title="A first name").id
    await enter(page, bench, f"/t/{thread}")
    await expect(page.locator("#title")).to_have_text("A first name")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("rename")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Rename this thread")
    await expect(dialog.get_by_label("Title")).to_have_value("A first name")
    assert await serious_problems(page) == []
    await page.keyboard.type("x and j are letters here")
    await page.keyboard.press("Enter")
    await expect(page.locator("#title")).to_have_text("x and j are letters here")
    await expect(dialog).to_have_count(0)
    assert told.dialogs == []
    assert told.complaints == [], told.refusals


async def test_a_thread_is_shared_by_a_link_that_can_be_revoked(
    context: BrowserContext, page: Page, bench: Workbench, told: Told
) -> None:
    thread = bench.client.threads.create(title="For others").id
    bench.client.thread(thread).chat("Read *this*.")
    await enter(page, bench, f"/t/{thread}")
    await page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog", name="Share this thread")
    await expect(dialog).to_contain_text("There is no link to this thread.")
    await page.keyboard.press("Enter")
    link = dialog.get_by_label("The new link")
    await expect(link).to_have_value(re.compile("/s/|/share"))
    address = await link.input_value()
    assert await serious_problems(page) == []
    stranger = await context.browser.new_context() if context.browser else context
    visit = await stranger.new_page()
    await visit.goto(address)
    await expect(visit.locator("body")).to_contain_text("For others")
    await dialog.get_by_role("button", name="Revoke").click()
    await expect(dialog).to_contain_text("There is no link to this thread.")
    await visit.goto(address)
    await expect(visit.locator("body")).not_to_contain_text("For others")
    await stranger.close()
    assert told.complaints == [], told.refusals


async def test_a_refused_key_is_in_the_inbox_with_its_remedy(page: Page, bench: Workbench, picture: Picture) -> None:
    bench.model.script([error(401, "invalid key")] * 4, when="Use a wrong key")
    thread = bench.client.runs.launch("Use a wrong key.", agent="pi", model="mine").thread
    bench.client.runs.wait(thread)
    await enter(page, bench, "/inbox")
    item = page.locator("li", has_text="Use a wrong key.").filter(has=page.get_by_role("button", name="Resume"))
    await expect(item.get_by_role("link", name="Check the model")).to_have_attribute("href", "/settings/models")
    await picture("inbox-remedies")
    bench.model.script([text("Now it is right.")], when="Use a wrong key")
    await item.get_by_role("button", name="Resume").click()
    await expect(page.get_by_text("The run continues.")).to_be_visible()
    bench.client.runs.wait(thread)
    await page.goto(f"{bench.server.url}/t/{thread}")
    await expect(page.locator("#status")).to_have_text("✓ completed")


async def test_what_was_typed_is_there_after_a_look_elsewhere(page: Page, bench: Workbench, repaired: str) -> None:
    await enter(page, bench, "/new")
    await page.get_by_label("What should the agent do?").fill("A long thought.")
    await page.keyboard.press("Escape")
    await page.get_by_role("navigation", name="Threads").get_by_role("link", name="Settings").click()
    await expect(page.get_by_role("heading", name="Settings")).to_be_visible()
    await page.goto(f"{bench.server.url}/new")
    await expect(page.get_by_label("What should the agent do?")).to_have_value("A long thought.")
    await page.goto(f"{bench.server.url}/t/{repaired}")
    await page.get_by_label("Message to the agent").fill("Another one.")
    await page.get_by_role("link", name="Changes", exact=True).click()
    await page.get_by_label("Comment on line 1 of price.py").click()
    await page.get_by_label("Comment", exact=True).fill("Say why.")
    await page.get_by_role("button", name="Add comment").click()
    await page.get_by_role("link", name="Timeline").click()
    await expect(page.get_by_label("Message to the agent")).to_have_value("Another one.")
    await page.get_by_label("Message to the agent").fill("")
    await page.get_by_role("link", name="Changes", exact=True).click()
    await expect(page.get_by_text("Say why.")).to_be_visible()
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Download the patch").click()
    downloaded = await downloading.value
    assert downloaded.suggested_filename == f"{repaired}.patch"
    assert "+    discount = 0.1" in (await downloaded.path()).read_text()


async def test_the_keyboard_does_everything(page: Page, bench: Workbench, repaired: str) -> None:
    await enter(page, bench, "/")
    await expect(page.locator("#threads li").first).to_be_visible()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_contain_text("Command palette")
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("settings")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile("/settings"))
    await page.keyboard.press("Control+k")
    await page.keyboard.type(repaired)
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(repaired))
    await page.keyboard.press("2")
    await expect(page).to_have_url(re.compile("/changes"))
    await page.keyboard.press("1")
    await expect(page.get_by_label("Message to the agent")).to_be_visible()
    await page.keyboard.press("w")
    await expect(page.get_by_label("Message to the agent")).to_be_focused()
    await page.keyboard.type("/te")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile("/terminal"))
