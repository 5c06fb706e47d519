"""The README's tour and the examples in docs/ do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.client.local_server import read_running

CHECKOUT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TUTORIAL = CHECKOUT / "docs/tutorials/first-ten-minutes.md"
PAGES = sorted([CHECKOUT / "README.md", TUTORIAL, *(CHECKOUT / "docs").glob("*.md")])
EXAMPLES = [
    pytest.param(path, number, code, id=f"{path.name}-{number}")
    for path in PAGES
    for number, (language, code) in enumerate(BLOCK.findall(path.read_text()), 1)
    if language == "python"
]


class Tour:
    """A user with a home of their own, following the README."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.environment = {**os.environ, "HOLDFAST_HOME": str(self.home), "HOME": str(folder), "NO_COLOR": "1"}
        self.up = subprocess.Popen(
            ["bin/holdfast", "up", "--daytona", "--port", "0"],
            cwd=CHECKOUT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.up.stdout is not None
        self.said = ""
        for line in self.up.stdout:
            self.said += line
            if "api key" in line:
                break
        running = read_running(self.home)
        assert running is not None, self.said
        self.url = running.url
        self.api_key = re.findall(r"hf_\S+", self.said)[0]

    def run(self, command: str) -> str:
        done = subprocess.run(
            command,
            shell=True,
            cwd=CHECKOUT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        self.up.terminate()
        self.up.communicate(timeout=240)


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    tour = Tour(tmp_path_factory.mktemp("tour"))
    tour.run('bin/holdfast thread new "Fix the flaky test" --id t-tour')
    tour.run('bin/holdfast thread append t-tour "It fails one time in ten."')
    yield tour
    tour.close()


def shown_commands(page: Path) -> list[str]:
    blocks = BLOCK.findall(page.read_text())
    return [
        line[2:] for language, code in blocks if language == "console" for line in code.splitlines() if line[:2] == "$ "
    ]


@pytest.mark.xdist_group("docs")
def test_the_readmes_tour_works_word_for_word(tmp_path: Path) -> None:
    up, *commands = shown_commands(CHECKOUT / "README.md")
    assert up == "bin/holdfast up"
    assert len(commands) == 7
    tour = Tour(tmp_path)
    try:
        assert "server" in tour.said
        assert str(tour.home) in tour.said
        outputs = [tour.run(command) for command in commands]
        assert "It fails one time in ten." in outputs[2]
        assert "Fix the flaky test" in outputs[3]
        id = outputs[4].split()[0]
        assert outputs[5] == f"hello from {id}\n"
        assert id in outputs[6]
        tour.run(f"bin/holdfast box delete --yes {id}")
        curl = next(code for language, code in BLOCK.findall((CHECKOUT / "README.md").read_text()) if "curl" in code)
        assert "one time in ten" in tour.run(curl.replace("http://127.0.0.1:8484", tour.url))
    finally:
        tour.close()


@pytest.mark.xdist_group("docs")
def test_the_first_tutorial_works_word_for_word(tour: Tour) -> None:
    commands = shown_commands(TUTORIAL)
    assert len(commands) == 13
    outputs = {command: tour.run(command) for command in commands[:3]}
    assert outputs["bin/holdfast box exec first -- cat /workspace/note"] == "one\n"
    outputs |= {command: tour.run(command) for command in commands[3:]}
    assert outputs["bin/holdfast box exec first -- cat /workspace/note"] == "two\n"
    assert "Hello." in outputs["bin/holdfast thread entries t-first"]


@pytest.mark.xdist_group("docs")
@pytest.mark.parametrize(("path", "number", "code"), EXAMPLES)
def test_examples_run(path: Path, number: int, code: str, tour: Tour, tmp_path: Path) -> None:
    assert httpx.get(f"{tour.url}/health").status_code == 200
    program = f"url, api_key = {tour.url!r}, {tour.api_key!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env=tour.environment,
    )
    assert done.returncode == 0, done.stderr
