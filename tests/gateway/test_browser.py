"""The gateway in a real browser: a terminal that is reloaded, and a tunnelled app with a WebSocket of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright, expect
from tests.gateway.conftest import Session, new_session
from tests.page.conftest import CHROMIUM
from tests.server.conftest import api_of

from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.box, pytest.mark.browser]

APP = """
import base64, hashlib, http.server, struct

PAGE = b'''<!doctype html><title>app</title><p id=said>nothing yet</p><script>
document.cookie = "of=the-app";
const socket = new WebSocket(`ws://${location.host}/echo`);
socket.onopen = () => socket.send("hello from " + document.cookie);
socket.onmessage = (event) => { said.textContent = event.data; };
</script>'''


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path != "/echo":
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)
            return
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        length = self.rfile.read(2)[1] & 127
        mask, data = self.rfile.read(4), self.rfile.read(length)
        text = b"echo: " + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self.wfile.write(bytes((0x81, len(text))) + text)
        self.wfile.flush()
        self.rfile.read(1)


http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""


@pytest.fixture
async def context() -> AsyncIterator[BrowserContext]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt install chromium")
    # Names below localhost are this machine to the browser, without asking anybody.
    flags = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        context = await browser.new_context(viewport={"width": 1000, "height": 700})
        context.set_default_timeout(20_000)
        expect.set_options(timeout=20_000)
        yield context
        await browser.close()


@pytest.fixture
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with ServerProcess(tmp_path_factory.mktemp("browser") / "home") as server, api_of(server) as api:
        session = new_session(server, api)
        yield session
        assert api.delete(f"/v1/boxes/{session.box}").status_code == 200


async def run(page: Page, command: str) -> None:
    await expect(page.locator("#state")).to_have_text("connected")
    await page.locator("#screen textarea").focus()
    await page.keyboard.type(command)
    await page.keyboard.press("Enter")


async def test_a_terminal_is_reloaded_and_a_tunnelled_app_uses_its_websocket(
    session: Session, context: BrowserContext
) -> None:
    complaints: list[str] = []
    page = await context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.goto(session.api.post(f"/v1/sessions/{session.id}/links", json={}).json()["url"])
    assert page.url == f"http://{session.host}/"
    await page.get_by_role("link", name="Terminal").click()
    screen = page.locator("#screen")
    await expect(page.locator("#state")).to_have_text("connected")
    await run(page, "echo $((6*7))-lives; marker=kept")
    await expect(screen).to_contain_text("42-lives")
    await page.reload()
    await expect(screen).to_contain_text("42-lives")
    text = await screen.text_content()
    assert text is not None
    assert text.count("42-lives") == 1
    await run(page, "echo $marker-too")
    await expect(screen).to_contain_text("kept-too")

    answer = session.api.put(f"/v1/boxes/{session.box}/files", params={"path": "/tmp/app.py"}, content=APP.encode())
    assert answer.status_code < 300, answer.text
    await run(page, "python3 /tmp/app.py &")
    await expect(screen).to_contain_text("[1]")  # the shell has got it: what is typed last can be lost with its page
    session.tunnel("app", 3000)
    await page.goto(f"http://{session.host}/t/app/")
    await expect(page.locator("#said")).to_have_text("echo: hello from of=the-app")
    assert page.url == f"http://app--{session.host}/"
    # Its cookie is its own, and ours is not to be read.
    await page.goto(f"http://{session.host}/tty/")
    assert await page.evaluate("document.cookie") == ""
    assert complaints == []


async def test_a_reloaded_terminal_does_not_answer_old_questions(session: Session, context: BrowserContext) -> None:
    page = await context.new_page()
    await page.goto(session.api.post(f"/v1/sessions/{session.id}/links", json={}).json()["url"])
    await page.goto(f"http://{session.host}/tty/")
    screen = page.locator("#screen")
    # The terminal is asked what it is. Its answer comes as if somebody had typed it.
    await run(page, "printf '\\033[c'; read -rs -d c answer; echo \"told ${#answer}\"")
    await expect(screen).to_contain_text("told 6")
    await page.reload()
    await expect(screen).to_contain_text("told 6")
    await run(page, "echo quiet-$((40+2))")
    await expect(screen).to_contain_text("quiet-42")
    assert "1;2c" not in (await screen.text_content() or "")
    # Colours are shown.
    await run(page, "printf '\\033[31mred\\033[0m\\n'")
    await expect(screen.locator(".xterm-fg-1", has_text="red")).to_be_visible()
