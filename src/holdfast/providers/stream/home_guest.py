"""The guest on a machine that is not ours alone: in the home of the user that commands run as.

A provider runs `setup_command` there, which puts the guest's files into a folder named after their version, makes the
working directory, and reports what it found.
"""

from __future__ import annotations

import functools
import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors.boxes import CreateFailed
from holdfast.box_json import parse
from holdfast.providers.stream.guest import guest_files

NO_FILES: Final = 75
"""The exit code of a set-up that was given no archive, where the files are missing."""
_FOLDER: Final = ".holdfast-guest"
_SETUP: Final = f"""
set -eu
umask 022
guest="$HOME/{_FOLDER}/$1"
if [ -d "$guest" ]; then
    if [ "$4" = - ]; then cat > /dev/null; fi
else
    [ -n "$4" ] || exit {NO_FILES}
    rm -rf "$guest.new"; mkdir -p "$guest.new"; tar -xf "$4" -C "$guest.new"
    mv "$guest.new" "$guest" 2> /dev/null || rm -rf "$guest.new"
fi
case "$4" in /*) rm -f "$4";; esac
mkdir -p "$HOME/{_FOLDER}/run"
if ! mkdir -p "$2" 2> /dev/null || ! [ -w "$2" ]; then
    sudo -n mkdir -p "$2"; sudo -n chown "$(id -u):$(id -g)" "$2"
fi
exec python3 -c "$3" "$guest"
"""
PROXIES: Final = (
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "NODE_USE_ENV_PROXY",
)  # fmt: skip
"""Variables of a machine that reaches the network through a proxy."""
_USER: Final = ("HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG")
_TRUST: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_REPORT: Final = f"""
import json, os, socket, sys
names = {(*_USER, *_TRUST, *PROXIES)!r}
guest = socket.socket(socket.AF_UNIX)
try:
    os.chdir(os.environ["HOME"] + "/{_FOLDER}/run")
    guest.connect("guest.sock")
    runs = True
except OSError:
    runs = False
print(json.dumps({{"version": list(sys.version_info[:2]), "python": os.path.realpath(sys.executable),
    "guest": sys.argv[1], "runs": runs,
    "environment": {{name: os.environ[name] for name in names if name in os.environ}}}}))
"""


@dataclass(frozen=True, slots=True)
class GuestPlace:
    """Where the guest is, and what was found there."""

    home: str
    guest: str
    """The folder of its files."""
    python: str
    environment: Mapping[str, str]
    runs: bool
    """Whether a guest runs there now. It may be of another version."""


@functools.cache
def guest_archive() -> tuple[bytes, str]:
    """Returns the guest's files as a tar archive, and its version."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in sorted(guest_files().items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(data), 0o644, 1
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue(), hashlib.sha256(buffer.getvalue()).hexdigest()[:12]


def setup_command(workdir: str, archive: str) -> list[str]:
    """Returns a command that can be run twice. `archive` is the path of the guest's files, which is removed; `-` for
    those on stdin; or empty if they are expected to be there.
    """
    return ["sh", "-c", _SETUP, "sh", guest_archive()[1], workdir, _REPORT, archive]


def read_place(exit_code: int, stdout: str, stderr: str) -> GuestPlace:
    """Returns what a set-up reported. Raises `CreateFailed`."""
    try:
        if exit_code != 0:
            raise ValueError(stderr.strip()[-300:] or f"exit code {exit_code}")
        told: dict[str, Any] = parse(stdout.strip().rpartition("\n")[2].encode())
        if tuple(told["version"]) < (3, 9):
            raise ValueError(f"python3 is {told['version'][0]}.{told['version'][1]}")
        environment = {str(name): str(value) for name, value in told["environment"].items()}
        return GuestPlace(environment["HOME"], str(told["guest"]), str(told["python"]), environment, bool(told["runs"]))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CreateFailed(
            f"the guest cannot be set up: {error}", hint="a box needs sh, tar and Python 3.9 or newer"
        ) from None


def run_folder(home: str) -> str:
    """Returns the folder where the guest and its bridges meet."""
    return f"{home}/{_FOLDER}/run"
