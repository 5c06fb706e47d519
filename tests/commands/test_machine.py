"""What `bin/test` asks of a machine: what it lacks is installed, also in a bare clone, and a failure is explained."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
INSTALL = """
set -euo pipefail
checkout=$1
source "$checkout/bin/lib/environment.bash"
source "$checkout/bin/lib/machine.bash"
find_missing_packages() { missing_packages=(); [[ -e $checkout/installed ]] || missing_packages=(busybox-static); }
install_packages() { %s; }
install_missing_packages
explain_skipped
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout in which nothing was ever set up."""
    shutil.copytree(CHECKOUT / "bin", tmp_path / "clone" / "bin")
    return tmp_path / "clone"


def install(clone: Path, how: str) -> subprocess.CompletedProcess[str]:
    # Whoever runs the tests: it is as root that packages are installed.
    machine = clone / "bin" / "lib" / "machine.bash"
    machine.write_text(machine.read_text().replace("((EUID == 0))", "true").replace("command -v apt-get", "true"))
    return subprocess.run(
        ["bash", "-c", INSTALL % how, "bash", str(clone)], capture_output=True, text=True, timeout=240, check=False
    )


def test_packages_are_installed_in_a_clone_that_has_nothing_yet(clone: Path) -> None:
    done = install(clone, 'touch "$checkout/installed"')
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("  setting up   busybox-static ")
    assert "No such file" not in done.stderr


def test_where_they_cannot_be_installed_it_says_why_and_what_to_do(clone: Path) -> None:
    done = install(clone, "echo 'E: Unable to locate package busybox-static'; return 100")
    assert done.returncode == 0
    assert "apt-get failed, so some tests will be skipped" in done.stderr
    assert "Unable to locate package busybox-static" in done.stderr
    assert "as root: apt install --no-install-recommends busybox-static" in done.stdout


def test_a_folder_in_memory_is_new_and_lets_programs_run_or_there_is_none() -> None:
    made = subprocess.run(
        ["bash", "-c", 'source "$1" && make_folder_in_memory', "bash", str(CHECKOUT / "bin" / "lib" / "machine.bash")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if made.returncode:
        assert made.stdout == ""
        return
    folder = Path(made.stdout.strip())
    try:
        assert folder.is_relative_to("/dev/shm")
        assert list(folder.iterdir()) == []
    finally:
        folder.rmdir()
