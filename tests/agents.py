"""The real agents, for tests: installed once per machine into .holdfast/tools, which stays between runs.

`bin/test` runs this as a program when something is missing, so that no test has to reach a package registry.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

from holdfast.harnesses import registry
from holdfast.harnesses.harness import Harness
from holdfast.harnesses.installation import Installed, Progress, Tools

_KEPT = Path(__file__).parents[1] / ".holdfast"


class InstalledAgents:
    """`installed_agents` of tests: agents by name, on this machine."""

    def __init__(self, home: Path = _KEPT) -> None:
        self.tools = Tools(home)

    def install(self, agent: str | Harness) -> Installed:
        """An agent, which is there already after `bin/test`."""
        sys.audit("holdfast.tests.agent")  # for the guard of the marks
        harness = registry.find(agent) if isinstance(agent, str) else agent
        found = self.tools.find(harness)
        if found is None:
            made: list[Installed] = []
            # Tests may be in an event loop of their own.
            thread = threading.Thread(target=lambda: made.append(asyncio.run(self.tools.install(harness))))
            thread.start()
            thread.join()
            [found] = made
        return found

    def share_with(self, home: Path) -> None:
        """Have the agents in a home that no provider and no server has opened yet: nothing is installed again."""
        sys.audit("holdfast.tests.agent")
        self.tools.folder.mkdir(parents=True, exist_ok=True)
        home.mkdir(parents=True, exist_ok=True)
        (home / "tools").symlink_to(self.tools.folder.resolve())


def _tell(progress: Progress) -> None:
    if progress.done:
        sys.stdout.write(f"{progress.what} {progress.seconds:.1f} s\n")


async def _install_all() -> None:
    tools = Tools(_KEPT)
    for name in registry.names():
        harness = registry.find(name)
        if harness.package is not None:
            await tools.install(harness, on_progress=_tell)


if __name__ == "__main__":
    asyncio.run(_install_all())
