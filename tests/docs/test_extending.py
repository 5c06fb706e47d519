"""The guides in docs/extending, followed word for word in a copy of the code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.testing.model import ScriptedModel, text

CHECKOUT = Path(__file__).parents[2]
GUIDES = CHECKOUT / "docs/extending"
FILE = re.compile(r"^`([\w/]+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^In [^\n`]*`(\w+)`[^\n]*`([\w/]+\.py)`:\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Copy:
    """The code, as somebody changes it, with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self._package = folder / "src/holdfast"
        shutil.copytree(CHECKOUT / "src/holdfast", self._package, ignore=shutil.ignore_patterns("__pycache__"))
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(folder / "src"),
            "HOLDFAST_HOME": str(folder / "home"),
            "NO_COLOR": "1",
        }

    def follow(self, guide: str) -> None:
        told = (GUIDES / guide).read_text()
        files, lines = FILE.findall(told), LINE.findall(told)
        assert files
        assert lines
        for name, code in files:
            path = self._package / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(code)
        for place, name, line in lines:
            path = self._package / name
            before = path.read_text()
            # A table of that name, or a group of that name within one.
            opening = re.search(rf'^{place}: Final.*?= \{{\n|"{place}": Group\(\n.*\n +\{{\n', before, re.MULTILINE)
            assert opening is not None, f"{name} has no {place}"
            path.write_text(before[: opening.end()] + line + before[opening.end() :])

    @contextmanager
    def serving(self) -> Iterator[None]:
        command = [sys.executable, "-m", "holdfast", "up", "--port", "0", "--json"]
        with subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as server:
            assert server.stdout is not None
            assert server.stdout.readline()
            try:
                yield
            finally:
                self.run("down", "--all")

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *command],
            cwd=self._package.parent,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_a_harness_is_one_folder_and_one_line(copy: Copy) -> None:
    copy.follow("harness.md")
    with copy.serving(), ScriptedModel() as model:
        model.answer_sides(lambda request: text("The answer is six times seven."))  # an oracle offers no tools
        copy.run("model", "add", "mine", "--api", "openai-chat", "--base-url", f"{model.openai_url}", "--model", "m")
        assert "Oracle" in copy.run("agent", "show", "oracle")
        said = copy.run("run", "What is the answer?", "--agent", "oracle", "--model", "mine", "--empty")
        assert "six times seven" in said
        thread = re.findall(r"t-\w+", said)[0]
        box = re.findall(r"b-\w+", said)[0]
        copy.run("box", "delete", box, "--yes")
        assert "six times seven" in copy.run("resume", thread, "Are you sure?")
        asked = [message["content"] for message in model.requests[-1].body["messages"]]
    assert asked[:2] == ["What is the answer?", "The answer is six times seven."]
    assert asked[2].endswith("Are you sure?")  # after a word on what became of its files
    assert len(asked) == 3


def test_a_command_is_one_function_and_one_line(copy: Copy) -> None:
    copy.follow("command.md")
    with copy.serving():
        copy.run("thread", "new", "Counted", "--id", "t-counted")
        copy.run("thread", "append", "t-counted", "one")
        copy.run("thread", "append", "t-counted", "two")
        assert re.search(r"^2\s+chat$", copy.run("thread", "count", "t-counted").strip(), re.MULTILINE)
        told = copy.run("thread", "count", "t-counted", "--type", "chat", "--json")
        assert json.loads(told) == {"counts": {"chat": 2}}
        assert "Count the entries" in copy.run("thread", "--help")
