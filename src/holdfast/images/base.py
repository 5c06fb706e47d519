"""What `holdfast/base` is: a system that agents find their tools on. Built from packages on the user's own machine."""

from __future__ import annotations

from typing import Final

BASE: Final = "holdfast/base"

PACKAGES: Final = (
    "apt",
    "build-essential",
    "bzip2",
    "ca-certificates",
    "curl",
    "file",
    "git",
    "jq",
    "less",
    "nodejs",
    "npm",
    "openssh-client",
    "patch",
    "pkg-config",
    "procps",
    "python3",
    "python3-dev",
    "python3-pip",
    "python3-venv",
    "ripgrep",
    "rsync",
    "sqlite3",
    "tree",
    "unzip",
    "xz-utils",
    "zip",
    "zstd",
)
"""Beside what every Debian or Ubuntu system has."""

ENV: Final = {
    # The system's Python is the image's own: there is nothing for pip to spare, and nobody but root.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}
"""Beside what every image of a distribution has."""
