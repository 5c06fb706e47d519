"""The kernel spec of our Jupyter kernel: a folder with a `kernel.json` that says how to start it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jupyter_client.kernelspec import KernelSpecManager

NAME: Final = "holdfast"
DISPLAY_NAME: Final = "Python in a box (Holdfast)"


def kernel_spec(
    *, display_name: str = DISPLAY_NAME, options: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """`options` are those of `BoxKernel`: template, model, timeout."""
    arguments = [f"--BoxKernel.{name}={value}" for name, value in (options or {}).items()]
    return {
        "argv": [sys.executable, "-m", "holdfast.interpreter.jupyter", "-f", "{connection_file}", *arguments],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "message",
        "env": dict(env or {}),
        "metadata": {"debugger": False},
    }


def install(spec: Mapping[str, Any], *, name: str = NAME, prefix: str | None = None) -> Path:
    """Install for this user, or under a prefix such as a virtual environment. Replaces a spec of the same name."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(spec, indent=2))
        made = KernelSpecManager().install_kernel_spec(folder, kernel_name=name, user=prefix is None, prefix=prefix)
    return Path(made)


def remove(name: str = NAME) -> Path:
    """Raises `KeyError` if there is no spec of that name."""
    return Path(KernelSpecManager().remove_kernel_spec(name))
