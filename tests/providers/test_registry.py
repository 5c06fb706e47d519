"""Providers are loaded beside the event loop: a server that starts answers meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """\
import asyncio, sys, threading
from pathlib import Path
from holdfast.providers import factory

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread() and name.startswith("holdfast."):
            print(name)

async def main():
    sys.meta_path.insert(0, Watch())
    providers = await factory.open_providers(Path(sys.argv[1]), settings={"allow_process_provider": True})
    loaded = "holdfast.providers.local.provider" in sys.modules
    sys.meta_path.pop(0)
    for each in providers.values():
        await each.close()
    print("loaded" if loaded else "not loaded")

asyncio.run(main())
"""


def test_no_module_of_a_provider_is_loaded_on_the_event_loop(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "loaded\n", done.stderr
