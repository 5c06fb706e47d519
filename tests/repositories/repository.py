"""Repositories for tests, made by git itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_ALLOW_PROTOCOL": "file",
}


def git(folder: Path, *arguments: str, stdin: bytes | None = None) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=ENVIRONMENT, check=False, capture_output=True, input=stdin, timeout=60
    )
    assert not done.returncode, done.stderr.decode()
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def new_repository(top: Path, files: dict[str, str]) -> str:
    """Make a repository with one commit, and return the commit."""
    top.mkdir(parents=True)
    git(top, "init", "-q", "-b", "main")
    return commit(top, files)


def commit(top: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(content)
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "more")
    return git(top, "rev-parse", "HEAD")
