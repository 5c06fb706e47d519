"""`holdfast demo` on a machine where Holdfast never ran: nothing in /run, /tmp and HOME, as root and as a user.

What an earlier version or another user left on a machine must not be what makes it work.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.agents import InstalledAgents

pytestmark = [
    pytest.mark.xdist_group("runs of the command line"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make such a machine"),
]

_SECONDS = 240
_USER = 54321
"""Nobody on any machine, without a name or a group."""
_HIDDEN = ("/run", "/tmp", "/var/tmp", "/mnt")
_CHECKOUT = Path(__file__).parents[2]
_UNREACHABLE = 77
_UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_MACHINE = """
home=$1 agents=$2 user=$3 umask=$4 file_system=$5 python=$6
shift 6
mount --bind "$home" /mnt
mount -t tmpfs -o mode=755 bare /run
mount -t tmpfs -o mode=1777 bare /tmp
mount -t tmpfs -o mode=1777 bare /var/tmp
[ -z "$file_system" ] || mount -t tmpfs -o "mode=755,$file_system" bare /mnt
holdfast=/mnt/.local/share/holdfast
mkdir -p "$holdfast/tools"
chown -R "$user:$user" /mnt
mount --bind "$agents" "$holdfast/tools"

# Python and the checkout may lie in the home of root, which nobody else may pass through, and is not empty.
number=0
for kept; do
    number=$((number + 1))
    mkdir "/run/$number"
    mount --rbind "$kept" "/run/$number"
done
mount -t tmpfs -o mode=755 bare /root
number=0
for kept; do
    number=$((number + 1))
    mkdir -p "$kept"
    mount --rbind "/run/$number" "$kept"
    umount -l "/run/$number"
    rmdir "/run/$number"
done

as_user() { setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@"; }
run() { as_user "$python" -P -m holdfast "$@"; }
umask "$umask"
cd /mnt
as_user sh -c '"$0" -P -c "import holdfast.cli.app"' "$python" || exit 77
status=0
run demo || status=$?
boxes=$(run box list -q) && [ -z "$boxes" ] || run box delete --yes $boxes >&2
run down >&2
exit $status
"""


@dataclass(frozen=True)
class BareMachine:
    home: Path
    agents: Path

    def demo(self, *, user: int, umask: str, file_system: str = "") -> subprocess.CompletedProcess[str]:
        """The demo, and the end of what it leaves."""
        arguments = (str(self.home), str(self.agents), str(user), umask, file_system, sys.executable)
        needed = {Path(each).resolve() for each in (sys.base_prefix, sys.prefix, _CHECKOUT)}
        kept = [str(path) for path in sorted(needed) if path.is_relative_to("/root")]
        done = subprocess.run(
            [*_UNSHARE, "sh", "-euc", _MACHINE, "sh", *arguments, *kept],
            env={"HOME": "/mnt", "PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode == _UNREACHABLE:
            pytest.skip(f"an ordinary user cannot run the Python of this checkout: {done.stderr}")
        return done


@pytest.fixture
def bare(tmp_path: Path, installed_agents: InstalledAgents) -> BareMachine:
    for program in ("unshare", "setpriv"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    here = {Path(each).resolve() for each in (sys.base_prefix, sys.prefix, _CHECKOUT)}
    if any(path.is_relative_to(hidden) for path in here for hidden in _HIDDEN):
        pytest.skip(f"the checkout lies in one of {', '.join(_HIDDEN)}, which are covered here")
    installed_agents.install("pi")
    (tmp_path / "home").mkdir()
    return BareMachine(tmp_path / "home", installed_agents.tools.folder.resolve())


@pytest.mark.parametrize("umask", ["022", "077"])
@pytest.mark.parametrize("user", [0, _USER], ids=["root", "user"])
def test_the_demo_works(bare: BareMachine, user: int, umask: str) -> None:
    done = bare.demo(user=user, umask=umask)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^  ↻ resumed in box b-", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^  ✓ completed in ", done.stdout, re.MULTILINE), done.stdout


def test_a_demo_that_fails_says_once_what_to_do(bare: BareMachine) -> None:
    done = bare.demo(user=0, umask="022", file_system="noexec")
    assert done.returncode == 1, done.stdout + done.stderr
    said = re.search(r"^  ✗ failed after .*\n    (.*)\n    (.*)\n", done.stdout, re.MULTILINE)
    assert said is not None, done.stdout + done.stderr
    assert "may not run bubblewrap in the data folder" in said[1]
    assert "/mnt/.local/share/holdfast/local/runtime/" in said[1]  # where it is, and not where the launcher sees it
    assert "not mounted noexec" in said[2]
    assert done.stdout.endswith(said[0])
    assert "error" not in done.stderr, done.stderr
