"""The pictures of the README and the docs, which `bin/screenshots` keeps: a real agent, and a box that is lost."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import Page, expect
from tests.page.conftest import Picture, Told, serious_problems
from tests.page.workbench import Workbench, enter

from holdfast.api.model.models import Price
from holdfast.testing.model import Gate, Step, bash, edit, error, held, text, write
from holdfast.testing.model.steps import Usage

pytestmark = [pytest.mark.anyio, pytest.mark.agent, pytest.mark.box, pytest.mark.slow, pytest.mark.xdist_group("page")]

PRICES = '''"""Prices of a basket."""

DISCOUNT = 0.1


def price(amount: float, is_member: bool) -> float:
    total = amount * (1 - DISCOUNT)
    if is_member:
        total = total * (1 - DISCOUNT)
    return round(total, 2)
'''
TESTS = """import unittest
from price import price


class Prices(unittest.TestCase):
    def test_guests_pay_the_whole_price(self):
        self.assertEqual(price(100, is_member=False), 100)

    def test_members_pay_less(self):
        self.assertEqual(price(100, is_member=True), 90)
"""
SUMMARY = """Fixed. The discount was applied to **everybody**, and twice to members:

| who | before | now |
|---|---:|---:|
| guests | $90.00 | $100.00 |
| members | $81.00 | $90.00 |

- [x] `price.py` applies it once, to members
- [x] both tests pass
"""
USAGE = Usage(input=4200, output=380, cache_read=16_000)


def said(words: str, step: Step) -> Step:
    return Step(text=words, calls=step.calls, usage=USAGE)


@pytest.fixture(scope="module")
def story_told(bench: Workbench) -> tuple[str, str]:
    """Makes threads with several ends. Returns that of the pictures, whose box is lost, and a fork of it."""
    runs = bench.client.runs
    bench.client.models.set_price("mine/scripted", Price(input=3, output=15, cache_read=0.3))
    bench.run("Which Python is in the box?", bash("python3 --version"), text("It is Python 3.", usage=USAGE))
    bench.run("Translate the error messages into French.", *[error(401, "invalid key")] * 3)
    prompt = "Write prices with a discount for members, and tests."
    files = [write("price.py", PRICES), write("test_price.py", TESTS), text("Here they are.", usage=USAGE)]
    thread = bench.run(prompt, *files)
    gate = Gate(3)
    wrong = "    total = amount * (1 - DISCOUNT)\n    if is_member:\n        total = total * (1 - DISCOUNT)\n"
    right = "    total = amount\n    if is_member:\n        total = amount * (1 - DISCOUNT)\n"
    steps = [
        said("I'll run the tests first.", bash("python3 -m unittest 2>&1")),
        said("The discount is taken from everybody, and twice from members.", edit("price.py", wrong, right)),
        held(text("That should do. Now the tests once more, to be sure."), gate),
    ]
    bench.model.script(steps, when=prompt)
    runs.resume(thread, "A guest pays $90 for a basket of $100. Find out why, and **repair `price.py`**.")
    gate.wait_reached()
    box = runs.get(thread).box
    assert box is not None
    bench.client.boxes.delete(box)
    gate.release()
    runs.wait(thread)
    again = [
        said(
            "This box has the files of the last turn, without my edit. Once more:",
            edit("price.py", wrong, right),
        ),
        bash("python3 -m unittest 2>&1", usage=USAGE),
        text(SUMMARY, usage=USAGE),
    ]
    bench.model.script(again, when=prompt)
    runs.resume(thread, "Go on.")
    runs.wait(thread)
    bench.model.script([text("With a table, it is three lines shorter.", usage=USAGE)], when=prompt)
    branch = bench.client.forks.fork(thread, prompt="Try it with a table of discounts.").thread
    runs.wait(branch)
    headers = {"Authorization": f"Bearer {bench.key}"}
    with httpx.Client(base_url=bench.server.url, headers=headers, trust_env=False, timeout=240) as api:
        api.patch(f"/v1/threads/{branch}", json={"title": "The same with a table of discounts"}).raise_for_status()
    return thread, branch


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_pictures_show_what_happened(
    page: Page, bench: Workbench, told: Told, picture: Picture, scheme: str, story_told: tuple[str, str]
) -> None:
    thread, _ = story_told
    end = "" if scheme == "light" else "-dark"
    await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await page.set_viewport_size({"width": 1180, "height": 860})
    await enter(page, bench, f"/t/{thread}")
    await expect(page.locator("#status")).to_have_text("✓ completed")
    await expect(page.locator(".prose td", has_text="$100.00")).to_be_visible()
    await expect(page.locator("#context")).to_be_visible()  # also where the thread is read before it is known who reads
    lost = page.locator(".mark.lost")
    await lost.scroll_into_view_if_needed()
    await expect(lost).to_contain_text("are safe on the thread")
    timeline = page.get_by_role("region", name="Timeline")
    await timeline.evaluate("(node, mark) => { node.scrollTop = mark.offsetTop - 330; }", await lost.element_handle())
    await picture(f"page{end}")
    assert await serious_problems(page) == []

    await page.get_by_role("link", name="Changes", exact=True).click()
    await page.get_by_label("Comment on line 7 of price.py").click()
    await page.get_by_label("Comment", exact=True).fill("Round only at the end.")
    await page.get_by_role("button", name="Add comment").click()
    await page.get_by_label("Comment on line 3 of price.py").click()
    await page.get_by_label("Comment", exact=True).fill("Where does this number come from?")
    await picture(f"changes{end}")

    await page.set_viewport_size({"width": 1180, "height": 420})
    await page.goto(f"{bench.server.url}/")
    await expect(page.locator("#threads > li")).to_have_count(3)
    await page.locator("#threads button.twist").click()
    await expect(page.locator("#threads li li")).to_have_count(1)
    await page.mouse.move(0, 0)
    if scheme == "light":
        await picture("threads")
    assert told.complaints == [], told.refusals
