"""Finds and reads the file of an environment, and opens one in the user's editor."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from holdfast.api.environments import FILE_NAME, MAX_TEXT
from holdfast.cli.errors import CommandError, usage_error
from holdfast.cli.exits import Exit

TEMPLATE: Final = """\
# An environment: what the box of a run is like. docs/environments.md describes all fields.
# agent = "claude"
# models = ["anthropic"]
# image = "python:3.13"
setup = ["pip install pytest"]
egress = ["default"]            # package registries and git hosts
# inputs = ["requirements.txt"] # files that setup reads
# test = "pytest -q"
# secrets = ["GITHUB_TOKEN"]
# [limits]
# memory = "4G"
# timeout = "2h"
"""


def find_file(folder: Path) -> str | None:
    """Returns the text of the environment in a folder, or None if there is none.

    A link is refused: it may lead to any file of this machine, and the text of that would go to the server.
    """
    path = folder / FILE_NAME
    if path.is_symlink():
        raise CommandError(
            f"{path} is a link, and links are not read",
            next_step=f"put the text itself into {FILE_NAME}; holdfast run --no-env runs without it",
        )
    return read_file(path) if path.is_file() else None


def read_file(path: Path) -> str:
    """Read the text of an environment; `-` is standard input."""
    if str(path) == "-":
        return _decoded(sys.stdin.buffer.read(MAX_TEXT * 4 + 1), "standard input")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise usage_error(f"{path} is not a file", f"give the path of a {FILE_NAME}")
            return _decoded(file.read(MAX_TEXT * 4 + 1), str(path))
    except OSError as error:
        raise CommandError(
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}",
            next_step=f"give the path of a {FILE_NAME}",
            exit=Exit.NOT_FOUND if isinstance(error, FileNotFoundError) else Exit.FAILURE,
        ) from None


def _decoded(data: bytes, where: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise usage_error(f"{where} is not a text file", "environments are TOML files in UTF-8") from None
    if len(text) > MAX_TEXT:
        raise usage_error(f"{where} has more than {MAX_TEXT} characters", "put long commands into a script")
    if not text.strip():
        raise usage_error(f"{where} is empty", 'write at least setup = ["…"] or image = "…"')
    return text


def edit(text: str) -> str:
    """Open a text in the user's editor, and return what it was saved as."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise usage_error("there is no terminal for an editor", "give the text with --file PATH, or --file - < FILE")
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        path = Path(folder) / FILE_NAME
        path.write_text(text)
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)
        except (OSError, ValueError) as error:
            raise CommandError(
                f"the editor {editor!r} cannot be started: {error}", next_step="set EDITOR, or give --file PATH"
            ) from None
        if done.returncode:
            raise CommandError(f"the editor ended with {done.returncode}, so nothing was saved")
        return read_file(path)
