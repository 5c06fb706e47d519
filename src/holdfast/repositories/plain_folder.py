"""A repository for a folder that is in none, so that work can be applied there, too.

It is elsewhere, in the home of the user's Holdfast, and has no commit. It remembers what was applied to the folder, and
what that replaced. The folder itself stays a plain folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from holdfast.repositories.git import Git


def beside(git: Git, folder: Path, repositories: Path) -> Git:
    """Returns a git that takes `folder` for the working tree of a repository in `repositories`, which is created."""
    real = folder.resolve()
    name = hashlib.sha256(os.fsencode(real)).hexdigest()[:32]
    place = repositories / f"{name}.git"
    if not place.is_dir():
        repositories.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=repositories, prefix=".half-") as half:
            Git.alone(git.environment).run(repositories, "init", "--quiet", "--bare", "--template=", f"{half}/git")
            with contextlib.suppress(OSError):  # another command was faster
                (Path(half) / "git").rename(place)
    return replace(git, environment={**git.environment, "GIT_DIR": str(place), "GIT_WORK_TREE": str(real)})
