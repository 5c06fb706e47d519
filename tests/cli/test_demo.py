"""`holdfast demo` on a machine where nothing runs yet: it starts what it needs, kills what it has, and finishes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents import InstalledAgents

from holdfast.cli.demo.demo import one_at_a_time
from holdfast.cli.demo.sample import FILES
from holdfast.cli.exits import Exit
from holdfast.client.local_server import is_alive, read_running

pytestmark = pytest.mark.xdist_group("runs of the command line")


CHECKOUT = Path(__file__).parents[2]


class Command:
    """The command, on a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "holdfast", *arguments],
            env={**os.environ, "HOLDFAST_HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=check,
        )


@pytest.fixture
def command(tmp_path: Path, installed_agents: InstalledAgents) -> Iterator[Command]:
    installed_agents.install("pi")
    installed_agents.share_with(tmp_path / "home")
    command = Command(tmp_path / "home")
    yield command
    if boxes := command("box", "list", "-q", check=False).stdout.split():
        command("box", "delete", "--yes", *boxes)
    command("down", check=False)


def told(text: str) -> list[str]:
    """The words of a demo, without what is different each time."""
    text = re.sub(r"http://\S+|\b[tb]-[0-9a-z]+\b|[\d.]+ min [\d.]+ s|[\d.]+ m?s\b|,", " ", text)
    text = re.sub(r"(?<=That should do\.).*\n", "\n", text)  # it is cut off somewhere
    text = re.sub(r"\d+ entries", "N entries", text)
    return text.split()


def check_readme(out: str) -> None:
    """The README shows what the demo prints. Its terminal is narrow, which breaks a line."""
    [block] = re.findall(
        r"```text\n\$ bin/holdfast demo\n  server .*\n([^`]*)```", (CHECKOUT / "README.md").read_text()
    )
    end = out.index("\n", out.index("  ✓ completed"))
    assert told(block) == told(out[:end])
    shown, printed = (list(map(int, re.findall(r"(\d+) entries", text))) for text in (block, out[:end]))
    # How many pieces an answer comes in depends on the time.
    assert all(abs(one - other) <= 3 for one, other in zip(shown, printed, strict=True)), (shown, printed)


def test_the_agent_repairs_the_program_although_its_box_is_killed(command: Command, tmp_path: Path) -> None:
    done = command("demo", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"^  server +http://127\.0\.0\.1:\d+  started in the background; stop it with holdfast down", done.stderr, re.M
    )
    out = done.stdout
    assert "#key=" not in out + done.stderr, "this is a pipe: the key of the page would stay in it"
    story = [
        r"  thread +(t-\S+)",
        r"  page +http://\S+/t/t-[^\s#]+",
        r"  box +(b-\S+) local \(bubblewrap, seccomp, no network\)  [\d.]+ (?:ms|s|min \d+ s)",
        r"  > The tests fail\. Find out why, and repair it\.",
        r"  ● pi \S+ · holdfast-demo/scripted",
        r"    I'll run the tests first\.",
        r"    \$ python3 -m unittest 2>&1 +✗ FAILED \(failures=1\) .*",
        r"    The failure is in price\.py: the discount is applied twice\.",
        r"    ✎ price\.py  \+1 −2",
        r"    That should do\..*",
        r"  ✗ box \2 killed \(on purpose\)  \d+ entries are safe on the thread",
        r"  ↻ resumed in box b-\S+, session rebuilt from the thread, files kept by a snapshot  \S+ \S+",
        r"    \$ python3 -m unittest 2>&1 +OK .*",
        r"    Fixed: the discount is now applied once, and all four tests pass\.",
        r"  ✓ completed in [\d.]+ (?:ms|s|min \d+ s) · 2 boxes · \d+ entries · \$0\.00",
        r"  changed +price\.py  \+1 −2",
        r"  next   holdfast diff \1",
        r"         holdfast fork \1",
    ]
    matched = re.search(r"(?:\n.*)*?\n".join(story), out)
    assert matched is not None, out
    check_readme(out)
    project = tmp_path / "prices"
    project.mkdir()
    for name, content in FILES.items():
        (project / name).write_text(content)
    patch = command("diff", matched[1]).stdout
    subprocess.run(["git", "apply", "-"], cwd=project, input=patch, text=True, check=True)
    subprocess.run([sys.executable, "-m", "unittest", "-q"], cwd=project, check=True, capture_output=True)
    assert "holdfast-demo" not in command("model", "list", "--json").stdout

    assert f"from {matched[1]}@2" in command("fork", matched[1]).stdout
    running = read_running(command.home)
    assert running is not None
    # The next command of the README: it finds the server that the demo left.
    assert f"server       {running.url}  already running" in command("up").stdout
    assert "stopped" in command("down").stdout
    assert not is_alive(running.pid)
    again = command("down", check=False)
    assert again.returncode == 5
    assert "no server is running on" in again.stderr
    command("box", "list", check=False)
    assert "started in the background" in command("resume", matched[1], "--detach", check=False).stderr


def test_a_second_demo_in_a_home_says_at_once_that_one_is_running(tmp_path: Path) -> None:
    """They would use the same model, and the first to end would take it from the other."""
    home = tmp_path / "home"
    with one_at_a_time(home):
        second = Command(home)("demo", check=False)
    assert second.returncode == Exit.CONFLICT
    assert f"a demo is already running in {home}" in second.stderr
    assert "holdfast demo --home DIR" in second.stderr
    assert read_running(home) is None, "nothing was started"
    with one_at_a_time(home):
        pass
