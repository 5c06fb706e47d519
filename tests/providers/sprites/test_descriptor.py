"""What is said of the provider without loading it."""

from __future__ import annotations

import subprocess
import sys


def test_the_descriptor_is_read_without_the_sdk() -> None:
    script = (
        "import sys; sys.modules['sprites'] = None; from holdfast.providers.sprites.descriptor import SPRITES;"
        "assert 'websockets' not in sys.modules; print(SPRITES.name)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "sprites\n", done.stderr
