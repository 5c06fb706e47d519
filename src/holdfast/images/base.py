"""The contents of `holdfast/base`: a system with the tools that agents need. Built from packages on the user's
machine."""

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
"""In addition to what every Debian or Ubuntu system has."""

ENV: Final = {
    # The system's Python is only for this image, and root is the only user, so pip may change it.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}
"""In addition to what every image of a distribution has."""
