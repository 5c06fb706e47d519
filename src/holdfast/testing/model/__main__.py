"""`python -m holdfast.testing.model`: the scripted model as a program, for tests that are not in Python."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from holdfast.testing.model.server import ScriptedModel
from holdfast.testing.model.steps import step_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.model", description=__doc__)
    parser.add_argument("--script", type=Path, help='JSON: a list of steps, or {"marker": [steps], "": [steps]}')
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0 picks a free one")
    parser.add_argument("--port-file", type=Path, help="file to write the port to once it listens")
    options = parser.parse_args()
    try:
        scripts = _read(options.script)
    except (OSError, ValueError, TypeError, KeyError) as error:
        parser.error(f"{options.script} is not a script: {error}")
    asyncio.run(_serve(scripts, options.port, options.port_file))


def _read(path: Path | None) -> dict[str, list[Any]]:
    given = json.loads(path.read_bytes()) if path is not None else []
    scripts = given if isinstance(given, dict) else {"": given}
    return {marker: [step_of(step) for step in steps] for marker, steps in scripts.items()}


async def _serve(scripts: dict[str, list[Any]], port: int, port_file: Path | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with ScriptedModel(port=port) as model:
        for marker, steps in scripts.items():
            model.script(steps, when=marker)
        if port_file is not None:
            _write_port(port_file, model.port)
        sys.stdout.write(f"listening on {model.url}\n")
        sys.stdout.flush()
        await ended.wait()


def _write_port(path: Path, port: int) -> None:
    """Write the port in one step, so that no reader sees a partial file."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(str(port))
    beside.replace(path)


if __name__ == "__main__":
    main()
