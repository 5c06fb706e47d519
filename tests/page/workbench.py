"""A server with an agent and a scripted model, for tests that work in the page."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.async_api import Page, expect

from holdfast import SyncClient
from holdfast.testing.model import ScriptedModel, Step
from holdfast.testing.server import ServerProcess


@dataclass(frozen=True)
class Workbench:
    server: ServerProcess
    model: ScriptedModel
    client: SyncClient
    key: str
    """It is valid after a restart, too."""

    def run(self, prompt: str, *steps: Step) -> str:
        """A run that has ended, on a new thread."""
        self.model.script(list(steps), when=prompt)
        thread = self.client.runs.launch(prompt, agent="pi", model="mine").thread
        self.client.runs.wait(thread)
        return thread


async def enter(page: Page, bench: Workbench, path: str) -> None:
    """Opens a page with the key of the server."""
    await page.goto(f"{bench.server.url}/#key={bench.key}")
    await expect(page.get_by_role("navigation", name="Threads")).to_be_visible()
    await page.goto(bench.server.url + path)
